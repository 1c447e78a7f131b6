//! What a guard and a client tell, and when a guard lets go: on the virtual clock of the memory store.

#[path = "common/memory.rs"]
mod memory_store;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc as threads;
use std::time::Duration;

use tenure::error::Step;
use tenure::memory;
use tenure::{Client, Error, ErrorKind, Guard, Loss, LossCallback, LostReason, Owner, State};
use tokio::sync::{mpsc, oneshot};

use memory_store::{settle, store};

const TTL: Duration = Duration::from_secs(30);
/// How long a test waits for what comes at once on a machine that is not busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Moves the clock in steps, so that everything that is due on the way is done.
async fn pass(store: &memory::Backend, time: Duration) {
    for _ in 0..60 {
        store.advance(time / 60);
        settle().await;
    }
}

async fn take(client: &Client, name: &str) -> Guard {
    client.lock(name).acquire().await.unwrap()
}

// try_run and holds

#[tokio::test]
async fn try_run_runs_where_the_lock_is_free_and_skips_where_it_is_not() {
    let (store, client) = store();
    let lock = client.lock("a").wait(PATIENCE);
    let inside = lock.try_run(async |guard| {
        // Another owner is busy with it; this one may enter again.
        let other = client.lock("a").owner(&Owner::new());
        assert_eq!(other.try_run(async |_| ()).await.unwrap(), None);
        assert!(lock.try_run(async |_| ()).await.unwrap().is_some());
        guard.token()
    });
    assert!(inside.await.unwrap().is_some());
    assert!(store.is_idle());
    let guard = take(&client, "a").await;
    let ran = AtomicBool::new(false);
    let skipped = lock.try_run(async |_| ran.store(true, Ordering::SeqCst));
    assert_eq!(skipped.await.unwrap(), None);
    assert!(!ran.into_inner());
    guard.release().await.unwrap();
    assert!(store.is_idle());
}

#[tokio::test]
async fn a_lost_try_run_is_no_success_and_ends_its_body() {
    let (store, client) = store();
    let task = tokio::spawn(async move {
        let body = async |_: &Guard| std::future::pending::<()>().await;
        client.lock("a").try_run(body).await
    });
    settle().await;
    store.pause();
    pass(&store, TTL).await;
    assert!(task.await.unwrap().unwrap_err().is_lost());
}

#[tokio::test]
async fn an_owner_counts_its_entries_without_a_request() {
    let (store, client) = store();
    let other = Client::from_backend(store.clone()).unwrap();
    let owner = Owner::new();
    let lock = client.lock("a").owner(&owner);
    assert_eq!(owner.holds(&client, "a"), 0);
    let first = lock.acquire().await.unwrap();
    let second = lock.acquire().await.unwrap();
    let requests = store.requests();
    assert_eq!(owner.holds(&client, "a"), 2);
    assert_eq!(owner.holds(&client.clone(), "a"), 2);
    assert_eq!(owner.clone().holds(&client, "a"), 2);
    for (client, name) in [(&client, "b"), (&other, "a"), (&client, "")] {
        assert_eq!(owner.holds(client, name), 0);
    }
    assert_eq!(Owner::new().holds(&client, "a"), 0);
    second.release().await.unwrap();
    assert_eq!(owner.holds(&client, "a"), 1);
    assert_eq!(store.requests(), requests, "counted in this process");
    store.pause();
    pass(&store, TTL).await;
    assert_eq!(owner.holds(&client, "a"), 0, "lost is not held");
    drop(first);
    assert_eq!(owner.holds(&client, "a"), 0);
}

// on_lost

/// A callback that hands on what it is told.
fn listen(client: &Client) -> (mpsc::UnboundedReceiver<Loss>, LossCallback) {
    let (tell, told) = mpsc::unbounded_channel();
    let callback = client.on_lost(move |loss| {
        let _ = tell.send(loss.clone());
    });
    (told, callback)
}

async fn next(told: &mut mpsc::UnboundedReceiver<Loss>) -> Loss {
    let told = tokio::time::timeout(PATIENCE, told.recv()).await;
    told.unwrap().expect("the callback is registered")
}

