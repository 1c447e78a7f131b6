//! What a guard hands out ends with the hold, and keeps nothing alive.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tenure::{Lock, LostReason, Owner};
use tokio::runtime::Handle;

use crate::memory_store::{settle, store};
use crate::{TEST_TIMEOUT, TTL, pass, take};

/// Waits until the runtime has as many tasks as `before`.
async fn until_no_task_is_left(before: usize) {
    let alive = || Handle::current().metrics().num_alive_tasks();
    let ended = async {
        while alive() > before {
            settle().await;
        }
    };
    let ended = tokio::time::timeout(TEST_TIMEOUT, ended).await;
    assert!(ended.is_ok(), "{} tasks, {before} before", alive());
}

/// Services hold and release for years; a task for each hold that stays would fill the memory.
#[tokio::test]
async fn tasks_that_wait_for_a_loss_end_with_the_hold() {
    let (_store, client) = store();
    let (_other_store, other) = store();
    let owner = Owner::new();
    let outermost = client.lock("entered").owner(&owner);
    let outermost = outermost.acquire().await.unwrap();
    // From here on each client has its renewal task.
    drop(take(&other, "warm").await);
    settle().await;
    let before = Handle::current().metrics().num_alive_tasks();
    let locks: [Lock; 5] = [
        client.lock("one"),
        client.lock_all(["a", "b", "c"]),
        client.lock_any(["x", "y"]),
        client.lock("entered").owner(&owner),
        Lock::both(client.lock("here"), other.lock("there")),
    ];
    for round in 0..1_000 {
        for lock in &locks {
            let guard = lock.acquire().await.unwrap();
            tokio::spawn(guard.lost());
            tokio::spawn(guard.at_risk());
            match round % 2 {
                0 => guard.release().await.unwrap(),
                _ => drop(guard),
            }
        }
    }
    until_no_task_is_left(before).await;
    assert!(outermost.is_held());
}

/// The other ends of a hold: its client is closed, its lock is broken, its outcome is left open.
#[tokio::test]
async fn tasks_that_wait_for_a_loss_end_however_the_hold_ends() {
    let (store, client) = store();
    settle().await;
    let before = Handle::current().metrics().num_alive_tasks();
    let guard = take(&client, "kept").await;
    let kept = [tokio::spawn(guard.lost())];
    let unknown = guard.after(async { Err::<(), _>("unknown") }).await;
    unknown.unwrap_err();
    pass(&store, TTL).await;
    for lost in kept {
        assert_eq!(lost.await.unwrap(), Some(LostReason::Expired));
    }
    let broken = take(&client, "broken").await;
    tokio::spawn(broken.lost());
    assert!(client.break_lock("broken", broken.token()).await.unwrap());
    let closed = take(&client, "closed").await;
    let lost = tokio::spawn(closed.lost());
    client.close().await;
    assert_eq!(lost.await.unwrap(), Some(LostReason::SessionGone));
    drop((broken, closed, client));
    until_no_task_is_left(before).await;
}

/// A release that finds the hold gone is a loss; one that the store confirms is none.
#[tokio::test]
async fn a_release_ends_lost_with_its_outcome() {
    let (store, client) = store();
    let guard = take(&client, "a").await;
    let lost = guard.lost();
    guard.release().await.unwrap();
    assert_eq!(lost.await, None);
    let guard = take(&client, "a").await;
    let lost = guard.lost();
    assert_eq!(store.expire("a").unwrap(), 1);
    guard.release().await.unwrap_err();
    assert_eq!(lost.await, Some(LostReason::StoreSaysNo));
    // An entry that ends before the hold ends its own futures only.
    let owner = Owner::new();
    let lock = client.lock("a").owner(&owner);
    let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
    let (of_outer, of_inner) = (tokio::spawn(outer.lost()), tokio::spawn(inner.lost()));
    inner.release().await.unwrap();
    assert_eq!(of_inner.await.unwrap(), None);
    settle().await;
    assert!(!of_outer.is_finished());
    outer.release().await.unwrap();
    assert_eq!(of_outer.await.unwrap(), None);
}

/// A future or token that is kept does not keep the client, and so not the connection.
#[tokio::test]
async fn what_a_guard_hands_out_keeps_no_client_alive() {
    let (_store, client) = store();
    let alive = Arc::new(());
    let callback = client.on_lost({
        let alive = alive.clone();
        move |_| drop(alive.clone())
    });
    let guard = client.lock_all(["a", "b"]).acquire().await.unwrap();
    let kept = (guard.lost(), guard.at_risk());
    #[cfg(feature = "tokio-util")]
    let token = guard.cancellation_token();
    drop((guard, client));
    let dropped = async {
        while Arc::strong_count(&alive) > 1 {
            settle().await;
        }
    };
    let dropped = tokio::time::timeout(TEST_TIMEOUT, dropped).await;
    assert!(dropped.is_ok(), "the client is still alive");
    assert_eq!(kept.0.await, None);
    assert_eq!(kept.1.await, None);
    #[cfg(feature = "tokio-util")]
    assert!(!token.is_cancelled());
    drop(callback);
}

/// A runtime that ends drops the task that would have ended the hold.
#[test]
fn a_runtime_that_ends_ends_lost() {
    let own = || {
        let builder = &mut tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let runtime = own();
    let (guard, lost) = runtime.block_on(async {
        let (store, client) = store();
        let guard = take(&client, "a").await;
        store.pause();
        let lost = guard.lost();
        (guard, lost)
    });
    drop(runtime);
    drop(guard);
    own().block_on(async {
        let lost = tokio::time::timeout(TEST_TIMEOUT, pin!(lost)).await;
        assert_eq!(lost.unwrap(), None);
    });
}

/// A service that keeps the lock and enters it again for each job, with a token for each.
#[cfg(feature = "tokio-util")]
#[tokio::test]
async fn tokens_of_entries_do_not_gather_in_the_hold() {
    let (store, client) = store();
    let owner = Owner::new();
    let all = client.lock_all(["a", "b"]).owner(&owner);
    let lock = client.lock("a").owner(&owner);
    let outer = all.acquire().await.unwrap();
    let (first, late) = (outer.cancellation_token(), lock.acquire().await.unwrap());
    for _ in 0..100_000 {
        let inner = lock.acquire().await.unwrap();
        assert!(!inner.cancellation_token().is_cancelled());
    }
    for _ in 0..10_000 {
        let inner = all.acquire().await.unwrap();
        assert!(!inner.cancellation_token().is_cancelled());
    }
    let last = late.cancellation_token();
    drop(late);
    store.pause();
    pass(&store, TTL).await;
    // The loss of a hold cancels its tokens, also those of an entry that has ended.
    assert!(first.is_cancelled() && last.is_cancelled());
    assert!(outer.remaining() == Duration::ZERO);
}
