//! The checker, against histories written by hand: good ones, and each violation.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod changes;
mod detached;
mod tasks;

use std::time::Duration;

use tenure::guarantees::{Cell, Fault, Guarantees, Order, Promise};
use tenure_torture::checker::{Findings, Verdict, check};
use tenure_torture::event::{self, Event, Log};
use tenure_torture::history::History;
use tenure_torture::mode::HoldMode;
use tenure_torture::plan::FaultKind;

const MS: u64 = 1_000_000;
const TTL: Duration = Duration::from_secs(1);

fn began(at: u64) -> Event {
    Event::Began { at: at * MS }
}

fn over(at: u64) -> Event {
    Event::Over { at: at * MS }
}

fn asked(at: u64, worker: usize) -> Event {
    let name = "n".to_owned();
    Event::Asked {
        at: at * MS,
        worker,
        task: 0,
        name,
        mode: HoldMode::Exclusive,
    }
}

/// Times in ms. The acquisition has the number of its token.
fn claimed(asked: u64, at: u64, worker: usize, token: u64, deadline: u64) -> Event {
    Event::Claimed {
        at: at * MS,
        worker,
        name: "n".to_owned(),
        acquisition: 1000 + at,
        mode: HoldMode::Exclusive,
        changes: None,
        turn: None,
        token,
        asked: asked * MS,
        deadline: deadline * MS,
    }
}

/// The same in another mode.
fn in_mode(mode: HoldMode, mut event: Event) -> Event {
    if let Event::Claimed { mode: it, .. } | Event::Asked { mode: it, .. } = &mut event {
        *it = mode;
    }
    event
}

/// The same, where the hold that was claimed at that time has this mode now.
fn changed_from(claimed_at: u64, mut event: Event) -> Event {
    if let Event::Claimed { changes, .. } = &mut event {
        *changes = Some(1000 + claimed_at);
    }
    event
}

fn ended(at: u64, claimed_at: u64, lost: bool) -> Event {
    Event::Ended {
        at: at * MS,
        acquisition: 1000 + claimed_at,
        lost,
    }
}

fn wrote(at: u64, claimed_at: u64, accepted: bool) -> Event {
    Event::Wrote {
        at: at * MS,
        acquisition: 1000 + claimed_at,
        accepted,
    }
}

fn fault(kind: FaultKind, at: u64, until: u64) -> Event {
    Event::Fault {
        at: at * MS,
        until: until * MS,
        kind,
        worker: (!kind.hits_all_workers()).then_some(0),
    }
}

fn promises(promise: Promise) -> Guarantees {
    let cells = Fault::ALL.map(|fault| Cell::new(fault, promise, ""));
    Guarantees::new("hand", Order::Fair, cells.to_vec())
}

fn judge(events: &[Event], promise: Promise) -> Findings {
    check(&History::of(events), &promises(promise), TTL, &[])
}

/// A run of `count` holders one after the other, 100 ms each, with three pauses of worker 0 before its first hold.
fn good(count: u64) -> Vec<Event> {
    let mut events = vec![began(0), over(count * 100)];
    for number in 0..count {
        let at = number * 100;
        let worker = number as usize % 3;
        events.extend([
            asked(at, worker),
            claimed(at, at + 10, worker, number + 1, at + 1_000),
            wrote(at + 20, at + 10, true),
            ended(at + 90, at + 10, false),
        ]);
    }
    events.extend((0..3).map(|at| fault(FaultKind::Pause, at, at + 1)));
    events
}

#[test]
fn a_good_run_is_ok() {
    let found = judge(&good(30), Promise::Effects);
    assert_eq!(found.verdict(), Verdict::Ok, "{found:?}");
    assert_eq!(found.violations(), 0);
}

#[test]
fn the_order_in_which_processes_wrote_makes_no_difference() {
    let mut events = good(30);
    events.reverse();
    assert_eq!(History::of(&events), {
        let mut history = History::of(&good(30));
        // Pauses are in the order in which they begin either way, and so are all other events.
        history.faults.sort_by_key(|it| it.from);
        history
    });
}

