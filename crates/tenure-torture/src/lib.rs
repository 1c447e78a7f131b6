//! Tries to break a lock on the store of its user, judges the result, and draws what happened.
//!
//! A run has worker processes that acquire names in all modes, hold them, access a register and release them ([`worker`]).
//! On a store with elections half of them are candidates too, and the other half observe who leads. A
//! schedule of faults from one seed ([`mod@plan`]) is injected into the worker that holds at that moment ([`nemesis`]).
//! The checker judges the log of events ([`event`]) afterwards by the guarantees of the store ([`checker`]).
//!
//! Four mistakes are easily made in such a program:
//!
//! - A gap that is measured between holders misses a name that no worker gets again; so the last gap ends with the run.
//! - With too many faults a run looks safe because nothing is granted. So there is a least number of acquisitions, and
//!   "not enough" is a verdict of its own.
//! - A pause hardly ever falls between the check of the guard and the write. So a worker works between the two.
//! - Small messages over a socket wait for each other's acknowledgement. So each is one write, without delay.

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "in a test a panic is the report")
)]

mod attaching;
mod campaign;
pub mod checker;
mod claim;
pub mod clock;
pub mod detached;
mod documented;
mod earlier_tokens;
pub mod elections;
pub mod event;
pub mod history;
mod legend;
pub mod locks;
pub mod mode;
pub mod monitor;
pub mod nemesis;
pub mod observer_checker;
mod observing;
pub mod phase;
mod places;
pub mod plan;
pub mod processes;
pub mod proxy;
pub mod random;
mod receipts;
pub mod register;
pub mod report;
pub mod report_page;
mod rounds;
pub mod runner;
pub mod server_url;
pub mod settings;
mod settled;
mod sights;
pub mod text;
pub mod timeline;
mod who;
pub mod worker;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tenure::guarantees::Guarantees;
use tenure::store::ErrorParts as _;
use tenure::{Client, Error, ErrorKind, Lock};

use mode::{HoldMode, Modes};
use monitor::StoreMonitor;
use report::Report;
use runner::Setup;
use settings::Workload;

/// A lock whose lease is at least this long lives as long as its process.
const NO_LEASE: Duration = Duration::from_secs(3600);

/// How often the first grant of a run is asked for.
const MAX_ATTEMPTS: u32 = 5;
/// The longest pause between these attempts: a longer lease does not end by chance.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether `tenure torture` works with the store of this URL. Sends no request.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for a store that workers cannot share.
pub fn check(url: &str) -> Result<(), Error> {
    match url.starts_with("memory:") {
        true => Err(Error::new(
            ErrorKind::Unsupported,
            "other processes cannot reach a store in memory, so there is nothing to break; use file: or a server",
        )),
        false => Ok(()),
    }
}

/// A whole run on a real store: checks that the store grants at all, runs workers and faults until the time is over or
/// `stop` is set, judges, and writes the page and the picture. `shown`: the store as it may be named in public. `tell`
/// is called with each fault when it begins. `connect`: makes a client of a URL, as the workers do.
///
/// # Errors
/// The errors of connecting and of a first acquisition, the errors of processes, ports and files, and
/// [`ErrorKind::Unsupported`] for a mode that was asked for and that the store does not have.
pub async fn torture(
    setup: Setup,
    shown: String,
    stop: Arc<AtomicBool>,
    mut tell: impl FnMut(&str) + Send + 'static,
    connect: impl AsyncFn(&str) -> Result<Client, Error>,
) -> Result<Report, Error> {
    check(&setup.url)?;
    let client = connect(&setup.url).await?;
    let mut setup = setup;
    let promises = client.guarantees().clone();
    let asked = setup.workload.modes;
    setup.workload.modes = modes_to_mix(asked, &promises)?;
    let names = runner::names(&setup);
    setup.workload.ttl = lease(&client, &names[0], &setup.workload).await?;
    runner::prepare(&setup.out).map_err(|error| refused(&setup, error))?;
    let (_, left_out) = runner::possible(&setup.url, setup.environment.as_deref());
    let log = runner::events_of(&setup.out);
    let mut monitor = StoreMonitor::new(
        client.clone(),
        names[0].clone(),
        setup.workload.ttl,
        log.clone(),
    );
    monitor.remember_state().await;
    let gone = {
        let (inner, names) = (setup.clone(), names.clone());
        // The run starts threads and processes and blocks until they have ended.
        let run = move || runner::run(&inner, &names, &stop, &mut tell);
        let run = tokio::task::spawn_blocking(run);
        tokio::select! {
            ended = run => {
                let broke_off = |error| Error::new(ErrorKind::Store, "the run broke off").with_source(error);
                ended.map_err(broke_off)?.map_err(|error| refused(&setup, error))?
            }
            never = monitor.run() => match never {},
        }
    };
    monitor.finish();
    let events = event::read(&log).map_err(|error| refused(&setup, error))?;
    let history = history::History::of(&events);
    let findings = checker::check(&history, &promises, setup.workload.ttl, &setup.faults);
    let left_over = left_over(&client, &names, setup.workload.ttl).await;
    drop(gone);
    client.close().await;
    let report = Report {
        seed: setup.seed,
        store: shown,
        history,
        findings,
        left_over,
        left_out,
        has_elections: has_elections(asked, setup.workload.modes),
        events: runner::events_of(&setup.out),
        page: setup.out.join("page.html"),
        picture: setup.out.join("timeline.svg"),
    };
    draw(&report).map_err(|error| refused(&setup, error))?;
    Ok(report)
}

