//! A worker process: acquires names, holds and releases them, and observes elections, until the runner ends it.

use std::io;
use std::time::Duration;

use rustix::process::getppid;
use tenure::{Client, Error};
use tokio::sync::watch;

pub use crate::locks::{Held, Locks, Observer, Tenure};
pub use crate::phase::Phase;
pub use crate::settings::{Settings, VARIABLE, Workload, task_of, worker_of};

use crate::mode::HoldMode;
use crate::observing::observe;
use crate::phase;
use crate::rounds::Work;

/// A worker on the library: the whole life of its process. `connect`: makes a client of a URL.
///
/// # Errors
/// The reason why the worker could not work; for its log.
pub fn main(connect: impl AsyncFn(&str) -> Result<Client, Error>) -> Result<(), String> {
    run(async |settings: Settings| {
        // A store that does not answer now may answer later.
        let mut wait = Duration::from_millis(20);
        loop {
            match connect(&settings.url).await {
                Ok(client) => break Ok(Tenure::of_client(client, &settings)),
                Err(error) if error.is_retryable() => {
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_millis(500));
                }
                Err(error) => break Err(format!("{error:#}")),
            }
        }
    })
}

/// A worker on the locks that `connect` returns.
///
/// # Errors
/// The reason why the worker could not work; for its log.
pub fn run<L: Locks>(connect: impl AsyncFn(Settings) -> Result<L, String>) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let settings = std::env::var(VARIABLE).map_err(|error| error.to_string())?;
    let settings: Settings = serde_json::from_str(&settings).map_err(|error| error.to_string())?;
    // The worker ends with the runner, also when it is stopped.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| text(error.into()))?;
    if getppid().is_none_or(|parent| parent.as_raw_pid() != settings.runner) {
        return Ok(());
    }
    let phases = phase::from_standard_input();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(text)?;
    let done = runtime.block_on(async {
        let mut changed = phases.clone();
        let locks = tokio::select! {
            locks = connect(settings.clone()) => locks?,
            _ = changed.changed() => return Ok(()),
        };
        let worked = work(&settings, &locks, phases).await.map_err(text);
        locks.close().await;
        worked
    });
    runtime.shutdown_background();
    done
}

/// Works, in several tasks, and observes elections, until the phase is [`Phase::End`].
///
/// # Errors
/// The errors of the register and of the log.
pub async fn work<L: Locks>(
    settings: &Settings,
    locks: &L,
    phases: watch::Receiver<Phase>,
) -> io::Result<()> {
    tokio::select! {
        worked = work_from(settings, locks, &phases, 0) => worked,
        failed = observe(settings, locks, settings.observed()) => match failed? {},
    }
}

/// The work of the tasks from this one on.
async fn work_from<L: Locks>(
    settings: &Settings,
    locks: &L,
    phases: &watch::Receiver<Phase>,
    task: usize,
) -> io::Result<()> {
    let own = acquire_and_release(settings, locks, phases.clone(), task);
    if task + 1 >= settings.workload.tasks {
        return own.await;
    }
    let others = Box::pin(work_from(settings, locks, phases, task + 1));
    tokio::try_join!(own, others).map(drop)
}

/// Acquires, holds and releases, round after round.
async fn acquire_and_release<L: Locks>(
    settings: &Settings,
    locks: &L,
    mut phases: watch::Receiver<Phase>,
    task: usize,
) -> io::Result<()> {
    let mut work = Work::begin(settings, phases.clone(), task).await?;
    let has_locks = settings.lock_modes().iter().next().is_some();
    let has_elections = !settings.campaigns().is_empty();
    while work.goes_on() {
        if work.attach(locks).await? {
            continue;
        }
        let mode = match has_elections && (!has_locks || work.random.between(0, 2) == 0) {
            true => HoldMode::Election,
            false => settings.lock_modes().choose(&mut work.random),
        };
        match mode {
            HoldMode::Election => work.campaign(locks).await?,
            mode => work.lock(locks, mode).await?,
        }
    }
    match (settings.worker, task) {
        (0, 0) => return work.lead_last(locks).await,
        // The process ends when its first task has led for long enough.
        (0, _) => return Ok(()),
        _ => {}
    }
    // An error means that the phases have ended.
    let _ = phases.wait_for(|phase| *phase == Phase::End).await;
    Ok(())
}