#[test]
fn too_little_is_not_enough_and_says_why() {
    let found = judge(&good(5), Promise::Effects);
    assert_eq!(found.verdict(), Verdict::NotEnough);
    assert!(found.not_enough.unwrap().contains("5 acquisitions"));

    let mut events = good(30);
    events.retain(|event| !matches!(event, Event::Fault { .. }));
    let found = judge(&events, Promise::Effects);
    assert!(found.not_enough.unwrap().contains("0 faults"));

    let kinds = [FaultKind::Pause, FaultKind::Stall];
    let history = History::of(&good(30));
    let found = check(&history, &promises(Promise::Effects), TTL, &kinds);
    assert!(found.not_enough.unwrap().contains("no stall"));

    let mut events = good(30);
    events.push(Event::Vanished { at: 0, worker: 2 });
    let found = judge(&events, Promise::Effects);
    assert!(found.not_enough.unwrap().contains("worker 2"));
}

#[test]
fn the_error_of_a_worker_is_shown_when_no_worker_got_a_name() {
    let refused = Event::Refused {
        at: 5,
        worker: 1,
        task: 0,
        name: "n".into(),
        why: "too young".into(),
    };
    let found = judge(&[began(0), asked(1, 1), refused, over(9)], Promise::Claims);
    assert!(found.not_enough.unwrap().contains("too young"));
}

/// The second worker gets the name while the first worker still believes that it holds.
fn overlapping(during: Option<FaultKind>) -> Vec<Event> {
    let mut events = good(30);
    events.extend([
        asked(3_000, 0),
        claimed(3_000, 3_010, 0, 100, 4_000),
        asked(3_000, 1),
        claimed(3_000, 3_500, 1, 101, 4_500),
        ended(3_700, 3_010, false),
        ended(3_800, 3_500, false),
        over(4_000),
    ]);
    events.extend(during.map(|kind| fault(kind, 3_100, 3_300)));
    events
}

#[test]
fn an_overlap_is_a_violation() {
    for promise in [Promise::Claims, Promise::Effects] {
        let found = judge(&overlapping(Some(FaultKind::ServerKill)), promise);
        assert_eq!(found.verdict(), Verdict::Violation);
        let [overlap] = &found.overlaps[..] else {
            panic!("{found:?}")
        };
        assert_eq!((overlap.first.1, overlap.second.1), (0, 1));
        assert_eq!((overlap.from, overlap.to), (3_500 * MS, 3_700 * MS));
    }
}

#[test]
fn an_overlap_under_a_fault_that_allows_it_is_as_documented() {
    let found = judge(&overlapping(Some(FaultKind::ServerKill)), Promise::Nothing);
    assert_eq!(found.overlaps[0].documented, Some(FaultKind::ServerKill));
    assert_eq!(found.verdict(), Verdict::Ok, "{found:?}");
}

#[test]
fn an_overlap_without_a_fault_is_a_violation_whatever_the_table_says() {
    let mut events = overlapping(None);
    // The pauses of the good part are over for more than two ttl at 3.5 s.
    events.retain(|event| !matches!(event, Event::Fault { at, .. } if *at > MS));
    let found = judge(&events, Promise::Nothing);
    assert_eq!(found.overlaps[0].documented, None);
    assert_eq!(found.verdict(), Verdict::Violation);
}

#[test]
fn a_claim_ends_at_its_own_deadline() {
    let mut events = good(30);
    // Worker 0 is paused past its deadline, and notices that only when another worker has the name.
    events.extend([
        asked(3_000, 0),
        claimed(3_000, 3_010, 0, 100, 3_400),
        asked(3_000, 1),
        claimed(3_000, 3_500, 1, 101, 4_500),
        ended(3_700, 3_010, true),
        ended(3_800, 3_500, false),
        over(4_000),
    ]);
    assert_eq!(judge(&events, Promise::Claims).overlaps, []);
}

#[test]
fn a_deadline_moves_with_renewals() {
    let mut events = overlapping(None);
    events.retain(|event| !matches!(event, Event::Claimed { at, .. } if *at == 3_010 * MS));
    events.push(claimed(3_000, 3_010, 0, 100, 3_400));
    assert_eq!(judge(&events, Promise::Claims).overlaps, []);
    events.push(Event::Believed {
        at: 3_300 * MS,
        acquisition: 4_010,
        deadline: 3_600 * MS,
    });
    assert_eq!(judge(&events, Promise::Claims).overlaps.len(), 1);
}

#[test]
fn a_claim_ends_when_its_process_is_killed() {
    let mut events = overlapping(None);
    events.retain(|event| !matches!(event, Event::Ended { at, .. } if *at == 3_700 * MS));
    assert_eq!(judge(&events, Promise::Claims).overlaps.len(), 1);
    events.push(Event::Killed {
        at: 3_400 * MS,
        worker: 0,
    });
    assert_eq!(judge(&events, Promise::Claims).overlaps, []);
}

