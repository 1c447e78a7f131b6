//! Requests without an answer, and what is refused.

use super::*;
use crate::guarantees::Guarantees;
use crate::holder::LockStatus;
use crate::store::{self, Answer, BoxFuture, Detach, Hold, Listed, Release, Renewal, Request};

#[tokio::test]
async fn a_detach_without_an_answer_releases_the_hold() {
    for (disturbance, expected) in [
        (Disturbance::RequestLost, ErrorKind::Unreachable),
        (Disturbance::ReplyLost, ErrorKind::Indeterminate),
    ] {
        let case = Case::new();
        let mut lost = Losses::of(&case.first);
        let guard = case.guard().await;
        case.store.disturb(Step::Detach, disturbance);
        let err = guard.detach().await.unwrap_err();
        assert_eq!(err.kind(), expected);
        assert_eq!(err.name().map(LockName::as_str), Some("a"));
        assert_eq!(err.step(), Some(Step::Detach));
        settle().await;
        assert!(case.store.is_idle());
        assert!(lost.are_none(&case, &case.first).await);
    }
}

#[tokio::test]
async fn a_detach_whose_reply_never_comes_releases_the_hold() {
    let case = Case::new();
    let guard = case.guard().await;
    case.store.disturb(Step::Detach, Disturbance::ReplyNever);
    let detaching = tokio::spawn(guard.detach());
    settle().await;
    assert!(!detaching.is_finished());
    case.resume().await;
    let outcome = detaching.await.unwrap();
    assert_eq!(kind(outcome), Some(ErrorKind::Indeterminate));
    settle().await;
    assert!(case.store.is_idle());
}

#[tokio::test]
async fn an_attach_without_an_answer_leaves_the_hold_and_may_be_repeated_at_once() {
    for (disturbance, expected) in [
        (Disturbance::RequestLost, ErrorKind::Unreachable),
        (Disturbance::ReplyLost, ErrorKind::Indeterminate),
    ] {
        let case = Case::new();
        let receipt = case.receipt().await;
        let client = case.client();
        case.store.disturb(Step::Attach, disturbance);
        let err = client.attach(&receipt).await.unwrap_err();
        assert_eq!((err.kind(), err.step()), (expected, Some(Step::Attach)));
        assert!(!client.is_held_here("a"));
        let guard = client.attach(&receipt).await.unwrap();
        assert_eq!(guard.token(), receipt.token());
        guard.release().await.unwrap();
        settle().await;
        assert!(case.store.is_idle());
    }
}

