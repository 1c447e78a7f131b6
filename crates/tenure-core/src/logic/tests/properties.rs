//! Random schedules: what must hold whatever happens in whatever order.

use std::time::Duration;

use proptest::prelude::*;

use crate::logic::lease::{HoldState, Lease, Terms, Tick, margin};
use crate::logic::pace;
use crate::logic::quorum::{Tally, Verdict};
use crate::lost::LostReason;
use crate::options::Renew;
use crate::time::Time;

#[derive(Clone, Debug)]
enum Event {
    /// Time passes, then the owner ticks.
    Tick(u64),
    /// Time passes up to what the lease asked for, then the owner ticks.
    TickWhenDue,
    /// Time passes without a tick.
    Pause(u64),
    /// A renewal, picked among all ever sent, is answered; with another ttl now and then.
    Yes(prop::sample::Index, Option<u64>),
    Unanswered(u32),
    Refused,
}

fn event() -> impl Strategy<Value = Event> {
    let millis = 0..4_000_u64;
    prop_oneof![
        4 => millis.clone().prop_map(Event::Tick),
        8 => Just(Event::TickWhenDue),
        2 => millis.prop_map(Event::Pause),
        6 => (any::<prop::sample::Index>(), prop::option::weighted(0.1, 20..12_000_u64))
            .prop_map(|(which, ttl)| Event::Yes(which, ttl)),
        3 => any::<u32>().prop_map(Event::Unanswered),
        1 => Just(Event::Refused),
    ]
}

