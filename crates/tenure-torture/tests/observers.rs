//! The checker of observers, against histories written by hand: good ones, and each violation.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::time::Duration;

use tenure::guarantees::{Cell, Fault, Guarantees, Order, Promise};
use tenure_torture::checker::{Findings, Verdict, check};
use tenure_torture::event::{Event, Sight};
use tenure_torture::history::History;
use tenure_torture::mode::HoldMode;
use tenure_torture::observer_checker::{Misobservation, longest_delay};
use tenure_torture::plan::FaultKind;

const MS: u64 = 1_000_000;
const TTL: Duration = Duration::from_secs(1);
/// Longer than an observer may need for a change, in ms.
const LONG: u64 = 8_100;
const NAME: &str = "n";

fn promises(regress: bool) -> Guarantees {
    let cells = Fault::ALL.map(|fault| {
        let cell = Cell::new(fault, Promise::Claims, "");
        match regress {
            true => cell.token_regress(),
            false => cell,
        }
    });
    Guarantees::new("hand", Order::Unordered(""), cells.to_vec())
}

/// The events of a run, with times in ms. Worker 1 observes.
struct Run(Vec<Event>);

/// The number of the observer.
const OBSERVER: u64 = 7;

impl Run {
    fn new() -> Self {
        let run = Self(vec![Event::Began { at: 0 }]);
        run.with(Event::Observing {
            at: 1,
            observer: OBSERVER,
            worker: 1,
            name: NAME.into(),
        })
    }

    fn with(mut self, event: Event) -> Self {
        self.0.push(event);
        self
    }

    /// Worker 0 asks for a term with this value; the campaign has the number of its token.
    fn campaign(self, at: u64, token: u64) -> Self {
        let campaign = Event::Asked {
            at: at * MS,
            worker: 0,
            task: 0,
            name: NAME.into(),
            mode: HoldMode::Election,
        };
        self.with(campaign).publish(at, token, "a")
    }

    /// Worker 0 is elected, and believes that it leads for an hour.
    fn elected(self, at: u64, token: u64) -> Self {
        self.with(Event::Claimed {
            at: at * MS,
            worker: 0,
            name: NAME.into(),
            acquisition: token,
            mode: HoldMode::Election,
            changes: None,
            turn: None,
            token,
            asked: (at - 1) * MS,
            deadline: (at + 3_600_000) * MS,
        })
    }

    fn ended(self, at: u64, token: u64) -> Self {
        self.with(Event::Ended {
            at: at * MS,
            acquisition: token,
            lost: false,
        })
    }

    /// A term from one time to the other, with the value `a`.
    fn term(self, from: u64, to: u64, token: u64) -> Self {
        self.campaign(from - 2, token)
            .elected(from, token)
            .ended(to, token)
    }

    fn publish(self, at: u64, token: u64, value: &str) -> Self {
        self.with(Event::Publishing {
            at: at * MS,
            acquisition: token,
            value: format!("{token}{value}"),
        })
    }

    fn published(self, at: u64, token: u64) -> Self {
        self.with(Event::Published {
            at: at * MS,
            acquisition: token,
        })
    }

    fn told(self, at: u64, sight: Sight) -> Self {
        self.with(Event::Saw {
            at: at * MS,
            observer: OBSERVER,
            sight,
        })
    }

    /// The observer sees the leader with this token and the value `TOKENa`, `TOKENb` and so on.
    fn saw(self, at: u64, token: u64, value: &str) -> Self {
        let sight = Sight::Leader {
            token: Some(token),
            value: Some(format!("{token}{value}")),
        };
        self.told(at, sight)
    }

    fn saw_nobody(self, at: u64) -> Self {
        self.told(at, Sight::Nobody)
    }

    fn fault(self, kind: FaultKind, worker: Option<usize>, from: u64, to: u64) -> Self {
        self.with(Event::Fault {
            at: from * MS,
            until: to * MS,
            kind,
            worker,
        })
    }