#[test]
fn a_token_that_does_not_grow_is_a_violation() {
    for token in [3, 30] {
        let mut events = good(30);
        events.extend([
            asked(3_000, 0),
            claimed(3_000, 3_010, 0, token, 4_000),
            ended(3_100, 3_010, false),
            over(3_100),
        ]);
        let found = judge(&events, Promise::Nothing);
        assert_eq!(found.tokens.len(), 1, "{token}");
        assert_eq!(found.verdict(), Verdict::Violation);
    }
}

#[test]
fn tokens_of_two_requests_at_the_same_time_may_be_seen_in_any_order() {
    let mut events = good(30);
    events.extend([
        asked(3_000, 0),
        asked(3_000, 1),
        claimed(3_000, 3_010, 0, 101, 4_000),
        ended(3_100, 3_010, false),
        claimed(3_000, 3_110, 1, 100, 4_000),
        ended(3_200, 3_110, false),
        over(3_200),
    ]);
    assert_eq!(judge(&events, Promise::Claims).tokens, []);
}

#[test]
fn a_token_that_goes_back_after_a_fault_that_allows_it_is_as_documented() {
    let mut events = good(30);
    events.extend([
        asked(3_000, 0),
        claimed(3_000, 3_010, 0, 3, 4_000),
        ended(3_100, 3_010, false),
        over(3_100),
    ]);
    let cells = Fault::ALL.map(|fault| Cell::new(fault, Promise::Nothing, "").token_regress());
    let promises = Guarantees::new("hand", Order::Fair, cells.to_vec());
    let found = check(&History::of(&events), &promises, TTL, &[]);
    assert_eq!(found.tokens[0].documented, Some(FaultKind::Pause));
    assert_eq!(found.verdict(), Verdict::Ok, "{found:?}");
}

/// The first worker writes after the second worker got the name. `accepted`: whether the fence accepts that write,
/// after it accepted a write of the second worker.
fn late_write(accepted: bool) -> Vec<Event> {
    let mut events = good(30);
    events.extend([
        asked(3_000, 0),
        claimed(3_000, 3_010, 0, 100, 3_400),
        asked(3_000, 1),
        claimed(3_000, 3_500, 1, 101, 4_500),
        wrote(3_600, 3_500, true),
        wrote(3_650, 3_010, accepted),
        wrote(3_660, 3_500, true),
        ended(3_700, 3_010, true),
        ended(3_800, 3_500, false),
        over(3_900),
    ]);
    events
}

#[test]
fn a_late_write_is_found_and_is_documented_where_only_claims_are_promised() {
    let found = judge(&late_write(false), Promise::Claims);
    assert_eq!((found.writes.late.len(), found.writes.late_refused), (1, 1));
    assert_eq!(found.writes.late_accepted, []);
    assert_eq!(found.verdict(), Verdict::Ok, "{found:?}");
    let found = judge(&late_write(false), Promise::Effects);
    assert_eq!(found.verdict(), Verdict::Violation);
}

/// The first worker reads its grant late, after the second worker got the name with a greater token.
#[test]
fn a_write_with_the_greater_token_is_not_late_because_a_grant_was_read_late() {
    let mut events = good(30);
    events.extend([
        claimed(3_000, 3_010, 1, 101, 3_500),
        claimed(3_000, 3_020, 0, 100, 3_400),
        wrote(3_030, 3_020, true),
        wrote(3_040, 3_010, true),
        ended(3_100, 3_020, true),
        ended(3_200, 3_010, false),
        over(3_900),
    ]);
    let found = judge(&events, Promise::Nothing);
    assert_eq!(found.overlaps.len(), 1);
    assert_eq!(found.writes.late_accepted, []);
}

#[test]
fn a_late_write_past_the_fence_is_a_violation() {
    let found = judge(&late_write(true), Promise::Claims);
    assert_eq!(found.writes.late_accepted.len(), 1);
    assert_eq!(found.verdict(), Verdict::Violation);
}

#[test]
fn a_name_that_no_worker_gets_any_more_is_a_violation() {
    let mut events = good(30);
    events.extend([asked(3_000, 0), over(20_000)]);
    let found = judge(&events, Promise::Claims);
    assert_eq!(found.gaps, [(3_000 * MS, 20_000 * MS)]);
    assert_eq!(found.longest_gap, 17_000 * MS);
    assert_eq!(found.verdict(), Verdict::Violation);
}

