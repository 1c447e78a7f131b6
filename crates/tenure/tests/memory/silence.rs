//! Waits that end while the store is silent, or slow: nothing says that a name is held unless the store said so.

use std::time::Duration;

use tenure::error::Step;
use tenure::memory;
use tenure::{Client, ErrorKind, Owner};

use crate::memory_store::{settle, store};

/// A wait of a client of this store, from its beginning to its end. `then` happens while the wait lasts.
async fn end_of_wait(store: &memory::Store, then: impl FnOnce()) -> tenure::Error {
    let client = Client::from_store(store.clone()).unwrap();
    let wait = Duration::from_millis(200);
    let lock = client.lock("a").wait(wait);
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    settle().await;
    then();
    store.advance(wait);
    waiting.await.unwrap().unwrap_err()
}

#[tokio::test]
async fn a_store_that_said_nothing_in_the_whole_wait_is_unreachable() {
    let (store, _client) = store();
    store.pause();
    let err = end_of_wait(&store, || {}).await;
    assert_eq!(err.kind(), ErrorKind::Unreachable);
    let message = format!("{err:#}");
    assert!(message.contains("did not answer within 200ms"), "{message}");
    assert!(!message.contains("held"), "{message}");
    store.resume();
    settle().await;
    assert!(store.is_idle());
}

#[tokio::test]
async fn a_store_that_falls_silent_after_it_said_busy_is_busy() {
    let (store, client) = store();
    let _guard = client.lock("a").acquire().await.unwrap();
    let err = end_of_wait(&store, || store.pause()).await;
    assert_eq!(err.kind(), ErrorKind::WaitElapsed);
    let message = format!("{err:#}");
    assert!(message.contains("the store answered last"), "{message}");
}

/// The request is on its way for longer than the wait, and the store answers the inspection.
#[tokio::test]
async fn a_wait_that_is_shorter_than_the_round_trip_claims_no_holder() {
    let (store, client) = store();
    let late = || memory::Disturbance::Late(Duration::from_secs(1));
    store.disturb(Step::Acquire, late());
    let err = end_of_wait(&store, || {}).await;
    assert_eq!(err.kind(), ErrorKind::Unreachable);
    assert!(format!("{err:#}").contains("the lock is free now"), "{err}");
    let guard = client.lock("a").acquire().await.unwrap();
    store.disturb(Step::Acquire, late());
    let err = end_of_wait(&store, || {}).await;
    assert_eq!(err.kind(), ErrorKind::WaitElapsed);
    assert!(err.holder().is_some(), "{err}");
    drop(guard);
}

/// The error of a wait that must end exactly in time, with the store in the state that `then` leaves.
async fn end_in_time(store: &memory::Store, then: impl FnOnce()) -> tenure::Error {
    let client = Client::from_store(store.clone()).unwrap();
    let wait = Duration::from_secs(10);
    let lock = client.lock("a").wait(wait);
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    settle().await;
    then();
    store.run_for(wait - Duration::from_millis(1)).await;
    assert!(!waiting.is_finished());
    store.run_for(Duration::from_millis(1)).await;
    assert!(waiting.is_finished(), "the wait is over");
    waiting.await.unwrap().unwrap_err()
}

#[tokio::test]
async fn a_wait_includes_the_search_for_the_holder() {
    let (store, client) = store();
    let guard = client.lock("a").acquire().await.unwrap();
    let err = end_in_time(&store, || {}).await;
    assert_eq!(err.kind(), ErrorKind::WaitElapsed);
    assert!(err.holder().is_some(), "{err}");
    let err = end_in_time(&store, || store.pause()).await;
    assert_eq!(err.kind(), ErrorKind::WaitElapsed);
    store.resume();
    drop(guard);
    store.pause();
    let err = end_in_time(&store, || {}).await;
    assert_eq!(err.kind(), ErrorKind::Unreachable);
    store.resume();
}

/// The store is asked for the holder before the wait is over, and the request is still in the queue.
#[tokio::test]
async fn a_grant_in_the_last_moment_of_a_wait_counts() {
    let (store, client) = store();
    let guard = client.lock("a").acquire().await.unwrap();
    let other = Client::from_store(store.clone()).unwrap();
    let lock = other.lock("a").wait(Duration::from_secs(10));
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    settle().await;
    store.run_for(Duration::from_millis(9_999)).await;
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_try_behind_a_task_that_got_no_answer_is_not_busy() {
    let (store, client) = store();
    let owner = Owner::new();
    for lock in [client.lock("a"), client.lock("a").owner(&owner)] {
        // The request of the first task is on its way, and so the store has not said anything.
        let late = Duration::from_secs(1);
        store.disturb(Step::Acquire, memory::Disturbance::Late(late));
        let patient = lock.clone();
        let first = tokio::spawn(async move { patient.acquire().await });
        settle().await;
        store.disturb(Step::Inspect, memory::Disturbance::RequestLost);
        let refused = lock.try_acquire().await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unreachable);
        assert!(lock.try_acquire().await.unwrap().is_none());
        store.run_for(late).await;
        first.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_try_behind_a_task_that_was_told_so_is_busy_without_a_request() {
    let (store, client) = store();
    let other = Client::from_store(store.clone()).unwrap();
    let guard = other.lock("a").acquire().await.unwrap();
    let lock = client.lock("a");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    settle().await;
    let requests = store.requests();
    store.pause();
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    assert_eq!(store.requests(), requests);
    store.resume();
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}
