//! What two contenders note, and what follows from it.
//!
//! Each contender notes when it asked, when it got the lock, and when it began to release. A hand-off is what lies
//! between one's release and the other's grant, where the other had asked before the release.

use std::io::{self, Write as _};
use std::time::Duration;

/// First argument of a process that takes part in a measurement. Nobody types it.
pub(crate) const ARGUMENT: &str = "__bench";

/// How long each holds the lock, and how long it stays away afterwards: long enough for the other
/// to be waiting when it is released, and to be the one who gets it.
pub(super) const HOLD: Duration = Duration::from_micros(300);

/// One hold of one contender, on the clock that all processes share.
#[derive(Clone, Copy)]
pub(super) struct Note {
    pub(super) asked: u64,
    pub(super) granted: u64,
    pub(super) released: u64,
}

/// The times of hand-offs between two contenders.
pub(super) fn handoffs(first: Vec<Note>, second: Vec<Note>) -> Vec<Duration> {
    let mut all: Vec<(Note, usize)> = [first, second]
        .into_iter()
        .enumerate()
        .flat_map(|(who, notes)| notes.into_iter().map(move |note| (note, who)))
        .collect();
    all.sort_unstable_by_key(|(note, _)| note.granted);
    all.windows(2)
        .filter_map(|pair| match pair {
            [(before, one), (after, other)] if one != other && after.asked < before.released => {
                Some(Duration::from_nanos(
                    after.granted.saturating_sub(before.released),
                ))
            }
            _ => None,
        })
        .collect()
}

/// Says that this contender is ready, and waits until both are.
pub(super) fn wait_for_start() -> io::Result<()> {
    println!("ready");
    io::copy(&mut io::stdin().lock(), &mut io::sink()).map(drop)
}

pub(super) fn parse(line: &str) -> io::Result<Note> {
    let numbers: Vec<u64> = line
        .split(' ')
        .filter_map(|number| number.parse().ok())
        .collect();
    match numbers[..] {
        [asked, granted, released] => Ok(Note {
            asked,
            granted,
            released,
        }),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

pub(super) fn print(notes: &[Note]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    for Note {
        asked,
        granted,
        released,
    } in notes
    {
        writeln!(stdout, "{asked} {granted} {released}")?;
    }
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_who_waited_were_handed_something() {
        let note = |asked, granted, released| Note {
            asked,
            granted,
            released,
        };
        let first = vec![note(0, 1, 10), note(30, 31, 40)];
        let second = vec![note(5, 13, 20), note(35, 42, 50)];
        // 10 to 13 and 40 to 42; the grant at 31 was asked for when the lock was free.
        let expected = [3, 2].map(Duration::from_nanos);
        assert_eq!(handoffs(first, second), expected);
    }
}
