//! The queue of `redis:` with its hand-over, searched exhaustively. `handoff.rs` has the world.

use super::explore::{Outcome, explore};
use super::handoff::{Handoff, Setup, Wrong};

const CALM: Setup = Setup {
    clients: 3,
    deaths: 0,
    pauses: 0,
    lost: 0,
    late: 0,
    leaves: 0,
    wrong: None,
};

fn holds(what: &str, setup: Setup) {
    let Outcome { states, complaint } = explore(Handoff::new(setup), 3_000_000);
    println!("{what}: {states} states, complete");
    if let Some(complaint) = complaint {
        panic!("{what}: {complaint}");
    }
}

fn breaks(wrong: Wrong, expected: &str, setup: Setup) {
    let setup = Setup {
        wrong: Some(wrong),
        ..setup
    };
    let Outcome { states, complaint } = explore(Handoff::new(setup), 3_000_000);
    let complaint =
        complaint.unwrap_or_else(|| panic!("{wrong:?} was not found in {states} states"));
    println!("{wrong:?}: found in {states} states: {complaint}");
    assert!(complaint.starts_with(expected), "{wrong:?}: {complaint}");
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
fn planted_mistake_no_poll() {
    breaks(Wrong::NoPoll, "unserved", Setup { lost: 1, ..CALM });
}

#[test]
fn planted_mistake_a_grant_to_who_left_is_not_given_back() {
    breaks(
        Wrong::NoGiveBack,
        "something is left behind",
        Setup { leaves: 1, ..CALM },
    );
}

#[test]
fn planted_mistake_a_push_that_is_not_compared_with_the_last_token() {
    breaks(Wrong::StalePush, "two believe", Setup { pauses: 1, ..CALM });
}

#[test]
fn planted_mistake_a_lease_from_the_push_on() {
    breaks(Wrong::FromPush, "two believe", Setup { late: 1, ..CALM });
}
