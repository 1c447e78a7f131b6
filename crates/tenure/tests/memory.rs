//! Client, driver and guard over the memory store with its virtual clock.

#[path = "common/memory.rs"]
mod memory_store;
#[path = "memory/reports.rs"]
mod reports;
#[path = "memory/silence.rs"]
mod silence;

use std::time::Duration;

use tenure::error::Step;
use tenure::memory;
use tenure::{Client, ErrorKind, HoldState, LostReason, Owner, Renew};

use memory_store::{settle, store};
use tenure_core::rt::poll_now;

const TTL: Duration = Duration::from_secs(30);

#[tokio::test]
async fn waits_and_names_the_holder_when_the_wait_is_over() {
    let (store, client) = store();
    let other = Client::from_store(store.clone()).unwrap();
    let guard = client.lock("a").label("first").acquire().await.unwrap();
    let lock = other.lock("a").wait(Duration::from_secs(5));
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    settle().await;
    store.advance(Duration::from_secs(5));
    let err = waiting.await.unwrap().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::WaitElapsed);
    assert!(format!("{err:#}").contains("\"first\""), "{err}");
    assert_eq!(err.holder().unwrap().pid, std::process::id());
    guard.release().await.unwrap();
    assert!(store.is_idle());
}

#[tokio::test]
async fn an_hour_that_passes_by_run_for_renews_in_time() {
    let (store, client) = store();
    let guard = client.lock("a").acquire().await.unwrap();
    let capped = client.lock("b").max_hold(TTL * 2).acquire().await.unwrap();
    store.run_for(TTL * 120).await;
    assert_eq!(guard.state(), HoldState::Held);
    assert!(!capped.is_held());
    let before = store.requests();
    store.run_for(Duration::ZERO).await;
    assert_eq!(store.requests(), before);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lease_is_renewed_at_a_third_and_survives_for_ever() {
    let (store, client) = store();
    let guard = client.lock("a").acquire().await.unwrap();
    for _ in 0..100 {
        store.advance(TTL / 3);
        settle().await;
        assert_eq!(guard.state(), HoldState::Held);
        assert!(guard.remaining() > TTL / 2, "{:?}", guard.remaining());
    }
    assert!(store.requests() < 110, "{}", store.requests());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn many_locks_are_renewed_by_few_requests() {
    let (store, client) = store();
    let mut guards = Vec::new();
    for i in 0..1_000 {
        guards.push(client.lock(format!("l{i}")).acquire().await.unwrap());
        store.advance(TTL / 3_000);
    }
    settle().await;
    let before = store.requests();
    for _ in 0..300 {
        store.advance(TTL / 300);
        settle().await;
    }
    assert!(guards.iter().all(|guard| guard.state() == HoldState::Held));
    let requests = store.requests() - before;
    assert!(
        requests <= 3 * 25,
        "{requests} renewal requests for 1,000 locks in one ttl"
    );
}

#[tokio::test]
async fn lost_fires_at_the_deadline_when_renewal_hangs() {
    let (store, client) = store();
    let guard = client.lock("a").acquire().await.unwrap();
    let lost = tokio::spawn(guard.lost());
    store.pause();
    store.advance(TTL / 3);
    settle().await;
    assert_eq!(guard.state(), HoldState::Held);
    store.advance(TTL / 3 + TTL / 60);
    settle().await;
    assert_eq!(guard.state(), HoldState::AtRisk);
    assert!(!lost.is_finished());
    store.advance(TTL / 3 - TTL / 60 - TTL / 100);
    assert!(!guard.is_held());
    assert_eq!(lost.await.unwrap(), Some(LostReason::Expired));
    store.resume();
    settle().await;
    assert!(!guard.is_held(), "a late answer resurrects nothing");
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(store.is_idle());
}

#[tokio::test]
async fn an_answer_after_the_deadline_does_not_hide_the_loss() {
    let (store, client) = store();
    let guard = client.lock("a").acquire().await.unwrap();
    let lost = tokio::spawn(guard.lost());
    store.disturb(Step::Renew, memory::Disturbance::ReplyNever);
    store.advance(TTL / 3);
    settle().await;
    // The answer has arrived, and is read before the timer of the deadline fires.
    store.resume();
    store.advance(TTL);
    settle().await;
    assert!(lost.is_finished(), "nobody told of the loss");
    assert_eq!(lost.await.unwrap(), Some(LostReason::Expired));
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn an_error_on_renewal_is_neither_loss_nor_success() {
    let (store, client) = store();
    let guard = client.lock("a").acquire().await.unwrap();
    store.disturb(Step::Renew, memory::Disturbance::RequestLost);
    store.advance(TTL / 3);
    settle().await;
    assert_eq!(guard.state(), HoldState::AtRisk);
    store.advance(Duration::from_secs(1));
    settle().await;
    assert_eq!(guard.state(), HoldState::Held, "retried inside the lease");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn the_deadline_counts_from_before_a_request_that_was_long_on_its_way() {
    let (store, client) = store();
    let way = TTL / 20;
    store.disturb(Step::Acquire, memory::Disturbance::Late(way));
    let lock = client.lock("a");
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    settle().await;
    store.advance(way);
    let guard = acquiring.await.unwrap().unwrap();
    assert!(guard.remaining() <= TTL - way, "{:?}", guard.remaining());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn one_slow_answer_is_an_accident_and_two_refuse_the_lease() {
    let (store, client) = store();
    let acquire = || {
        let lock = client.lock("a");
        tokio::spawn(async move { lock.acquire().await })
    };
    store.disturb(Step::Acquire, memory::Disturbance::Late(TTL / 5));
    let acquiring = acquire();
    settle().await;
    store.advance(TTL / 5);
    let guard = acquiring.await.unwrap().unwrap();
    assert!(guard.remaining() <= TTL - TTL / 5);
    guard.release().await.unwrap();

    store.disturb(Step::Acquire, memory::Disturbance::Late(TTL / 5));
    store.disturb(Step::Inspect, memory::Disturbance::Late(TTL));
    let acquiring = acquire();
    settle().await;
    store.advance(TTL / 5);
    settle().await;
    assert!(!acquiring.is_finished(), "asked once more");
    store.advance(TTL / 10 + Duration::from_millis(1));
    let err = acquiring.await.unwrap().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Invalid, "{err}");
    settle().await;
    assert!(store.is_idle(), "it is given back");

    store.disturb(Step::Acquire, memory::Disturbance::Late(TTL / 5));
    store.disturb(Step::Inspect, memory::Disturbance::Late(TTL));
    let acquiring = acquire();
    settle().await;
    store.advance(TTL / 5);
    settle().await;
    client.close().await;
    let err = acquiring.await.unwrap().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Closed, "{err}");
    settle().await;
    assert!(store.is_idle(), "and here too");
}

/// A connection that breaks is no answer, so it does not show that the store answers quickly.
#[tokio::test]
async fn a_request_without_an_answer_does_not_show_that_a_ttl_is_long_enough() {
    let (store, client) = store();
    store.disturb(Step::Acquire, memory::Disturbance::Late(TTL / 5));
    for no_answer in [
        memory::Disturbance::RequestLost,
        memory::Disturbance::ReplyLost,
        memory::Disturbance::Late(TTL),
    ] {
        store.disturb(Step::Inspect, no_answer);
    }
    let lock = client.lock("a");
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    settle().await;
    store
        .run_for(TTL / 5 + TTL / 10 + Duration::from_millis(1))
        .await;
    assert!(acquiring.is_finished());
    let err = acquiring.await.unwrap().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Invalid, "{err}");
    settle().await;
    assert!(store.is_idle(), "it is given back");

    store.disturb(Step::Acquire, memory::Disturbance::Late(TTL / 5));
    store.disturb(Step::Inspect, memory::Disturbance::ReplyLost);
    let lock = client.lock("a");
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    settle().await;
    store.run_for(TTL / 5 + TTL / 10).await;
    assert!(acquiring.is_finished());
    let guard = acquiring.await.unwrap().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_refused_renewal_is_a_loss_at_once_and_touches_nobody_else() {
    let (store, client) = store();
    let other = Client::from_store(store.clone()).unwrap();
    let guard = client.lock("a").acquire().await.unwrap();
    store.expire("a").unwrap();
    let next = other.lock("a").try_acquire().await.unwrap().unwrap();
    let lost = tokio::spawn(guard.lost());
    store.advance(TTL / 3);
    assert_eq!(lost.await.unwrap(), Some(LostReason::StoreSaysNo));
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(next.is_held());
    assert!(client.inspect("a").await.unwrap().is_held());
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_fixed_lease_and_max_hold_end() {
    let (store, client) = store();
    let fixed = client
        .lock("a")
        .renew(Renew::Never)
        .acquire()
        .await
        .unwrap();
    let capped = client
        .lock("b")
        .max_hold(Duration::from_secs(45))
        .acquire()
        .await
        .unwrap();
    for _ in 0..3 {
        store.advance(TTL / 3);
        settle().await;
    }
    assert_eq!(fixed.lost().await, Some(LostReason::Expired));
    assert!(capped.is_held());
    store.advance(Duration::from_secs(15));
    assert_eq!(capped.lost().await, Some(LostReason::MaxHold));
    drop((fixed, capped));
    settle().await;
    assert!(store.is_idle());
}

#[tokio::test]
async fn without_a_store_lease_a_fixed_hold_is_ended_by_us() {
    let client = tenure::connect("memory:").await.unwrap();
    let fixed = client
        .lock("a")
        .ttl(Duration::from_millis(30))
        .renew(Renew::Never);
    let guard = fixed.acquire().await.unwrap();
    assert_eq!(guard.lost().await, Some(LostReason::Expired));
    // The guard still exists, and the name is free.
    drop(client.lock("a").acquire().await.unwrap());
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn run_cancels_its_body_on_loss_and_cannot_look_like_success() {
    let (store, client) = store();
    let (started, has_started) = tokio::sync::oneshot::channel();
    let lock = client.lock("a");
    let run = tokio::spawn(async move {
        lock.run(async move |guard| {
            started.send(guard.token()).unwrap();
            std::future::pending::<u32>().await
        })
        .await
    });
    let token = has_started.await.unwrap();
    assert!(!client.break_lock("a", token.get() + 1).await.unwrap());
    assert!(client.break_lock("a", token).await.unwrap());
    let err = run.await.unwrap().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Lost);
    assert!(store.is_idle());
}

/// On a real clock such a hold has no deadline, so nothing else would ever tell the guard.
#[tokio::test]
async fn a_break_before_the_grant_is_read_is_a_loss() {
    let store = memory::Store::new();
    let [one, two] = [(); 2].map(|()| Client::from_store(store.clone()).unwrap());
    let first = one.lock("a").acquire().await.unwrap();
    let lock = two.lock("a");
    let waiting = poll_now(Box::pin(lock.acquire()));
    let waiting = waiting.expect_err("the lock is taken");
    first.release().await.unwrap();
    let granted = one.inspect("a").await.unwrap().holds[0].token.unwrap();
    assert!(one.break_lock("a", granted).await.unwrap());
    let third = one.lock("a").try_acquire().await.unwrap().unwrap();
    let guard = waiting.await.unwrap();
    assert!(!guard.is_held() && third.is_held());
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(third.is_held());
    third.release().await.unwrap();
}

#[tokio::test]
async fn a_lost_run_does_not_wait_for_a_store_that_is_silent() {
    let (store, client) = store();
    let lock = client.lock("a");
    let run = tokio::spawn(async move { lock.run(async |_| std::future::pending().await).await });
    settle().await;
    store.pause();
    store.advance(TTL);
    let lost: Result<(), _> = run.await.unwrap();
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
    store.resume();
    settle().await;
    assert!(store.is_idle());
}

#[tokio::test]
async fn releasing_a_lost_lock_does_not_wait_for_a_store_that_is_silent() {
    let (store, client) = store();
    let guard = client.lock("a").acquire().await.unwrap();
    store.pause();
    store.advance(TTL);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    store.resume();
    settle().await;
    assert!(store.is_idle());
}

#[tokio::test]
async fn what_cannot_be_is_refused_before_any_request() {
    let (store, client) = store();
    let long = "x".repeat(1_001);
    for err in [
        client.lock("").acquire().await.unwrap_err(),
        client.lock(long).try_acquire().await.unwrap_err(),
        client
            .lock("a")
            .ttl(Duration::ZERO)
            .acquire()
            .await
            .unwrap_err(),
        client
            .lock("a")
            .max_hold(Duration::ZERO)
            .acquire()
            .await
            .unwrap_err(),
        client
            .lock("a")
            .label("l".repeat(201))
            .acquire()
            .await
            .unwrap_err(),
    ] {
        assert_eq!(err.kind(), ErrorKind::Invalid);
    }
    assert_eq!(store.requests(), 0);
    for url in [
        "nonsense",
        "redis://:hunter2@h:0/",
        "memory:?x",
        "file://host/dir",
    ] {
        let err = tenure::connect(url).await.unwrap_err();
        assert!(!format!("{err:#}").contains("hunter2"));
        assert!(
            matches!(err.kind(), ErrorKind::Invalid | ErrorKind::Unsupported),
            "{url}: {err}"
        );
    }
}

#[test]
fn types_can_travel() {
    fn travels<T: Send + Sync + 'static>() {}
    travels::<Client>();
    travels::<tenure::Lock>();
    travels::<tenure::Guard>();
    travels::<tenure::Error>();
    travels::<Owner>();
}