#[tokio::test]
async fn every_loss_of_a_client_is_told_once_and_a_release_never() {
    let (store, client) = store();
    let (mut told, _callback) = listen(&client.clone());
    // A hold that was released in time, in any way, is not reported.
    take(&client, "released").await.release().await.unwrap();
    drop(take(&client, "dropped").await);
    client.lock("run").run(async |_| ()).await.unwrap();
    client.lock_all(["x", "y"]).run(async |_| ()).await.unwrap();
    let guard = take(&client, "kept in doubt").await;
    guard
        .after(async { Err::<(), _>("unknown") })
        .await
        .unwrap_err();
    pass(&store, 2 * TTL).await;

    // Told by the store, to a guard that listens.
    let broken = client.lock("broken").shared().acquire().await.unwrap();
    assert!(client.break_lock("broken", broken.token()).await.unwrap());
    let reason = broken.lost().await;
    let loss = next(&mut told).await;
    assert_eq!((loss.name.as_str(), loss.reason), ("broken", reason));
    assert_eq!((loss.token, loss.mode), (broken.token(), broken.mode()));
    let expected = format!(
        "\"broken\" (token {}, memory) was lost: {reason}",
        broken.token()
    );
    assert_eq!(loss.to_string(), expected);
    // It has been told already.
    assert!(broken.release().await.unwrap_err().is_lost());
    // Found by the release.
    let found = take(&client, "found").await;
    store.expire("found").unwrap();
    assert!(found.release().await.unwrap_err().is_lost());
    assert_eq!(next(&mut told).await.name.as_str(), "found");
    // Found when it was dropped.
    let dropped = take(&client, "dropped").await;
    store.expire("dropped").unwrap();
    drop(dropped);
    let loss = next(&mut told).await;
    assert_eq!(
        (loss.name.as_str(), loss.reason),
        ("dropped", LostReason::StoreSaysNo)
    );
    // The deadline, before anybody woke up for it.
    let late = client
        .lock("late")
        .max_hold(TTL / 2)
        .acquire()
        .await
        .unwrap();
    store.advance(TTL / 2);
    drop(late);
    let loss = next(&mut told).await;
    assert_eq!(
        (loss.name.as_str(), loss.reason),
        ("late", LostReason::MaxHold)
    );
    // Both names of one guard, by the end of the client, which waits for the callback.
    let both = client.lock_all(["p", "q"]).acquire().await.unwrap();
    client.close().await;
    let mut names = [told.try_recv(), told.try_recv()].map(|loss| loss.unwrap().name);
    names.sort();
    assert_eq!(names.map(|name| name.as_str().to_owned()), ["p", "q"]);
    drop(both);
    settle().await;
    assert!(told.try_recv().is_err());
}

#[tokio::test]
async fn a_callback_that_blocks_keeps_no_renewal_waiting() {
    let (store, client) = store();
    let (go_on, wait) = threads::channel::<()>();
    let (begun, mut begins) = mpsc::unbounded_channel();
    let wait = std::sync::Mutex::new(wait);
    client.on_lost(move |loss| {
        let _ = begun.send(loss.name.clone());
        // An error: the test is over.
        let _ = wait.lock().unwrap().recv();
    });
    let kept = take(&client, "kept").await;
    for name in ["first", "second"] {
        let guard = take(&client, name).await;
        client.break_lock(name, guard.token()).await.unwrap();
        assert_eq!(guard.lost().await, LostReason::TakenOver);
    }
    let begins = &mut begins;
    let mut begin = async || tokio::time::timeout(PATIENCE, begins.recv()).await.unwrap();
    assert_eq!(begin().await.unwrap().as_str(), "first");
    // While it blocks, leases are renewed, and deadlines kept.
    pass(&store, 3 * TTL).await;
    assert_eq!(kept.state(), State::Held);
    let guard = take(&client, "third").await;
    client.break_lock("third", guard.token()).await.unwrap();
    guard.lost().await;
    go_on.send(()).unwrap();
    assert_eq!(begin().await.unwrap().as_str(), "second");
    go_on.send(()).unwrap();
    assert_eq!(begin().await.unwrap().as_str(), "third");
    go_on.send(()).unwrap();
    kept.release().await.unwrap();
}

