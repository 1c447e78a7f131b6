//! Measures one task that acquires and releases one name, which no other task wants.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use tenure::{Client, Error};

use super::common::{TURNS, Turn};
use super::raw::Raw;
use super::report::Row;
use super::statistics::Statistics;

/// Rounds that are thrown away: files are created, caches filled, connections opened.
const WARM_UP_ROUNDS: u32 = 20;

pub(super) async fn uncontended(
    client: &Client,
    name: &str,
    raw: Option<&Raw>,
    rounds: Option<NonZeroU32>,
) -> Result<Row, Error> {
    let lock = client.lock(name);
    let our_round = async || lock.acquire().await?.release().await;
    let raw_round = async || match raw {
        Some(raw) => raw.run_round(0).await,
        None => Ok(()),
    };
    take_turn(Some(WARM_UP_ROUNDS), our_round, &mut Vec::new()).await?;
    take_turn(Some(WARM_UP_ROUNDS), raw_round, &mut Vec::new()).await?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let rounds_per_turn = rounds.map(|rounds| rounds.get().div_ceil(TURNS));
    for _ in 0..TURNS {
        take_turn(rounds_per_turn, our_round, &mut ours).await?;
        if raw.is_some() {
            take_turn(rounds_per_turn, raw_round, &mut theirs).await?;
        }
    }
    Ok(Row {
        what: "acquire and release, free",
        raw_what: raw.map_or("", Raw::describe_round),
        ours: Statistics::new(ours),
        raw: raw.map(|_| Statistics::new(theirs)),
    })
}

async fn take_turn(
    rounds: Option<u32>,
    run_round: impl AsyncFn() -> Result<(), Error>,
    times: &mut Vec<Duration>,
) -> Result<(), Error> {
    let turn = Turn::new(rounds);
    while turn.begin_round() {
        let began = Instant::now();
        run_round().await?;
        times.push(began.elapsed());
    }
    Ok(())
}
