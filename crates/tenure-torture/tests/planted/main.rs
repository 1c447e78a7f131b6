//! Tests of the torture harness: it must find the mistake of each broken lock client, and no mistake of a correct one.
//!
//! A run ends when the mistake was seen. So no test here depends on how fast this machine is.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod broken;
mod in_process;
mod lying_store;
mod observer;
mod observers;
mod store;
mod tasks;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use broken::{Locks, Mistake};
use store::Store;
use tenure::guarantees::{Cell, Fault, Guarantees, Order, Promise};
use tenure_torture::checker::{self, Findings, Verdict};
use tenure_torture::clock::now;
use tenure_torture::event::{self, Event};
use tenure_torture::history::History;
use tenure_torture::mode::Modes;
use tenure_torture::nemesis::Environment;
use tenure_torture::plan::FaultKind;
use tenure_torture::processes::Program;
use tenure_torture::runner::{self, Setup};
use tenure_torture::worker::{VARIABLE, Workload};

/// The worker process, and not a test: the harness starts this program again with the name of this function.
#[test]
fn worker_process() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let connect = async |settings| {
        let locks: &'static Locks = Box::leak(Box::new(Locks::new(&settings)));
        Ok(locks)
    };
    tenure_torture::worker::run(connect).unwrap();
}

/// The guarantees of a correct client on this store.
fn promises() -> Guarantees {
    let cells = Fault::ALL.map(|fault| Cell::new(fault, Promise::Claims, ""));
    Guarantees::new("planted", Order::Unordered(""), cells.to_vec())
}

/// Tortures a client with this mistake until a violation was seen, or `most` faults were injected.
fn torture(mistake: Mistake, faults: &[FaultKind], most: usize) -> Findings {
    let lasts = Duration::from_secs(600);
    torture_with(mistake, faults, most, lasts, Modes::EXCLUSIVE, 11)
}

/// The same with holds in these modes, for at most this time.
fn torture_with(
    mistake: Mistake,
    faults: &[FaultKind],
    most: usize,
    lasts: Duration,
    modes: Modes,
    seed: u64,
) -> Findings {
    let dir = tempfile::tempdir().unwrap();
    let late = match mistake {
        Mistake::DeadlineFromReply => Duration::from_millis(150),
        _ => Duration::ZERO,
    };
    let store = Arc::new(Store::start(late));
    let setup = Setup {
        url: format!("{mistake:?} {}", store.address),
        lasts,
        workload: Workload {
            workers: 4,
            tasks: 1,
            names: 1,
            ttl: Duration::from_millis(500),
            hold: Duration::from_millis(400),
            only_tries: false,
            modes,
        },
        seed,
        faults: faults.to_vec(),
        settles_when_stopped: false,
        out: dir.path().to_owned(),
        program: Program {
            path: std::env::current_exe().unwrap(),
            arguments: ["--exact", "worker_process", "--nocapture"]
                .map(Into::into)
                .to_vec(),
            environment: store.clock.environment(),
        },
        environment: Some(store as Arc<dyn Environment>),
    };
    let names = runner::names(&setup);
    let (stop, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let events_path = runner::events_of(&setup.out);
    let look = || {
        let mut events = event::read(&events_path).unwrap_or_default();
        // A run in which no worker gets the lock has no events, so the end of the run is added.
        events.push(Event::Over { at: now() });
        let history = History::of(&events);
        let found = checker::check(&history, &promises(), setup.workload.ttl, faults);
        (history, found)
    };
    let (_, found) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let (history, found) = look();
                let caught = mistake.is_one() && found.violations() > 0;
                let made = history.faults.len();
                if caught || made > most && found.not_enough.is_none() {
                    let time = Duration::from_nanos(history.over - history.began);
                    println!("{mistake:?}: {made} faults in {time:?}, caught: {caught}");
                    return stop.store(true, Ordering::SeqCst);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let run = runner::run(&setup, &names, &stop, &mut |_: &str| ());
        is_over.store(true, Ordering::SeqCst);
        drop(run.unwrap());
        look()
    });
    found
}