fn terms() -> impl Strategy<Value = Terms> {
    let millis = |range: std::ops::Range<u64>| range.prop_map(Duration::from_millis);
    (
        millis(20..10_000),
        prop_oneof![4 => Just(Duration::ZERO), 1 => millis(0..500)],
        prop_oneof![4 => Just(Renew::Automatic), 1 => Just(Renew::Never)],
        prop::option::weighted(0.3, millis(1..40_000)),
    )
        .prop_map(|(ttl, drift, renew, max_hold)| Terms {
            ttl,
            drift,
            renew,
            max_hold,
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lease(terms in terms(), leased in any::<bool>(), late in 0..2_000_u64, events in prop::collection::vec(event(), 1..60)) {
        let start = Time::from_millis(1_000);
        let ttl = leased.then_some(terms.ttl);
        let mut lease = Lease::granted(terms, start, ttl);
        let mut now = start.after(Duration::from_millis(late));
        let mut sent = vec![start];
        let mut confirmed = ttl.map(|ttl| vec![(start, ttl)]).unwrap_or_default();
        let mut lost: Option<LostReason> = None;
        // The newest renewal without an answer, and how soon another one may be sent although it is still under way.
        let mut in_flight: Option<(Time, Duration)> = None;
        for event in events {
            if let (Event::Yes(..) | Event::Unanswered(_), HoldState::Lost(reason)) = (&event, lease.state(now)) {
                lost.get_or_insert(reason);
            }
            match event {
                Event::Pause(millis) => now = now.after(Duration::from_millis(millis)),
                Event::Tick(_) | Event::TickWhenDue => {
                    now = match event {
                        Event::Tick(millis) => now.after(Duration::from_millis(millis)),
                        _ if lease.next() < Time::MAX => now.max(lease.next()),
                        _ => now,
                    };
                    match lease.tick(now) {
                        Tick::Wait => {}
                        Tick::Renew => {
                            prop_assert_ne!(terms.renew, Renew::Never);
                            if let Some((since, pause)) = in_flight {
                                prop_assert!(now.since(since) >= pause, "two in flight");
                            }
                            in_flight = Some((now, lease.ttl / 3));
                            sent.push(now);
                        }
                        Tick::Lost(reason) => { lost.get_or_insert(reason); }
                    }
                    prop_assert!(lease.next() > now, "asks to be ticked again at once");
                }
                Event::Yes(which, other) => {
                    let at = *which.get(&sent);
                    let ttl = leased.then(|| other.map_or(terms.ttl, Duration::from_millis));
                    let over = matches!(lease.state(now), HoldState::Lost(_));
                    lease.renewed(at, ttl, now);
                    if let (Some(ttl), false) = (ttl, over) {
                        confirmed.push((at, ttl));
                    }
                    if in_flight.is_some_and(|(since, _)| since <= at) {
                        in_flight = None;
                    }
                }
                Event::Unanswered(jitter) => {
                    let held = lease.deadline();
                    lease.unanswered(now, jitter);
                    prop_assert_eq!(lease.deadline(), held, "an error moved the deadline");
                    in_flight = None;
                }
                Event::Refused => {
                    lease.refused(LostReason::StoreSaysNo);
                    prop_assert!(matches!(lease.state(now), HoldState::Lost(_)));
                    lost.get_or_insert(LostReason::StoreSaysNo);
                }
            }
            // The deadline is covered by a yes, and by the newest one.
            let cap = terms.max_hold.map_or(Time::MAX, |max_hold| start.after(max_hold));
            prop_assert!(lease.deadline() <= cap);
            if leased {
                let covers = |(sent, ttl): &(Time, Duration)| sent.after(*ttl).before(margin(*ttl, terms.drift)).max(*sent);
                prop_assert!(confirmed.iter().any(|yes| lease.deadline() <= covers(yes)));
                let newest = confirmed.iter().map(|(sent, _)| *sent).max().unwrap();
                if terms.renew == Renew::Automatic {
                    let best = confirmed.iter().filter(|(sent, _)| *sent == newest).map(covers).max().unwrap();
                    prop_assert!(lease.deadline() <= best);
                } else {
                    prop_assert_eq!(lease.deadline(), covers(&confirmed[0]).min(cap));
                }
            } else if terms.renew == Renew::Never {
                prop_assert!(lease.deadline() <= start.after(terms.ttl));
            }
            // Lost is final, and certain from the deadline on.
            if let Some(reason) = lost {
                prop_assert_eq!(lease.state(now), HoldState::Lost(reason));
                prop_assert_eq!(lease.clone().tick(now), Tick::Lost(reason));
                prop_assert_eq!(lease.next(), Time::MAX);
            } else {
                prop_assert_eq!(matches!(lease.state(now), HoldState::Lost(_)), now >= lease.deadline());
            }
            // `next` is exact: nothing happens before it, something at it.
            let next = lease.next();
            if next > now && next < Time::MAX {
                let before = Time::from_nanos(next.as_nanos() - 1).max(now);
                prop_assert_eq!(lease.clone().tick(before), Tick::Wait);
                prop_assert_eq!(lease.state(before), lease.state(now));
                prop_assert!(lease.clone().tick(next) != Tick::Wait || lease.state(next) != lease.state(before));
            }
        }
    }

    #[test]
    fn a_verdict_never_changes(nodes in 0..8_usize, votes in prop::collection::vec((0..9_usize, 0..3_u8), 0..30)) {
        let mut tally = Tally::new(nodes);
        let mut first_definite = vec![None; nodes];
        let mut decided = None;
        for (node, vote) in votes {
            let verdict = match vote {
                0 => tally.yes(node),
                1 => tally.no(node),
                _ => tally.unknown(node),
            };
            if node < nodes && vote < 2 {
                first_definite[node].get_or_insert(vote == 0);
            }
            let yes = first_definite.iter().filter(|vote| **vote == Some(true)).count();
            if let Some(decided) = decided {
                prop_assert_eq!(verdict, decided);
            } else {
                prop_assert_eq!(verdict == Verdict::Won, yes >= tally.majority());
            }
            if verdict != Verdict::Pending {
                decided.get_or_insert(verdict);
            }
            let may_have_it: Vec<_> = (0..nodes).filter(|node| first_definite[*node] != Some(false)).collect();
            prop_assert_eq!(tally.to_release(), may_have_it);
        }
    }

    #[test]
    fn two_clients_never_both_win(nodes in 1..8_usize, choice in prop::collection::vec(any::<bool>(), 8)) {
        let mut tallies = [Tally::new(nodes), Tally::new(nodes)];
        for (node, second) in choice.into_iter().take(nodes).enumerate() {
            tallies[usize::from(second)].yes(node);
            tallies[usize::from(!second)].no(node);
        }
        let won = tallies.iter().filter(|tally| tally.verdict() == Verdict::Won).count();
        let lost = tallies.iter().filter(|tally| tally.verdict() == Verdict::Lost).count();
        prop_assert!(won <= 1 && won + lost == 2);
    }

    #[test]
    fn pace_stays_in_its_band(attempt in any::<u32>(), random in any::<u32>(), hint in prop::option::of(0..400_000_u64), left in prop::option::of(0..400_000_u64)) {
        let (hint, left) = (hint.map(Duration::from_micros), left.map(Duration::from_micros));
        match pace::next(attempt, random, hint, left) {
            None => prop_assert_eq!(left, Some(Duration::ZERO)),
            Some(pause) => {
                let step = pace::FIRST.saturating_mul(2_u32.saturating_pow(attempt)).min(pace::CAP);
                prop_assert!(pause <= step);
                prop_assert!(pause <= left.unwrap_or(Duration::MAX));
                prop_assert!(pause <= hint.map_or(Duration::MAX, |hint| hint + pace::FIRST));
                let floor = [hint.map(|hint| hint + pace::FIRST / 2), left].into_iter().flatten().fold(step / 2, Duration::min);
                prop_assert!(pause >= floor && !pause.is_zero());
            }
        }
    }
}