    fn judged(&self, over: u64, regress: bool) -> Findings {
        self.judged_by(over, &promises(regress))
    }

    fn judged_by(&self, over: u64, promises: &Guarantees) -> Findings {
        let mut events = self.0.clone();
        events.push(Event::Over { at: over * MS });
        check(&History::of(&events), promises, TTL, &[])
    }

    /// What is wrong, in a run that was over soon.
    fn found(&self) -> Vec<Misobservation> {
        self.found_by(5_000)
    }

    fn found_by(&self, over: u64) -> Vec<Misobservation> {
        let found = self.judged(over, false).observers;
        found.into_iter().map(|it| it.what).collect()
    }
}

/// Two terms, the first one with two values.
fn two_terms() -> Run {
    Run::new()
        .campaign(8, 3)
        .elected(10, 3)
        .publish(20, 3, "b")
        .published(30, 3)
        .ended(100, 3)
        .term(200, 300, 5)
}

#[test]
fn what_happened_may_be_seen_in_its_order() {
    let run = two_terms()
        .saw_nobody(5)
        .saw(11, 3, "a")
        .saw(25, 3, "b")
        .saw_nobody(105)
        .saw(201, 5, "a")
        .saw_nobody(310);
    assert_eq!(run.found(), []);
    assert_eq!(
        History::of(&run.0).elections.sights(),
        6,
        "all of them count"
    );
}

#[test]
fn terms_and_values_may_be_left_out_and_seen_late() {
    assert_eq!(two_terms().saw(400, 3, "b").saw(900, 5, "a").found(), []);
    assert_eq!(two_terms().saw_nobody(5).saw(900, 5, "a").found(), []);
    // The leader may be seen before it knows that it leads.
    assert_eq!(two_terms().saw(9, 3, "a").found(), []);
}

#[test]
fn an_older_leader_is_a_violation() {
    let run = two_terms().saw(210, 5, "a").saw(220, 3, "b");
    assert_eq!(run.found(), [Misobservation::OlderTerm]);
    assert_eq!(run.judged(5_000, false).verdict(), Verdict::Violation);
    // Also after an end that was seen, and after an error.
    let run = two_terms()
        .saw(210, 5, "a")
        .saw_nobody(310)
        .saw(320, 3, "b");
    assert_eq!(run.found(), [Misobservation::OlderTerm]);
    let error = Sight::Unsure("no answer".into());
    let run = two_terms()
        .saw(210, 5, "a")
        .told(220, error)
        .saw(230, 3, "b");
    assert_eq!(run.found(), [Misobservation::OlderTerm]);
}

#[test]
fn tokens_that_go_back_explain_an_older_leader_where_the_table_says_so() {
    let run = two_terms()
        .fault(FaultKind::ServerKill, None, 211, 215)
        .saw(210, 5, "a")
        .saw(220, 3, "b");
    let found = run.judged(5_000, true).observers;
    assert_eq!(found[0].documented, Some(FaultKind::ServerKill));
    assert_eq!(run.judged(5_000, false).observers[0].documented, None);
}

#[test]
fn a_term_again_after_its_end_is_a_violation() {
    let run = two_terms().saw(11, 3, "a").saw_nobody(105).saw(110, 3, "b");
    assert_eq!(run.found(), [Misobservation::TermAgain]);
}

#[test]
fn an_older_value_is_a_violation() {
    let run = two_terms().saw(31, 3, "b").saw(40, 3, "a");
    assert_eq!(run.found(), [Misobservation::OlderValue]);
}

#[test]
fn the_same_twice_is_a_violation_unless_the_store_did_not_answer() {
    let run = two_terms().saw(11, 3, "a").saw(12, 3, "a");
    assert_eq!(run.found(), [Misobservation::Twice]);
    let run = two_terms().saw_nobody(2).saw_nobody(3);
    assert_eq!(run.found(), [Misobservation::Twice]);
    let error = Sight::Unsure("no answer".into());
    let run = two_terms().saw(11, 3, "a").told(12, error).saw(13, 3, "a");
    assert_eq!(run.found(), []);
}

