//! The queue of `redis:` with its hand-over, searched exhaustively. `handoff.rs` has the model.

use super::explore::{Outcome, explore};
use super::handoff::{Handoff, Mutant, Setup};

const CALM: Setup = Setup {
    clients: 3,
    deaths: 0,
    pauses: 0,
    lost: 0,
    late: 0,
    leaves: 0,
    mutant: None,
};

fn holds(what: &str, setup: Setup) {
    let Outcome { states, violation } = explore(Handoff::new(setup), 3_000_000);
    println!("{what}: {states} states, complete");
    if let Some(violation) = violation {
        panic!("{what}: {violation}");
    }
}

fn breaks(mutant: Mutant, expected: &str, setup: Setup) {
    let setup = Setup {
        mutant: Some(mutant),
        ..setup
    };
    let Outcome { states, violation } = explore(Handoff::new(setup), 3_000_000);
    let violation =
        violation.unwrap_or_else(|| panic!("{mutant:?} was not found in {states} states"));
    println!("{mutant:?}: found in {states} states: {violation}");
    assert!(violation.starts_with(expected), "{mutant:?}: {violation}");
}

#[test]
fn the_lock_passes_on() {
    holds("3 clients", CALM);
}

#[test]
fn waiters_leave() {
    holds("3 clients, 2 leave", Setup { leaves: 2, ..CALM });
}

#[test]
fn clients_die() {
    holds("3 clients, 2 die", Setup { deaths: 2, ..CALM });
}

#[test]
fn clients_pause() {
    holds("3 clients, 1 pauses", Setup { pauses: 1, ..CALM });
    holds(
        "2 clients, 2 pause, 1 late",
        Setup {
            clients: 2,
            pauses: 2,
            late: 1,
            ..CALM
        },
    );
}

#[test]
fn messages_are_lost_and_late() {
    holds("3 clients, 1 lost", Setup { lost: 1, ..CALM });
    holds("3 clients, 2 late", Setup { late: 2, ..CALM });
}

#[test]
fn all_of_it_together() {
    let both = Setup {
        clients: 2,
        deaths: 1,
        lost: 1,
        late: 1,
        leaves: 1,
        ..CALM
    };
    holds("2 clients, 1 of each", both);
}

#[test]
fn mutant_no_poll() {
    breaks(Mutant::NoPoll, "unserved", Setup { lost: 1, ..CALM });
}

#[test]
fn mutant_a_grant_to_who_left_is_not_given_back() {
    breaks(
        Mutant::NoGiveBack,
        "something is left behind",
        Setup { leaves: 1, ..CALM },
    );
}

#[test]
fn mutant_a_push_that_is_not_compared_with_the_last_token() {
    breaks(
        Mutant::StalePush,
        "two believe",
        Setup { pauses: 1, ..CALM },
    );
}

#[test]
fn mutant_a_lease_from_the_push_on() {
    breaks(Mutant::FromPush, "two believe", Setup { late: 1, ..CALM });
}
