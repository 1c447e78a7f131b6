//! Histories in which a hold changes its mode.

use tenure::guarantees::Promise;
use tenure_torture::checker::Findings;
use tenure_torture::mode::HoldMode;

use crate::{changed_from, claimed, ended, good, in_mode, judge, over, wrote};

/// A hold that is upgraded at 3,100 ms to this token, and downgraded at 3,200 ms; then a reader with this token.
fn changes(upgraded: u64, reader: u64) -> Findings {
    let mut events = good(30);
    let upgrade = claimed(3_050, 3_100, 0, upgraded, 4_000);
    let downgrade = claimed(3_200, 3_210, 0, upgraded, 4_000);
    events.extend([
        in_mode(HoldMode::Upgradable, claimed(3_000, 3_010, 0, 101, 4_000)),
        ended(3_100, 3_010, false),
        changed_from(3_010, upgrade),
        wrote(3_150, 3_100, true),
        ended(3_200, 3_100, false),
        in_mode(HoldMode::Shared, changed_from(3_100, downgrade)),
        ended(3_400, 3_210, false),
        in_mode(HoldMode::Shared, claimed(3_150, 3_205, 1, reader, 4_000)),
        wrote(3_220, 3_205, true),
        wrote(3_230, 3_210, true),
        ended(3_300, 3_205, false),
        over(3_500),
    ]);
    judge(&events, Promise::Effects)
}

#[test]
fn a_change_of_mode_is_judged_as_a_claim() {
    assert_eq!(changes(102, 103).violations(), 0, "{:?}", changes(102, 103));
    assert_eq!(
        changes(101, 103).tokens.len(),
        1,
        "the upgrade kept its token"
    );
    assert_eq!(
        changes(102, 102).tokens.len(),
        1,
        "a reader has that of a writer"
    );
}
