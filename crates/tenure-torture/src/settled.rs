//! Whether the last part of a run may end: all observers know who leads.

use crate::event::Sight;
use crate::history::History;

/// Whether each observer that has not ended knows who leads now: nobody, except in the election `led`, whose leader has
/// published a second value.
pub(crate) fn all_know(history: &History, elections: &[String], led: Option<&String>) -> bool {
    elections.iter().all(|name| {
        let waits = history.waits.iter().filter(|it| it.name == *name);
        let is_wanted = waits.map(|it| it.to).any(|to| to >= history.over);
        let claims = history.claims.iter().rev().filter(|it| it.name == *name);
        let mut open = claims.filter(|it| it.end >= history.over);
        let truth = match (open.next(), led == Some(name)) {
            (None, false) if !is_wanted => Sight::Nobody,
            (Some(claim), true) => {
                let publications = history.elections.publications.iter();
                let own = publications.filter(|it| it.acquisition == claim.acquisition);
                match own.skip(1).last() {
                    Some(last) if last.stored.is_some() => Sight::Leader {
                        token: Some(claim.token),
                        value: Some(last.value.clone()),
                    },
                    _ => return false,
                }
            }
            _ => return false,
        };
        let observers = history.elections.observers.iter();
        let mut alive = observers.filter(|it| it.name == *name && it.to >= history.over);
        alive.all(|it| it.items.last().is_some_and(|item| item.sight == truth))
    })
}

#[cfg(test)]
mod tests {
    use crate::event::Event;
    use crate::mode::HoldMode;

    use super::*;

    const TOKEN: u64 = 9;

    fn observed(sights: &[Sight]) -> Vec<Event> {
        let mut events = vec![Event::Observing {
            at: 1,
            observer: 5,
            worker: 1,
            name: "n".into(),
        }];
        events.extend(sights.iter().map(|sight| Event::Saw {
            at: 50,
            observer: 5,
            sight: sight.clone(),
        }));
        events
    }

    /// A leader with two values.
    fn led() -> Vec<Event> {
        let publishing = |at, value: &str| Event::Publishing {
            at,
            acquisition: 1,
            value: value.into(),
        };
        vec![
            publishing(10, "a"),
            Event::Claimed {
                at: 20,
                worker: 0,
                name: "n".into(),
                acquisition: 1,
                mode: HoldMode::Election,
                changes: None,
                turn: None,
                token: TOKEN,
                asked: 10,
                deadline: 1_000,
            },
            publishing(30, "b"),
        ]
    }

    fn stored() -> Event {
        let acquisition = 1;
        Event::Published {
            at: 40,
            acquisition,
        }
    }

    fn leader(value: &str) -> Sight {
        Sight::Leader {
            token: Some(TOKEN),
            value: Some(value.into()),
        }
    }

    fn know(parts: &[Vec<Event>], is_led: bool) -> bool {
        let mut events = parts.concat();
        events.push(Event::Over { at: 100 });
        let names = ["n".to_owned()];
        all_know(&History::of(&events), &names, is_led.then_some(&names[0]))
    }

    #[test]
    fn a_leader_is_known_with_its_last_value() {
        let seen = observed(&[leader("b")]);
        assert!(know(&[led(), vec![stored()], seen.clone()], true));
        assert!(!know(&[led(), seen.clone()], true), "it is not stored yet");
        assert!(!know(&[vec![], seen], true), "nobody is elected yet");
        let old = observed(&[leader("a")]);
        assert!(!know(&[led(), vec![stored()], old], true));
        assert!(!know(&[led(), vec![stored()], observed(&[])], true));
    }

    #[test]
    fn nobody_leads_when_the_last_term_is_over_and_no_candidate_waits() {
        let nobody = observed(&[Sight::Nobody]);
        assert!(know(std::slice::from_ref(&nobody), false));
        assert!(!know(&[led(), nobody.clone()], false));
        let asked = Event::Asked {
            at: 60,
            worker: 0,
            task: 0,
            name: "n".into(),
            mode: HoldMode::Election,
        };
        let left = Event::Left {
            at: 70,
            worker: 0,
            task: 0,
        };
        assert!(!know(&[nobody.clone(), vec![asked.clone()]], false));
        assert!(know(&[nobody, vec![asked, left]], false));
    }

    #[test]
    fn an_observer_whose_process_is_gone_needs_to_know_nothing() {
        let killed = Event::Killed { at: 60, worker: 1 };
        assert!(know(&[observed(&[leader("a")]), vec![killed]], false));
    }
}
