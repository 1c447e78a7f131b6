//! The table against a second, naive reading of its rules: a list of actors per name, each in some state, and a rule
//! for each state. The model has no agenda and no slots, and forgets no name.

mod model;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;

use self::model::{ActorState, Model};
use super::{name, owner};
use crate::logic::table::{KEPT_NAMES, LockRequest, Table, Verdict};
use crate::options::Mode;
use crate::time::Time;

#[derive(Clone, Debug)]
enum Event {
    Acquire(LockRequest),
    Renew(Option<Duration>),
    Touch,
    Raise { token: u64 },
    Upgrade { wait: bool },
    Downgrade(Mode),
    Release { unclean: bool },
    Break { token: u64 },
    Expire,
    Tick,
    TickWhenDue,
}

fn event() -> impl Strategy<Value = Event> {
    let short =
        || prop_oneof![3 => Just(Duration::ZERO), 1 => (1..8_u64).prop_map(Duration::from_secs)];
    let maybe = || prop::option::weighted(0.7, (1..8_u64).prop_map(Duration::from_secs));
    let mode = prop_oneof![
        3 => Just(Mode::Exclusive),
        2 => Just(Mode::Shared),
        2 => Just(Mode::Upgradable),
        2 => (1..3_u32).prop_map(|limit| Mode::Permits { limit: NonZeroU32::new(limit).unwrap() }),
    ];
    let propose = prop::option::weighted(0.2, 0..40_u64);
    let reservations = (short(), short());
    let ask = (
        mode,
        maybe(),
        any::<[bool; 3]>(),
        reservations,
        maybe(),
        propose,
    )
        .prop_map(
            |(mode, ttl, [wait, patient, barge], (min_hold, lock_delay), waiter_ttl, propose)| {
                LockRequest {
                    name: name("?"),
                    owner: owner(0),
                    mode,
                    ttl,
                    wait: wait || patient,
                    barge: barge && !patient,
                    min_hold,
                    lock_delay,
                    waiter_ttl,
                    propose,
                }
            },
        );
    prop_oneof![
        10 => ask.prop_map(Event::Acquire),
        2 => maybe().prop_map(Event::Renew),
        2 => Just(Event::Touch),
        1 => (0..40_u64).prop_map(|token| Event::Raise { token }),
        4 => any::<bool>().prop_map(|wait| Event::Upgrade { wait }),
        1 => Just(Event::Downgrade(Mode::Shared)),
        1 => Just(Event::Downgrade(Mode::Upgradable)),
        5 => any::<bool>().prop_map(|unclean| Event::Release { unclean }),
        1 => (1..12_u64).prop_map(|token| Event::Break { token }),
        1 => Just(Event::Expire),
        3 => Just(Event::Tick),
        3 => Just(Event::TickWhenDue),
    ]
}

impl Event {
    fn is_tick(&self) -> bool {
        matches!(self, Self::Tick | Self::TickWhenDue)
    }
}

/// Lets the same happen to the table and to the model, and compares what both answer.
fn apply(
    event: &Event,
    (table, model): (&mut Table, &mut Model),
    (of, who): (&str, u8),
    now: Time,
) -> Result<(), TestCaseError> {
    let (lock, id) = (name(of), owner(who));
    match *event {
        Event::Acquire(ref ask) => {
            let ask = LockRequest {
                name: lock,
                owner: id,
                ..ask.clone()
            };
            prop_assert_eq!(table.acquire(&ask, now), model.acquire(of, who, &ask, now));
        }
        Event::Renew(ttl) => {
            let renewed = table.renew(&lock, id, ttl, now);
            prop_assert_eq!(renewed, model.renew(of, who, ttl, now));
        }
        Event::Touch => {
            prop_assert_eq!(table.touch(&lock, id, now), model.touch(of, who, now));
        }
        Event::Raise { token } => {
            let raised = table.raise(&lock, id, token, now);
            prop_assert_eq!(raised, model.raise(of, who, token));
        }
        Event::Upgrade { wait } => {
            let verdict = table.upgrade(&lock, id, wait, now);
            prop_assert_eq!(verdict, model.upgrade(of, who, wait));
        }
        Event::Downgrade(mode) => {
            let weaker = table.downgrade(&lock, id, mode, now);
            prop_assert_eq!(weaker, model.downgrade(of, who, mode));
        }
        Event::Release { unclean } => {
            let released = !unclean && table.release_at_any_time(&lock, id)
                || table.release(&lock, id, unclean, now);
            prop_assert_eq!(released, model.release(of, who, unclean, now));
        }
        Event::Break { token } => {
            let broken = table.break_hold(&lock, token, now);
            prop_assert_eq!(broken, model.break_hold(of, token, now));
        }
        Event::Expire => prop_assert_eq!(table.expire(&lock, now), model.expire(of, now)),
        Event::Tick | Event::TickWhenDue => {
            table.tick(now);
            prop_assert!(table.next() > now);
            model.settle("first", now);
            model.settle("second", now);
        }
    }
    Ok(())
}

