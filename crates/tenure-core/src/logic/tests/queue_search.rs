//! The queue machine, in all lists of up to five contenders, left in all orders.

use std::collections::HashSet;
use std::num::NonZeroU32;

use super::owner;
use crate::logic::queue::{Contender, Turn, decide};
use crate::logic::table::{LockRequest, Table, Verdict};
use crate::options::Mode;
use crate::time::Time;

const TWO: Mode = Mode::Permits {
    limit: NonZeroU32::new(2).unwrap(),
};
const ONE: Mode = Mode::Permits {
    limit: NonZeroU32::new(1).unwrap(),
};

/// The machine, or a mutant of it.
type Decide = fn(&[Contender], usize) -> Turn;

fn turns(modes: &[Mode], decide: Decide) -> Vec<Turn> {
    let contenders: Vec<_> = modes.iter().map(|mode| Contender { mode: *mode }).collect();
    (0..modes.len()).map(|me| decide(&contenders, me)).collect()
}

fn watched(turn: &Turn) -> Vec<usize> {
    match turn {
        Turn::Held => vec![],
        Turn::WatchOne(index) => vec![*index],
        Turn::WatchAll(range) => range.clone().collect(),
    }
}

fn compatible(one: Mode, other: Mode) -> bool {
    let both_upgradable = one == Mode::Upgradable && other == Mode::Upgradable;
    one != Mode::Exclusive && other != Mode::Exclusive && !both_upgradable
}

/// All lists of `length` out of `modes`.
fn lists(modes: &[Mode], length: usize) -> Vec<Vec<Mode>> {
    (0..length).fold(vec![vec![]], |shorter, _| {
        let longer = |list: &Vec<Mode>| {
            let list = list.clone();
            modes
                .iter()
                .map(move |mode| [list.clone(), vec![*mode]].concat())
        };
        shorter.iter().flat_map(longer).collect()
    })
}

/// A contender together with its place in the first list, and what it watches (by first places).
type Watching = Vec<(usize, Mode, Vec<usize>)>;

/// Lets contenders leave in every order, holders and waiters alike. Each acts as a client would:
/// it looks at the list only when something that it watches is gone.
///
/// `pure`: shared and permits do not meet, and all permits have one limit.
fn leave_all(list: Watching, seen: &mut HashSet<Watching>, pure: bool, decide: Decide) {
    if !seen.insert(list.clone()) {
        return;
    }
    let modes: Vec<_> = list.iter().map(|(_, mode, _)| *mode).collect();
    let truth = turns(&modes, decide);
    for (index, turn) in truth.iter().enumerate() {
        let believes = list[index].2.is_empty();
        assert!(
            !believes || *turn == Turn::Held,
            "believes for nothing: {list:?}"
        );
        assert!(
            believes || *turn != Turn::Held,
            "missed its wake-up: {list:?}"
        );
        assert!(
            watched(turn).iter().all(|ahead| *ahead < index),
            "watches backward: {list:?}"
        );
    }
    let holders: Vec<_> = (0..list.len())
        .filter(|index| truth[*index] == Turn::Held)
        .collect();
    assert!(
        list.is_empty() || !holders.is_empty(),
        "nobody holds: {list:?}"
    );
    for one in &holders {
        for other in holders.iter().filter(|other| *other != one) {
            assert!(
                compatible(modes[*one], modes[*other]),
                "incompatible: {list:?}"
            );
        }
    }
    if pure {
        let permits = holders
            .iter()
            .filter(|holder| modes[**holder] == TWO)
            .count();
        assert!(permits <= 2, "too many permits: {list:?}");
    }
    for gone in 0..list.len() {
        let mut rest = list.clone();
        let (id, mode, _) = rest.remove(gone);
        let modes: Vec<_> = rest.iter().map(|(_, mode, _)| *mode).collect();
        let decisions = turns(&modes, decide);
        let mut woken = 0;
        for index in 0..rest.len() {
            if rest[index].2.contains(&id) {
                woken += 1;
                rest[index].2 = watched(&decisions[index])
                    .iter()
                    .map(|at| rest[*at].0)
                    .collect();
            }
        }
        if pure {
            // The end of a writer wakes all readers behind it, or as many permits as there are, and the
            // next writer. The end of a reader wakes the writer just behind it, if any; of a permit, that
            // and those permits whose turn may have come.
            let bound = match mode {
                Mode::Exclusive if modes.contains(&TWO) => 1 + 2,
                Mode::Exclusive => rest.len(),
                Mode::Shared | Mode::Upgradable => 1,
                Mode::Permits { .. } => 1 + 2,
            };
            assert!(woken <= bound, "a herd: {list:?} without {gone}");
        }
        leave_all(rest, seen, pure, decide);
    }
}

