//! One task that acquires and releases one name.

use std::num::NonZeroU32;
use std::time::Instant;

use tenure::{Client, Error};

use super::common::{BUDGET, TURNS, WARM_UP};
use super::raw::Raw;
use super::report::Row;
use super::statistics::Figures;

/// Acquire and release a name that nobody else wants.
pub(super) async fn uncontended(
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
