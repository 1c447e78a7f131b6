//! Elections in `memory:`, on its virtual clock.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Election;
use crate::error::{Error, ErrorKind, Step};
use crate::leader::Leader;
use crate::memory::{Disturbance, Store};
use crate::options::{Options, Renew};
use crate::rt::{lock, poll_now, yield_now};
use crate::store::Store as _;
use crate::time::Time;
use crate::{Client, Term};

mod observations;
mod refusals;
mod runs;
mod wrapped;

const TTL: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3600);

/// A store on a clock that only the test moves.
struct Case(Store);

impl Case {
    fn new() -> Self {
        let store = Store::with_virtual_clock();
        store.seed(7);
        Self(store)
    }

    fn client(&self) -> Client {
        Client::from_store(self.0.clone()).unwrap()
    }

    /// The election "e" for another client.
    fn candidate(&self, value: &str) -> Election {
        self.client().election("e").ttl(TTL).value(value)
    }

    /// A candidate whose lease ends, as that of a process that was killed.
    fn mortal(&self) -> Election {
        let options = Options::new().renew(Renew::Never);
        let client = self.client().with_defaults(options);
        client.election("e").ttl(TTL).value("mortal")
    }

    fn now(&self) -> Time {
        self.0.clock().now()
    }

    async fn leader(&self) -> Option<String> {
        let leader = self.client().election("e").leader().await.unwrap();
        leader.map(|leader| leader.value().unwrap_or("-").to_owned())
    }

    /// What an observer sees from now on, as texts.
    fn observed(&self) -> Observed {
        self.observed_by(&self.client())
    }

    /// The same for an observer of this client.
    fn observed_by(&self, client: &Client) -> Observed {
        let mut observer = client.election("e").observe();
        let (seen, clock) = (Arc::<Mutex<Vec<_>>>::default(), self.0.clock());
        let list = seen.clone();
        tokio::spawn(async move {
            while let Some(item) = observer.next().await {
                lock(&list).push((text_of(item), clock.now()));
            }
            lock(&list).push(("end".into(), clock.now()));
        });
        Observed(seen)
    }
}

struct Observed(Arc<Mutex<Vec<(String, Time)>>>);

impl Observed {
    /// What was seen since the last call.
    fn take(&self) -> Vec<String> {
        let seen = std::mem::take(&mut *lock(&self.0));
        seen.into_iter().map(|(text, _)| text).collect()
    }

    fn last_time(&self) -> Time {
        lock(&self.0).last().unwrap().1
    }
}

fn text_of(item: Result<Option<Leader>, Error>) -> String {
    match item {
        Ok(None) => "nobody".into(),
        Ok(Some(leader)) => {
            let value = leader.value().unwrap_or("-");
            format!("{} {value}", leader.token.unwrap())
        }
        Err(err) => format!("{:?}", err.kind()),
    }
}

/// Gives each task its turn.
async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

