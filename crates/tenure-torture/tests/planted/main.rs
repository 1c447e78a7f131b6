//! The harness, tried on itself: lock clients with a known mistake must be caught, a sound one must not.
//!
//! A run ends when the mistake was seen. So nothing here depends on how fast this machine is.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod broken;
mod store;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use broken::{Bug, Locks};
use store::Store;
use tenure::guarantees::{Cell, Fault, Guarantees, Order, Promise};
use tenure_torture::checker::{self, Findings, Verdict};
use tenure_torture::crew::Program;
use tenure_torture::event;
use tenure_torture::history::History;
use tenure_torture::nemesis::Server;
use tenure_torture::plan::Kind;
use tenure_torture::runner::{self, Setup};
use tenure_torture::worker::VARIABLE;

/// Not a test but the worker: the harness starts this program again with this one name.
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

/// What a careful client on this store can promise.
fn promises() -> Guarantees {
    let cells = Fault::ALL.map(|fault| {
        let promise = match fault {
            Fault::StoreRestart => Promise::Nothing,
            _ => Promise::Claims,
        };
        Cell::new(fault, promise, "")
    });
    Guarantees::new("planted", Order::Unordered(""), cells.to_vec())
}

/// Tortures a client with this mistake until a violation was seen, or so many faults were made.
fn torture(bug: Bug, faults: &[Kind], most: usize) -> Findings {
    let dir = tempfile::tempdir().unwrap();
    let late = match bug {
        Bug::DeadlineFromReply => Duration::from_millis(150),
        _ => Duration::ZERO,
    };
    let store = Arc::new(Store::start(late));
    let setup = Setup {
        url: format!("{bug:?} {}", store.address),
        lasts: Duration::from_secs(600),
        workers: 4,
        names: 1,
        seed: 11,
        ttl: Duration::from_millis(500),
        hold: Duration::from_millis(400),
        faults: faults.to_vec(),
        out: dir.path().to_owned(),
        program: Program {
            path: std::env::current_exe().unwrap(),
            arguments: ["--exact", "worker_process", "--nocapture"]
                .map(Into::into)
                .to_vec(),
        },
        server: Some(store as Arc<dyn Server>),
    };
    let names = runner::names(&setup);
    let stop = AtomicBool::new(false);
    let look = |events: &[event::Event]| {
        let history = History::of(events);
        checker::check(&history, &promises(), setup.ttl, faults)
    };
    let mut made = 0;
    let mut on_fault = |_: &str| {
        made += 1;
        let found = look(&event::read(&runner::events_of(&setup.out)).unwrap());
        let caught = bug != Bug::None && found.violations() > 0;
        if caught || made > most && found.not_enough.is_none() {
            stop.store(true, Ordering::SeqCst);
        }
    };
    let events = runner::run(&setup, &names, &stop, &mut on_fault).unwrap();
    look(&events)
}

/// More faults than any of these mistakes needs.
const MANY: usize = 100;

#[test]
fn a_sound_client_is_not_accused() {
    let found = torture(Bug::None, &[Kind::Pause, Kind::Kill], 8);
    assert_eq!(found.verdict(), Verdict::Ok, "{found:?}");
    assert_eq!(found.overlaps, []);
}

#[track_caller]
fn assert_overlap(bug: Bug) {
    let found = torture(bug, &[Kind::Pause], MANY);
    assert_eq!(found.verdict(), Verdict::Violation, "{found:?}");
    assert!(!found.overlaps.is_empty(), "{found:?}");
}

#[test]
fn no_deadline_is_caught() {
    assert_overlap(Bug::NoDeadline);
}

#[test]
fn a_deadline_from_the_reply_is_caught() {
    assert_overlap(Bug::DeadlineFromReply);
}

#[test]
fn a_release_without_owner_is_caught() {
    assert_overlap(Bug::ReleaseWithoutOwner);
}

#[test]
fn a_renewal_without_owner_is_caught() {
    assert_overlap(Bug::RenewWithoutOwner);
}

#[test]
fn a_token_that_the_server_forgets_is_caught() {
    let found = torture(Bug::PlainCounterToken, &[Kind::ServerKill], MANY);
    assert_eq!(found.verdict(), Verdict::Violation, "{found:?}");
    assert!(found.tokens.iter().any(|it| it.documented.is_none()));
    // Two holders are to be expected of a store that forgets.
    assert!(found.overlaps.iter().all(|it| it.documented.is_some()));
}

#[test]
fn the_same_restarts_with_a_better_token_are_as_documented() {
    let found = torture(Bug::None, &[Kind::ServerKill], 5);
    assert_eq!(found.verdict(), Verdict::Ok, "{found:?}");
    assert_eq!(found.tokens, []);
}