#[tokio::test]
async fn a_detach_without_an_answer_leaves_a_hold_that_has_a_receipt() {
    for disturbance in [Disturbance::RequestLost, Disturbance::ReplyLost] {
        let case = Case::new();
        let receipt = case.receipt().await;
        let client = case.client();
        let guard = client.attach(&receipt).await.unwrap();
        case.store.disturb(Step::Detach, disturbance);
        assert!(guard.detach().await.is_err());
        settle().await;
        assert_eq!(case.held().unwrap().0, receipt.token());
        let again = client.attach(&receipt).await.unwrap();
        again.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_hold_that_was_lost_cannot_be_detached() {
    let case = Case::new();
    let mut lost = Losses::of(&case.first);
    // The client does not know it yet.
    let guard = case.guard().await;
    case.store.expire("a").unwrap();
    assert_eq!(kind(guard.detach().await), Some(ErrorKind::Lost));
    settle().await;
    assert_eq!(lost.next().await, LostReason::StoreSaysNo);
    // The client knows it.
    let guard = case.first.lock("a").ttl(TTL).acquire().await.unwrap();
    case.pause();
    case.store.run_for(TTL).await;
    case.resume().await;
    let requests = case.store.requests();
    assert_eq!(kind(guard.detach().await), Some(ErrorKind::Lost));
    settle().await;
    // One release, of an unclean end.
    assert_eq!(case.store.requests(), requests + 1);
    assert!(case.store.is_idle());
}

#[tokio::test]
async fn a_client_is_attached_to_a_hold_once() {
    let case = Case::new();
    let receipt = case.receipt().await;
    let client = case.client();
    let guard = client.attach(&receipt).await.unwrap();
    let requests = case.store.requests();
    let err = client.attach(&receipt).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Invalid);
    assert!(err.to_string().contains("attached"), "{err}");
    assert_eq!(case.store.requests(), requests);
    case.store.run_for(TTL).await;
    assert!(guard.is_held());
    // After each end the same client may attach again: there is nothing left of the hold, or it goes on.
    let again = guard.detach().await.unwrap();
    let guard = client.attach(&again).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(kind(client.attach(&again).await), Some(ErrorKind::Lost));
    // The client that has detached may attach itself at once, too.
    let receipt = case.receipt().await;
    let guard = case.first.attach(&receipt).await.unwrap();
    case.store.run_for(TTL).await;
    guard.release().await.unwrap();
    assert!(case.store.is_idle());
}

#[tokio::test]
async fn an_attached_hold_keeps_its_mode() {
    let case = Case::new();
    let lock = case.first.lock("a").ttl(LONG).upgradable();
    let receipt = lock.acquire().await.unwrap().detach().await.unwrap();
    let client = case.client();
    let guard = client.attach(&receipt).await.unwrap();
    let requests = case.store.requests();
    assert_eq!(kind(guard.upgrade().await), Some(ErrorKind::Invalid));
    assert_eq!(kind(guard.try_upgrade().await), Some(ErrorKind::Invalid));
    assert_eq!(kind(guard.downgrade().await), Some(ErrorKind::Invalid));
    assert_eq!(case.store.requests(), requests);
    assert_eq!(
        (guard.mode(), guard.token()),
        (Mode::Upgradable, receipt.token())
    );
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn the_receipt_of_an_upgraded_hold_has_its_new_mode_and_token() {
    let case = Case::new();
    let lock = case.first.lock("a").ttl(LONG).upgradable();
    let guard = lock.acquire().await.unwrap();
    let before = guard.token();
    guard.upgrade().await.unwrap();
    let receipt = guard.detach().await.unwrap();
    assert!(receipt.token() > before);
    assert_eq!(receipt.mode(), Mode::Exclusive);
    let guard = case.client().attach(&receipt).await.unwrap();
    assert_eq!(guard.token(), receipt.token());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn an_entry_that_is_not_alone_is_refused_and_the_other_one_stays() {
    let case = Case::new();
    let owner = Owner::new();
    let lock = case.first.lock("a").ttl(LONG).owner(&owner);
    let first = lock.acquire().await.unwrap();
    let second = lock.acquire().await.unwrap();
    assert_eq!(kind(second.detach().await), Some(ErrorKind::Invalid));
    settle().await;
    assert!(first.is_held() && case.is_held());
    assert_eq!(owner.holds(&case.first, "a"), 1);
    let receipt = first.detach().await.unwrap();
    assert_eq!(owner.holds(&case.first, "a"), 0);
    let guard = case.first.attach(&receipt).await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    assert!(case.store.is_idle());
}

#[tokio::test]
async fn the_term_of_a_leader_is_refused_and_ends() {
    let case = Case::new();
    let term = case.first.election("a").campaign().await.unwrap();
    let err = term.into_guard().detach().await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Invalid);
    assert!(err.to_string().contains("leader"), "{err}");
    settle().await;
    assert!(case.store.is_idle());
}

#[tokio::test]
async fn a_lock_of_two_stores_is_refused_and_released() {
    let (one, other) = (Case::new(), Case::new());
    let clients = [&one, &other].map(|case| case.first.clone());
    let [a, b] = [
        clients[0].clone().with_address("memory:one"),
        clients[1].clone().with_address("memory:other"),
    ];
    let both = Lock::both(a.lock("a").ttl(LONG), b.lock("a").ttl(LONG));
    let guard = both.acquire().await.unwrap();
    assert_eq!(kind(guard.detach().await), Some(ErrorKind::Invalid));
    settle().await;
    assert!(one.store.is_idle() && other.store.is_idle());
}

#[tokio::test]
async fn the_receipt_of_another_store_is_refused_and_named() {
    let case = Case::new();
    let receipt = case.receipt().await;
    let there = case.client().with_address("memory:there");
    let requests = case.store.requests();
    let err = there.attach(&receipt).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Invalid);
    let text = err.to_string();
    assert!(
        text.contains("\"memory\"") && text.contains("\"memory:there\""),
        "{text}"
    );
    for ttl in [Duration::ZERO, Duration::MAX] {
        let wrong = receipt.clone().with_ttl(ttl);
        assert_eq!(
            kind(case.first.attach(wrong).await),
            Some(ErrorKind::Invalid)
        );
    }
    assert_eq!(case.store.requests(), requests);
    // An address has no login in a receipt, so a client with another login reads it.
    let login = |login| case.client().with_address(format!("memory://{login}@here"));
    let guard = login("me:secret").lock("b").acquire().await.unwrap();
    let receipt = guard.detach().await.unwrap();
    assert_eq!(receipt.store(), "memory://here");
    let guard = login("other").attach(&receipt).await.unwrap();
    guard.release().await.unwrap();
}

/// The store in memory with other guarantees.
struct Wrapped {
    store: Arc<Store>,
    guarantees: Guarantees,
    detaches: bool,
}

impl Wrapped {
    fn client(case: &Case, detached: DetachedHolds, detaches: bool) -> Client {
        let mut guarantees = crate::memory::guarantees();
        guarantees.scheme = "attached-only";
        guarantees.detached = detached;
        let store = Arc::new(case.store.clone());
        Client::from_store(Self {
            store,
            guarantees,
            detaches,
        })
        .unwrap()
    }
}

impl store::Store for Wrapped {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn clock(&self) -> crate::rt::Clock {
        self.store.clock()
    }

    fn acquire(self: Arc<Self>, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        self.store.clone().acquire(request)
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        self.store.clone().renew(holds)
    }

    fn release(self: Arc<Self>, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        self.store.clone().release(hold)
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<Result<LockStatus, Error>> {
        self.store.clone().inspect(name)
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<Result<Listed, Error>> {
        self.store.clone().list(prefix)
    }

    fn as_detach(self: Arc<Self>) -> Option<Arc<dyn Detach>> {
        let store: Arc<dyn Detach> = self.store.clone();
        self.detaches.then_some(store)
    }
}

#[tokio::test]
async fn a_store_without_detached_holds_releases_what_should_be_detached() {
    for (detached, detaches, refused) in [
        (DetachedHolds::None, false, Mode::Exclusive),
        (DetachedHolds::None, true, Mode::Exclusive),
        (DetachedHolds::EachMode, false, Mode::Exclusive),
        (DetachedHolds::Exclusive, true, Mode::Shared),
    ] {
        let case = Case::new();
        let client = Wrapped::client(&case, detached, detaches);
        let lock = client.lock("a").ttl(LONG);
        let lock = match refused {
            Mode::Shared => lock.shared(),
            _ => lock,
        };
        let guard = lock.acquire().await.unwrap();
        let requests = case.store.requests();
        let err = guard.detach().await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Unsupported);
        let text = err.to_string();
        assert!(
            text.contains("attached-only has no detached holds"),
            "{text}"
        );
        assert!(text.contains("`memory:`"), "{text}");
        settle().await;
        // The release.
        assert_eq!(case.store.requests(), requests + 1);
        assert!(case.store.is_idle());
        let lock = case.first.lock("a").ttl(LONG);
        let lock = match refused {
            Mode::Shared => lock.shared(),
            _ => lock,
        };
        let receipt = lock.acquire().await.unwrap().detach().await.unwrap();
        let text = receipt
            .to_string()
            .replace("store=memory&", "store=attached-only&");
        let receipt: Receipt = text.parse().unwrap();
        let requests = case.store.requests();
        assert_eq!(
            kind(client.attach(&receipt).await),
            Some(ErrorKind::Unsupported)
        );
        assert_eq!(case.store.requests(), requests);
        assert_eq!(
            client.require(Capability::Detach).is_ok(),
            detached != DetachedHolds::None
        );
    }
    let case = Case::new();
    let client = Wrapped::client(&case, DetachedHolds::Exclusive, true);
    let guard = client.lock("a").acquire().await.unwrap();
    let receipt = guard.detach().await.unwrap();
    let guard = client.attach(&receipt).await.unwrap();
    guard.release().await.unwrap();
}
