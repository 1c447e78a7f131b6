//! Many tasks of one process at a time, each with a name of its own.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tenure::{Client, Error, Lock};
use tokio::task::JoinSet;

use super::common::system;
use super::common::{BUDGET, TURNS, WORKERS};
use super::raw::Raw;
use super::report::Row;
use super::statistics::Figures;

/// When one side's turn is over: all workers count together.
struct Turn {
    rounds: Option<u32>,
    until: Instant,
    begun: AtomicU32,
}

impl Turn {
    fn new(rounds: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            rounds,
            until: Instant::now() + BUDGET / TURNS,
            begun: AtomicU32::new(0),
        })
    }

    fn goes_on(&self) -> bool {
        match self.rounds {
            Some(rounds) => self.begun.fetch_add(1, Ordering::Relaxed) < rounds,
            None => Instant::now() < self.until,
        }
    }
}

/// What one side has done so far.
#[derive(Default)]
struct Side {
    times: Vec<Duration>,
    total: Duration,
}

impl Side {
    /// Takes its turn: every worker does its `pair` again and again.
    async fn take<P, F>(&mut self, turn: Arc<Turn>, pair: P) -> Result<(), Error>
    where
        P: Fn(usize) -> F + Clone + Send + 'static,
        F: Future<Output = Result<(), Error>> + Send,
    {
        let began = Instant::now();
        let mut workers = JoinSet::new();
        for number in 0..WORKERS {
            let (turn, pair) = (turn.clone(), pair.clone());
            workers.spawn(async move {
                let mut times = Vec::new();
                while turn.goes_on() {
                    let began = Instant::now();
                    pair(number).await?;
                    times.push(began.elapsed());
                }
                Ok::<_, Error>(times)
            });
        }
        while let Some(times) = workers.join_next().await {
            self.times.extend(times.map_err(system)??);
        }
        self.total += began.elapsed();
        Ok(())
    }

    fn figures(self) -> Figures {
        Figures::side_by_side(self.times, self.total)
    }
}

/// Acquire and release names that nobody else wants, side by side.
pub(super) async fn parallel(
    client: &Client,
    name: &str,
    raw: Option<&Raw>,
    rounds: Option<NonZeroU32>,
) -> Result<Row, Error> {
    let locks: Arc<[Lock]> = (0..WORKERS)
        .map(|number| client.lock(format!("{name}-{number}")))
        .collect();
    let our_pair = move |number: usize| {
        let locks = locks.clone();
        async move { locks[number].acquire().await?.release().await.map(drop) }
    };
    let raw_pair = raw.and_then(Raw::pairs).map(|pairs| {
        let pairs = Arc::new(pairs);
        move |number| {
            let pairs = pairs.clone();
            async move { pairs.pair(number).await }
        }
    });
    let per_turn = rounds.map(|rounds| rounds.get().div_ceil(TURNS));
    // What is done for the first time is not counted.
    let warm_up = Some(WORKERS as u32);
    Side::default()
        .take(Turn::new(warm_up), our_pair.clone())
        .await?;
    if let Some(raw_pair) = &raw_pair {
        Side::default()
            .take(Turn::new(warm_up), raw_pair.clone())
            .await?;
    }
    let (mut ours, mut theirs) = (Side::default(), Side::default());
    for _ in 0..TURNS {
        ours.take(Turn::new(per_turn), our_pair.clone()).await?;
        if let Some(raw_pair) = &raw_pair {
            theirs.take(Turn::new(per_turn), raw_pair.clone()).await?;
        }
    }
    Ok(Row {
        what: "the same, 64 tasks at a time",
        raw_what: raw.map_or("", Raw::pair_name),
        ours: ours.figures(),
        raw: raw_pair.is_some().then(|| theirs.figures()),
    })
}
