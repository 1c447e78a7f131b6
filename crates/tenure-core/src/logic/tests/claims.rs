//! Clients, a network and a store, searched exhaustively.
//!
//! Each client runs the [`Lease`] clockwork, the store runs the [`Table`]. The network may deliver any
//! message at any later time (so a message that is never delivered is a lost one), and some twice. A
//! client may do nothing for any length of time (so a paused or dead one is included). Time goes in
//! steps of the least margin, without end: what lies further back than the ttl looks alike.
//!
//! Mutants show that the search finds violations. This search itself found one of them:
//! see [`Mutant::StaleWakeUp`].

use std::num::NonZeroU32;
use std::time::Duration;

use super::explore::{Outcome, explore};
use super::model::{Claims, Mutant, STEP, Setup};
use crate::options::Mode;

const PERMIT: Mode = Mode::Permits {
    limit: NonZeroU32::new(2).unwrap(),
};

/// Two exclusive clients, one request each, nothing else.
const PLAIN: Setup = Setup {
    modes: &[Mode::Exclusive, Mode::Exclusive],
    ttl: 3,
    wait: false,
    asks: 1,
    renewals: 0,
    touches: 0,
    duplicates: 0,
    writes: false,
    max_hold: None,
    lock_delay: Duration::ZERO,
    waiter_ttl: None,
    strict: true,
    mutant: None,
};

fn holds(what: &str, setup: Setup) {
    let Outcome { states, violation } = explore(Claims::new(setup), 3_000_000);
    println!("{what}: {states} states, complete");
    if let Some(violation) = violation {
        panic!("{what}: {violation}");
    }
}

fn breaks(mutant: Mutant, expected: &str, setup: Setup) {
    let strict = expected.starts_with("the store");
    let setup = Setup {
        strict,
        mutant: Some(mutant),
        ..setup
    };
    let Outcome { states, violation } = explore(Claims::new(setup), 3_000_000);
    let violation =
        violation.unwrap_or_else(|| panic!("{mutant:?} was not found in {states} states"));
    println!("{mutant:?}: found in {states} states: {violation}");
    assert!(violation.starts_with(expected), "{mutant:?}: {violation}");
}

const THREE: &[Mode] = &[Mode::Exclusive; 3];

#[test]
fn renewed_and_fixed_holds() {
    holds(
        "2 renewing twice, fine steps",
        Setup {
            renewals: 2,
            ttl: 6,
            ..PLAIN
        },
    );
    holds(
        "3 renewing",
        Setup {
            modes: THREE,
            renewals: 1,
            ..PLAIN
        },
    );
    holds(
        "2 with max_hold",
        Setup {
            renewals: 2,
            max_hold: Some(STEP * 3),
            ..PLAIN
        },
    );
}

#[test]
fn duplicates_and_retries() {
    holds(
        "2 renewing, 1 duplicate",
        Setup {
            renewals: 1,
            duplicates: 1,
            ..PLAIN
        },
    );
    holds(
        "3, 1 duplicate",
        Setup {
            modes: THREE,
            duplicates: 1,
            ..PLAIN
        },
    );
    holds(
        "2 retrying and renewing",
        Setup {
            asks: 2,
            renewals: 1,
            ..PLAIN
        },
    );
}

#[test]
fn waiters() {
    holds(
        "3 waiting",
        Setup {
            modes: THREE,
            wait: true,
            ..PLAIN
        },
    );
    holds(
        "2 waiting, asking again",
        Setup {
            wait: true,
            asks: 2,
            ..PLAIN
        },
    );
    let touches = Setup {
        touches: 1,
        waiter_ttl: Some(STEP * 2),
        ..PLAIN
    };
    holds(
        "2 waiting, with signs of life",
        Setup {
            wait: true,
            ..touches
        },
    );
}

#[test]
fn effects_and_reservations() {
    holds(
        "3 writing",
        Setup {
            modes: THREE,
            writes: true,
            ..PLAIN
        },
    );
    let delay = Setup {
        wait: true,
        lock_delay: STEP * 2,
        ..PLAIN
    };
    holds(
        "2 waiting, lock_delay",
        Setup {
            renewals: 1,
            ..delay
        },
    );
}

/// (Two permits of two and a writer are the same model as two readers and a writer.)
#[test]
fn modes() {
    use Mode::{Exclusive as X, Shared as S};
    holds(
        "2 readers, 1 writer",
        Setup {
            modes: &[S, S, X],
            wait: true,
            ..PLAIN
        },
    );
    holds(
        "1 reader, 2 writers",
        Setup {
            modes: &[S, X, X],
            wait: true,
            ..PLAIN
        },
    );
    holds(
        "3 for 2 permits",
        Setup {
            modes: &[PERMIT; 3],
            wait: true,
            ..PLAIN
        },
    );
}

/// The search can fail: it finds each mutant.
#[test]
fn mutants_are_found() {
    breaks(Mutant::DeadlineFromReply, "two believers", PLAIN);
    breaks(
        Mutant::LateYesResurrects,
        "two believers",
        Setup {
            renewals: 1,
            ..PLAIN
        },
    );
    breaks(
        Mutant::ReleaseIgnoresOwner,
        "two believers",
        Setup {
            modes: THREE,
            ..PLAIN
        },
    );
    let renewing = Setup {
        modes: THREE,
        renewals: 1,
        ..PLAIN
    };
    breaks(Mutant::RenewalResurrects, "two believers", renewing);
    breaks(
        Mutant::RepeatedAskKeepsLease,
        "two believers",
        Setup { asks: 2, ..PLAIN },
    );
    // With two clients there is no third one that takes the name from the client with the wrong belief.
    breaks(
        Mutant::UnconfirmedPlace,
        "the store does not know",
        Setup {
            wait: true,
            touches: 1,
            ..PLAIN
        },
    );
    let asking = Setup {
        wait: true,
        asks: 2,
        ..PLAIN
    };
    breaks(Mutant::StaleWakeUp, "two believers", asking);
    breaks(
        Mutant::ResourceWithoutFence,
        "a stale write",
        Setup {
            writes: true,
            ..PLAIN
        },
    );
}
