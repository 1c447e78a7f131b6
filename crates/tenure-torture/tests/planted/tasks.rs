//! Several tasks in a worker, which pass a hold on without a request: the harness must reach that, and find a token that is
//! used twice.

use tenure_torture::checker::Verdict;

use crate::in_process::{ENOUGH_HAND_OVERS, run_tasks};
use crate::lying_store::Lie;

#[test]
fn tasks_that_pass_holds_on_are_not_accused() {
    let (history, found) = run_tasks(None);
    assert_eq!(found.violations(), 0, "{found:?}");
    assert_eq!(found.tokens, []);
    assert_eq!(history.tasks(), 4);
    let count = history.passed_on();
    assert!(
        count > ENOUGH_HAND_OVERS,
        "{count} of {}",
        history.claims.len()
    );
}

#[test]
fn a_store_that_grants_a_reserved_token_is_caught() {
    let (_, found) = run_tasks(Some(Lie::TokensWithoutReservation));
    assert_eq!(found.verdict(), Verdict::Violation, "{found:?}");
    assert!(!found.tokens.is_empty(), "{found:?}");
    assert_eq!(found.overlaps, [], "nothing is wrong with its locks");
}
