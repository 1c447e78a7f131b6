//! From a release to the next grant, while two contend.
//!
//! Each contender notes when it asked, when it got the lock, and when it began to release. A hand-off is what lies
//! between one's release and the other's grant, where the other had asked before the release.

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use tenure::{Client, Error};
use tokio::sync::Mutex;

use super::{ARGUMENT, raw, redis, sql};
use crate::clock;

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
fn handoffs(first: Vec<Note>, second: Vec<Note>) -> Vec<Duration> {
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

/// Between two tasks that use this client. Both locks are fair: who comes back at once waits for the other.
pub(super) async fn between_tasks_ours(
    client: &Client,
    name: &str,
    rounds: u32,
) -> Result<Vec<Duration>, Error> {
    let contend = async || -> Result<Vec<Note>, Error> {
        let lock = client.lock(name);
        let mut notes = Vec::new();
        for _ in 0..rounds {
            let asked = clock::now();
            let guard = lock.acquire().await?;
            let granted = clock::now();
            tokio::task::yield_now().await;
            notes.push(Note {
                asked,
                granted,
                released: clock::now(),
            });
            guard.release().await?;
        }
        Ok(notes)
    };
    let (first, second) = tokio::join!(contend(), contend());
    Ok(handoffs(first?, second?))
}

/// Between two tasks that use a mutex of the runtime.
pub(super) async fn between_tasks_raw(mutex: &Mutex<()>, rounds: u32) -> Vec<Duration> {
    let contend = async || {
        let mut notes = Vec::new();
        for _ in 0..rounds {
            let asked = clock::now();
            let guard = mutex.lock().await;
            let granted = clock::now();
            tokio::task::yield_now().await;
            notes.push(Note {
                asked,
                granted,
                released: clock::now(),
            });
            drop(guard);
        }
        notes
    };
    let (first, second) = tokio::join!(contend(), contend());
    handoffs(first, second)
}

/// Between two processes: this program again, as [`worker`].
pub(super) fn between_processes(
    [kind, place, name]: &[&str; 3],
    rounds: u32,
) -> io::Result<Vec<Duration>> {
    let start = |which: &str| {
        Command::new("/proc/self/exe")
            .args([ARGUMENT, kind, name, &rounds.to_string(), which])
            // Not an argument: everybody can read those, and a URL may hold a password.
            .env("TENURE_URL", place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
    };
    let mut workers = [start("0")?, start("1")?];
    // Both are up and connected before either begins.
    let mut readers = Vec::new();
    for worker in &mut workers {
        let stdout = worker.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut reader = BufReader::new(stdout);
        reader.read_line(&mut String::new())?;
        readers.push(reader);
    }
    for worker in &mut workers {
        drop(worker.stdin.take());
    }
    let mut notes = Vec::new();
    for (worker, reader) in workers.iter_mut().zip(readers) {
        notes.push(
            reader
                .lines()
                .map(|line| parse(&line?))
                .collect::<io::Result<Vec<_>>>()?,
        );
        if !worker.wait()?.success() {
            return Err(io::Error::other("a worker failed"));
        }
    }
    let second = notes.pop().unwrap_or_default();
    Ok(handoffs(notes.pop().unwrap_or_default(), second))
}

fn parse(line: &str) -> io::Result<Note> {
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

/// One contender: `tenure __bench lock|flock|publish|session NAME ROUNDS WHICH`, where WHICH is 0 or 1. Says that it is ready, waits for the end of its input,
/// then works and prints its notes.
pub(crate) fn worker(arguments: &[OsString]) -> ExitCode {
    let arguments: Vec<_> = arguments
        .iter()
        .filter_map(|argument| argument.to_str())
        .collect();
    let [kind, name, rounds, which] = arguments[..] else {
        return ExitCode::from(2);
    };
    let (Ok(rounds), Ok(place)) = (rounds.parse(), std::env::var("TENURE_URL")) else {
        return ExitCode::from(2);
    };
    let work = match kind {
        "lock" => on_runtime(contend_for_lock(&place, name, rounds)),
        "session" => on_runtime(sql::contend_in_session(&place, name, rounds)),
        "publish" => on_runtime(redis::contend_by_publish(&place, name, rounds, which)),
        _ => contend_for_flock(Path::new(&place), rounds).map_err(Into::into),
    };
    match work.and_then(|notes| Ok(print(&notes)?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenure: {error}");
            ExitCode::FAILURE
        }
    }
}

fn on_runtime<T>(
    work: impl Future<Output = Result<T, Box<dyn std::error::Error>>>,
) -> Result<T, Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

async fn contend_for_lock(
    url: &str,
    name: &str,
    rounds: u32,
) -> Result<Vec<Note>, Box<dyn std::error::Error>> {
    let client = tenure::connect(url).await?;
    wait_for_start()?;
    let lock = client.lock(name);
    let mut notes = Vec::new();
    for _ in 0..rounds {
        let asked = clock::now();
        let guard = lock.acquire().await?;
        let granted = clock::now();
        std::thread::sleep(HOLD);
        notes.push(Note {
            asked,
            granted,
            released: clock::now(),
        });
        guard.release().await?;
        std::thread::sleep(HOLD);
    }
    client.close().await;
    Ok(notes)
}

fn contend_for_flock(path: &Path, rounds: u32) -> io::Result<Vec<Note>> {
    let file = raw::open(path)?;
    wait_for_start()?;
    let mut notes = Vec::new();
    for _ in 0..rounds {
        let asked = clock::now();
        file.lock()?;
        let granted = clock::now();
        std::thread::sleep(HOLD);
        notes.push(Note {
            asked,
            granted,
            released: clock::now(),
        });
        file.unlock()?;
        std::thread::sleep(HOLD);
    }
    Ok(notes)
}

/// Says that this contender is ready, and waits until both are.
pub(super) fn wait_for_start() -> io::Result<()> {
    println!("ready");
    io::copy(&mut io::stdin().lock(), &mut io::sink()).map(drop)
}

fn print(notes: &[Note]) -> io::Result<()> {
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
