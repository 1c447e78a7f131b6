//! Requests whose answer is late, lost or a refusal: what the driver sends after them, and what it tells the caller.

pub(super) mod store;

use std::sync::Arc;
use std::time::Duration;

use super::hold_state::EntryEnd;
use super::kept_turn::KeptTurn;
use super::shared::Driver;
use super::until::Until;
use crate::Client;
use crate::error::{Error, ErrorKind, Step};
use crate::logic::hand_over::SharedTurn;
use crate::logic::lease::HoldState;
use crate::lost::LostReason;
use crate::memory::{Disturbance, Store};
use crate::name::LockName;
use crate::options::{Mode, Options, Renew};
use crate::rt::sync::Mutex;
use crate::rt::{poll_now, yield_now};

use store::{Change, TestStore};

const TTL: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

fn in_memory() -> (Client, Store) {
    let store = Store::with_virtual_clock();
    (Client::from_store(store.clone()).unwrap(), store)
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

/// The future, which is not ready at its first poll.
fn sent<F: Future + Unpin>(future: F) -> F {
    match poll_now(future) {
        Ok(_) => panic!("it has ended already"),
        Err(pending) => pending,
    }
}

/// The mode in which the name "n" is held.
fn mode_in(store: &Store) -> Mode {
    let status = store.status(&LockName::new("n").unwrap());
    status.holds[0].mode
}

#[tokio::test]
async fn a_grant_on_a_lease_that_is_over_is_released_without_another_look() {
    let (client, store) = in_memory();
    store.disturb(Step::Acquire, Disturbance::Late(TTL + SECOND));
    let lock = client.lock("n").ttl(TTL);
    let acquiring = sent(Box::pin(lock.acquire()));
    store.advance(TTL + SECOND);
    assert_eq!(kind(acquiring.await), Some(ErrorKind::Indeterminate));
    settle().await;
    assert!(store.is_idle());
    // The acquisition and the release.
    assert_eq!(store.requests(), 2);
}

#[tokio::test]
async fn nothing_follows_a_request_that_the_store_has_not_got() {
    let (client, store) = in_memory();
    let all = client.lock_all(["a", "b"]).ttl(TTL);
    for lock in [client.lock("n").ttl(TTL), all] {
        let before = store.requests();
        store.disturb(Step::Acquire, Disturbance::RequestLost);
        assert_eq!(kind(lock.try_acquire().await), Some(ErrorKind::Unreachable));
        settle().await;
        assert_eq!(store.requests(), before + 1);
    }
    let guard = client.lock("n").ttl(TTL).upgradable().acquire().await;
    let guard = guard.unwrap();
    let before = store.requests();
    store.disturb(Step::Upgrade, Disturbance::RequestLost);
    assert_eq!(kind(guard.upgrade().await), Some(ErrorKind::Unreachable));
    settle().await;
    assert_eq!(store.requests(), before + 1);
}

#[tokio::test]
async fn a_request_for_several_names_is_stopped_when_its_caller_leaves() {
    let (client, store) = in_memory();
    store.pause();
    let all = client.lock_all(["a", "b"]).ttl(TTL);
    drop(sent(Box::pin(all.try_acquire())));
    settle().await;
    let stopped_at = store.requests();
    store.resume();
    settle().await;
    // The store granted nothing when it went on, so no release followed.
    assert_eq!(store.requests(), stopped_at);
}

#[tokio::test]
async fn a_grant_that_arrives_as_the_wait_ends_counts() {
    let (client, store, _) = TestStore::client(Change::GrantsWhenStopped);
    let lock = client.lock("n").ttl(TTL).wait(SECOND);
    let mut acquiring = Box::pin(lock.acquire());
    let guard = loop {
        match poll_now(acquiring) {
            Ok(acquired) => break acquired.unwrap(),
            Err(pending) => acquiring = pending,
        }
        store.advance(SECOND / 10);
        settle().await;
    };
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert!(store.is_idle());
}

#[tokio::test]
async fn a_hold_without_a_lease_is_checked_if_its_store_reports_no_end() {
    let (client, store, told) = TestStore::client(Change::HasNoLeases);
    let guard = client.lock("n").ttl(TTL).acquire().await.unwrap();
    store.run_for(TTL).await;
    assert!(told.renewed() > 0);
    assert!(guard.is_held());
}

#[tokio::test]
async fn a_downgrade_of_unknown_outcome_is_repeated_until_the_store_has_answered() {
    let (client, store) = in_memory();
    let guard = client.lock("n").ttl(TTL).acquire().await.unwrap();
    store.disturb(Step::Downgrade, Disturbance::RequestLost);
    assert_eq!(kind(guard.downgrade().await), Some(ErrorKind::Unreachable));
    // Until the store has answered, no caller may count on more.
    assert_eq!(guard.mode(), Mode::Shared);
    store.run_for(SECOND).await;
    assert_eq!(mode_in(&store), Mode::Shared);

    // The next call asks the store, and the one after it has nothing to ask.
    let before = store.requests();
    guard.downgrade().await.unwrap();
    assert_eq!(store.requests(), before + 1);
    guard.downgrade().await.unwrap();
    assert_eq!(store.requests(), before + 1);
}

#[tokio::test]
async fn the_mode_of_a_hold_that_has_ended_does_not_change() {
    let (client, store) = in_memory();
    let lock = client.lock("n").ttl(TTL).renew(Renew::Never);
    let guard = lock.upgradable().acquire().await.unwrap();
    store.advance(TTL);
    let before = store.requests();
    let err = guard.upgrade().await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Lost);
    let reason = LostReason::Expired.to_string();
    assert!(err.to_string().contains(&reason), "{err}");
    assert_eq!(kind(guard.downgrade().await), Some(ErrorKind::Lost));
    assert_eq!(store.requests(), before);
}

