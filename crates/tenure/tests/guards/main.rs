//! What a guard and a client report, and when a guard releases: on the virtual clock of the memory store.

#[path = "../common/memory.rs"]
mod memory_store;

mod deadlines;
mod ends;
mod waits;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc as threads;
use std::time::Duration;

use tenure::error::Step;
use tenure::memory::{self, Disturbance};
use tenure::{
    CallbackHandle, Client, Error, ErrorKind, Guard, HoldState, Loss, LostReason, Owner, Renew,
};
use tokio::sync::{mpsc, oneshot};

use memory_store::{settle, store};

const TTL: Duration = Duration::from_secs(30);
/// The time limit for events that come at once on an idle machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Moves the clock in steps, so that the tasks that become due in between run.
async fn pass(store: &memory::Store, time: Duration) {
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
    let lock = client.lock("a").wait(TEST_TIMEOUT);
    let inside = lock.try_run(async |guard| {
        // Another owner finds the lock busy; the owner of this run may enter again.
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
    let other = Client::from_store(store.clone()).unwrap();
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

/// Registers a callback that sends each loss to the returned receiver.
fn record_losses(client: &Client) -> (mpsc::UnboundedReceiver<Loss>, CallbackHandle) {
    let (sender, losses) = mpsc::unbounded_channel();
    let callback = client.on_lost(move |loss| {
        let _ = sender.send(loss.clone());
    });
    (losses, callback)
}

async fn next_loss(losses: &mut mpsc::UnboundedReceiver<Loss>) -> Loss {
    let losses = tokio::time::timeout(TEST_TIMEOUT, losses.recv()).await;
    losses.unwrap().expect("the callback is registered")
}

#[tokio::test]
async fn every_loss_of_a_client_is_reported_once_and_a_release_never() {
    let (store, client) = store();
    let (mut losses, _callback) = record_losses(&client.clone());
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

    // The store reports this loss to a guard that awaits it.
    let broken = client.lock("broken").shared().acquire().await.unwrap();
    assert!(client.break_lock("broken", broken.token()).await.unwrap());
    let reason = broken.lost().await.unwrap();
    let loss = next_loss(&mut losses).await;
    assert_eq!((loss.name.as_str(), loss.reason), ("broken", reason));
    assert_eq!((loss.token, loss.mode), (broken.token(), broken.mode()));
    let expected = format!(
        "\"broken\" (token {}, memory) was lost: {reason}",
        broken.token()
    );
    assert_eq!(loss.to_string(), expected);
    // This loss was reported already.
    assert!(broken.release().await.unwrap_err().is_lost());
    // The release finds this loss.
    let found = take(&client, "found").await;
    store.expire("found").unwrap();
    assert!(found.release().await.unwrap_err().is_lost());
    assert_eq!(next_loss(&mut losses).await.name.as_str(), "found");
    // Dropping the guard finds this loss.
    let dropped = take(&client, "dropped").await;
    store.expire("dropped").unwrap();
    drop(dropped);
    let loss = next_loss(&mut losses).await;
    assert_eq!(
        (loss.name.as_str(), loss.reason),
        ("dropped", LostReason::StoreSaysNo)
    );
    // The deadline passes before a timer fires.
    let late = client
        .lock("late")
        .max_hold(TTL / 2)
        .acquire()
        .await
        .unwrap();
    store.advance(TTL / 2);
    drop(late);
    let loss = next_loss(&mut losses).await;
    assert_eq!(
        (loss.name.as_str(), loss.reason),
        ("late", LostReason::MaxHold)
    );
    // `close` ends both names of one guard, and waits for the callback.
    let both = client.lock_all(["p", "q"]).acquire().await.unwrap();
    client.close().await;
    let mut names = [losses.try_recv(), losses.try_recv()].map(|loss| loss.unwrap().name);
    names.sort();
    assert_eq!(names.map(|name| name.as_str().to_owned()), ["p", "q"]);
    drop(both);
    settle().await;
    assert!(losses.try_recv().is_err());
}

/// A loss after what `disturb` does to the store while a guard holds its lock.
async fn loss_after(renew: Renew, disturb: impl AsyncFnOnce(&memory::Store, Guard)) -> Loss {
    let (store, client) = store();
    let (mut losses, _callback) = record_losses(&client);
    let guard = client.lock("a").renew(renew).acquire().await.unwrap();
    disturb(&store, guard).await;
    next_loss(&mut losses).await
}

fn lose_renewals(store: &memory::Store, count: u32) {
    (0..count).for_each(|_| store.disturb(Step::Renew, Disturbance::RequestLost));
}

#[tokio::test]
async fn a_loss_has_its_cause() {
    // Every renewal fails until the lease has run out.
    let loss = loss_after(Renew::Automatic, async |store, guard| {
        lose_renewals(store, 1000);
        pass(store, TTL).await;
        drop(guard);
    });
    let loss = loss.await;
    let cause = loss.cause().unwrap();
    assert_eq!(loss.reason, LostReason::Expired);
    assert_eq!(cause.kind(), ErrorKind::Unreachable);
    assert_eq!(cause.step(), Some(Step::Renew));
    assert_eq!(cause.name(), Some(&loss.name));
    assert_eq!(cause.scheme(), Some("memory"));
    assert_eq!(format!("{loss:#}"), format!("{loss}: {cause:#}"));

    // One renewal fails, and the next one finds no hold.
    let loss = loss_after(Renew::Automatic, async |store, guard| {
        lose_renewals(store, 1);
        pass(store, TTL / 3).await;
        store.expire("a").unwrap();
        pass(store, TTL / 3).await;
        drop(guard);
    });
    let loss = loss.await;
    let cause = loss.cause().unwrap();
    assert_eq!(loss.reason, LostReason::StoreSaysNo);
    assert_eq!(
        (cause.kind(), cause.step()),
        (ErrorKind::Lost, Some(Step::Renew))
    );
    let source = std::error::Error::source(cause).unwrap();
    let source = source.downcast_ref::<Error>().unwrap();
    assert_eq!(source.kind(), ErrorKind::Unreachable);

    // The release finds no hold.
    let loss = loss_after(Renew::Automatic, async |store, guard| {
        store.expire("a").unwrap();
        assert!(guard.release().await.unwrap_err().is_lost());
    });
    let loss = loss.await;
    assert_eq!(loss.reason, LostReason::StoreSaysNo);
    assert_eq!(loss.cause().unwrap().step(), Some(Step::Release));
}

#[tokio::test]
async fn a_loss_that_no_error_led_to_has_no_cause() {
    // The renewal after the one that failed succeeds; the lock is broken later.
    let loss = loss_after(Renew::Automatic, async |store, guard| {
        lose_renewals(store, 1);
        pass(store, TTL).await;
        let other = Client::from_store(store.clone()).unwrap();
        assert!(other.break_lock("a", guard.token()).await.unwrap());
        settle().await;
    });
    let loss = loss.await;
    assert_eq!(loss.reason, LostReason::TakenOver);
    assert!(loss.cause().is_none(), "{loss:#}");

    // A fixed lease ends without an error.
    let loss = loss_after(Renew::Never, async |store, guard| {
        pass(store, TTL).await;
        drop(guard);
    });
    assert!(loss.await.cause().is_none());
}

#[tokio::test]
async fn a_callback_that_blocks_delays_no_renewal() {
    let (store, client) = store();
    let (resume, wait) = threads::channel::<()>();
    let (begun, mut begins) = mpsc::unbounded_channel();
    let wait = std::sync::Mutex::new(wait);
    client.on_lost(move |loss| {
        let _ = begun.send(loss.name.clone());
        // An error means that the test is over.
        let _ = wait.lock().unwrap().recv();
    });
    let kept = take(&client, "kept").await;
    for name in ["first", "second"] {
        let guard = take(&client, name).await;
        client.break_lock(name, guard.token()).await.unwrap();
        assert_eq!(guard.lost().await, Some(LostReason::TakenOver));
    }
    let begins = &mut begins;
    let mut begin = async || {
        tokio::time::timeout(TEST_TIMEOUT, begins.recv())
            .await
            .unwrap()
    };
    assert_eq!(begin().await.unwrap().as_str(), "first");
    // While the callback blocks, leases are renewed and deadlines are kept.
    pass(&store, 3 * TTL).await;
    assert_eq!(kept.state(), HoldState::Held);
    let guard = take(&client, "third").await;
    client.break_lock("third", guard.token()).await.unwrap();
    guard.lost().await;
    resume.send(()).unwrap();
    assert_eq!(begin().await.unwrap().as_str(), "second");
    resume.send(()).unwrap();
    assert_eq!(begin().await.unwrap().as_str(), "third");
    resume.send(()).unwrap();
    kept.release().await.unwrap();
}

#[tokio::test]
async fn a_panic_in_a_callback_stops_neither_renewals_nor_other_callbacks() {
    let (store, client) = store();
    client.on_lost(|_| panic!("a callback of a test panics"));
    let (mut losses, callback) = record_losses(&client);
    let kept = take(&client, "kept").await;
    for name in ["a", "b"] {
        let guard = take(&client, name).await;
        client.break_lock(name, guard.token()).await.unwrap();
        assert_eq!(next_loss(&mut losses).await.name.as_str(), name);
        pass(&store, TTL).await;
        assert_eq!(kept.state(), HoldState::Held);
    }
    // A callback that was unregistered gets no more losses, and its values are dropped.
    callback.unregister();
    callback.unregister();
    let guard = take(&client, "c").await;
    client.break_lock("c", guard.token()).await.unwrap();
    assert!(
        tokio::time::timeout(TEST_TIMEOUT, losses.recv())
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn close_drops_a_callback_that_owns_its_client() {
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
        assert_eq!(guard.state(), HoldState::AtRisk);
        assert!(risk.is_finished());
        let left = risk.await.unwrap().unwrap();
        assert!(left > Duration::ZERO && left < TTL / 2, "{left:?}");
        // While the hold is at risk, another call resolves at once.
        assert!(guard.at_risk().await < Some(left));
        store.resume();
        settle().await;
        assert_eq!(guard.state(), HoldState::Held, "it recovers");
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
    assert!(risk.await.unwrap() > Some(TTL / 2));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn at_risk_resolves_with_zero_at_a_loss_without_a_warning() {
    let (store, client) = store();
    let broken = take(&client, "a").await;
    let risk = tokio::spawn(broken.at_risk());
    settle().await;
    client.break_lock("a", broken.token()).await.unwrap();
    assert_eq!(risk.await.unwrap(), Some(Duration::ZERO));
    assert_eq!(broken.at_risk().await, Some(Duration::ZERO));
    // A fixed lease has no renewal that could be overdue.
    let fixed = client.lock("b").renew(tenure::Renew::Never);
    let fixed = fixed.acquire().await.unwrap();
    let risk = tokio::spawn(fixed.at_risk());
    pass(&store, TTL * 9 / 10).await;
    assert!(!risk.is_finished());
    pass(&store, TTL / 10).await;
    assert_eq!(risk.await.unwrap(), Some(Duration::ZERO));
}

#[tokio::test]
async fn at_risk_ends_without_a_warning_at_a_release() {
    let (_store, client) = store();
    let guard = take(&client, "a").await;
    let mut asked = Box::pin(guard.at_risk());
    let task = tokio::spawn(guard.at_risk());
    settle().await;
    guard.release().await.unwrap();
    assert_eq!(task.await.unwrap(), None);
    // A loop around `select!` polls the future again after it has resolved.
    for _ in 0..2 {
        tokio::select! {
            biased;
            Some(left) = &mut asked => panic!("{left:?}"),
            () = std::future::ready(()) => {}
        }
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

/// Asserts that the name is granted when the lease ends, and not before.
async fn assert_kept_to_its_end(store: &memory::Store, name: &str) {
    let other = Client::from_store(store.clone()).unwrap();
    let lock = other.lock(name);
    let next_loss = tokio::spawn(async move { lock.acquire().await.unwrap().release().await });
    pass(store, TTL / 10 * 9).await;
    assert!(!next_loss.is_finished(), "neither renewed nor released");
    pass(store, TTL / 5).await;
    assert!(next_loss.is_finished(), "the lease is over");
    next_loss.await.unwrap().unwrap();
    settle().await;
    assert!(store.is_idle());
}

#[tokio::test]
async fn after_a_success_the_lock_is_released_and_not_before() {
    let (store, client) = store();
    let other = Client::from_store(store.clone()).unwrap();
    let guard = take(&client, "a").await;
    let (commit, committed) = oneshot::channel::<u32>();
    let task = tokio::spawn(guard.after(committed));
    pass(&store, 2 * TTL).await;
    assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    commit.send(42).unwrap();
    assert_eq!(task.await.unwrap().unwrap(), 42);
    assert!(store.is_idle());
    // A definite error is a known outcome, too.
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
    let text = format!("{err:#}");
    for words in ["it is unknown", "\"a\"", "29.7s", "the connection broke"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_kept_to_its_end(&store, "a").await;
}

#[tokio::test]
async fn an_end_that_is_dropped_or_panics_is_an_unknown_outcome() {
    let (store, client) = store();
    // The future is dropped while the transaction ends.
    let guard = take(&client, "a").await;
    let task = tokio::spawn(guard.after(std::future::pending::<Result<(), CommitError>>()));
    settle().await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_kept_to_its_end(&store, "a").await;
    // The future is never polled, but the transaction that it awaits may be ending nevertheless.
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
        err.is_lost() && format!("{err:#}").contains("it is unknown"),
        "{err}"
    );
    assert!(commit.is_closed(), "the end was dropped");
    store.resume();
    pass(&store, 2 * TTL).await;
    assert!(store.is_idle());
    // The transaction was committed, but the deadline had passed before.
    let guard = take(&client, "a").await;
    let end = async {
        store.pause();
        store.advance(TTL);
        Ok::<_, CommitError>(())
    };
    let err = guard.after(end).await.unwrap_err();
    assert!(
        err.is_lost() && format!("{err:#}").contains("was done, but"),
        "{err}"
    );
}

#[tokio::test]
async fn an_unknown_outcome_of_an_inner_entry_is_one_of_the_whole_hold() {
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
    // An entry that ends before the last entry decides nothing.
    outermost.release().await.unwrap();
    pass(&store, TTL / 10 * 9).await;
    assert!(outer.is_held() && !lost.is_finished());
    pass(&store, TTL / 10).await;
    assert_eq!(lost.await.unwrap(), Some(LostReason::Expired));
    assert!(outer.release().await.unwrap_err().is_lost());
    settle().await;

    // The last entry is released while the lock is kept.
    let (outer, inner) = (enter().await, enter().await);
    inner
        .after(async { Err::<(), _>(CommitError) })
        .await
        .unwrap_err();
    let err = outer.release().await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Indeterminate);
    assert!(
        format!("{err:#}").contains("kept until its lease ends"),
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
    // Each call returns a token of its own.
    other.cancel();
    assert!(!token.is_cancelled() && !guard.cancellation_token().is_cancelled());
    pass(&store, 2 * TTL).await;
    guard.release().await.unwrap();
    pass(&store, 2 * TTL).await;
    assert!(!token.is_cancelled());

    // The store reports the loss of the first of several names.
    let guard = client.lock_all(["a", "b"]).acquire().await.unwrap();
    let token = guard.cancellation_token();
    let (_, of_b) = guard.tokens().last().unwrap();
    let work = tokio::spawn(async move { token.cancelled_owned().await });
    settle().await;
    assert!(client.break_lock("b", of_b).await.unwrap());
    tokio::time::timeout(TEST_TIMEOUT, work)
        .await
        .unwrap()
        .unwrap();
    assert!(guard.cancellation_token().is_cancelled());
    drop(guard);

    // The deadline passes while the store does not answer.
    let guard = take(&client, "c").await;
    let token = guard.cancellation_token();
    store.pause();
    pass(&store, TTL).await;
    assert!(token.is_cancelled());
    // If no timer has fired, reading the clock finds the loss.
    let (store, client) = self::store();
    let guard = take(&client, "d").await;
    let early = guard.cancellation_token();
    store.pause();
    store.advance(TTL);
    assert!(guard.cancellation_token().is_cancelled() && early.is_cancelled());
}