/// Compares the owners that both granted a lock to, or forgot as waiters, with the event.
fn compare_reports(
    event: &Event,
    table: &mut Table,
    model: &mut Model,
) -> Result<(), TestCaseError> {
    let (mut told, mut forgotten) = (vec![], vec![]);
    table.granted(&mut told);
    table.forgotten(&mut forgotten);
    let mut told: Vec<_> = told
        .into_iter()
        .map(|(who, token)| (who.as_bytes()[0], token))
        .collect();
    let mut forgotten: Vec<_> = forgotten.into_iter().map(|who| who.as_bytes()[0]).collect();
    // A tick serves the names in the order of their dues; within one name the order counts.
    if event.is_tick() {
        told.sort_unstable();
        model.told.sort_unstable();
        forgotten.sort_unstable();
        model.forgotten.sort_unstable();
    }
    prop_assert_eq!(told, std::mem::take(&mut model.told));
    prop_assert_eq!(forgotten, std::mem::take(&mut model.forgotten));
    Ok(())
}

/// Compares what both know of one name.
fn compare_lock(of: &str, table: &Table, model: &mut Model) -> Result<(), TestCaseError> {
    let actors = model.actors.entry(of.to_owned()).or_default();
    let (mut holds, mut waiters, mut reserved) = (vec![], vec![], None);
    for actor in &*actors {
        let (owner, mode) = (actor.ask.owner, actor.ask.mode);
        match actor.state {
            ActorState::Holding {
                token,
                since,
                until,
            } => holds.push((owner, mode, token, since, until)),
            ActorState::Waiting { .. } => waiters.push((owner, mode)),
            ActorState::Blocking { until } => reserved = reserved.max(Some(until)),
            ActorState::Gone => {}
        }
    }
    holds.sort_by_key(|(_, _, token, ..)| *token);
    let is_named = !holds.is_empty() || !waiters.is_empty();
    prop_assert_eq!(table.names(of).len(), usize::from(is_named));
    let Some(view) = table.view(&name(of)) else {
        prop_assert!(actors.is_empty());
        return Ok(());
    };
    let seen = view.holds.iter().map(|hold| {
        let until = hold.expires.unwrap_or(Time::MAX);
        (hold.owner, hold.mode, hold.token, hold.since, until)
    });
    prop_assert_eq!(seen.collect::<Vec<_>>(), holds);
    prop_assert_eq!(view.waiters, waiters);
    prop_assert_eq!(view.reserved_until, reserved);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_table_does_what_the_rules_say(
        events in prop::collection::vec((event(), 1..7_u8, any::<bool>(), 0..3_u64), 1..120)
    ) {
        let (mut table, mut model) = (Table::new(), Model::default());
        let mut now = Time::ZERO;
        for (event, who, first, pause) in events {
            let of = if first { "first" } else { "second" };
            now = match event {
                Event::TickWhenDue if table.next() < Time::MAX => now.max(table.next()),
                _ => now.after(Duration::from_secs(pause)),
            };
            if !event.is_tick() {
                model.settle(of, now);
            }
            apply(&event, (&mut table, &mut model), (of, who), now)?;
            model.settle(of, now);
            compare_reports(&event, &mut table, &mut model)?;
            prop_assert_eq!(table.next(), model.next());
            for of in ["first", "second"] {
                compare_lock(of, &table, &mut model)?;
            }
        }
    }
}

