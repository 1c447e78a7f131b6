//! Detached holds in `memory:`, on its virtual clock.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::error::{Error, ErrorKind, Step};
use crate::guarantees::{Capability, DetachedHolds};
use crate::logic::lease::HoldState;
use crate::lost::LostReason;
use crate::memory::{Disturbance, Store};
use crate::name::LockName;
use crate::options::{Mode, Renew};
use crate::rt::{poll_now, yield_now};
use crate::{Client, FencingToken, Guard, Lock, Owner, Receipt};

mod errors;
mod several;

const TTL: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(1_000);
const SECOND: Duration = Duration::from_secs(1);

/// A store on a clock that only the test moves, and a client that detaches.
struct Case {
    store: Store,
    first: Client,
}

impl Case {
    fn new() -> Self {
        let store = Store::with_virtual_clock();
        store.seed(7);
        let first = Client::from_store(store.clone()).unwrap();
        Self { store, first }
    }

    fn client(&self) -> Client {
        Client::from_store(self.store.clone()).unwrap()
    }

    async fn guard(&self) -> Guard {
        self.first.lock("a").ttl(LONG).acquire().await.unwrap()
    }

    /// The receipt of a new hold of "a", with a long lease in the store, and a short one for those who attach.
    async fn receipt(&self) -> Receipt {
        self.guard().await.detach().await.unwrap().with_ttl(TTL)
    }

    /// The token of the hold of "a" in the store, and what is left of its lease.
    fn held(&self) -> Option<(FencingToken, Duration)> {
        let status = self.store.status(&LockName::new("a").unwrap());
        let hold = status.holds.first()?;
        Some((hold.token?, hold.ttl_left?))
    }

    fn is_held(&self) -> bool {
        self.held().is_some()
    }

    /// From now on requests hang.
    fn pause(&self) {
        self.store.pause();
    }

    async fn resume(&self) {
        self.store.resume();
        settle().await;
    }
}

/// Gives each task its turn.
async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

fn kind<T>(outcome: Result<T, Error>) -> Option<ErrorKind> {
    outcome.map(drop).err().map(|err| err.kind())
}

/// The losses that a client reports.
struct Losses(mpsc::UnboundedReceiver<LostReason>);

impl Losses {
    fn of(client: &Client) -> Self {
        let (sender, losses) = mpsc::unbounded_channel();
        client.on_lost(move |loss| sender.send(loss.reason).unwrap_or_default());
        Self(losses)
    }

    async fn next(&mut self) -> LostReason {
        self.0.recv().await.unwrap()
    }

    /// Whether there was no loss: of this hold and of another one that is lost now.
    async fn are_none(&mut self, case: &Case, client: &Client) -> bool {
        let guard = client.lock("lost").max_hold(SECOND).acquire().await;
        case.store.run_for(SECOND).await;
        let first = self.next().await;
        drop(guard.unwrap());
        settle().await;
        first == LostReason::MaxHold
    }
}

#[tokio::test]
async fn a_detached_hold_lasts_for_its_ttl_and_is_renewed_no_more() {
    let case = Case::new();
    let mut lost = Losses::of(&case.first);
    let guard = case.first.lock("a").ttl(TTL).acquire().await.unwrap();
    let token = guard.token();
    let ended = guard.lost();
    case.store.run_for(TTL / 2).await;
    let receipt = guard.detach().await.unwrap();
    assert_eq!((receipt.token(), receipt.ttl()), (token, TTL));
    assert_eq!(ended.await, None);
    assert!(!case.first.is_held_here("a"));
    let requests = case.store.requests();
    case.store.run_for(TTL - SECOND).await;
    assert_eq!(case.held(), Some((token, SECOND)));
    assert_eq!(case.store.requests(), requests);
    case.store.run_for(SECOND).await;
    assert!(case.store.is_idle());
    assert!(lost.are_none(&case, &case.first).await);
    assert_eq!(
        kind(case.client().attach(&receipt).await),
        Some(ErrorKind::Lost)
    );
    assert!(case.store.is_idle());
}

