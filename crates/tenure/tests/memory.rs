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
use tenure::{Client, ErrorKind, LostReason, Mode, Owner, Renew, State};

use memory_store::{settle, store};
use tenure_core::rt::poll_now;

const TTL: Duration = Duration::from_secs(30);

#[tokio::test]
async fn acquire_release_and_try() {
    let (store, client) = store();
    let first = client.lock("a").acquire().await.unwrap();
    assert_eq!(first.name().as_str(), "a");
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    assert!(client.lock("b").try_acquire().await.unwrap().is_some());
    let token = first.token();
    first.release().await.unwrap();
    let second = client.lock("a").acquire().await.unwrap();
    assert!(second.token() > token);
    drop(second);
    assert!(store.is_idle());
}

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
    assert_eq!(guard.state(), State::Held);
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
        assert_eq!(guard.state(), State::Held);
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
    assert!(guards.iter().all(|guard| guard.state() == State::Held));
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
    assert_eq!(guard.state(), State::Held);
    store.advance(TTL / 3 + TTL / 60);
    settle().await;
    assert_eq!(guard.state(), State::AtRisk);
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
    assert_eq!(guard.state(), State::AtRisk);
    store.advance(Duration::from_secs(1));
    settle().await;
    assert_eq!(guard.state(), State::Held, "retried inside the lease");
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
async fn lock_all_is_all_or_none() {
    let (store, client) = store();
    let both = client.lock_all(["b", "a", "b"]).acquire().await.unwrap();
    let names: Vec<_> = both
        .tokens()
        .map(|(name, _)| name.as_str().to_owned())
        .collect();
    assert_eq!(names, ["a", "b"]);
    both.release().await.unwrap();
    let c = client.lock("c").acquire().await.unwrap();
    assert!(
        client
            .lock_all(["a", "b", "c"])
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        client
            .lock_all(["a", "b"])
            .try_acquire()
            .await
            .unwrap()
            .is_some()
    );
    let none: [&str; 0] = [];
    assert_eq!(
        client.lock_all(none).acquire().await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
    drop(c);
    assert!(store.is_idle());
}

#[tokio::test]
async fn lock_any_takes_a_free_bucket_and_leaves_no_queue_entry_behind() {
    let (store, client) = store();
    let other = Client::from_store(store.clone()).unwrap();
    let a = client.lock("a").acquire().await.unwrap();
    let free = client.lock_any(["a", "b"]).acquire().await.unwrap();
    assert_eq!(free.name().as_str(), "b");
    let any = other.lock_any(["a", "b"]);
    let waiting = tokio::spawn(async move { any.acquire().await.unwrap() });
    settle().await;
    assert_eq!(client.inspect("a").await.unwrap().queue.unwrap().len(), 1);
    assert_eq!(client.inspect("b").await.unwrap().queue.unwrap().len(), 1);
    a.release().await.unwrap();
    let got = waiting.await.unwrap();
    assert_eq!(got.name().as_str(), "a");
    assert_eq!(client.inspect("b").await.unwrap().queue.unwrap().len(), 0);
    drop((got, free));
    assert!(store.is_idle());
}

#[tokio::test]
async fn an_owner_enters_again_without_a_request() {
    let (store, client) = store();
    let owner = Owner::new();
    let lock = client.lock("a").owner(&owner);
    let outer = lock.acquire().await.unwrap();
    let before = store.requests();
    let inner = lock.acquire().await.unwrap();
    let innermost = lock.try_acquire().await.unwrap().unwrap();
    assert_eq!(store.requests(), before);
    assert_eq!(inner.token(), outer.token());
    outer.release().await.unwrap();
    drop(inner);
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    innermost.release().await.unwrap();
    assert!(store.is_idle());
}

#[tokio::test]
async fn a_scope_is_one_owner_and_a_spawned_task_is_outside_it() {
    let (store, client) = store();
    Owner::scope(async {
        let _outer = client.lock("a").acquire().await.unwrap();
        let inner = client.lock("a").try_acquire().await.unwrap();
        assert!(inner.is_some());
        let lock = client.lock("a");
        let spawned = tokio::spawn(async move { lock.try_acquire().await.unwrap().is_some() });
        assert!(!spawned.await.unwrap());
        let (lock, owner) = (client.lock("a"), Owner::current().unwrap());
        let given = tokio::spawn(async move {
            owner
                .enter_scope(async { lock.try_acquire().await.unwrap().is_some() })
                .await
        });
        assert!(given.await.unwrap());
    })
    .await;
    assert!(store.is_idle());
}

#[tokio::test]
async fn a_nested_run_enters_again_and_other_names_stay_exclusive() {
    let (store, client) = store();
    let value = client
        .lock("a")
        .run(async |_| {
            let inner = client.lock("a").run(async |_| 1).await.unwrap();
            let all = client.lock_all(["a", "b"]).run(async |_| 1).await.unwrap();
            // A lock that the run does not hold stays exclusive inside it.
            let c = client.lock("c").try_acquire().await.unwrap();
            assert!(client.lock("c").try_acquire().await.unwrap().is_none());
            drop(c);
            inner + all
        })
        .await
        .unwrap();
    assert_eq!(value, 2);
    assert!(store.is_idle());
    let _guard = client.lock("a").acquire().await.unwrap();
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn an_upgrade_is_refused_instead_of_waiting_for_itself() {
    let (_store, client) = store();
    let owner = Owner::new();
    let _shared = client
        .lock("a")
        .shared()
        .owner(&owner)
        .acquire()
        .await
        .unwrap();
    let err = client.lock("a").owner(&owner).acquire().await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn shared_and_permits() {
    let (_store, client) = store();
    let shared = client.lock("a").shared();
    let readers = [
        shared.acquire().await.unwrap(),
        shared.acquire().await.unwrap(),
    ];
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    drop(readers);
    let two = client.lock("b").permits(2);
    let _first = two.acquire().await.unwrap();
    let second = two.acquire().await.unwrap();
    assert!(matches!(second.mode(), Mode::Permits { .. }));
    assert!(two.try_acquire().await.unwrap().is_none());
    second.release().await.unwrap();
    assert!(two.try_acquire().await.unwrap().is_some());
    assert_eq!(
        client
            .lock("b")
            .permits(0)
            .acquire()
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Invalid
    );
}

#[tokio::test]
async fn an_acquire_whose_reply_was_lost_leaves_nothing() {
    let (store, client) = store();
    store.disturb(Step::Acquire, memory::Disturbance::ReplyLost);
    let err = client.lock("a").acquire().await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Indeterminate);
    settle().await;
    assert!(store.is_idle());
}

#[tokio::test]
async fn a_release_whose_request_was_lost_is_repeated() {
    let (store, client) = store();
    let guard = client.lock("a").acquire().await.unwrap();
    store.disturb(Step::Release, memory::Disturbance::RequestLost);
    let err = guard.release().await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unreachable);
    settle().await;
    assert!(store.is_idle());
}

#[tokio::test]
async fn a_guard_may_be_dropped_outside_the_runtime() {
    let (store, client) = store();
    let guard = client.lock("a").acquire().await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    assert!(store.is_idle());
}

#[tokio::test]
async fn closing_ends_waits() {
    let (store, client) = store();
    let guard = Client::from_store(store.clone())
        .unwrap()
        .lock("a")
        .acquire()
        .await
        .unwrap();
    let lock = client.lock("a");
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    settle().await;
    client.close().await;
    assert_eq!(
        waiting.await.unwrap().unwrap_err().kind(),
        ErrorKind::Closed
    );
    assert_eq!(
        client.lock("b").acquire().await.unwrap_err().kind(),
        ErrorKind::Closed
    );
    guard.release().await.unwrap();
    assert!(store.is_idle());
}

#[tokio::test]
async fn min_hold_keeps_the_name_taken_and_the_next_waiter_gets_it_in_time() {
    let (store, client) = store();
    let every = client.lock("a").min_hold(Duration::from_secs(60));
    every.acquire().await.unwrap().release().await.unwrap();
    assert!(every.try_acquire().await.unwrap().is_none());
    let lock = every.clone();
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    settle().await;
    store.advance(Duration::from_secs(59));
    settle().await;
    assert!(!waiting.is_finished());
    store.advance(Duration::from_secs(1));
    waiting.await.unwrap().unwrap();
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