#[test]
fn a_leader_that_was_not_granted_is_a_violation() {
    // The campaign got the token 5 only.
    let run = two_terms().publish(150, 5, "x").told(
        400,
        Sight::Leader {
            token: Some(6),
            value: Some("5x".into()),
        },
    );
    assert_eq!(run.found(), [Misobservation::NotGranted]);
    // A leader of this run has a token.
    let sight = Sight::Leader {
        token: None,
        value: Some("3a".into()),
    };
    let run = two_terms().told(11, sight);
    assert_eq!(run.found(), [Misobservation::NotGranted]);
}

/// A session of a database has the lock before its row says which token it has.
#[test]
fn a_fault_explains_a_leader_without_a_token_where_locks_end_with_a_connection() {
    let sight = Sight::Leader {
        token: None,
        value: None,
    };
    let run = two_terms()
        .saw(11, 3, "a")
        .fault(FaultKind::LostReply, Some(0), 180, 210)
        .told(199, sight)
        .saw(210, 5, "a");
    assert_eq!(run.found(), [Misobservation::NotGranted]);
    assert_eq!(run.judged(5_000, false).observers[0].documented, None);
    let mut sessions = promises(false);
    for cell in &mut sessions.faults {
        if cell.fault == Fault::Partition {
            *cell = Cell::nothing(Fault::Partition, "");
        }
    }
    let found = run.judged_by(5_000, &sessions).observers;
    let found: Vec<_> = found.iter().map(|it| (it.what, it.documented)).collect();
    let explained = (Misobservation::NotGranted, Some(FaultKind::LostReply));
    assert_eq!(found, [explained]);
}

#[test]
fn a_leader_that_is_seen_while_another_one_leads_is_a_violation() {
    let run = Run::new()
        .term(10, 100, 3)
        .campaign(20, 5)
        .elected(120, 5)
        .saw(90, 5, "a");
    assert_eq!(run.found(), [Misobservation::NotGranted]);
    let run = Run::new()
        .term(10, 100, 3)
        .campaign(20, 5)
        .elected(120, 5)
        .saw(101, 5, "a");
    assert_eq!(run.found(), []);
}

/// The answer to the request of a worker that was killed is in the store, and not in the log.
#[test]
fn a_campaign_of_unknown_end_may_be_seen() {
    let run = two_terms().campaign(400, 9).saw(410, 9, "a");
    assert_eq!(run.found(), []);
    // A grant whose answer was lost comes before the one that the worker knows.
    let sight = Sight::Leader {
        token: Some(4),
        value: Some("5a".into()),
    };
    let run = two_terms().told(199, sight).saw(210, 5, "a");
    assert_eq!(run.found(), []);
}

#[test]
fn a_value_of_another_term_and_one_that_was_never_published_are_violations() {
    let leader = |value: Option<&str>| Sight::Leader {
        token: Some(5),
        value: value.map(str::to_owned),
    };
    for value in [Some("3b"), Some("rubbish"), None] {
        let run = two_terms().told(210, leader(value));
        assert_eq!(run.found(), [Misobservation::NotPublished], "{value:?}");
    }
    // Before it was published.
    let run = two_terms().saw(15, 3, "b");
    assert_eq!(run.found(), [Misobservation::NotPublished]);
}