#[tokio::test]
async fn a_hold_that_is_renewed_by_nobody_is_detached_for_a_whole_ttl() {
    let case = Case::new();
    for lock in [
        case.first.lock("a").ttl(TTL).renew(Renew::Never),
        case.first.lock("a").ttl(TTL).max_hold(TTL / 2),
    ] {
        let guard = lock.acquire().await.unwrap();
        case.store.run_for(TTL / 4).await;
        let receipt = guard.detach().await.unwrap();
        case.store.run_for(TTL / 2).await;
        let guard = case.client().attach(receipt).await.unwrap();
        // What ended the first guard does not end this one.
        case.store.run_for(3 * TTL).await;
        guard.release().await.unwrap();
        assert!(case.store.is_idle());
    }
}

#[tokio::test]
async fn an_attached_hold_is_renewed_and_released_as_every_hold() {
    let case = Case::new();
    let receipt = case.receipt().await;
    let client = case.client();
    let guard = client.attach(&receipt).await.unwrap();
    assert_eq!(guard.token(), receipt.token());
    assert_eq!(guard.mode(), Mode::Exclusive);
    assert!(client.is_held_here("a") && guard.remaining() < TTL);
    case.store.run_for(LONG + LONG).await;
    assert!(guard.is_held());
    assert!(case.held().unwrap().1 <= TTL);
    drop(guard);
    settle().await;
    assert!(case.store.is_idle());
}

