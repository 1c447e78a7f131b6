//! The table against a second, naive reading of its rules: a list of actors per name, each in some state, and a rule
//! for each state. The model has no agenda and no slots, and forgets no name.

mod model;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;

use self::model::{Actor, ActorState, Model};
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
            let lock = name(of);
            now = match event {
                Event::TickWhenDue if table.next() < Time::MAX => now.max(table.next()),
                _ => now.after(Duration::from_secs(pause)),
            };
            if !matches!(event, Event::Tick | Event::TickWhenDue) {
                model.settle(of, now);
            }
            match event {
                Event::Acquire(ref ask) => {
                    let ask = LockRequest { name: lock.clone(), owner: owner(who), ..ask.clone() };
                    prop_assert_eq!(table.acquire(&ask, now), model.acquire(of, who, &ask, now));
                }
                Event::Renew(ttl) => {
                    let holds = match model.of(of, who).map(|actor| &mut actor.state) {
                        Some(ActorState::Holding { until, .. }) => {
                            *until = ttl.map_or(*until, |ttl| now.after(ttl).max(*until));
                            true
                        }
                        _ => false,
                    };
                    prop_assert_eq!(table.renew(&lock, owner(who), ttl, now), holds);
                }
                Event::Touch => {
                    let waits = match model.of(of, who) {
                        Some(Actor { ask, state: ActorState::Waiting { silent_from }, .. }) => {
                            *silent_from = ask.waiter_ttl.map_or(Time::MAX, |ttl| now.after(ttl));
                            true
                        }
                        _ => false,
                    };
                    prop_assert_eq!(table.touch(&lock, owner(who), now), waits);
                }
                Event::Raise { token: least } => {
                    let last = model.tokens.get(of).copied().unwrap_or(0);
                    let raised = match model.of(of, who) {
                        Some(Actor { state: ActorState::Holding { token, .. }, .. }) => {
                            // No other holder ever has that token.
                            *token = if *token < least { least.max(last + 1) } else { *token };
                            Some(*token)
                        }
                        _ => None,
                    };
                    if let Some(token) = raised {
                        model.tokens.insert(of.to_owned(), last.max(token));
                    }
                    prop_assert_eq!(table.raise(&lock, owner(who), least, now), raised);
                }
                Event::Upgrade { wait } => {
                    prop_assert_eq!(table.upgrade(&lock, owner(who), wait, now), model.upgrade(of, who, wait));
                }
                Event::Downgrade(mode) => {
                    prop_assert_eq!(table.downgrade(&lock, owner(who), mode, now), model.downgrade(of, who, mode));
                }
                Event::Release { unclean } => {
                    let held = match model.of(of, who) {
                        Some(actor @ Actor { state: ActorState::Holding { .. }, .. }) => {
                            Model::end(actor, unclean, now);
                            true
                        }
                        Some(actor) => {
                            actor.state = ActorState::Gone;
                            false
                        }
                        None => false,
                    };
                    let released = !unclean && table.release_at_any_time(&lock, owner(who))
                        || table.release(&lock, owner(who), unclean, now);
                    prop_assert_eq!(released, held);
                }
                Event::Break { token } => {
                    let actors = model.actors.get_mut(of).unwrap();
                    let hit = actors.iter_mut().find(|actor| matches!(actor.state, ActorState::Holding { token: held, .. } if held == token));
                    let broken = hit.map(|actor| Model::end(actor, true, now)).is_some();
                    prop_assert_eq!(table.break_hold(&lock, token, now), broken);
                }
                Event::Expire => {
                    let mut ended = 0;
                    for actor in model.actors.get_mut(of).unwrap() {
                        if let ActorState::Holding { .. } = actor.state {
                            Model::end(actor, true, now);
                            ended += 1;
                        }
                    }
                    prop_assert_eq!(table.expire(&lock, now), ended);
                }
                Event::Tick | Event::TickWhenDue => {
                    table.tick(now);
                    prop_assert!(table.next() > now);
                    model.settle("first", now);
                    model.settle("second", now);
                }
            }
            model.settle(of, now);
            let (mut told, mut forgotten) = (vec![], vec![]);
            table.granted(&mut told);
            table.forgotten(&mut forgotten);
            // A tick serves the names in the order of their dues; within one name the order counts.
            let mut told: Vec<_> = told.into_iter().map(|(who, token)| (who.as_bytes()[0], token)).collect();
            let mut forgotten: Vec<_> = forgotten.into_iter().map(|who| who.as_bytes()[0]).collect();
            if matches!(event, Event::Tick | Event::TickWhenDue) {
                for list in [&mut told, &mut model.told] { list.sort_unstable(); }
                for list in [&mut forgotten, &mut model.forgotten] { list.sort_unstable(); }
            }
            prop_assert_eq!(told, std::mem::take(&mut model.told));
            prop_assert_eq!(forgotten, std::mem::take(&mut model.forgotten));
            prop_assert_eq!(table.next(), model.next());
            for of in ["first", "second"] {
                let actors = model.actors.entry(of.to_owned()).or_default();
                let mut holds: Vec<_> = actors.iter().filter_map(|actor| match actor.state {
                    ActorState::Holding { token, since, until } => Some((actor.ask.owner, actor.ask.mode, token, since, until)),
                    _ => None,
                }).collect();
                holds.sort_by_key(|(_, _, token, ..)| *token);
                let waiters: Vec<_> = actors.iter().filter(|actor| matches!(actor.state, ActorState::Waiting { .. })).map(|actor| (actor.ask.owner, actor.ask.mode)).collect();
                let reserved = actors.iter().filter_map(|actor| match actor.state {
                    ActorState::Blocking { until } => Some(until),
                    _ => None,
                }).max();
                match table.view(&name(of)) {
                    None => prop_assert!(actors.is_empty()),
                    Some(view) => {
                        let seen: Vec<_> = view.holds.iter().map(|hold| (hold.owner, hold.mode, hold.token, hold.since, hold.expires.unwrap_or(Time::MAX))).collect();
                        prop_assert_eq!(seen, holds);
                        prop_assert_eq!(view.waiters, waiters);
                        prop_assert_eq!(view.reserved_until, reserved);
                    }
                }
                prop_assert_eq!(table.names(of).len(), usize::from(actors.iter().any(|actor| !matches!(actor.state, ActorState::Blocking { .. }))));
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
