//! `tenure bench`: what a lock costs here, beside the rawest way to do the same on the same store.
//!
//! Both are measured in one run, in turns, so that what else the machine does hits both.

mod figures;
mod handoff;
mod raw;

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use serde_json::json;
use tenure::{Client, Error, ErrorKind, OwnerId};

use crate::args::{self, Common};
use crate::exit::Exit;
use crate::look::answer;
use crate::output::{self, Talk};
use crate::store;
use figures::Figures;
use raw::Raw;

pub(crate) use handoff::worker;

/// First argument of a process that takes part in a measurement. Nobody types it.
pub(crate) const ARGUMENT: &str = "__bench";

/// Both sides take turns this many times.
const TURNS: u32 = 10;
/// Time for one side of one measurement when no number of rounds was given.
const BUDGET: Duration = Duration::from_millis(500);
/// Rounds that are thrown away: files are created, caches filled, connections opened.
const WARM_UP: u32 = 20;
/// Hand-offs per side when no number of rounds was given.
const HANDOFFS: u32 = 300;

/// One line of the answer.
struct Row {
    what: &'static str,
    raw_what: &'static str,
    ours: Figures,
    raw: Option<Figures>,
}

/// Measures and prints.
pub(crate) async fn bench(common: &Common, args: &args::Bench, talk: &Talk) -> Exit {
    answer(talk, async {
        let client = store::connect(common).await?;
        let backend = client.guarantees().backend;
        // Nobody else uses this name.
        let name = format!("tenure-bench-{}", &OwnerId::random().to_hex()[..12]);
        let raw = Raw::new(backend).map_err(system)?;
        let rows = vec![
            uncontended(&client, &name, raw.as_ref(), args.rounds).await?,
            contended(common, &client, &name, raw.as_ref(), args.rounds).await?,
        ];
        client.close().await;
        let lines = match talk.json {
            true => rows
                .iter()
                .map(|row| row.to_json(backend).to_string())
                .collect(),
            false => vec![as_table(backend, &rows)],
        };
        Ok((lines, Exit::Done))
    })
    .await
}

/// Acquire and release a name that nobody else wants.
async fn uncontended(
    client: &Client,
    name: &str,
    raw: Option<&Raw>,
    rounds: Option<NonZeroU32>,
) -> Result<Row, Error> {
    let lock = client.lock(name);
    for _ in 0..WARM_UP {
        lock.acquire().await?.release().await?;
        if let Some(raw) = raw {
            raw.pair().await.map_err(system)?;
        }
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let per_turn = rounds.map(|rounds| rounds.get().div_ceil(TURNS));
    for _ in 0..TURNS {
        let turn = Turn::new(per_turn);
        while turn.goes_on(ours.len()) {
            let began = Instant::now();
            lock.acquire().await?.release().await?;
            ours.push(began.elapsed());
            turn.count();
        }
        let Some(raw) = raw else { continue };
        let turn = Turn::new(per_turn);
        while turn.goes_on(theirs.len()) {
            let began = Instant::now();
            raw.pair().await.map_err(system)?;
            theirs.push(began.elapsed());
            turn.count();
        }
    }
    Ok(Row {
        what: "acquire and release, free",
        raw_what: raw.map_or("", Raw::pair_name),
        ours: Figures::of(ours),
        raw: raw.map(|_| Figures::of(theirs)),
    })
}

/// From one holder's release to the next one's grant, while two contend.
async fn contended(
    common: &Common,
    client: &Client,
    name: &str,
    raw: Option<&Raw>,
    rounds: Option<NonZeroU32>,
) -> Result<Row, Error> {
    let rounds = rounds.map_or(HANDOFFS, NonZeroU32::get);
    let (ours, theirs) = match raw {
        // Each `memory:` is a store of its own, so its contenders are tasks of one process.
        Some(Raw::Memory(mutex)) => (
            handoff::between_tasks_ours(client, name, rounds).await?,
            Some(handoff::between_tasks_raw(mutex, rounds).await),
        ),
        Some(Raw::File(file)) => (
            handoff::between_processes(&["lock", store::url(common), name], rounds)
                .map_err(system)?,
            Some(
                handoff::between_processes(&["flock", file.path(), name], rounds)
                    .map_err(system)?,
            ),
        ),
        None => {
            let ours = handoff::between_processes(&["lock", store::url(common), name], rounds);
            (ours.map_err(system)?, None)
        }
    };
    Ok(Row {
        what: "hand-off between two",
        raw_what: raw.map_or("", Raw::handoff_name),
        ours: Figures::of(ours),
        raw: theirs.map(Figures::of),
    })
}

/// One side's turn: so many rounds, or so much time.
struct Turn {
    rounds: Option<u32>,
    until: Instant,
    done: std::cell::Cell<u32>,
}

impl Turn {
    /// More rounds than this say nothing new, and their times would only fill memory.
    const MOST: usize = 200_000;

    fn new(rounds: Option<u32>) -> Self {
        Self {
            rounds,
            until: Instant::now() + BUDGET / TURNS,
            done: std::cell::Cell::new(0),
        }
    }

    fn goes_on(&self, so_far: usize) -> bool {
        match self.rounds {
            Some(rounds) => self.done.get() < rounds,
            None => self.done.get() == 0 || so_far < Self::MOST && Instant::now() < self.until,
        }
    }

    fn count(&self) {
        self.done.set(self.done.get() + 1);
    }
}

impl Row {
    fn ratio(&self) -> Option<f64> {
        let raw = self.raw.as_ref()?.median;
        (!raw.is_zero()).then(|| self.ours.median.as_secs_f64() / raw.as_secs_f64())
    }

    fn to_json(&self, backend: &str) -> serde_json::Value {
        json!({
            "backend": backend,
            "what": self.what,
            "ours": self.ours.to_json(),
            "raw": self.raw.as_ref().map(Figures::to_json),
            "raw_what": self.raw.as_ref().map(|_| self.raw_what),
            "ratio": self.ratio(),
        })
    }
}

fn as_table(backend: &str, rows: &[Row]) -> String {
    let dash = || "-".to_string();
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            let raw = row.raw.as_ref();
            vec![
                row.what.to_string(),
                row.ours.rounds.to_string(),
                figures::micros(row.ours.median),
                figures::micros(row.ours.p99),
                raw.map_or_else(dash, |raw| figures::micros(raw.median)),
                raw.map_or_else(dash, |raw| figures::micros(raw.p99)),
                row.ratio().map_or_else(dash, |ratio| format!("{ratio:.2}")),
                raw.map_or_else(dash, |_| row.raw_what.to_string()),
            ]
        })
        .collect();
    let head = [
        backend,
        "ROUNDS",
        "MEDIAN",
        "P99",
        "RAW MEDIAN",
        "RAW P99",
        "RATIO",
        "RAW IS",
    ];
    output::table(&head, &rows)
}

fn system(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Backend, "the measurement failed").with_source(error)
}