fn ask_for(lock: &str, who: u8) -> LockRequest {
    LockRequest {
        name: name(lock),
        owner: owner(who),
        mode: Mode::Exclusive,
        ttl: Some(Duration::from_secs(30)),
        wait: false,
        barge: false,
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        waiter_ttl: None,
        propose: None,
    }
}

/// A release whose effect depends on the time is left to `Table::release`.
#[test]
fn a_release_at_any_time_ends_only_what_ends_alike_at_all_times() {
    let now = Time::from_nanos(1);
    let unlimited = |who| LockRequest {
        ttl: None,
        wait: true,
        ..ask_for("a", who)
    };
    let ends_after = |before: &[LockRequest]| {
        let mut table = Table::new();
        for ask in before {
            table.acquire(ask, now);
        }
        let (lock, me) = (name("a"), owner(1));
        let mut expected = table.clone();
        let is_done = table.release_at_any_time(&lock, me);
        if is_done {
            assert!(expected.release(&lock, me, false, now));
        }
        assert_eq!(table.state(&lock), expected.state(&lock));
        is_done
    };
    assert!(ends_after(&[unlimited(1)]));
    assert!(ends_after(&[
        unlimited(1),
        LockRequest {
            name: name("b"),
            ..unlimited(2)
        }
    ]));
    let min_hold = Duration::from_secs(1);
    let shared = |who| LockRequest {
        mode: Mode::Shared,
        ..unlimited(who)
    };
    for before in [
        vec![],
        vec![unlimited(2)],
        vec![unlimited(1), unlimited(2)],
        vec![shared(1), shared(2)],
        vec![ask_for("a", 1)],
        vec![unlimited(1), ask_for("b", 2)],
        vec![LockRequest {
            min_hold,
            ..unlimited(1)
        }],
    ] {
        assert!(!ends_after(&before), "{before:?}");
    }
}

#[test]
fn names_used_once_are_forgotten_and_their_tokens_still_grow() {
    let mut table = Table::new();
    let mut last = BTreeMap::new();
    let held = ask_for("held", 9);
    assert_eq!(
        table.acquire(&held, Time::ZERO),
        Verdict::Granted { token: 1 }
    );
    for round in 0..20 * KEPT_NAMES {
        // Each name is used again some thousand rounds later, when it has been forgotten.
        let lock = format!("{}", round % (5 * KEPT_NAMES));
        let now = Time::from_millis(round as u64);
        let Verdict::Granted { token } = table.acquire(&ask_for(&lock, 1), now) else {
            panic!("{lock} is free")
        };
        let before = last.insert(lock.clone(), token);
        assert!(
            before.is_none_or(|before| before < token),
            "{lock}: {before:?}, then {token}"
        );
        assert!(table.release(&name(&lock), owner(1), false, now));
        assert!(table.slots.len() <= KEPT_NAMES + 2);
    }
    assert!(table.renew(&held.name, held.owner, None, Time::from_millis(1)));
    assert_eq!(table.names(""), [name("held")]);
    assert_eq!(table.next(), Time::from_millis(30_000));
}

#[test]
fn names_are_listed_by_prefix_in_order() {
    let mut table = Table::new();
    for lock in ["b/2", "a", "b/1", "b"] {
        table.acquire(&ask_for(lock, 1), Time::ZERO);
    }
    table.release(&name("b/2"), owner(1), false, Time::ZERO);
    assert_eq!(table.names("b"), [name("b"), name("b/1")]);
    assert_eq!(table.names(""), [name("a"), name("b"), name("b/1")]);
    assert_eq!(table.names("c"), []);
}