#[tokio::test]
async fn a_release_that_takes_longer_than_the_lease_is_a_loss() {
    let (client, store) = in_memory();
    let guard = client.lock("n").ttl(TTL).acquire().await.unwrap();
    store.disturb(Step::Release, Disturbance::ReplyNever);
    let releasing = sent(Box::pin(guard.release()));
    store.advance(TTL);
    store.resume();
    assert_eq!(kind(releasing.await), Some(ErrorKind::Lost));
}

#[tokio::test]
async fn a_closed_client_keeps_no_lost_hold_from_others() {
    let (client, store) = in_memory();
    let guard = client.lock("n").ttl(TTL).max_hold(SECOND).acquire().await;
    let guard = guard.unwrap();
    store.run_for(SECOND).await;
    assert_eq!(guard.state(), HoldState::Lost(LostReason::MaxHold));
    assert!(!store.is_idle());
    client.close().await;
    assert!(store.is_idle());
}

/// The future knows the state of the hold, and the turn may come to the hold after its end has begun.
#[tokio::test]
async fn a_future_of_a_guard_does_not_keep_the_turn_from_other_tasks() {
    let driver = Driver::new(Arc::new(Store::with_virtual_clock())).unwrap();
    let (name, options) = (LockName::new("n").unwrap(), Options::new().ttl(TTL));
    let acquired = driver.acquire(&name, &options, Until::Once).await.unwrap();
    let held = acquired.got().unwrap();
    let lost = held.hold_state().clone().lost(EntryEnd::default());
    let turn = driver.queue.try_take(&name, None).unwrap();
    let shared = SharedTurn::granted(held.token(), 1, Duration::ZERO, driver.clock.now());
    drop(held.end());
    held.set_turn(KeptTurn {
        turn: Arc::new(Mutex::new(Some(turn))),
        shared,
        options: Box::new(options),
    });
    drop(held);
    assert!(driver.queue.try_take(&name, None).is_some());
    drop(lost);
}

/// A client that gives up an attachment says so to the store, however it ends.
#[tokio::test]
async fn a_store_forgets_an_attachment_that_is_given_up() {
    for disturbance in [
        Disturbance::Late(SECOND),
        Disturbance::ReplyNever,
        Disturbance::Late(2 * TTL),
    ] {
        let (client, store, told) = TestStore::client(Change::None);
        let guard = client.lock("n").ttl(100 * TTL).acquire().await.unwrap();
        let receipt = guard.detach().await.unwrap().with_ttl(TTL);
        let is_dropped = disturbance != Disturbance::Late(2 * TTL);
        store.disturb(Step::Attach, disturbance);
        let attaching = sent(Box::pin(client.attach(&receipt)));
        if is_dropped {
            drop(attaching);
            store.advance(SECOND);
            store.resume();
        } else {
            // The answer comes when the lease that it names is over.
            store.advance(2 * TTL);
            assert_eq!(kind(attaching.await), Some(ErrorKind::Indeterminate));
        }
        settle().await;
        assert_eq!(told.forgotten(), 1, "{disturbance:?}");
        assert!(!store.is_idle());
    }
}
