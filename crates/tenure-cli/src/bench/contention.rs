//! What two contenders do and record, and the hand-offs that follow from their records.
//!
//! Each contender records when it asked for the lock, when it got the lock, and when it began to release. A hand-off is
//! the time from the release of one to the grant of the other, if the other had asked before that release.

use std::io::{self, Write as _};
use std::time::Duration;

use crate::clock;

/// How long a contender holds the lock, and how long it pauses after the release: long enough for the other contender to
/// be waiting at the release, and to get the lock.
const HOLD: Duration = Duration::from_micros(300);

/// One hold of one contender, on the clock that all processes share.
#[derive(Clone, Copy)]
pub(super) struct HoldTimes {
    asked: u64,
    granted: u64,
    released: u64,
}

/// Acquires and releases `rounds` times. `hold` runs while the lock is held.
pub(super) async fn contend<G, E>(
    rounds: u32,
    mut acquire: impl AsyncFnMut() -> Result<G, E>,
    hold: impl AsyncFn(),
    mut release: impl AsyncFnMut(G) -> Result<(), E>,
) -> Result<Vec<HoldTimes>, E> {
    let mut holds = Vec::new();
    for _ in 0..rounds {
        let asked = clock::now();
        let guard = acquire().await?;
        let granted = clock::now();
        hold().await;
        let released = clock::now();
        holds.push(HoldTimes {
            asked,
            granted,
            released,
        });
        release(guard).await?;
    }
    Ok(holds)
}

/// Blocks the thread, as a contender in a process of its own does while it holds the lock and after its release.
pub(super) async fn pause() {
    std::thread::sleep(HOLD);
}

/// The times of hand-offs between two contenders.
pub(super) fn handoffs(first: Vec<HoldTimes>, second: Vec<HoldTimes>) -> Vec<Duration> {
    let mut all: Vec<(HoldTimes, usize)> = [first, second]
        .into_iter()
        .enumerate()
        .flat_map(|(contender, holds)| holds.into_iter().map(move |hold| (hold, contender)))
        .collect();
    all.sort_unstable_by_key(|(hold, _)| hold.granted);
    all.windows(2)
        .filter_map(|pair| match pair {
            [(before, one), (after, other)] if one != other && after.asked < before.released => {
                let nanos = after.granted.saturating_sub(before.released);
                Some(Duration::from_nanos(nanos))
            }
            _ => None,
        })
        .collect()
}

/// Prints that this contender is ready, and waits until standard input ends: then both are ready.
pub(super) fn wait_for_start() -> io::Result<()> {
    println!("ready");
    io::copy(&mut io::stdin().lock(), &mut io::sink()).map(drop)
}

/// Prints one line for each hold, for [`parse`].
pub(super) fn print(holds: &[HoldTimes]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    for hold in holds {
        writeln!(stdout, "{} {} {}", hold.asked, hold.granted, hold.released)?;
    }
    stdout.flush()
}

pub(super) fn parse(line: &str) -> io::Result<HoldTimes> {
    let numbers: Vec<u64> = line
        .split(' ')
        .filter_map(|number| number.parse().ok())
        .collect();
    match numbers[..] {
        [asked, granted, released] => Ok(HoldTimes {
            asked,
            granted,
            released,
        }),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handoff_needs_a_contender_that_waited() {
        let hold = |asked, granted, released| HoldTimes {
            asked,
            granted,
            released,
        };
        let first = vec![hold(0, 1, 10), hold(30, 31, 40)];
        let second = vec![hold(5, 13, 20), hold(35, 42, 50)];
        // 10 to 13 and 40 to 42; the grant at 31 was asked for when the lock was free.
        let expected = [3, 2].map(Duration::from_nanos);
        assert_eq!(handoffs(first, second), expected);
    }
}
