//! The whole client over virtual time: `Client`, `Lock`, `Guard`, driver and logic as users have them, several
//! clients and a store in one thread, and between them a network that loses, delays and duplicates messages. A seed
//! decides everything, so a failed history can be repeated.
//!
//! `machine.rs` runs the tasks, `network.rs`, `transport.rs` and `server.rs` deliver messages, `director.rs` decides
//! which faults happen, `worker.rs` has the users, and `claims.rs` checks the results.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod claims;
mod director;
mod history;
mod machine;
mod network;
mod random;
mod server;
mod state;
mod transport;
mod worker;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use director::{Setup, run};
use state::{Counts, Mutant};

/// Virtual hours of an ordinary run; `scripts/test --all` runs more.
const HOURS: u64 = 20;

fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a whole number")),
    )
}

fn setup(seed: u64) -> Setup {
    Setup {
        seed,
        fault_phases: 6,
        mutant: None,
        keeps_all: false,
    }
}

fn add(sum: &mut Counts, counts: &Counts) {
    sum.acquired += counts.acquired;
    sum.together += counts.together;
    sum.cancelled += counts.cancelled;
    sum.lost += counts.lost;
    sum.writes += counts.writes;
    sum.refused_writes += counts.refused_writes;
    sum.late_writes += counts.late_writes;
    sum.messages += counts.messages;
    sum.message_faults += counts.message_faults;
    sum.faults += counts.faults;
}

/// `TENURE_SIMULATION_SEED` alone repeats one history; with `TENURE_SIMULATION_HOURS` it is the first of many.
#[test]
fn nothing_goes_wrong_for_many_virtual_hours() {
    let (hours, first) = (
        setting("TENURE_SIMULATION_HOURS"),
        setting("TENURE_SIMULATION_SEED"),
    );
    let enough = match (hours, first) {
        (None, Some(_)) => Duration::ZERO,
        (hours, _) => Duration::from_secs(hours.unwrap_or(HOURS) * 3_600),
    };
    let next = AtomicU64::new(first.unwrap_or(0));
    let all = Mutex::new((Duration::ZERO, Counts::default(), 0_u64));
    // Each history runs on one thread; the thread makes no difference.
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::SeqCst);
        let report = run(setup(seed)).unwrap_or_else(|failure| panic!("{failure:?}"));
        let mut all = all.lock().unwrap();
        all.0 += report.lasted;
        add(&mut all.1, &report.counts);
        all.2 ^= report.digest.rotate_left((seed % 64) as u32);
        if all.0 >= enough {
            return;
        }
    };
    let threads = match enough {
        Duration::ZERO => 1,
        _ => std::thread::available_parallelism().map_or(1, Into::into),
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            if let Err(panic) = worker.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let (lasted, sum, digests) = all.into_inner().unwrap();
    let hours = lasted.as_secs_f64() / 3_600.0;
    println!("{hours:.1} virtual hours, digest {digests:016x}: {sum:?}");
    assert!(sum.acquired > 0 && sum.faults > 0 && sum.message_faults > 0);
    assert!(sum.together > 0, "nobody shared anything");
    // Without such events the faults were too weak to prove anything.
    assert!(sum.late_writes > 0 && sum.lost > 0, "{sum:?}");
}

#[test]
fn a_seed_is_one_history() {
    let history = |seed| {
        let setup = Setup {
            fault_phases: 2,
            keeps_all: true,
            ..setup(seed)
        };
        let report = run(setup).unwrap();
        (report.history, report.digest)
    };
    let (first, digest) = history(1);
    assert!(first.lines().count() > 1_000);
    assert!(history(1) == (first.clone(), digest), "another history");
    assert!(history(2) != (first, digest), "the seed means nothing");
}

/// Each mistake has to be found, within few histories.
fn assert_found(mutant: Mutant, seeds: u64, by: &[&str]) {
    let found = (0..seeds).find_map(|seed| {
        let setup = Setup {
            mutant: Some(mutant),
            ..setup(seed)
        };
        run(setup).err()
    });
    let failure = found.unwrap_or_else(|| panic!("{mutant:?} was not found in {seeds} histories"));
    println!("{mutant:?}: {failure}");
    let is_expected = by.iter().any(|by| failure.what.contains(by));
    assert!(is_expected, "{failure:?}");
    // The same seed finds it again, at the same instant.
    let setup = Setup {
        mutant: Some(mutant),
        ..setup(failure.seed)
    };
    let again = run(setup).err().unwrap();
    assert_eq!((again.at, again.what), (failure.at, failure.what));
}

#[test]
fn planted_mistake_deadline_from_the_reply() {
    assert_found(
        Mutant::DeadlineFromReply,
        5,
        &["claims overlap", "the fence refused the holder"],
    );
}

#[test]
fn planted_mistake_lost_renewal_counts_as_success() {
    assert_found(Mutant::RenewalAlwaysYes, 5, &["claims overlap"]);
}

#[test]
fn planted_mistake_release_by_name() {
    assert_found(Mutant::ReleaseByName, 5, &["claims overlap"]);
}

#[test]
fn planted_mistake_token_repeats_after_a_restart() {
    assert_found(Mutant::TokenRepeats, 5, &["does not grow"]);
}

#[test]
fn planted_mistake_grant_to_a_cancelled_waiter_is_swallowed() {
    assert_found(
        Mutant::CancelSwallowsGrant,
        5,
        &["is left", "wait for ever", "waits for ever"],
    );
}

#[test]
fn planted_mistake_restart_without_guard() {
    assert_found(Mutant::NoRestartGuard, 5, &["claims overlap"]);
}

#[test]
fn planted_mistake_store_with_a_fast_clock() {
    assert_found(Mutant::FastStore, 5, &["claims overlap"]);
}

#[test]
fn planted_mistake_store_with_a_permit_too_many() {
    assert_found(Mutant::PermitTooMany, 5, &["claims overlap"]);
}