#[tokio::test]
async fn one_candidate_leads_and_the_next_one_follows_its_resignation_in_order() {
    let case = Case::new();
    let order = Arc::<Mutex<Vec<(u64, String)>>>::default();
    let mut tasks = Vec::new();
    for value in ["a", "b", "c"] {
        let (election, order) = (case.candidate(value), order.clone());
        let client = case.client();
        tasks.push(tokio::spawn(async move {
            let term = election.campaign().await.unwrap();
            let leader = client.election("e").leader().await.unwrap().unwrap();
            assert_eq!(leader.value(), Some(value));
            assert_eq!(leader.token, Some(term.token()));
            settle().await;
            assert!(term.is_leader());
            lock(&order).push((term.token().get(), value.to_owned()));
            term.resign().await.unwrap();
        }));
        settle().await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    let order = lock(&order).clone();
    let values: Vec<_> = order.iter().map(|(_, value)| value.as_str()).collect();
    assert_eq!(values, ["a", "b", "c"]);
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(case.leader().await, None);
    assert!(case.0.is_idle());
}

#[tokio::test]
async fn a_leader_that_vanishes_is_followed_at_the_end_of_its_lease() {
    let case = Case::new();
    let gone = case.mortal().campaign().await.unwrap();
    let start = case.now();
    let follower = case.candidate("next");
    let following = tokio::spawn(async move { follower.campaign().await.unwrap() });
    case.0.run_for(TTL - Duration::from_secs(1)).await;
    assert!(!following.is_finished());
    assert!(gone.is_leader());
    case.0.run_for(Duration::from_secs(1)).await;
    // The old leader knew it first.
    assert!(!gone.is_leader());
    let term = following.await.unwrap();
    assert!(term.is_leader());
    assert!(term.token() > gone.token());
    assert_eq!(case.now().since(start), TTL);
    assert_eq!(case.leader().await.as_deref(), Some("next"));
    let late = gone.proclaim("late").await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Lost);
    assert_eq!(gone.resign().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(case.leader().await.as_deref(), Some("next"));
}

#[tokio::test]
async fn a_value_is_there_with_the_grant_and_survives_renewals() {
    let case = Case::new();
    let term = case.candidate("first").campaign().await.unwrap();
    assert_eq!(case.leader().await.as_deref(), Some("first"));
    case.0.run_for(HOUR).await;
    assert_eq!(case.leader().await.as_deref(), Some("first"));
    term.proclaim("second").await.unwrap();
    case.0.run_for(HOUR).await;
    assert_eq!(case.leader().await.as_deref(), Some("second"));
    let both = tokio::join!(term.proclaim("third"), term.proclaim("fourth"));
    both.0.unwrap();
    both.1.unwrap();
    assert_eq!(case.leader().await.as_deref(), Some("fourth"));
    let status = case.client().inspect("e").await.unwrap();
    let value = status.holds[0].holder.value.clone().unwrap();
    assert_eq!((&*value.text, value.number), ("fourth", 3));
    term.resign().await.unwrap();
    let term = case.candidate("other").campaign().await.unwrap();
    assert_eq!(case.leader().await.as_deref(), Some("other"));
    drop(term);
}

/// A node of several may still show an earlier term of the client.
#[tokio::test]
async fn values_are_numbered_from_term_to_term_of_one_client() {
    let case = Case::new();
    let client = case.client();
    let mut last = None;
    for value in ["first", "second", "third"] {
        let election = client.election("e").ttl(TTL).value(value);
        let term = election.campaign().await.unwrap();
        let status = client.inspect("e").await.unwrap();
        let number = status.holds[0].holder.value.as_ref().unwrap().number;
        assert!(Some(number) > last, "{value}");
        term.proclaim("next").await.unwrap();
        last = Some(number + 1);
        term.resign().await.unwrap();
    }
}

#[tokio::test]
async fn a_value_whose_reply_was_lost_is_followed_by_the_next_one() {
    let case = Case::new();
    let seen = case.observed();
    settle().await;
    let term = case.candidate("a").campaign().await.unwrap();
    settle().await;
    case.0.disturb(Step::Write, Disturbance::ReplyLost);
    let err = term.proclaim("b").await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Indeterminate);
    settle().await;
    case.0.disturb(Step::Write, Disturbance::RequestLost);
    let err = term.proclaim("c").await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unreachable);
    term.proclaim("d").await.unwrap();
    settle().await;
    assert_eq!(seen.take(), ["nobody", "1 a", "1 b", "1 d"]);
}

/// The caller gives up while the request is under way; the next value waits for it, and so is the last one.
#[tokio::test]
async fn a_value_that_its_caller_left_does_not_overtake_the_next_one() {
    let case = Case::new();
    let term = case.candidate("a").campaign().await.unwrap();
    let late = Disturbance::Late(Duration::from_secs(1));
    case.0.disturb(Step::Write, late);
    let left = poll_now(Box::pin(term.proclaim("b")));
    assert!(left.is_err());
    drop(left);
    let mut next = pin!(term.proclaim("c"));
    assert!(poll_now(next.as_mut()).is_err());
    case.0.run_for(Duration::from_secs(2)).await;
    next.await.unwrap();
    assert_eq!(case.leader().await.as_deref(), Some("c"));
}

/// The store is silent: the first request has no answer, and the second one waits for it.
#[tokio::test]
async fn values_without_an_answer_end_with_the_term() {
    let case = Case::new();
    let term = case.candidate("a").campaign().await.unwrap();
    case.0.pause();
    let mut first = Box::pin(term.proclaim("b"));
    let mut second = Box::pin(term.proclaim("c"));
    assert!(poll_now(first.as_mut()).is_err());
    assert!(poll_now(second.as_mut()).is_err());
    case.0.run_for(TTL).await;
    assert!(!term.is_leader());
    for (proclaimed, text) in [(first, "observers may have seen"), (second, "nothing was")] {
        let ended = poll_now(proclaimed).unwrap_or_else(|_| panic!("still waits"));
        let err = ended.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Lost);
        assert!(err.to_string().contains(text), "{err}");
    }
}

