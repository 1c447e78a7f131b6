//! Histories of workers with several tasks, which pass a hold on among themselves.

use tenure_torture::checker::{Findings, Verdict};
use tenure_torture::event::Event;
use tenure_torture::history::History;
use tenure_torture::plan::FaultKind;
use tenure_torture::settings::task_of;

use crate::{MS, Promise, asked, began, claimed, ended, fault, good, judge, over};

/// The number of a task in the number of its acquisition.
const fn number_of(task: usize) -> u64 {
    (task as u64) << 40
}

/// The same event, of another task of its worker. `turn`: the number of its hold.
fn by_task(number: usize, turn: u64, mut event: Event) -> Event {
    match &mut event {
        Event::Asked { task, .. } => *task = number,
        Event::Claimed {
            acquisition,
            turn: it,
            ..
        } => {
            *acquisition += number_of(number);
            *it = Some(turn);
        }
        Event::Ended { acquisition, .. } => *acquisition += number_of(number),
        _ => {}
    }
    event
}

/// A good run, and then a hold that three tasks of worker 1 had one after the other, all of which asked before the first had
/// it.
fn turn(tokens: [u64; 3]) -> Vec<Event> {
    let mut events = good(30);
    events.push(over(4_000));
    for (task, token) in tokens.into_iter().enumerate() {
        let at = 3_100 + task as u64 * 10;
        events.extend(
            [
                asked(3_000, 1),
                claimed(3_000, at, 1, token, at + 1_000),
                ended(at + 9, at, false),
            ]
            .map(|event| by_task(task, 7, event)),
        );
    }
    events
}

fn tokens_found(tokens: [u64; 3]) -> usize {
    judge(&turn(tokens), Promise::Effects).tokens.len()
}

#[test]
fn tokens_grow_within_a_turn() {
    let history = History::of(&turn([31, 32, 33]));
    assert_eq!((history.tasks(), history.passed_on()), (3, 2));
    assert_eq!(tokens_found([31, 32, 33]), 0);
    assert_eq!(tokens_found([31, 31, 32]), 1, "one is used twice");
    assert_eq!(tokens_found([32, 31, 33]), 1, "one goes back");
}

#[test]
fn a_token_of_a_turn_is_not_granted_again() {
    let again = |token| {
        let mut events = turn([31, 32, 33]);
        // The next holder had asked before the turn began.
        events.extend([
            asked(3_050, 2),
            claimed(3_050, 3_200, 2, token, 4_200),
            ended(3_300, 3_200, false),
        ]);
        judge(&events, Promise::Effects).tokens.len()
    };
    assert_eq!(again(34), 0);
    assert_eq!(again(32), 1);
}

#[test]
fn two_tasks_of_a_worker_overlap_as_two_workers_do() {
    let mut events = turn([31, 32, 33]);
    events.retain(|event| !matches!(event, Event::Ended { at, .. } if *at == 3_109 * MS));
    let found = judge(&events, Promise::Effects);
    let holders = found.overlaps.iter().map(|it| [it.first, it.second]);
    let holders: Vec<_> = holders
        .map(|it| it.map(|it| (it.1, task_of(it.0))))
        .collect();
    assert_eq!(holders, [[(1, 0), (1, 1)], [(1, 0), (1, 2)]]);
    assert_eq!(found.verdict(), Verdict::Violation);
}

#[test]
fn a_killed_process_ends_all_its_tasks() {
    let mut events = vec![began(0), over(10_000)];
    for task in 0..2 {
        events.push(by_task(task, 0, asked(10, 0)));
    }
    events.push(by_task(0, 3, claimed(10, 20, 0, 1, 5_000)));
    events.push(Event::Killed {
        at: 30 * MS,
        worker: 0,
    });
    let history = History::of(&events);
    let ends: Vec<_> = history.waits.iter().map(|it| it.to / MS).collect();
    assert_eq!(ends, [20, 30]);
    assert_eq!(history.claims[0].end, 30 * MS);
}

/// Worker 9 waits, and worker 1 is served again and again: in a turn for which it asked before, or not.
fn passed_over(asks_first: bool) -> Findings {
    let mut events = vec![began(0), over(60_000)];
    events.extend((0..3).map(|at| fault(FaultKind::Pause, at, at + 1)));
    let first = if asks_first { 10 } else { 2_000 };
    events.push(asked(1_000, 9));
    for number in 0..20 {
        let (task, at) = (number as usize % 2, 12_000 + number * 10);
        let asked_at = if number == 0 { first } else { at - 10 };
        events.extend(
            [
                asked(asked_at, 1),
                claimed(asked_at, at, 1, number + 1, at + 1_000),
                ended(at + 9, at, false),
            ]
            .map(|event| by_task(task, 7, event)),
        );
    }
    judge(&events, Promise::Effects)
}

#[test]
fn a_hold_that_passes_on_is_not_out_of_turn() {
    assert_eq!(passed_over(true).overtakings, []);
    // All tasks of the turn together have overtaken once.
    assert_eq!(passed_over(false).overtakings.len(), 1);
}
