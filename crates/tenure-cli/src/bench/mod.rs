//! `tenure bench`: what a lock costs here, compared with bare requests to the same store.
//!
//! Both are measured in one run, in turns, so that what else the machine does hits both.

mod etcd;
mod figures;
mod handoff;
mod raw;
mod redis;
mod sql;
mod together;
mod zookeeper;

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
        let work = async |client: &Client| {
            let backend = client.guarantees().backend;
            // No other program uses this name.
            let name = format!("tenure-bench-{}", &OwnerId::random().to_hex()[..12]);
            let url = store::url(common);
            let raw = Raw::new(backend, url, &name).await?;
            let rows = measure(url, client, &name, raw.as_ref(), args.rounds).await;
            if let Some(raw) = raw {
                raw.end().await;
            }
            Ok((backend, rows?))
        };
        let (backend, rows) = store::with_client(common, work).await?;
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

/// All that can be measured on this store, in turns.
async fn measure(
    url: &str,
    client: &Client,
    name: &str,
    raw: Option<&Raw>,
    rounds: Option<NonZeroU32>,
) -> Result<Vec<Row>, Error> {
    // A server that grants nothing for a while says so to who does not wait.
    if let Some(guard) = client.lock(name).try_acquire().await? {
        guard.release().await?;
    }
    let mut rows = vec![uncontended(client, name, raw, rounds).await?];
    // Without a server there is nothing that many could share.
    if !matches!(raw, Some(Raw::Memory(_) | Raw::File(_))) {
        rows.push(together::together(client, name, raw, rounds).await?);
    }
    rows.push(contended(url, client, name, raw, rounds).await?);
    Ok(rows)
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
            raw.pair().await?;
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
            raw.pair().await?;
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
    url: &str,
    client: &Client,
    name: &str,
    raw: Option<&Raw>,
    rounds: Option<NonZeroU32>,
) -> Result<Row, Error> {
    let rounds = rounds.map_or(HANDOFFS, NonZeroU32::get);
    let between_processes =
        |kind, place| handoff::between_processes(&[kind, place, name], rounds).map_err(system);
    let (ours, theirs) = match raw {
        // Each `memory:` is a store of its own, so its contenders are tasks of one process.
        Some(Raw::Memory(mutex)) => (
            handoff::between_tasks_ours(client, name, rounds).await?,
            Some(handoff::between_tasks_raw(mutex, rounds).await),
        ),
        Some(Raw::File(file)) => (
            between_processes("lock", url)?,
            Some(between_processes("flock", file.path())?),
        ),
        Some(Raw::Redis(_)) => (
            between_processes("lock", url)?,
            Some(between_processes("publish", url)?),
        ),
        Some(Raw::Sql(sql)) if sql.is_session() => (
            between_processes("lock", url)?,
            Some(between_processes("session", url)?),
        ),
        Some(Raw::Etcd(_) | Raw::Zookeeper(_) | Raw::Sql(_)) | None => {
            (between_processes("lock", url)?, None)
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
        self.ours.ratio(self.raw.as_ref()?)
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
    let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".into());
    let rate = |figures: &Figures| figures.per_second.map(|rate| format!("{rate:.0}"));
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let raw = row.raw.as_ref();
            let of_raw =
                |time: fn(&Figures) -> Duration| or_dash(raw.map(|raw| figures::micros(time(raw))));
            vec![
                row.what.to_string(),
                row.ours.rounds.to_string(),
                figures::micros(row.ours.median),
                figures::micros(row.ours.p99),
                or_dash(rate(&row.ours)),
                of_raw(|raw| raw.median),
                of_raw(|raw| raw.p99),
                or_dash(raw.and_then(rate)),
                or_dash(row.ratio().map(|ratio| format!("{ratio:.2}"))),
                or_dash(raw.map(|_| row.raw_what.to_string())),
            ]
        })
        .collect();
    let head = [
        backend,
        "ROUNDS",
        "MEDIAN",
        "P99",
        "PER SECOND",
        "RAW MEDIAN",
        "RAW P99",
        "RAW PER SECOND",
        "RATIO",
        "RAW IS",
    ];
    // What this store has no figures for is left out.
    let shown: Vec<_> = (0..head.len())
        .filter(|column| cells.iter().any(|row| row[*column] != "-"))
        .collect();
    let pick = |row: &Vec<String>| shown.iter().map(|column| row[*column].clone()).collect();
    let rows: Vec<Vec<String>> = cells.iter().map(pick).collect();
    let head: Vec<_> = shown.iter().map(|column| head[*column]).collect();
    output::table(&head, &rows)
}

/// The address of the first server in a URL of the library, the path after the servers, and its options; for
/// stores without a parser of their own. `None`: a password or TLS, which the raw side has no use for.
fn plain_place<'a>(url: &'a str, scheme: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let rest = url.strip_prefix(scheme)?.strip_prefix("://")?;
    let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let is_plain = !hosts.contains('@') && !options.split('&').any(|option| option == "tls=on");
    let first = hosts.split(',').next().filter(|host| !host.is_empty())?;
    is_plain.then_some((first, path, options))
}

/// The same with the port that the scheme has by default.
fn with_port(host: &str, port: u16) -> String {
    let has_port = host
        .rsplit_once(':')
        .is_some_and(|(_, tail)| !tail.ends_with(']'));
    match has_port {
        true => host.to_owned(),
        false => format!("{host}:{port}"),
    }
}

/// An error that is none of the lock.
fn system(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Backend, "the measurement failed").with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_places() {
        let etcd = |url| plain_place(url, "etcd");
        assert_eq!(etcd("etcd://h"), Some(("h", "", "")));
        assert_eq!(
            etcd("etcd://a:1,b:2/x/y?prefix=p"),
            Some(("a:1", "x/y", "prefix=p"))
        );
        for url in [
            "etcds://h",
            "etcd://me:secret@h",
            "etcd://h?tls=on&ca=x",
            "etcd:///",
        ] {
            assert_eq!(etcd(url), None, "{url}");
        }
        assert_eq!(with_port("h", 7), "h:7");
        assert_eq!(with_port("h:1", 7), "h:1");
        assert_eq!(with_port("[::1]", 7), "[::1]:7");
        assert_eq!(with_port("[::1]:1", 7), "[::1]:1");
    }
}