/// An owner that holds a lock enters it again. A candidate does not: two bodies would lead at once.
#[tokio::test]
async fn an_owner_enters_no_election() {
    let case = Case::new();
    let client = case.client();
    let election = client.election("e").ttl(TTL);
    let script = async {
        let guard = client.lock("e").ttl(TTL).acquire().await.unwrap();
        let campaign = poll_now(Box::pin(election.campaign()));
        let campaign = campaign.expect_err("the lock is held");
        guard.release().await.unwrap();
        let term = campaign.await.unwrap();
        let second = poll_now(Box::pin(election.campaign()));
        let second = second.expect_err("two lead");
        let entered = client.lock("e").ttl(TTL).try_acquire().await.unwrap();
        assert!(entered.is_none(), "entered the term of an election");
        term.resign().await.unwrap();
        second.await.unwrap().resign().await.unwrap();
    };
    crate::Owner::scope(script).await;
    assert!(case.0.is_idle());
}

#[tokio::test]
async fn a_term_cannot_become_a_shared_hold() {
    let case = Case::new();
    let term = case.candidate("a").campaign().await.unwrap();
    let err = term.guard().downgrade().await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Invalid);
    assert_eq!(case.leader().await.as_deref(), Some("a"));
    assert!(term.is_leader());
    term.resign().await.unwrap();
}

#[tokio::test]
async fn observers_see_each_leader_once_and_in_order_and_that_nobody_leads() {
    let case = Case::new();
    let all: Vec<_> = (0..3).map(|_| case.observed()).collect();
    let see = |expected: &[&str]| {
        for observed in &all {
            assert_eq!(observed.take(), expected);
        }
    };
    settle().await;
    see(&["nobody"]);
    let term = case.candidate("a").campaign().await.unwrap();
    settle().await;
    see(&["1 a"]);
    case.0.run_for(HOUR).await;
    see(&[]);
    term.proclaim("a2").await.unwrap();
    settle().await;
    see(&["1 a2"]);
    term.resign().await.unwrap();
    settle().await;
    see(&["nobody"]);
    // A hand-over, in which the name is never free.
    let term = case.candidate("b").campaign().await.unwrap();
    let next = case.candidate("c");
    let next = tokio::spawn(async move { next.campaign().await.unwrap() });
    settle().await;
    term.resign().await.unwrap();
    let term = next.await.unwrap();
    settle().await;
    see(&["2 b", "3 c"]);
    // One that begins late sees who leads then.
    let late = case.observed();
    settle().await;
    assert_eq!(late.take(), ["3 c"]);
    drop(term);
    settle().await;
    see(&["nobody"]);
}

/// A store that pushes says nothing of a lease that ends while nobody asks for the name.
#[tokio::test]
async fn an_observer_sees_that_a_leader_is_gone_although_nobody_follows() {
    let case = Case::new();
    let seen = case.observed();
    settle().await;
    let _term = case.mortal().campaign().await.unwrap();
    let start = case.now();
    case.0.run_for(2 * TTL).await;
    let after = seen.last_time().since(start);
    assert_eq!(seen.take(), ["nobody", "1 mortal", "nobody"]);
    assert!(
        after >= TTL && after < TTL + Duration::from_secs(1),
        "{after:?}"
    );
}

#[tokio::test]
async fn an_observer_at_rest_reads_twice_a_minute() {
    let case = Case::new();
    let _seen = case.observed();
    settle().await;
    let before = case.0.requests();
    case.0.run_for(HOUR).await;
    // Nobody leads: one read each 30 s, less the jitter.
    let reads = case.0.requests() - before;
    assert!((120..=160).contains(&reads), "{reads} reads in an hour");
}

#[tokio::test]
async fn an_observer_that_is_slow_sees_the_newest_leader_and_no_older_one_after_it() {
    let case = Case::new();
    let mut observer = case.client().election("e").observe();
    assert_eq!(text_of(observer.next().await.unwrap()), "nobody");
    for _ in 0..200 {
        case.candidate("x")
            .campaign()
            .await
            .unwrap()
            .resign()
            .await
            .unwrap();
    }
    let term = case.candidate("last").campaign().await.unwrap();
    let last = term.token().get();
    let mut before = 0;
    while before < last {
        let mut next = pin!(observer.next());
        let item = loop {
            match poll_now(next.as_mut()) {
                Ok(item) => break item.unwrap().unwrap(),
                Err(_) => case.0.run_for(Duration::from_millis(100)).await,
            }
        };
        if let Some(leader) = item {
            let token = leader.token.unwrap().get();
            assert!(token > before, "{token} after {before}");
            before = token;
        }
    }
}

#[tokio::test]
async fn an_outage_is_told_once_and_then_the_leader_again() {
    let case = Case::new();
    let seen = case.observed();
    settle().await;
    let _term = case.candidate("a").campaign().await.unwrap();
    settle().await;
    assert_eq!(seen.take(), ["nobody", "1 a"]);
    case.0.disturb(Step::Inspect, Disturbance::RequestLost);
    case.0.run_for(HOUR).await;
    assert_eq!(seen.take(), ["Unreachable", "1 a"]);
}