#[tokio::test]
async fn the_deadline_counts_from_the_request_to_attach() {
    let case = Case::new();
    let receipt = case.receipt().await;
    let late = Disturbance::Late(3 * SECOND);
    case.store.disturb(Step::Attach, late);
    let client = case.client();
    let attached = tokio::spawn(async move { client.attach(receipt).await });
    case.store.run_for(3 * SECOND).await;
    let guard = attached.await.unwrap().unwrap();
    assert!(guard.remaining() < 7 * SECOND, "{:?}", guard.remaining());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn an_answer_that_comes_after_its_lease_attaches_nothing() {
    let case = Case::new();
    let receipt = case.receipt().await;
    let late = Disturbance::Late(2 * TTL);
    case.store.disturb(Step::Attach, late);
    let client = case.client();
    let attached = tokio::spawn({
        let (client, receipt) = (client.clone(), receipt.clone());
        async move { client.attach(receipt).await }
    });
    case.store.run_for(2 * TTL).await;
    assert_eq!(
        kind(attached.await.unwrap()),
        Some(ErrorKind::Indeterminate)
    );
    assert!(case.is_held() && !client.is_held_here("a"));
    let guard = client.attach(&receipt).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_release_by_one_is_a_loss_for_the_other_at_its_next_renewal() {
    let case = Case::new();
    let receipt = case.receipt().await;
    let (second, third) = (case.client(), case.client());
    let mut lost = Losses::of(&third);
    let one = second.attach(&receipt).await.unwrap();
    let other = third.attach(&receipt).await.unwrap();
    one.release().await.unwrap();
    let next = case.guard().await;
    assert!(next.token() > receipt.token());
    case.store.run_for(TTL / 3).await;
    assert_eq!(other.state(), HoldState::Lost(LostReason::StoreSaysNo));
    assert_eq!(lost.next().await, LostReason::StoreSaysNo);
    assert_eq!(kind(other.release().await), Some(ErrorKind::Lost));
    settle().await;
    assert_eq!(case.held().map(|(token, _)| token), Some(next.token()));
    assert!(next.is_held());
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_guard_that_was_lost_releases_nothing() {
    for releases in [false, true] {
        let case = Case::new();
        let receipt = case.receipt().await;
        let client = case.client();
        let mut lost = Losses::of(&client);
        let guard = client.attach(&receipt).await.unwrap();
        case.pause();
        case.store.run_for(TTL).await;
        assert_eq!(guard.lost().await, Some(LostReason::Expired));
        assert_eq!(lost.next().await, LostReason::Expired);
        case.resume().await;
        let requests = case.store.requests();
        match releases {
            true => assert_eq!(kind(guard.release().await), Some(ErrorKind::Lost)),
            false => drop(guard),
        }
        settle().await;
        assert_eq!(case.store.requests(), requests);
        assert_eq!(case.held().unwrap().0, receipt.token());
        // The client may attach again at once.
        let again = client.attach(&receipt).await.unwrap();
        again.release().await.unwrap();
        assert!(case.store.is_idle());
    }
}

#[tokio::test]
async fn a_client_that_is_closed_leaves_what_it_was_attached_to() {
    let case = Case::new();
    let receipt = case.receipt().await;
    let client = case.client();
    let guard = client.attach(&receipt).await.unwrap();
    client.close().await;
    assert_eq!(guard.state(), HoldState::Lost(LostReason::SessionGone));
    assert_eq!(case.held().unwrap().0, receipt.token());
    drop(guard);
    settle().await;
    assert_eq!(case.held().unwrap().0, receipt.token());
    assert_eq!(kind(client.attach(&receipt).await), Some(ErrorKind::Closed));
    // So does one that is closed while its request is under way.
    let client = case.client();
    case.pause();
    let mut attaching = pin!(client.attach(&receipt));
    assert!(poll_now(attaching.as_mut()).is_err());
    let closing = tokio::spawn({
        let client = client.clone();
        async move { client.close().await }
    });
    settle().await;
    assert_eq!(kind(attaching.await), Some(ErrorKind::Closed));
    case.resume().await;
    closing.await.unwrap();
    assert_eq!(case.held().unwrap().0, receipt.token());
}

#[tokio::test]
async fn a_detach_that_is_dropped_releases_the_hold() {
    for step in [None, Some(Disturbance::Late(SECOND))] {
        let case = Case::new();
        // Before the first poll.
        drop(case.guard().await.detach());
        settle().await;
        assert!(case.store.is_idle());
        // While the request is under way.
        let guard = case.guard().await;
        match step {
            Some(late) => case.store.disturb(Step::Detach, late),
            None => case.pause(),
        }
        {
            let mut detaching = pin!(guard.detach());
            assert!(poll_now(detaching.as_mut()).is_err());
        }
        assert!(case.is_held());
        let requests = case.store.requests();
        case.store.resume();
        case.store.run_for(SECOND).await;
        assert!(case.store.is_idle());
        assert!(!case.first.is_held_here("a"));
        // The store knows nothing more of the hold here, so the client was attached before the release.
        assert_eq!(case.store.requests(), requests + 2);
    }
}

#[tokio::test]
async fn a_detach_that_is_dropped_leaves_a_hold_that_has_a_receipt() {
    let case = Case::new();
    let receipt = case.receipt().await;
    let client = case.client();
    let guard = client.attach(&receipt).await.unwrap();
    case.pause();
    {
        let mut detaching = pin!(guard.detach());
        assert!(poll_now(detaching.as_mut()).is_err());
    }
    // The client may attach again when the store has answered.
    let again = tokio::spawn({
        let (client, receipt) = (client.clone(), receipt.clone());
        async move { client.attach(receipt).await }
    });
    settle().await;
    assert!(!again.is_finished());
    case.resume().await;
    let again = again.await.unwrap().unwrap();
    assert_eq!(again.token(), receipt.token());
    again.release().await.unwrap();
    assert!(case.store.is_idle());
}

#[tokio::test]
async fn an_attach_that_is_dropped_leaves_the_hold() {
    for disturbance in [
        None,
        Some(Disturbance::Late(SECOND)),
        Some(Disturbance::ReplyNever),
    ] {
        let case = Case::new();
        let receipt = case.receipt().await;
        let client = case.client();
        drop(client.attach(&receipt));
        match disturbance {
            Some(disturbance) => case.store.disturb(Step::Attach, disturbance),
            None => case.pause(),
        }
        {
            let mut attaching = pin!(client.attach(&receipt));
            assert!(poll_now(attaching.as_mut()).is_err());
        }
        assert!(!client.is_held_here("a"));
        let again = tokio::spawn({
            let (client, receipt) = (client.clone(), receipt.clone());
            async move { client.attach(receipt).await }
        });
        settle().await;
        case.store.resume();
        case.store.run_for(SECOND).await;
        assert_eq!(case.held().unwrap().0, receipt.token());
        let again = again.await.unwrap().unwrap();
        again.release().await.unwrap();
        assert!(case.store.is_idle());
    }
}

#[tokio::test]
async fn a_dropped_guard_is_released_before_the_same_client_attaches_again() {
    let case = Case::new();
    let receipt = case.receipt().await;
    let client = case.client();
    let guard = client.attach(&receipt).await.unwrap();
    case.pause();
    drop(guard);
    let again = tokio::spawn(async move { client.attach(receipt).await });
    settle().await;
    assert!(!again.is_finished());
    case.resume().await;
    assert_eq!(kind(again.await.unwrap()), Some(ErrorKind::Lost));
    assert!(case.store.is_idle());
}