/// More faults than the harness needs to find any of these mistakes.
const MAX_FAULTS: usize = 100;

#[test]
fn sound_clients_are_not_accused() {
    for mistake in [Mistake::None, Mistake::NoneListening, Mistake::NoneQueueing] {
        let found = torture(mistake, &[FaultKind::Pause, FaultKind::Kill], 5);
        assert_eq!(found.verdict(), Verdict::Ok, "{mistake:?}: {found:?}");
        assert_eq!(found.overlaps, []);
    }
}

#[track_caller]
fn assert_overlap(mistake: Mistake) {
    let found = torture(mistake, &[FaultKind::Pause], MAX_FAULTS);
    assert_eq!(found.verdict(), Verdict::Violation, "{found:?}");
    assert!(!found.overlaps.is_empty(), "{found:?}");
}

#[test]
fn no_deadline_is_caught() {
    assert_overlap(Mistake::NoDeadline);
}

#[test]
fn a_deadline_from_the_reply_is_caught() {
    assert_overlap(Mistake::DeadlineFromReply);
}

#[test]
fn a_release_without_owner_is_caught() {
    assert_overlap(Mistake::ReleaseWithoutOwner);
}

#[test]
fn a_renewal_without_owner_is_caught() {
    assert_overlap(Mistake::RenewWithoutOwner);
}

#[test]
fn a_clock_that_sleeps_with_the_machine_is_caught() {
    let found = torture(Mistake::ClockThatSleeps, &[FaultKind::Suspend], MAX_FAULTS);
    assert_eq!(found.verdict(), Verdict::Violation, "{found:?}");
    assert!(!found.overlaps.is_empty(), "{found:?}");
}

#[test]
fn the_same_sleep_with_a_clock_that_goes_on_is_not_accused() {
    let found = torture(Mistake::None, &[FaultKind::Suspend], 5);
    assert_eq!(found.verdict(), Verdict::Ok, "{found:?}");
    assert_eq!(found.overlaps, []);
}

#[test]
fn a_token_that_the_server_forgets_is_caught() {
    let found = torture(
        Mistake::PlainCounterToken,
        &[FaultKind::ServerKill],
        MAX_FAULTS,
    );
    assert_eq!(found.verdict(), Verdict::Violation, "{found:?}");
    assert!(!found.tokens.is_empty());
    assert_eq!(found.overlaps, [], "it waits until old leases are over");
}

#[test]
fn no_restart_guard_is_caught() {
    let found = torture(
        Mistake::NoRestartGuard,
        &[FaultKind::ServerKill],
        MAX_FAULTS,
    );
    assert_eq!(found.verdict(), Verdict::Violation, "{found:?}");
    assert!(!found.overlaps.is_empty(), "{found:?}");
    assert_eq!(found.tokens, [], "its token outlives the loss");
}

#[test]
fn the_same_restarts_with_guard_and_token_are_not_accused() {
    let found = torture(Mistake::None, &[FaultKind::ServerKill], 5);
    assert_eq!(found.verdict(), Verdict::Ok, "{found:?}");
    assert_eq!((found.tokens.len(), found.overlaps.len()), (0, 0));
}

#[track_caller]
fn assert_stuck(mistake: Mistake) {
    let found = torture(mistake, &[FaultKind::Kill], MAX_FAULTS);
    assert_eq!(found.verdict(), Verdict::Violation, "{found:?}");
    assert!(!found.gaps.is_empty(), "{found:?}");
    assert_eq!(found.overlaps, []);
}

#[test]
fn no_poll_in_addition_to_messages_is_caught() {
    assert_stuck(Mistake::NoPoll);
}

#[test]
fn a_grant_that_is_not_given_back_is_caught() {
    assert_stuck(Mistake::NoGiveBack);
}