#[tokio::test]
async fn a_panic_in_a_callback_stops_neither_renewals_nor_other_callbacks() {
    let (store, client) = store();
    client.on_lost(|_| panic!("a callback of a test panics"));
    let (mut told, callback) = listen(&client);
    let kept = take(&client, "kept").await;
    for name in ["a", "b"] {
        let guard = take(&client, name).await;
        client.break_lock(name, guard.token()).await.unwrap();
        assert_eq!(next(&mut told).await.name.as_str(), name);
        pass(&store, TTL).await;
        assert_eq!(kept.state(), State::Held);
    }
    // One that is unregistered is told of nothing more, and lets go of what it owns.
    callback.unregister();
    callback.unregister();
    let guard = take(&client, "c").await;
    client.break_lock("c", guard.token()).await.unwrap();
    assert!(
        tokio::time::timeout(PATIENCE, told.recv())
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn a_callback_that_owns_its_client_is_let_go_by_close() {
    let (_store, client) = store();
    let alive = Arc::new(());
    let (its_client, its_own) = (client.clone(), alive.clone());
    client.on_lost(move |_| {
        let _ = (&its_client, &its_own);
    });
    assert_eq!(Arc::strong_count(&alive), 2);
    client.close().await;
    assert_eq!(Arc::strong_count(&alive), 1);
}

// at_risk

#[tokio::test]
async fn at_risk_warns_when_a_renewal_is_overdue_and_again_after_it_recovered() {
    let (store, client) = store();
    let guard = take(&client, "a").await;
    for _ in 0..2 {
        let risk = tokio::spawn(guard.at_risk());
        pass(&store, 2 * TTL).await;
        assert!(!risk.is_finished(), "renewals are answered");
        store.pause();
        pass(&store, TTL / 3 * 2 + TTL / 30).await;
        assert_eq!(guard.state(), State::AtRisk);
        assert!(risk.is_finished());
        let left = risk.await.unwrap();
        assert!(left > Duration::ZERO && left < TTL / 2, "{left:?}");
        // Asked again at risk, it resolves at once.
        assert!(guard.at_risk().await < left);
        store.resume();
        settle().await;
        assert_eq!(guard.state(), State::Held, "it recovers");
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn at_risk_warns_when_a_renewal_fails() {
    let (store, client) = store();
    let guard = client.lock_all(["a", "b"]).acquire().await.unwrap();
    let risk = tokio::spawn(guard.at_risk());
    store.disturb(Step::Renew, memory::Disturbance::RequestLost);
    pass(&store, TTL / 3 + TTL / 60).await;
    assert!(risk.is_finished());
    assert!(risk.await.unwrap() > TTL / 2);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn at_risk_resolves_with_zero_at_a_loss_without_a_warning() {
    let (store, client) = store();
    let broken = take(&client, "a").await;
    let risk = tokio::spawn(broken.at_risk());
    settle().await;
    client.break_lock("a", broken.token()).await.unwrap();
    assert_eq!(risk.await.unwrap(), Duration::ZERO);
    assert_eq!(broken.at_risk().await, Duration::ZERO);
    // A fixed lease waits for no renewal.
    let fixed = client.lock("b").renew(tenure::Renew::Never);
    let fixed = fixed.acquire().await.unwrap();
    let risk = tokio::spawn(fixed.at_risk());
    pass(&store, TTL * 9 / 10).await;
    assert!(!risk.is_finished());
    pass(&store, TTL / 10).await;
    assert_eq!(risk.await.unwrap(), Duration::ZERO);
}

#[tokio::test]
async fn at_risk_never_resolves_after_a_release() {
    let (store, client) = store();
    let guard = take(&client, "a").await;
    let mut asked = Box::pin(guard.at_risk());
    let task = tokio::spawn(guard.at_risk());
    settle().await;
    guard.release().await.unwrap();
    pass(&store, 2 * TTL).await;
    assert!(!task.is_finished());
    // Nor when it is polled again for another reason.
    tokio::select! {
        biased;
        left = &mut asked => panic!("{left:?}"),
        () = std::future::ready(()) => {}
    }
}

// after

#[derive(Debug)]
struct CommitError;

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection broke")
    }
}

impl std::error::Error for CommitError {}

/// The name is not granted before the lease is over, and is granted then.
async fn assert_kept_to_its_end(store: &memory::Backend, name: &str) {
    let other = Client::from_backend(store.clone()).unwrap();
    let lock = other.lock(name);
    let next = tokio::spawn(async move { lock.acquire().await.unwrap().release().await });
    pass(store, TTL / 10 * 9).await;
    assert!(!next.is_finished(), "neither renewed nor released");
    pass(store, TTL / 5).await;
    assert!(next.is_finished(), "the lease is over");
    next.await.unwrap().unwrap();
    settle().await;
    assert!(store.is_idle());
}

#[tokio::test]
async fn after_a_success_the_lock_is_released_and_not_before() {
    let (store, client) = store();
    let other = Client::from_backend(store.clone()).unwrap();
    let guard = take(&client, "a").await;
    let (commit, committed) = oneshot::channel::<u32>();
    let task = tokio::spawn(guard.after(committed));
    pass(&store, 2 * TTL).await;
    assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    commit.send(42).unwrap();
    assert_eq!(task.await.unwrap().unwrap(), 42);
    assert!(store.is_idle());
    // A definite no is an outcome, too.
    let guard = take(&client, "a").await;
    let rolled_back = guard.after(async { Ok::<_, Error>(Err::<(), _>(CommitError)) });
    assert!(rolled_back.await.unwrap().is_err());
    assert!(store.is_idle());
}

#[tokio::test]
async fn after_an_unknown_outcome_the_lock_is_kept_until_its_lease_ends() {
    let (store, client) = store();
    let guard = client.lock("a").acquire().await.unwrap();
    let commit = async { Err::<(), _>(CommitError) };
    let err = guard.after(commit).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Indeterminate);
    let text = err.to_string();
    for words in ["it is unknown", "\"a\"", "29.7s", "the connection broke"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_kept_to_its_end(&store, "a").await;
}

#[tokio::test]
async fn an_end_that_is_dropped_or_panics_is_an_unknown_outcome() {
    let (store, client) = store();
    // Dropped under way.
    let guard = take(&client, "a").await;
    let task = tokio::spawn(guard.after(std::future::pending::<Result<(), CommitError>>()));
    settle().await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_kept_to_its_end(&store, "a").await;
    // Never polled: what it waits for may be under way all the same.
    let guard = take(&client, "b").await;
    drop(guard.after(std::future::pending::<Result<(), CommitError>>()));
    assert_kept_to_its_end(&store, "b").await;
    let guard = take(&client, "c").await;
    let panics = async { panic!("the end of a test panics") };
    let task = tokio::spawn(guard.after::<(), CommitError>(panics));
    assert!(task.await.unwrap_err().is_panic());
    assert_kept_to_its_end(&store, "c").await;
}

#[tokio::test]
async fn a_loss_meanwhile_is_an_error_whether_the_end_was_done_or_not() {
    let (store, client) = store();
    let guard = take(&client, "a").await;
    let (commit, committed) = oneshot::channel::<u32>();
    let task = tokio::spawn(guard.after(committed));
    settle().await;
    store.pause();
    pass(&store, TTL).await;
    let err = task.await.unwrap().unwrap_err();
    assert!(
        err.is_lost() && err.to_string().contains("it is unknown"),
        "{err}"
    );
    assert!(commit.is_closed(), "the end was dropped");
    store.resume();
    pass(&store, 2 * TTL).await;
    assert!(store.is_idle());
    // Done, but the deadline had passed by then.
    let guard = take(&client, "a").await;
    let end = async {
        store.pause();
        store.advance(TTL);
        Ok::<_, CommitError>(())
    };
    let err = guard.after(end).await.unwrap_err();
    assert!(
        err.is_lost() && err.to_string().contains("was done, but"),
        "{err}"
    );
}

#[tokio::test]
async fn a_doubt_of_an_inner_entry_is_one_of_the_whole_hold() {
    let (store, client) = store();
    let owner = Owner::new();
    let lock = client.lock("a").owner(&owner);
    let enter = async || lock.acquire().await.unwrap();
    let (outer, outermost, inner) = (enter().await, enter().await, enter().await);
    let lost = tokio::spawn(outer.lost());
    inner
        .after(async { Err::<(), _>(CommitError) })
        .await
        .unwrap_err();
    // An entry that ends before the last one decides nothing.
    outermost.release().await.unwrap();
    pass(&store, TTL / 10 * 9).await;
    assert!(outer.is_held() && !lost.is_finished());
    pass(&store, TTL / 10).await;
    assert_eq!(lost.await.unwrap(), LostReason::Expired);
    assert!(outer.release().await.unwrap_err().is_lost());
    settle().await;

    // The last one, while the lock is kept.
    let (outer, inner) = (enter().await, enter().await);
    inner
        .after(async { Err::<(), _>(CommitError) })
        .await
        .unwrap_err();
    let err = outer.release().await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Indeterminate);
    assert!(
        err.to_string().contains("kept until its lease ends"),
        "{err}"
    );
    assert_kept_to_its_end(&store, "a").await;
}

// cancellation_token

#[cfg(feature = "tokio-util")]
#[tokio::test]
async fn a_cancellation_token_is_cancelled_by_a_loss_and_not_by_a_release() {
    let (store, client) = store();
    let guard = take(&client, "a").await;
    let (token, other) = (guard.cancellation_token(), guard.cancellation_token());
    // Each is a token of its own.
    other.cancel();
    assert!(!token.is_cancelled() && !guard.cancellation_token().is_cancelled());
    pass(&store, 2 * TTL).await;
    guard.release().await.unwrap();
    pass(&store, 2 * TTL).await;
    assert!(!token.is_cancelled());

    // The first of several names, told by the store.
    let guard = client.lock_all(["a", "b"]).acquire().await.unwrap();
    let token = guard.cancellation_token();
    let (_, of_b) = guard.tokens().last().unwrap();
    let work = tokio::spawn(async move { token.cancelled_owned().await });
    settle().await;
    assert!(client.break_lock("b", of_b).await.unwrap());
    tokio::time::timeout(PATIENCE, work).await.unwrap().unwrap();
    assert!(guard.cancellation_token().is_cancelled());
    drop(guard);

    // The deadline, while the store does not answer.
    let guard = take(&client, "c").await;
    let token = guard.cancellation_token();
    store.pause();
    pass(&store, TTL).await;
    assert!(token.is_cancelled());
    // And where no timer has fired for it, by a look at the clock.
    let (store, client) = self::store();
    let guard = take(&client, "d").await;
    let early = guard.cancellation_token();
    store.pause();
    store.advance(TTL);
    assert!(guard.cancellation_token().is_cancelled() && early.is_cancelled());
}
