//! The harness must find the mistake of each broken observer, and none of a correct one; and what is wrong in a store that
//! says wrong who leads, below the real library, unless the library makes up for that.

use std::time::Duration;

use tenure_torture::checker::{Findings, Verdict};
use tenure_torture::mode::{HoldMode, Modes};
use tenure_torture::observer_checker::Misobservation;
use tenure_torture::plan::FaultKind;

use crate::broken::Mistake;
use crate::in_process;
use crate::lying_store::Lie;
use crate::observer::ObserverMistake;
use crate::{MAX_FAULTS, torture_with};

/// A run that ends by itself is followed by a quiet time.
const SHORT: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(600);

const BOTH: [FaultKind; 2] = [FaultKind::Pause, FaultKind::Kill];

fn elections() -> Modes {
    Modes::of(&[HoldMode::Election])
}

/// Tortures this observer until the harness has found something.
#[track_caller]
fn assert_caught(mistake: ObserverMistake, what: Misobservation) {
    let mistake = Mistake::Observing(mistake);
    // An observer that is late needs a process that lives for long.
    let faults: &[FaultKind] = match what {
        Misobservation::LongOver => &[],
        _ => &BOTH,
    };
    let found = torture_with(mistake, faults, MAX_FAULTS, LONG, elections(), 11);
    assert_found(&found, what);
}

#[track_caller]
fn assert_found(found: &Findings, what: Misobservation) {
    assert_eq!(found.verdict(), Verdict::Violation, "{found:?}");
    let kinds: Vec<_> = found.observers.iter().map(|it| it.what).collect();
    assert!(kinds.contains(&what), "{found:?}");
    assert_eq!(found.overlaps, [], "the mistake is one of observers only");
}

#[test]
fn an_order_of_arrival_is_caught() {
    let mistake = Mistake::Observing(ObserverMistake::OrderOfArrival);
    let found = torture_with(mistake, &BOTH, MAX_FAULTS, LONG, elections(), 11);
    assert_eq!(found.verdict(), Verdict::Violation, "{found:?}");
    assert_eq!(found.overlaps, []);
    // The run ends with the first finding, whichever it is.
    let backwards = [
        Misobservation::OlderTerm,
        Misobservation::TermAgain,
        Misobservation::OlderValue,
    ];
    let mut kinds = found.observers.iter().map(|it| it.what);
    assert!(kinds.any(|what| backwards.contains(&what)), "{found:?}");
}

#[test]
fn a_term_that_is_seen_again_is_caught() {
    assert_caught(ObserverMistake::NoEndOfTerm, Misobservation::TermAgain);
}

#[test]
fn a_value_that_goes_back_is_caught() {
    assert_caught(ObserverMistake::NoOrderOfValues, Misobservation::OlderValue);
}

#[test]
fn a_leader_that_comes_twice_is_caught() {
    assert_caught(ObserverMistake::EverySighting, Misobservation::Twice);
}

#[test]
fn a_candidate_that_is_taken_for_the_leader_is_caught() {
    assert_caught(ObserverMistake::Candidates, Misobservation::NotGranted);
}

#[test]
fn the_value_of_another_term_is_caught() {
    assert_caught(
        ObserverMistake::ValueOfLastTerm,
        Misobservation::NotPublished,
    );
}

#[test]
fn an_observer_that_is_late_is_caught() {
    assert_caught(ObserverMistake::Late, Misobservation::LongOver);
}

#[test]
fn an_observer_that_misses_the_last_change_is_caught() {
    // With an even seed a worker leads in the quiet time.
    let mistake = Mistake::Observing(ObserverMistake::Deaf);
    let found = torture_with(mistake, &[], MAX_FAULTS, SHORT, elections(), 12);
    assert_found(&found, Misobservation::NotTrue);
}

#[track_caller]
fn assert_sound(seed: u64) {
    let found = torture_with(Mistake::None, &BOTH, MAX_FAULTS, SHORT, elections(), seed);
    assert_eq!(found.violations(), 0, "{found:?}");
    assert_eq!(found.observers, []);
}

#[test]
fn sound_observers_of_a_last_leader_are_not_accused() {
    assert_sound(12);
}

#[test]
fn sound_observers_of_no_leader_are_not_accused() {
    assert_sound(11);
}

/// The real library, on a store in memory.
#[track_caller]
fn assert_sound_in_process(lie: Option<Lie>, seed: u64) {
    let (history, found) = in_process::run(lie, seed);
    assert_eq!(found.violations(), 0, "{found:?}");
    assert_eq!(found.observers, []);
    assert!(
        history.elections.sights() > in_process::ENOUGH_SIGHTS,
        "{history:?}"
    );
}

#[test]
fn observers_of_a_store_in_memory_are_told_right() {
    assert_sound_in_process(None, 12);
}

#[test]
fn the_library_makes_up_for_a_store_that_repeats_old_sightings() {
    assert_sound_in_process(Some(Lie::OldAnswers), 11);
}

#[track_caller]
fn assert_lie_is_caught(lie: Lie, what: Misobservation) {
    let (_, found) = in_process::run(Some(lie), 12);
    let kinds: Vec<_> = found.observers.iter().map(|it| it.what).collect();
    assert!(kinds.contains(&what), "{kinds:?}");
    assert_eq!(found.overlaps, [], "nothing is wrong with its locks");
}

#[test]
fn a_store_that_repeats_that_nobody_led_before_the_first_term_is_caught() {
    assert_lie_is_caught(Lie::OldAnswersOfTheStart, Misobservation::TermAgain);
}

#[test]
fn a_store_that_does_not_say_which_term_is_over_is_caught() {
    assert_lie_is_caught(Lie::OldAnswersWithoutEnd, Misobservation::TermAgain);
}

#[test]
fn a_store_with_the_value_of_another_term_is_caught() {
    assert_lie_is_caught(Lie::ValueOfLastTerm, Misobservation::NotPublished);
}

#[test]
fn a_store_with_a_token_that_was_not_granted_is_caught() {
    assert_lie_is_caught(Lie::TokenThatWasNotGranted, Misobservation::NotGranted);
}

#[test]
fn a_store_that_is_frozen_is_caught() {
    assert_lie_is_caught(Lie::Frozen, Misobservation::NotTrue);
}