/// The store was replaced by an empty one.
#[tokio::test]
async fn an_observer_of_a_store_that_has_lost_its_tokens_is_told_and_ends() {
    let case = Case::new();
    let seen = case.observed();
    for _ in 0..5 {
        case.candidate("old")
            .campaign()
            .await
            .unwrap()
            .resign()
            .await
            .unwrap();
    }
    settle().await;
    case.0.restart(Duration::ZERO);
    let _term = case.candidate("new").campaign().await.unwrap();
    seen.take();
    case.0.run_for(HOUR).await;
    let told = seen.take();
    assert_eq!(told[told.len() - 2..], ["Store", "end"], "{told:?}");
}

#[tokio::test]
async fn the_leader_is_asked_to_resign_and_decides() {
    let case = Case::new();
    let term = case.candidate("a").campaign().await.unwrap();
    let election = case.client().election("e");
    let mut asked = Box::pin(term.asked_to_resign());
    assert!(poll_now(&mut asked).is_err());
    let leader = election.ask_to_resign().await.unwrap().unwrap();
    assert_eq!(leader.token, Some(term.token()));
    assert!(asked.await);
    assert!(term.asked_to_resign().await);
    assert!(term.is_leader());
    case.0.run_for(HOUR).await;
    assert_eq!(case.leader().await.as_deref(), Some("a"));
    term.resign().await.unwrap();
    assert!(election.ask_to_resign().await.unwrap().is_none());
    // The request ended with its term.
    let term = case.candidate("b").campaign().await.unwrap();
    let mut asked = Box::pin(term.asked_to_resign());
    assert!(poll_now(&mut asked).is_err());
    term.resign().await.unwrap();
    assert!(!asked.await, "the term has ended, and nobody has asked");
}

#[tokio::test]
async fn the_holder_of_any_lock_can_be_asked_to_let_go() {
    let case = Case::new();
    let guard = case.client().lock("e").acquire().await.unwrap();
    let leader = case.client().election("e").ask_to_resign().await.unwrap();
    assert_eq!(leader.unwrap().value(), None);
    assert!(guard.asked_to_release().await);
    guard.release().await.unwrap();
    let both = ["x", "y"];
    let guard = case.client().lock_all(both).acquire().await.unwrap();
    let mut asked = Box::pin(guard.asked_to_release());
    assert!(poll_now(&mut asked).is_err());
    case.client().election("y").ask_to_resign().await.unwrap();
    assert!(asked.await);
}

/// Cancelling at each await: the first poll that is pending, and each later one.
#[tokio::test]
async fn a_campaign_that_is_dropped_leaves_no_candidate() {
    let case = Case::new();
    let late = Disturbance::Late(Duration::from_secs(1));
    for steps in 1..5 {
        let term = case.candidate("a").campaign().await.unwrap();
        let election = case.candidate("b");
        case.0.disturb(Step::Acquire, late);
        let mut campaign = Box::pin(election.campaign());
        for _ in 0..steps {
            assert!(poll_now(&mut campaign).is_err());
            case.0.run_for(Duration::from_millis(600)).await;
        }
        drop(campaign);
        case.0.run_for(Duration::from_secs(2)).await;
        term.resign().await.unwrap();
        settle().await;
        assert_eq!(case.leader().await, None, "after {steps} polls");
        assert!(case.0.is_idle(), "after {steps} polls");
    }
}

#[tokio::test]
async fn a_wait_for_the_next_leader_that_is_dropped_misses_nothing() {
    let case = Case::new();
    let mut observer = case.client().election("e").observe();
    let mut seen = Vec::new();
    let mut term = None;
    for step in 0..6 {
        match step {
            1 => term = Some(case.candidate("a").campaign().await.unwrap()),
            3 => drop(term.take()),
            _ => {}
        }
        // The second poll of each step finds nothing, and its future is dropped.
        for _ in 0..2 {
            if let Ok(item) = poll_now(pin!(observer.next())) {
                seen.push(text_of(item.unwrap()));
            }
        }
    }
    assert_eq!(seen, ["nobody", "1 a", "nobody"]);
}

#[tokio::test]
async fn closing_the_client_ends_its_observers() {
    let case = Case::new();
    let client = case.client();
    let mut observer = client.election("e").observe();
    assert_eq!(text_of(observer.next().await.unwrap()), "nobody");
    let end = tokio::spawn(async move { observer.next().await.is_none() });
    settle().await;
    client.close().await;
    assert!(end.await.unwrap());
}