#[test]
fn a_leader_that_was_over_long_before_is_a_violation() {
    let over = 100 + 1_000 + LONG;
    let run = two_terms().saw_nobody(over).saw(over + 10, 3, "b");
    assert_eq!(run.found_by(over + 20), [Misobservation::LongOver]);
    // What was told before may have been told at the same moment.
    let run = two_terms().saw(over, 3, "b");
    assert_eq!(run.found_by(over + 20), []);
    // A worker that was stopped meanwhile is told late.
    let run = two_terms()
        .fault(FaultKind::Pause, Some(1), 300, 2_000)
        .saw_nobody(over)
        .saw(over + 10, 3, "b");
    assert_eq!(run.found_by(over + 20), []);
    let run = two_terms()
        .fault(FaultKind::Pause, Some(0), 300, 2_000)
        .saw_nobody(over)
        .saw(over + 10, 3, "b");
    assert_eq!(run.found_by(over + 20), [Misobservation::LongOver]);
}

/// A leader that stays until the end, and has published a second value.
fn last_leader() -> Run {
    Run::new()
        .campaign(8, 3)
        .elected(10, 3)
        .publish(20, 3, "b")
        .published(30, 3)
}

#[test]
fn after_a_quiet_time_each_observer_knows_the_leader_and_its_value() {
    let end = 30 + LONG;
    assert_eq!(last_leader().saw(40, 3, "b").found_by(end), []);
    let wrong = [
        last_leader(),
        last_leader().saw_nobody(5),
        last_leader().saw(12, 3, "a"),
    ];
    for run in wrong {
        assert_eq!(run.found_by(end), [Misobservation::NotTrue]);
        assert_eq!(run.found_by(end - 200), [], "the time was too short");
    }
    // It is unknown whether this value was stored.
    let run = last_leader().publish(40, 3, "c").saw(50, 3, "b");
    assert_eq!(run.found_by(end + 20), []);
}

#[test]
fn after_a_quiet_time_each_observer_knows_that_nobody_leads() {
    // The lease may last for one ttl after the last leader.
    let end = 300 + 1_000 + LONG;
    let run = two_terms().saw(201, 5, "a");
    assert_eq!(run.found_by(end), [Misobservation::NotTrue]);
    assert_eq!(run.found_by(end - 200), []);
    assert_eq!(
        two_terms().saw(201, 5, "a").saw_nobody(900).found_by(end),
        []
    );
    // A candidate may have been granted the term without an answer.
    let run = two_terms().campaign(400, 9).saw(201, 5, "a");
    assert_eq!(run.found_by(end), []);
}

#[test]
fn only_an_observer_that_had_the_time_must_know_who_leads() {
    let end = 30 + LONG;
    let error = || Sight::Unsure("no answer".into());
    let unsure = last_leader().told(100, error());
    assert_eq!(unsure.found_by(end), [], "its store does not answer");
    let paused = last_leader().fault(FaultKind::Pause, Some(1), 5, 2_000);
    assert_eq!(paused.found_by(end), []);
    let killed = last_leader().with(Event::Killed {
        at: 900 * MS,
        worker: 1,
    });
    assert_eq!(killed.found_by(end), []);
}

#[test]
fn an_observer_that_ends_by_itself_is_a_violation() {
    let run = two_terms().told(400, Sight::GaveUp("tokens have gone back".into()));
    assert_eq!(run.found(), [Misobservation::GaveUp]);
}

#[test]
fn a_run_in_which_no_observer_was_told_anything_is_not_enough() {
    let mut run = Run::new();
    for number in 0..30 {
        let at = number * 100 + 10;
        run = run.term(at, at + 50, number + 1);
    }
    for at in 0..3 {
        run = run.fault(FaultKind::Pause, Some(0), at, at + 1);
    }
    let silent = run.judged(3_100, false);
    assert!(silent.not_enough.unwrap().contains("observer"));
    let run = run.saw(3_050, 30, "a");
    assert_eq!(run.judged(3_100, false).verdict(), Verdict::Ok);
}

#[test]
fn the_longest_delay_has_the_leases_in_it() {
    assert!(longest_delay(TTL) < Duration::from_millis(LONG));
    assert!(longest_delay(TTL * 2) > Duration::from_millis(LONG));
}