#[test]
fn a_name_that_no_worker_wants_may_stay_free() {
    let mut events = good(30);
    events.push(over(20_000));
    let found = judge(&events, Promise::Claims);
    assert_eq!(found.gaps, []);
    assert!(found.longest_gap < 100 * MS);
}

#[test]
fn a_worker_that_is_refused_and_asks_again_counts_as_waiting() {
    let mut events = good(30);
    for at in (3_000..20_000).step_by(50) {
        events.extend([
            asked(at, 0),
            Event::Refused {
                at: (at + 10) * MS,
                worker: 0,
                task: 0,
                name: "n".into(),
                why: "no".into(),
            },
        ]);
    }
    events.push(over(20_000));
    assert_eq!(judge(&events, Promise::Claims).gaps.len(), 1);
}

/// Worker 9 waits from the start for a hold in that mode, and all others are served before it.
fn passed_over(mode: HoldMode, count: u64) -> Vec<Event> {
    let mut events = good(count);
    events.push(in_mode(mode, asked(0, 9)));
    // The pauses of a good run are over long before the acquisitions that count.
    events.extend([claimed(0, count * 100, 9, count + 1, count * 100 + 500)]);
    events
}

#[test]
fn a_waiter_that_is_passed_over_again_and_again_is_a_violation_where_turns_are_promised() {
    let history = |mode| History::of(&passed_over(mode, 200));
    let mut promises = promises(Promise::Effects);
    let found = check(&history(HoldMode::Exclusive), &promises, TTL, &[]);
    assert!(found.is_unfair && found.overtakings.len() > 20, "{found:?}");
    assert_eq!(found.overtakings[0].waiter, (9, 0));
    assert_eq!(found.verdict(), Verdict::Violation);
    // A store may say that waiters for upgradable holds have no place among the others.
    promises.upgradable_in_turn = false;
    for mode in [HoldMode::Shared, HoldMode::Upgradable] {
        let found = check(&history(mode), &promises, TTL, &[]);
        assert_eq!(found.is_unfair, mode == HoldMode::Shared, "{found:?}");
    }
    promises.order = Order::Unordered("");
    let found = check(&history(HoldMode::Exclusive), &promises, TTL, &[]);
    assert_eq!(found.verdict(), Verdict::Ok, "{found:?}");
}

#[test]
fn a_waiter_with_a_fault_may_lose_its_turn() {
    let mut events = passed_over(HoldMode::Exclusive, 40);
    events.push(Event::Fault {
        at: 100 * MS,
        until: 3_900 * MS,
        kind: FaultKind::Stall,
        worker: Some(9),
    });
    let found = judge(&events, Promise::Effects);
    assert_eq!(found.overtakings, []);
    assert_eq!(found.verdict(), Verdict::Ok, "{found:?}");
}

#[test]
fn a_few_acquisitions_out_of_turn_are_allowed() {
    let found = judge(&passed_over(HoldMode::Exclusive, 15), Promise::Effects);
    assert!(
        !found.overtakings.is_empty() && !found.is_unfair,
        "{found:?}"
    );
}

#[test]
fn a_waiter_that_loses_its_place_once_counts_once() {
    let found = judge(&passed_over(HoldMode::Exclusive, 60), Promise::Effects);
    assert_eq!(found.overtakings.len(), 1, "{found:?}");
    assert!(!found.is_unfair);
}

fn away(at: u64, until: u64) -> Event {
    Event::Away {
        at: at * MS,
        until: until * MS,
        why: "connection refused".to_owned(),
    }
}

#[test]
fn an_outage_that_was_not_planned_is_reported_and_judged_by_its_possible_causes() {
    // Worker 0 believes until 4,200 that it holds, and worker 1 has the name from 3,500 on.
    let mut events = good(10);
    events.extend([
        asked(3_100, 0),
        claimed(3_100, 3_200, 0, 20, 4_200),
        asked(3_150, 1),
        claimed(3_150, 3_500, 1, 21, 4_500),
        over(5_000),
    ]);
    let found = judge(&events, Promise::Nothing);
    assert_eq!(found.overlaps[0].documented, None, "there was no fault");
    events.push(away(3_300, 3_400));
    let found = judge(&events, Promise::Nothing);
    assert_eq!(found.overlaps[0].documented, Some(FaultKind::Outage));
    let found = judge(&events, Promise::Claims);
    assert_eq!(found.overlaps[0].documented, None);
    let outages = History::of(&events).store.outages;
    assert_eq!(outages.len(), 1);
    let text = "without a fault of this run: connection refused";
    assert!(outages[0].1.contains(text), "{outages:?}");
}

