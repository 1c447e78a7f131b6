//! Measures the time from the release of one holder to the grant of the next one, while two contend.

use std::io::{self, BufRead as _, BufReader};
use std::num::NonZeroU32;
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure::{Client, Error};
use tokio::sync::Mutex;
use tokio::task::yield_now;

use super::common::measurement_error;
use super::contender::ARGUMENT;
use super::contention::{contend, handoffs, parse};
use super::raw::Raw;
use super::report::Row;
use super::statistics::Statistics;
use crate::platform;

/// Rounds of each contender when no number of rounds was given.
const DEFAULT_ROUNDS: u32 = 300;

pub(super) async fn handoff(
    url: &str,
    client: &Client,
    name: &str,
    raw: Option<&Raw>,
    rounds: Option<NonZeroU32>,
) -> Result<Row, Error> {
    let rounds = rounds.map_or(DEFAULT_ROUNDS, NonZeroU32::get);
    let (ours, theirs) = if let Some(Raw::Memory(mutex)) = raw {
        // Each `memory:` is a store of its own, so its contenders are tasks of one process.
        let ours = between_tasks(client, name, rounds).await?;
        (ours, Some(between_tasks_with_mutex(mutex, rounds).await?))
    } else {
        let between_processes =
            |kind, url| until_handed_over(kind, url, name, rounds).map_err(measurement_error);
        let ours = between_processes("lock", url)?;
        let theirs = match raw {
            Some(Raw::File(file)) => Some(between_processes("flock", file.path())?),
            Some(Raw::Redis(_)) => Some(between_processes("publish", url)?),
            Some(Raw::Sql(sql)) if sql.is_session() => Some(between_processes("session", url)?),
            _ => None,
        };
        (ours, theirs)
    };
    Ok(Row {
        what: "hand-off between two",
        raw_what: raw.map_or("", Raw::describe_handoff),
        ours: Statistics::new(ours),
        raw: theirs.map(Statistics::new),
    })
}

/// The lock is fair, so a task that asks again at once waits for the other task.
async fn between_tasks(client: &Client, name: &str, rounds: u32) -> Result<Vec<Duration>, Error> {
    let lock = client.lock(name);
    let acquire = async || lock.acquire().await;
    let release = async |guard: tenure::Guard| guard.release().await;
    let (first, second) = tokio::try_join!(
        contend(rounds, acquire, yield_now, release),
        contend(rounds, acquire, yield_now, release)
    )?;
    Ok(handoffs(first, second))
}

/// The mutex of tokio is fair, too.
async fn between_tasks_with_mutex(mutex: &Mutex<()>, rounds: u32) -> Result<Vec<Duration>, Error> {
    let acquire = async || Ok(mutex.lock().await);
    let release = async |guard| {
        drop(guard);
        Ok::<_, Error>(())
    };
    let (first, second) = tokio::try_join!(
        contend(rounds, acquire, yield_now, release),
        contend(rounds, acquire, yield_now, release)
    )?;
    Ok(handoffs(first, second))
}

/// So often two processes contend at most.
const MAX_ATTEMPTS: u32 = 8;

/// A busy machine may run one process after the other, so that the lock never passes between them. Then both contend again,
/// twice as often.
fn until_handed_over(kind: &str, url: &str, name: &str, rounds: u32) -> io::Result<Vec<Duration>> {
    let mut times = Vec::new();
    for attempt in 0..MAX_ATTEMPTS {
        let rounds = rounds.saturating_mul(1 << attempt);
        times = between_processes(kind, url, name, rounds)?;
        if !times.is_empty() {
            break;
        }
    }
    Ok(times)
}

/// Starts this program twice, as [`contender`](super::contender::contender).
fn between_processes(kind: &str, url: &str, name: &str, rounds: u32) -> io::Result<Vec<Duration>> {
    let start = |contender: &str| {
        Command::new(platform::current_program()?)
            .args([ARGUMENT, kind, name, &rounds.to_string(), contender])
            // Every user of the machine can read arguments, and a URL may have a password in it.
            .env("TENURE_URL", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
    };
    let mut contenders = [start("0")?, start("1")?];
    // Both have started and connected before either begins.
    let mut readers = Vec::new();
    for contender in &mut contenders {
        let stdout = contender.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut reader = BufReader::new(stdout);
        reader.read_line(&mut String::new())?;
        readers.push(reader);
    }
    for contender in &mut contenders {
        drop(contender.stdin.take());
    }
    let mut holds = Vec::new();
    for (contender, reader) in contenders.iter_mut().zip(readers) {
        let lines = reader.lines().map(|line| parse(&line?));
        holds.push(lines.collect::<io::Result<Vec<_>>>()?);
        if !contender.wait()?.success() {
            return Err(io::Error::other("a worker failed"));
        }
    }
    let second = holds.pop().unwrap_or_default();
    Ok(handoffs(holds.pop().unwrap_or_default(), second))
}
