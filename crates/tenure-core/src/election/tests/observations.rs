//! Observers of stores that say old things, end their pushes, or only answer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt as _;
use futures_util::stream;

use crate::holder::{HoldInfo, Holder, PublishedValue};
use crate::leader::Sighting;
use crate::name::LockName;
use crate::options::Mode;
use crate::store::{BoxFuture, Elections, Hold, Sightings};

use super::wrapped::Wrapped;
use super::*;

/// The elections of the store in memory, but for what a test has scripted.
struct Scripted {
    store: Arc<Store>,
    /// Answers of the next reads; the store answers when there are none.
    answers: Mutex<VecDeque<Sighting>>,
    pushes: Pushes,
    opened: AtomicUsize,
    listened: AtomicUsize,
}

enum Pushes {
    /// The store does not push.
    None,
    /// These, and then nothing.
    Silent(Vec<Sighting>),
    /// These, and then the end.
    Ended(Vec<Sighting>),
}

impl Scripted {
    fn new(case: &Case, pushes: Pushes, answers: Vec<Sighting>) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::new(case.0.clone()),
            answers: Mutex::new(answers.into()),
            pushes,
            opened: AtomicUsize::new(0),
            listened: AtomicUsize::new(0),
        })
    }

    fn client(self: &Arc<Self>, case: &Case) -> Client {
        Wrapped::client(case, Some(self.clone()))
    }
}

impl Elections for Scripted {
    fn publish(self: Arc<Self>, hold: Hold, holder: Arc<Holder>) -> BoxFuture<Result<bool, Error>> {
        self.store.clone().publish(hold, holder)
    }

    fn leader(self: Arc<Self>, name: LockName) -> BoxFuture<Result<Sighting, Error>> {
        match lock(&self.answers).pop_front() {
            Some(answer) => Box::pin(std::future::ready(Ok(answer))),
            None => self.store.clone().leader(name),
        }
    }

    fn watch(self: Arc<Self>, _: LockName) -> Option<Sightings> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        let pushed = |sightings: &[Sighting]| stream::iter(sightings.to_vec()).map(Ok);
        match &self.pushes {
            Pushes::None => None,
            Pushes::Silent(pushes) => Some(Box::pin(pushed(pushes).chain(stream::pending()))),
            Pushes::Ended(pushes) => Some(Box::pin(pushed(pushes))),
        }
    }

    fn ask_to_release(
        self: Arc<Self>,
        name: LockName,
        token: u64,
    ) -> BoxFuture<Result<bool, Error>> {
        self.store.clone().ask_to_release(name, token)
    }

    fn listen_for_requests(self: Arc<Self>, _: Hold) {
        self.listened.fetch_add(1, Ordering::SeqCst);
    }
}

fn leader(token: u64, ttl_left: Duration) -> Sighting {
    let holder = Holder {
        value: Some(PublishedValue::new("pushed", 0)),
        ..Holder::new("h", 1)
    };
    let ttl_left = Some(ttl_left);
    Sighting::of_hold(HoldInfo::new(
        holder,
        Mode::Exclusive,
        Some(token),
        ttl_left,
    ))
}

/// A push that was late says of an older term that nobody leads; the lease of the leader of now ends in time all the same.
#[tokio::test]
async fn an_older_push_does_not_put_off_the_read_at_the_end_of_the_lease() {
    let case = Case::new();
    let pushes = vec![leader(5, TTL), Sighting::of_nobody(3)];
    let scripted = Scripted::new(&case, Pushes::Silent(pushes), Vec::new());
    let seen = case.observed_by(&scripted.client(&case));
    settle().await;
    assert_eq!(seen.take(), ["5 pushed"]);
    lock(&scripted.answers).push_back(Sighting::of_nobody(5));
    case.0.run_for(TTL + Duration::from_secs(1)).await;
    assert_eq!(seen.take(), ["nobody"]);
}

/// Only reads in a row count: each time the store has caught up, the observer begins to count again.
#[tokio::test]
async fn an_observer_ends_only_after_older_reads_in_a_row() {
    let case = Case::new();
    let of = |token| leader(token, TTL);
    let answers = [5, 4, 4, 6, 5, 5, 7, 6].map(of).into();
    let scripted = Scripted::new(&case, Pushes::None, answers);
    let seen = case.observed_by(&scripted.client(&case));
    // One read each second at the latest.
    for _ in 0..7 {
        case.0.run_for(Duration::from_secs(1)).await;
    }
    let told = seen.take();
    assert_eq!(told[..3], ["5 pushed", "6 pushed", "7 pushed"], "{told:?}");
}

#[tokio::test]
async fn pushes_that_end_at_once_are_not_asked_for_in_a_busy_loop() {
    let case = Case::new();
    for pushes in [vec![], vec![Sighting::of_nobody(1)]] {
        let scripted = Scripted::new(&case, Pushes::Ended(pushes), Vec::new());
        let seen = case.observed_by(&scripted.client(&case));
        case.0.run_for(Duration::from_secs(120)).await;
        let opened = scripted.opened.load(Ordering::SeqCst);
        // One each second to two, after those in the beginning.
        assert!((60..=140).contains(&opened), "opened {opened} times");
        let told = seen.take();
        assert!(told.len() <= 1, "{told:?}");
    }
}

/// `select!` in a loop polls the branch of the observer again after its end.
#[tokio::test]
async fn an_observer_that_has_ended_may_be_polled_again() {
    let case = Case::new();
    let client = case.client();
    let mut ended = client.election("e").observe();
    assert_eq!(text_of(ended.next().await.unwrap()), "nobody");
    client.close().await;
    let mut refused = case.client().election("").observe();
    assert!(refused.next().await.unwrap().is_err());
    for _ in 0..3 {
        assert!(ended.next().await.is_none());
        assert!(refused.next().await.is_none());
    }
}

/// A store that has to look for requests does so once for a hold, and not for one that has ended.
#[tokio::test]
async fn a_store_looks_for_requests_when_the_first_guard_waits() {
    let case = Case::new();
    let scripted = Scripted::new(&case, Pushes::None, Vec::new());
    let client = scripted.client(&case);
    let listened = || scripted.listened.load(Ordering::SeqCst);
    let term = client.election("e").ttl(TTL).campaign().await.unwrap();
    assert_eq!(listened(), 0);
    drop(term.asked_to_resign());
    drop(term.guard().asked_to_release());
    assert_eq!(listened(), 1);
    let lost = client.election("lost").ttl(TTL).campaign().await.unwrap();
    case.0.expire("lost").unwrap();
    case.0.run_for(TTL).await;
    assert!(!lost.is_leader());
    assert!(!lost.asked_to_resign().await);
    assert_eq!(listened(), 1);
}