#[test]
fn an_outage_that_the_plan_caused_is_not_reported() {
    let mut events = good(30);
    events.extend([fault(FaultKind::ServerKill, 500, 600), away(520, 900)]);
    let history = History::of(&events);
    assert!(history.store.outages.is_empty());
    assert!(history.faults.iter().all(|it| it.kind != FaultKind::Outage));
}

#[test]
fn names_are_judged_on_their_own() {
    let mut events = good(30);
    events.extend(good(30).into_iter().map(|mut event| {
        match &mut event {
            Event::Asked { name, worker, .. } => {
                *name = "m".into();
                *worker += 3;
            }
            Event::Claimed {
                name,
                worker,
                acquisition,
                ..
            } => {
                *name = "m".into();
                *worker += 3;
                *acquisition += 1_000_000;
            }
            Event::Ended { acquisition, .. } | Event::Wrote { acquisition, .. } => {
                *acquisition += 1_000_000;
            }
            _ => {}
        }
        event
    }));
    assert_eq!(judge(&events, Promise::Effects).violations(), 0);
}

/// A good run, and then workers with these modes and tokens, which hold at the same time.
fn together(modes: &[(HoldMode, u64)]) -> Findings {
    let mut events = good(30);
    for (worker, (mode, token)) in modes.iter().enumerate() {
        let at = 3_000 + worker as u64;
        let claim = claimed(3_000, at, worker, *token, 4_000);
        events.extend([in_mode(*mode, claim), ended(3_500, at, false)]);
    }
    events.push(over(3_600));
    judge(&events, Promise::Effects)
}

#[test]
fn holders_that_may_be_together_are_no_overlap() {
    let modes = [
        (HoldMode::Shared, 101),
        (HoldMode::Upgradable, 102),
        (HoldMode::Permit, 103),
        (HoldMode::Shared, 104),
        (HoldMode::Permit, 105),
    ];
    let found = together(&modes);
    assert_eq!(found.violations(), 0, "{found:?}");
}

#[test]
fn each_conflict_of_modes_is_an_overlap() {
    use HoldMode::{Exclusive, Permit, Shared, Upgradable};
    for modes in [
        &[Exclusive, Shared][..],
        &[Shared, Exclusive],
        &[Permit, Exclusive],
        &[Upgradable, Exclusive],
        &[Upgradable, Upgradable],
        &[Permit, Permit, Permit],
        // The conflict is with the first one, and not with the last one.
        &[Upgradable, Shared, Upgradable],
    ] {
        let modes: Vec<_> = modes
            .iter()
            .zip(101..)
            .map(|(mode, token)| (*mode, token))
            .collect();
        let found = together(&modes);
        assert_eq!(found.overlaps.len(), 1, "{modes:?}: {found:?}");
        assert_eq!(found.overlaps[0].documented, None);
    }
}

#[test]
fn a_read_while_a_newer_reader_holds_is_not_late() {
    let mut events = good(30);
    events.extend([
        in_mode(HoldMode::Shared, claimed(3_000, 3_010, 0, 101, 4_000)),
        in_mode(HoldMode::Shared, claimed(3_000, 3_020, 1, 102, 4_000)),
        wrote(3_030, 3_020, true),
        wrote(3_040, 3_010, true),
        ended(3_100, 3_010, false),
        ended(3_100, 3_020, false),
        claimed(3_110, 3_120, 2, 103, 4_000),
    ]);
    let before = events.clone();
    events.push(over(3_500));
    assert_eq!(judge(&events, Promise::Effects).violations(), 0);

    let mut events = before;
    events.extend([
        wrote(3_130, 3_120, true),
        wrote(3_140, 3_010, true),
        over(3_500),
    ]);
    let found = judge(&events, Promise::Effects).writes;
    assert_eq!((found.late.len(), found.late_accepted.len()), (1, 1));
}

#[test]
fn a_log_is_read_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events");
    let mut log = Log::create(&path).unwrap();
    let mut events = overlapping(Some(FaultKind::LostReply));
    events.push(claimed(1, 2, 3, u64::MAX, 4));
    for event in &events {
        log.append(event).unwrap();
    }
    assert_eq!(event::read(&path).unwrap(), events);
    assert!(Log::create(&path).is_err(), "a log is never written over");
    std::fs::write(&path, "{\"event\":\"unknown\"}\n").unwrap();
    assert!(event::read(&path).is_err());
}
