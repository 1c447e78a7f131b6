//! An acquisition of several locks learns at once that a part of them is lost.

use std::time::Duration;

use tenure::{Client, Lock, Renew};

use crate::memory_store::{settle, store};
use crate::{TTL, take};

#[tokio::test]
async fn both_does_not_wait_on_after_the_first_lock_is_lost() {
    let (first_store, first) = store();
    let (_second_store, second) = store();
    let first = first.with_address("memory:1");
    let second = second.with_address("memory:2");
    let _busy = take(&second, "b").await;
    let fixed = first.lock("a").ttl(TTL).renew(Renew::Never);
    let waiting = tokio::spawn(async move { Lock::both(fixed, second.lock("b")).acquire().await });
    settle().await;
    assert!(!first_store.is_idle(), "the first lock is held");
    first_store.advance(TTL - Duration::from_secs(1));
    settle().await;
    assert!(!waiting.is_finished());
    first_store.advance(Duration::from_secs(1));
    settle().await;
    assert!(waiting.is_finished(), "it waits on without the first lock");
    assert!(waiting.await.unwrap().unwrap_err().is_lost());
    assert!(first.lock("a").try_acquire().await.unwrap().is_some());
}

/// Breaks "a" while `lock` holds it and waits for other names.
async fn assert_ends_when_a_is_broken(client: &Client, lock: Lock) {
    let waiting = tokio::spawn(async move { lock.acquire().await });
    settle().await;
    let status = client.inspect("a").await.unwrap();
    let held = status.holds.first().expect("\"a\" is held");
    assert!(client.break_lock("a", held.token.unwrap()).await.unwrap());
    settle().await;
    assert!(waiting.is_finished(), "it waits on without \"a\"");
    assert!(waiting.await.unwrap().unwrap_err().is_lost());
    assert!(!client.is_held_here("a"));
}

#[tokio::test]
async fn several_do_not_wait_on_after_a_lock_is_lost() {
    let (store, client) = store();
    let other = Client::from_store(store.clone()).unwrap();
    let _busy = other.lock_all(["b", "c"]).acquire().await.unwrap();
    assert_ends_when_a_is_broken(&client, client.lock_all(["a", "b"])).await;
    assert_ends_when_a_is_broken(&client, client.lock("k").k_of(["a", "b", "c"], 2)).await;
}

#[tokio::test]
async fn a_client_says_what_it_holds_without_a_request() {
    let (store, client) = store();
    let other = Client::from_store(store.clone()).unwrap();
    assert!(!client.is_held_here("a") && !client.is_held_here(""));
    let shared = client.lock("a").shared().acquire().await.unwrap();
    let all = client.lock_all(["b", "c"]).acquire().await.unwrap();
    let requests = store.requests();
    for name in ["a", "b", "c"] {
        assert!(client.is_held_here(name) && client.clone().is_held_here(name));
        assert!(!other.is_held_here(name));
    }
    assert_eq!(store.requests(), requests);
    drop(shared);
    assert!(!client.is_held_here("a") && client.is_held_here("b"));
    // Reads the clock, as a guard does.
    store.pause();
    store.advance(TTL);
    assert!(!client.is_held_here("b"));
    drop(all);
}