/// Writes the page and the picture of a run.
fn draw(report: &Report) -> std::io::Result<()> {
    std::fs::write(&report.page, report_page::report_page(report))?;
    std::fs::write(&report.picture, timeline::picture(report))
}

/// The modes that the store has, of those that were asked for.
fn modes_to_mix(asked: Modes, promises: &Guarantees) -> Result<Modes, Error> {
    let had = asked.had_by(promises);
    let missing: Vec<_> = asked.iter().filter(|mode| !had.contains(*mode)).collect();
    match missing.first() {
        Some(HoldMode::Election) if asked != Modes::ALL => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{} has no elections; leave them out of --modes",
                promises.scheme
            ),
        )),
        Some(mode) if asked != Modes::ALL => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{} has no holds of the mode {mode}; leave it out of --modes",
                promises.scheme
            ),
        )),
        _ => Ok(had),
    }
}

/// Whether the run has elections; `None` if it was asked for none.
fn has_elections(asked: Modes, modes: Modes) -> Option<bool> {
    asked
        .contains(HoldMode::Election)
        .then(|| modes.contains(HoldMode::Election))
}

/// The lease that the store really grants. It may be longer than requested, and faults have to last longer than the
/// lease. A store that grants nothing, or that another run uses, is an error here.
async fn lease(client: &Client, name: &str, workload: &Workload) -> Result<Duration, Error> {
    let ttl = workload.ttl;
    let mode = workload.modes.iter().next().unwrap_or_default();

    // The first request opens connections; a short lease may not last for that.
    drop(client.inspect(name).await?);
    let lock = mode.applied_to(client.lock(name).ttl(ttl));
    let mut attempts = 1;
    loop {
        match granted_lease(&lock).await {
            Ok(Some(left)) if left < NO_LEASE => return Ok(ttl.max(left)),
            Ok(Some(_)) => return Ok(ttl),
            // What the attempt before has left ends with its lease.
            Ok(None) if attempts > 1 && attempts < MAX_ATTEMPTS => {}
            Ok(None) => return Err(held_by_another_run(name)),
            Err(error) if is_late(&error) && attempts < MAX_ATTEMPTS => {}
            Err(error) => return Err(error),
        }
        attempts += 1;
        tokio::time::sleep(ttl.min(PAUSE)).await;
    }
}

/// Acquires and releases once, and returns what was left of the lease; none if the name is held.
async fn granted_lease(lock: &Lock) -> Result<Option<Duration>, Error> {
    let Some(guard) = lock.try_acquire().await? else {
        return Ok(None);
    };
    let left = guard.remaining();
    guard.release().await?;
    Ok(Some(left))
}

/// Whether a machine with much other work may be the reason: a round trip or this process took longer than a short
/// lease allows.
fn is_late(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Invalid | ErrorKind::Indeterminate | ErrorKind::Lost
    )
}

fn held_by_another_run(name: &str) -> Error {
    Error::new(
        ErrorKind::WaitElapsed,
        format!("{name} is held, so another run uses this store; try again when it has ended"),
    )
}

/// The names that are still held or waited for when all leases of the run are over.
async fn left_over(client: &Client, names: &[String], ttl: Duration) -> Vec<String> {
    let end = clock::now() + clock::nanos(ttl * 3 + Duration::from_secs(5));
    loop {
        let mut left = Vec::new();
        for name in names {
            // A store without inspection can show nothing.
            if let Ok(status) = client.inspect(name).await
                && (status.is_held() || status.queue.is_some_and(|queue| !queue.is_empty()))
            {
                left.push(name.clone());
            }
        }
        if left.is_empty() || clock::now() > end {
            return left;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn refused(setup: &Setup, error: io::Error) -> Error {
    let message = format!(
        "cannot run in {}: {error}; name another directory with --out",
        setup.out.display()
    );
    Error::new(ErrorKind::Store, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_testkit::needs;
    use tenure_testkit::proxy::{Fault, Proxy};
    use tenure_testkit::redis::Redis;

    fn workload() -> Workload {
        Workload {
            workers: 1,
            tasks: 1,
            names: 1,
            ttl: Duration::from_secs(4),
            hold: Duration::from_secs(1),
            only_tries: false,
            modes: Modes::EXCLUSIVE,
        }
    }

    #[tokio::test]
    async fn a_first_grant_of_unknown_outcome_is_asked_for_again() {
        needs!(redis);
        let server = Redis::start(&[]);
        let proxy = Proxy::redis(server.port());
        let options = "?timeout=20s&restart_guard=off";
        let client = tenure::connect(&(server.url_by(proxy.port()) + options))
            .await
            .unwrap();
        proxy.plan("acquire", Fault::CutAfter);
        let ttl = lease(&client, "x", &workload()).await.unwrap();
        assert!(proxy.is_done(), "the fault did not happen");
        assert_eq!(ttl, workload().ttl);
    }

    #[tokio::test]
    async fn a_name_that_is_held_belongs_to_another_run() {
        needs!(redis);
        let server = Redis::start(&[]);
        let client = tenure::connect(&(server.url() + "?restart_guard=off"))
            .await
            .unwrap();
        let held = client.lock("x").try_acquire().await.unwrap();
        let refused = lease(&client, "x", &workload()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WaitElapsed);
        drop(held);
    }
}
