//! One of two processes that contend for a lock.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use super::contention::{HOLD, Note, print, wait_for_start};
use super::raw::{file, redis, sql};
use crate::clock;

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
        _ => file::contend_for_flock(Path::new(&place), rounds).map_err(Into::into),
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
