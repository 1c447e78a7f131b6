//! From a release to the next grant, while two contend.

use std::io::{self, BufRead as _, BufReader};
use std::num::NonZeroU32;
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure::{Client, Error};
use tokio::sync::Mutex;

use super::common::HANDOFFS;
use super::common::system;
use super::contention::{ARGUMENT, Note, handoffs, parse};
use super::raw::Raw;
use super::report::Row;
use super::statistics::Figures;
use crate::clock;

/// From one holder's release to the next one's grant, while two contend.
pub(super) async fn contended(
    url: &str,
    client: &Client,
    name: &str,
    raw: Option<&Raw>,
    rounds: Option<NonZeroU32>,
) -> Result<Row, Error> {
    let rounds = rounds.map_or(HANDOFFS, NonZeroU32::get);
    let between_processes =
        |kind, place| between_processes(&[kind, place, name], rounds).map_err(system);
    let (ours, theirs) = match raw {
        // Each `memory:` is a store of its own, so its contenders are tasks of one process.
        Some(Raw::Memory(mutex)) => (
            between_tasks_ours(client, name, rounds).await?,
            Some(between_tasks_raw(mutex, rounds).await),
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

/// Between two tasks that use this client. Both locks are fair: who comes back at once waits for the other.
async fn between_tasks_ours(
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
async fn between_tasks_raw(mutex: &Mutex<()>, rounds: u32) -> Vec<Duration> {
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
fn between_processes([kind, place, name]: &[&str; 3], rounds: u32) -> io::Result<Vec<Duration>> {
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