fn search(modes: &[Mode], pure: bool, decide: Decide) -> usize {
    let mut seen = HashSet::new();
    for length in 1..=5 {
        for list in lists(modes, length) {
            let turns = turns(&list, decide);
            let start = list.iter().zip(&turns).enumerate();
            let start = start
                .map(|(id, (mode, turn))| (id, *mode, watched(turn)))
                .collect();
            leave_all(start, &mut seen, pure, decide);
        }
    }
    seen.len()
}

#[test]
fn nobody_misses_a_wake_up_and_nobody_holds_beside_an_enemy() {
    for (modes, pure) in [
        (&[Mode::Exclusive, Mode::Shared] as &[Mode], true),
        (&[Mode::Exclusive, TWO], true),
        (&[Mode::Exclusive, Mode::Shared, TWO, ONE], false),
        (&[Mode::Exclusive, Mode::Shared, Mode::Upgradable], false),
        (&[Mode::Shared, Mode::Upgradable, TWO], false),
    ] {
        println!("{modes:?}: {} lists", search(modes, pure, decide));
    }
}

/// Known from semaphores elsewhere: with a watch on nothing but the one just ahead, the end of another
/// one's hold is missed.
#[test]
#[should_panic(expected = "missed its wake-up")]
fn mutant_permits_that_watch_only_the_one_ahead() {
    search(&[TWO], true, |contenders, me| {
        match decide(contenders, me) {
            Turn::WatchAll(_) => Turn::WatchOne(me - 1),
            other => other,
        }
    });
}

#[test]
#[should_panic(expected = "missed its wake-up")]
fn mutant_only_the_next_in_line_watches_all() {
    search(&[TWO], true, |contenders, me| {
        match decide(contenders, me) {
            Turn::WatchAll(_) if me > 2 => Turn::WatchOne(me - 1),
            other => other,
        }
    });
}

/// Joining one by one and leaving in any order, the queue machine says "held" of the same contenders
/// as the table, which is the specification.
#[test]
fn the_queue_decides_as_the_table_does() {
    fn same(table: &Table, list: &[(u8, Mode)]) {
        let modes: Vec<_> = list.iter().map(|(_, mode)| *mode).collect();
        let holders = table
            .view(&super::name("door"))
            .map(|view| view.holds)
            .unwrap_or_default();
        for ((id, _), turn) in list.iter().zip(turns(&modes, decide)) {
            let held = holders.iter().any(|hold| hold.owner == owner(*id));
            assert_eq!(turn == Turn::Held, held, "{id} of {list:?}");
        }
    }
    fn leave(table: &Table, list: &[(u8, Mode)]) {
        same(table, list);
        for gone in 0..list.len() {
            let mut table = table.clone();
            let mut rest = list.to_vec();
            let (id, _) = rest.remove(gone);
            table.release(&super::name("door"), owner(id), false, Time::ZERO);
            leave(&table, &rest);
        }
    }
    for length in 1..=4 {
        let all = [Mode::Exclusive, Mode::Shared, Mode::Upgradable, TWO, ONE];
        for modes in lists(&all, length) {
            let mut table = Table::new();
            let mut list = vec![];
            for (id, mode) in (0..).zip(modes) {
                let ask = LockRequest {
                    name: super::name("door"),
                    owner: owner(id),
                    mode,
                    ttl: None,
                    wait: true,
                    barge: false,
                    min_hold: std::time::Duration::ZERO,
                    lock_delay: std::time::Duration::ZERO,
                    waiter_ttl: None,
                    propose: None,
                };
                list.push((id, mode));
                assert_ne!(table.acquire(&ask, Time::ZERO), Verdict::Busy);
                same(&table, &list);
            }
            leave(&table, &list);
        }
    }
}
