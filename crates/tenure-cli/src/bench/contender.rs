//! One of two processes that contend for a lock.

use std::ffi::OsString;
use std::process::ExitCode;

use super::common::AnyError;
use super::contention::{HoldTimes, contend, pause, print, wait_for_start};
use super::raw::{file, redis, sql};

/// First argument of a process that takes part in a measurement. Users do not type it.
pub(crate) const ARGUMENT: &str = "__bench";

/// One contender: `tenure __bench lock|flock|publish|session NAME ROUNDS CONTENDER`, where CONTENDER is 0 or 1 and the
/// environment variable `TENURE_URL` is the URL, or the file for `flock`. It prints that it is ready, waits for the end
/// of its input, contends, and prints the times of its holds.
pub(crate) fn contender(arguments: &[OsString]) -> ExitCode {
    let arguments: Vec<_> = arguments
        .iter()
        .filter_map(|argument| argument.to_str())
        .collect();
    let [kind, name, rounds, contender] = arguments[..] else {
        return ExitCode::from(2);
    };
    let (Ok(rounds), Ok(url)) = (rounds.parse(), std::env::var("TENURE_URL")) else {
        return ExitCode::from(2);
    };
    let work = async {
        let holds = match kind {
            "lock" => contend_for_lock(&url, name, rounds).await,
            "session" => sql::contend_for_session_lock(&url, name, rounds).await,
            "publish" => redis::contend_by_publish(&url, name, rounds, contender).await,
            _ => file::contend_for_flock(url.as_ref(), rounds).await,
        };
        Ok(print(&holds?)?)
    };
    match block_on(work) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenure: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn block_on(work: impl Future<Output = Result<(), AnyError>>) -> Result<(), AnyError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

async fn contend_for_lock(url: &str, name: &str, rounds: u32) -> Result<Vec<HoldTimes>, AnyError> {
    let client = crate::store::connect_to(url).await?;
    wait_for_start()?;
    let lock = client.lock(name);
    let acquire = async || lock.acquire().await;
    let holds = contend(rounds, acquire, pause, async |guard| {
        guard.release().await?;
        pause().await;
        Ok(())
    });
    let holds = holds.await?;
    client.close().await;
    Ok(holds)
}
