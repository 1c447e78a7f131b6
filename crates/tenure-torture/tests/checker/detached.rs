//! Histories with detached holds.

use tenure::guarantees::Promise;
use tenure_torture::checker::Findings;
use tenure_torture::event::Event;
use tenure_torture::mode::HoldMode;
use tenure_torture::plan::FaultKind;

use crate::{MS, asked, changed_from, claimed, ended, fault, good, in_mode, judge, over, wrote};

fn detached(at: u64, claimed_at: u64, until: u64) -> Event {
    Event::Detached {
        at: at * MS,
        acquisition: 1000 + claimed_at,
        until: until * MS,
    }
}

/// A hold with token 101 that is detached at 3,100 ms until 4,100 ms, and what follows.
fn after_a_detach(promise: Promise, rest: &[Event]) -> Findings {
    let mut events = good(30);
    events.extend([
        claimed(3_000, 3_010, 0, 101, 4_000),
        ended(3_090, 3_010, false),
        detached(3_100, 3_010, 4_100),
    ]);
    events.extend(rest.iter().cloned());
    events.push(over(6_000));
    judge(&events, promise)
}

#[test]
fn a_detached_hold_goes_on_under_an_attached_worker() {
    let attached = changed_from(3_010, claimed(3_200, 3_210, 1, 101, 4_210));
    let found = after_a_detach(
        Promise::Effects,
        &[
            attached.clone(),
            wrote(3_250, 3_210, true),
            ended(3_300, 3_210, false),
            // The hold was released, so the next one need not wait for the lease.
            claimed(3_000, 3_310, 2, 102, 4_300),
            wrote(3_350, 3_310, true),
            ended(3_400, 3_310, false),
        ],
    );
    assert_eq!(found.violations(), 0, "{found:?}");
    // The hold is detached once more, and another worker is attached.
    let found = after_a_detach(
        Promise::Effects,
        &[
            attached,
            ended(3_300, 3_210, false),
            detached(3_310, 3_210, 4_310),
            changed_from(3_210, claimed(3_320, 3_330, 2, 101, 4_330)),
            ended(3_400, 3_330, false),
            claimed(3_000, 3_410, 0, 102, 4_400),
        ],
    );
    assert_eq!(found.violations(), 0, "{found:?}");
}

#[test]
fn a_grant_before_the_end_of_a_detached_lease_is_an_overlap() {
    let early = [claimed(3_000, 4_050, 1, 102, 5_000)];
    let found = after_a_detach(Promise::Effects, &early);
    assert_eq!(
        (found.overlaps.len(), found.violations()),
        (1, 1),
        "{found:?}"
    );
    assert_eq!(found.overlaps[0].first, (4_010, 0));
    let in_time = [claimed(3_000, 4_110, 1, 102, 5_000)];
    assert_eq!(after_a_detach(Promise::Effects, &in_time).violations(), 0);
    // A worker that was attached and is killed, or has lost the hold, ends no lease.
    let attached = changed_from(3_010, claimed(3_200, 3_210, 1, 101, 4_000));
    let killed = Event::Killed {
        at: 3_300 * MS,
        worker: 1,
    };
    for end in [killed, ended(3_300, 3_210, true)] {
        let early = claimed(3_000, 3_400, 2, 102, 5_000);
        let found = after_a_detach(Promise::Effects, &[attached.clone(), end, early]);
        assert_eq!(found.overlaps.len(), 1, "{found:?}");
    }
    // While the worker that has detached it works with the next hold.
    let shared = |event| in_mode(HoldMode::Shared, event);
    let early = [shared(claimed(3_000, 3_500, 0, 102, 5_000))];
    assert_eq!(after_a_detach(Promise::Effects, &early).overlaps.len(), 1);
}

#[test]
fn an_early_grant_is_documented_where_the_table_promises_nothing() {
    let rest = [
        fault(FaultKind::ClockForward, 3_150, 3_200),
        claimed(3_000, 3_500, 1, 102, 5_000),
    ];
    let found = after_a_detach(Promise::Nothing, &rest);
    assert_eq!(found.overlaps.len(), 1, "{found:?}");
    assert!(found.overlaps[0].documented.is_some());
}

#[test]
fn an_attached_worker_has_the_token_of_the_hold() {
    for token in [100, 102] {
        let attached = changed_from(3_010, claimed(3_200, 3_210, 1, token, 4_000));
        let found = after_a_detach(Promise::Effects, &[attached]);
        assert_eq!(found.tokens.len(), 1, "{found:?}");
    }
}

#[test]
fn a_detached_hold_is_no_gap() {
    let mut events = good(30);
    let long = 60_000;
    events.extend([
        claimed(3_000, 3_010, 0, 101, 4_000),
        ended(3_090, 3_010, false),
        detached(3_100, 3_010, long),
        asked(3_200, 1),
        claimed(3_200, long + 10, 1, 102, long + 1_000),
        over(long + 100),
    ]);
    let found = judge(&events, Promise::Effects);
    assert_eq!(found.violations(), 0, "{found:?}");
}

#[test]
fn a_permit_under_an_attached_worker_is_one_permit() {
    let permit = |event| in_mode(HoldMode::Permit, event);
    let held = [
        permit(claimed(3_000, 3_010, 0, 101, 4_000)),
        ended(3_090, 3_010, false),
        detached(3_100, 3_010, 4_100),
        permit(changed_from(3_010, claimed(3_200, 3_210, 1, 101, 4_210))),
        permit(claimed(3_200, 3_220, 2, 102, 4_220)),
    ];
    let overlaps = |more: &[Event]| {
        let mut events = good(30);
        events.extend(held.iter().chain(more).cloned());
        events.push(over(6_000));
        judge(&events, Promise::Effects).overlaps.len()
    };
    assert_eq!(overlaps(&[]), 0);
    let third = permit(claimed(3_000, 3_230, 3, 103, 4_230));
    assert_eq!(overlaps(&[third]), 1);
}

/// An attached worker has a lease, also in a store whose other holds have none.
#[test]
fn a_late_write_of_an_attached_worker_is_documented() {
    let late = |attached: Event| {
        let found = after_a_detach(
            Promise::Effects,
            &[
                attached,
                claimed(3_000, 4_300, 2, 102, 5_000),
                wrote(4_310, 4_300, true),
                wrote(4_320, 3_210, false),
            ],
        );
        let documented = found.writes.late.iter().map(|it| it.documented);
        documented.collect::<Vec<_>>()
    };
    let attached = claimed(3_200, 3_210, 1, 101, 4_210);
    assert_eq!(
        late(changed_from(3_010, attached.clone())),
        [Some(FaultKind::Pause)]
    );
    assert_eq!(late(attached), [None]);
}
