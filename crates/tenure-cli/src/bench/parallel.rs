//! Measures many tasks of one process at the same time, each with a name that no other task wants.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::{Client, Error, Lock};
use tokio::task::JoinSet;

use super::common::{TASKS, TURNS, Turn, measurement_error};
use super::raw::Raw;
use super::report::Row;
use super::statistics::Statistics;

pub(super) async fn parallel(
    client: &Client,
    name: &str,
    raw: Option<&Raw>,
    rounds: Option<NonZeroU32>,
) -> Result<Row, Error> {
    let locks: Arc<[Lock]> = (0..TASKS)
        .map(|task| client.lock(format!("{name}-{task}")))
        .collect();
    let our_round = move |task: usize| {
        let locks = locks.clone();
        async move { locks[task].acquire().await?.release().await }
    };
    let raw_round = raw.cloned().map(|raw| {
        move |task| {
            let raw = raw.clone();
            async move { raw.run_round(task).await }
        }
    });
    let rounds_per_turn = rounds.map(|rounds| rounds.get().div_ceil(TURNS));
    // The first round of each task opens connections and fills caches.
    let warm_up = Some(TASKS as u32);
    Side::default().take_turn(warm_up, &our_round).await?;
    if let Some(raw_round) = &raw_round {
        Side::default().take_turn(warm_up, raw_round).await?;
    }
    let (mut ours, mut theirs) = (Side::default(), Side::default());
    for _ in 0..TURNS {
        ours.take_turn(rounds_per_turn, &our_round).await?;
        if let Some(raw_round) = &raw_round {
            theirs.take_turn(rounds_per_turn, raw_round).await?;
        }
    }
    Ok(Row {
        what: "the same, 64 tasks at a time",
        raw_what: raw.map_or("", Raw::describe_round),
        ours: ours.statistics(),
        raw: raw_round.is_some().then(|| theirs.statistics()),
    })
}

/// What one side has done so far.
#[derive(Default)]
struct Side {
    times: Vec<Duration>,
    total: Duration,
}

impl Side {
    /// Lets every task run its round again and again until the turn is over.
    async fn take_turn<R, F>(&mut self, rounds: Option<u32>, run_round: &R) -> Result<(), Error>
    where
        R: Fn(usize) -> F + Clone + Send + 'static,
        F: Future<Output = Result<(), Error>> + Send,
    {
        let turn = Arc::new(Turn::new(rounds));
        let began = Instant::now();
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (turn, run_round) = (turn.clone(), run_round.clone());
            tasks.spawn(async move {
                let mut times = Vec::new();
                while turn.begin_round() {
                    let began = Instant::now();
                    run_round(task).await?;
                    times.push(began.elapsed());
                }
                Ok::<_, Error>(times)
            });
        }
        while let Some(times) = tasks.join_next().await {
            self.times.extend(times.map_err(measurement_error)??);
        }
        self.total += began.elapsed();
        Ok(())
    }

    fn statistics(self) -> Statistics {
        Statistics::of_parallel(self.times, self.total)
    }
}
