//! Rules 8 to 12: waiting. And rule 4, where other requests would wait for a future that no task polls.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::{Client, ErrorKind, Guard, Lock};

use super::case::{Case, SOON, expect_error};
use super::failure::{Failure, Verdict, check};

/// Rule 12: `acquire` gives up after `wait`, not before, and names the holder.
pub(super) async fn a_wait_is_kept_and_names_the_holder(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("wait").await?;
    let guard = first
        .lock(&name)
        .ttl(case.long())
        .label("the first")
        .acquire()
        .await?;
    let lock = second.lock(&name).ttl(case.long());
    let begin = Instant::now();
    let err = loop {
        let err = case.wait_in_vain(lock.clone(), case.ttl() / 2).await?;
        // Nobody waits long for the name of the holder: a store that is slow to tell is not waited for.
        if err.holder().is_some() || begin.elapsed() > SOON {
            break err;
        }
    };
    let holder = err.holder();
    check!(
        holder.is_some_and(|holder| holder.label == "the first"),
        "the error names {holder:?}"
    );
    check!(
        err.to_string().contains("the first"),
        "\"{err}\" does not name the holder"
    );
    case.until_nobody_waits(&name).await?;
    guard.release().await?;
    // The one that gave up may still be on its way out of the client, which asks for one at a time.
    case.acquire_and_release(&second, &name).await
}

/// Rule 12: a `wait` of zero means one try, for which no time passes and which leaves no waiter.
pub(super) async fn a_zero_wait_is_one_try(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("zero").await?;
    let lock = second.lock(&name).ttl(case.long()).wait(Duration::ZERO);
    lock.acquire().await?.release().await?;
    let guard = case.take(&first, &name).await?;
    let answer = case.soon("the answer to one try", lock.acquire()).await?;
    expect_error(answer, ErrorKind::WaitElapsed)?;
    let tried = case
        .soon("the answer to one try", lock.try_acquire())
        .await??;
    check!(tried.is_none(), "two hold it");
    let waiters = case.count_contenders(&name).await?.waiters;
    check!(waiters.unwrap_or(0) == 0, "{waiters:?} wait after one try");
    Ok(guard.release().await?)
}

/// Rule 12: without `wait` an acquisition waits without a limit.
pub(super) async fn an_unset_wait_is_for_ever(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("ever").await?;
    let guard = case.lease(&first, &name).await?;
    let lock = second.lock(&name).ttl(case.ttl());
    let waiting = case.start_acquire(lock).await;
    case.pass(case.ttl() * 4).await;
    check!(!waiting.is_finished(), "the wait ended by itself");
    guard.release().await?;
    case.soon("the waiter's turn", waiting)
        .await???
        .release()
        .await?;
    Ok(())
}

/// Rule 8: a waiter is woken up, however a release and an acquisition race.
pub(super) async fn no_wake_up_is_lost(case: Arc<Case>) -> Verdict {
    let name = case.name("ping");
    let mut players = Vec::new();
    for _ in 0..3 {
        let client = case.client().await?;
        let lock = client.lock(&name).ttl(case.ttl() * 100);
        players.push(tokio::spawn(async move {
            for round in 0..100 {
                let guard = lock.acquire().await?;
                // Sometimes the others are waiting by then, sometimes they are just about to.
                for _ in 0..round % 7 {
                    tokio::task::yield_now().await;
                }
                guard.release().await?;
            }
            Ok::<_, Failure>(())
        }));
    }
    for player in players {
        case.soon("every player gets through", player).await???;
    }
    Ok(())
}

/// Rule 9: all tasks of one client have one entry in the store's queue.
pub(super) async fn one_remote_contender_per_client_and_name(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("queue").await?;
    let guard = case.take(&first, &name).await?;
    let mut waiting = Vec::new();
    for _ in 0..10 {
        let lock = second.lock(&name).ttl(case.long());
        waiting.push(
            case.start(async move { lock.acquire().await?.release().await })
                .await,
        );
    }
    case.until_waiting(&name, 1).await?;
    let counts = case.count_contenders(&name).await?;
    check!(
        counts.waiters.is_none_or(|waiters| waiters <= 1),
        "{counts:?} for one client"
    );
    guard.release().await?;
    for task in waiting {
        case.soon("every task has its turn", task).await???;
    }
    Ok(())
}

/// Rule 9: first come, first served among the tasks of one client.
pub(super) async fn tasks_of_a_client_are_served_in_order(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("fifo").await?;
    let guard = case.take(&first, &name).await?;
    let locks = (0..10).map(|_| second.lock(&name).ttl(case.long()));
    are_served_in_order(&case, guard, locks.collect(), false).await
}

/// Rule 10: first come, first served among clients, where that is promised.
pub(super) async fn clients_are_served_in_order(case: Arc<Case>) -> Verdict {
    let name = case.name("fair");
    let guard = case.take(&case.client().await?, &name).await?;
    let mut locks = Vec::new();
    for _ in 0..8 {
        let client = case.client().await?;
        locks.push(client.lock(&name).ttl(case.long()).fair(true));
    }
    are_served_in_order(&case, guard, locks, true).await
}

/// Each lock begins to wait behind `guard` after the one before it, and they are granted in that order. If
/// `are_queued`, each of them has a place in the store's queue before the next one begins.
async fn are_served_in_order(
    case: &Case,
    guard: Guard,
    locks: Vec<Lock>,
    are_queued: bool,
) -> Verdict {
    let (served, mut order) = mpsc::unbounded_channel();
    let (name, count) = (guard.name().as_str().to_owned(), locks.len());
    let mut waiting = Vec::new();
    for (i, lock) in locks.into_iter().enumerate() {
        let served = served.clone();
        let task = async move {
            let guard = lock.acquire().await?;
            let _ = served.send(i);
            guard.release().await
        };
        waiting.push(case.start(task).await);
        if are_queued {
            case.until_waiting(&name, i + 1).await?;
        }
    }
    guard.release().await?;
    for i in 0..count {
        let next = case.soon("the next one has its turn", order.recv()).await?;
        check!(
            next == Some(i),
            "{next:?} is served when it is the turn of {i}"
        );
    }
    for task in waiting {
        task.await??;
    }
    Ok(())
}

/// Rule 10: a release grants the lock to one waiter, and the others go on waiting.
pub(super) async fn a_release_wakes_one(case: Arc<Case>) -> Verdict {
    const CLIENTS: usize = 8;
    let name = case.name("herd");
    let guard = case.take(&case.client().await?, &name).await?;
    let (granted, mut grants) = mpsc::unbounded_channel();
    let mut waiting = Vec::new();
    for _ in 0..CLIENTS {
        let (client, granted) = (case.client().await?, granted.clone());
        let lock = client.lock(&name).ttl(case.long());
        let task = async move { granted.send(lock.acquire().await) };
        waiting.push(case.start(task).await);
    }
    tokio::select! {
        all_wait = case.until_waiting(&name, CLIENTS) => all_wait?,
        ended = grants.recv() => {
            return Err(Failure::new(format_args!("a wait ended: {ended:?}")));
        }
    }
    guard.release().await?;
    for left in (0..CLIENTS).rev() {
        let Some(guard) = case
            .soon("the next one has its turn", grants.recv())
            .await?
        else {
            return Err(Failure::new("a waiter has vanished"));
        };
        let guard = guard?;
        let what = format!("one holder, {left} waiting");
        case.until_counts(&name, &what, |counts| {
            counts.holders == 1 && counts.waiters.is_none_or(|waiters| waiters == left)
        })
        .await?;
        check!(grants.try_recv().is_err(), "two were granted at once");
        guard.release().await?;
    }
    for task in waiting {
        let _ = task.await?;
    }
    Ok(())
}

/// Rule 12: `close` ends every wait at once, with an error that says so.
pub(super) async fn closing_a_client_ends_its_waits(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("close").await?;
    let guard = case.take(&first, &name).await?;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let lock = second.lock(&name).ttl(case.long());
        waiting.push(case.start_acquire(lock).await);
    }
    case.until_waiting(&name, 1).await?;
    case.soon("the client closes", second.close()).await?;
    for task in waiting {
        let outcome = case.soon("the wait ends", task).await??;
        expect_error(outcome, ErrorKind::Closed)?;
    }
    case.until_nobody_waits(&name).await?;
    check!(guard.is_held(), "the holder lost it");
    Ok(guard.release().await?)
}

/// Rule 11: a cancelled waiter does not delay the waiters behind it.
pub(super) async fn a_waiter_that_gives_up_is_skipped(case: Arc<Case>) -> Verdict {
    let name = case.name("skip");
    let guard = case.take(&case.client().await?, &name).await?;
    let mut waiting = Vec::new();
    for i in 0..3 {
        let lock = case.client().await?.lock(&name).ttl(case.long());
        waiting.push(case.start_acquire(lock).await);
        case.until_waiting(&name, i + 1).await?;
    }
    let last = waiting.pop();
    for task in waiting {
        task.abort();
        // Aborted tasks are dropped in their own time; then the wait is over.
        let _ = task.await;
    }
    guard.release().await?;
    let Some(last) = last else {
        return Err(Failure::new("nobody waits"));
    };
    case.soon("the turn of the one that stayed", last)
        .await???
        .release()
        .await?;
    Ok(())
}

/// Rule 4: a future that is polled for a while and then neither polled nor dropped delays nothing else: not the
/// renewal of what its client holds, and not the client's other requests. (`select!` on a future by reference, with a
/// branch that takes its time, is enough to leave one behind.)
pub(super) async fn a_future_that_nobody_polls_holds_up_nobody_else(case: Arc<Case>) -> Verdict {
    let mut left_alone: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
    let mut names = Vec::new();
    let mut acquire = |client: &Client, name: String| -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let lock = client.lock(&name).ttl(case.ttl());
        names.push(name);
        Box::pin(async move { drop(lock.acquire().await) })
    };
    let (other, released) = (case.name("other"), case.name("released"));
    // The first request of a client, for which it may have to open something.
    for polls in 1..=3 {
        let client = case.client().await?;
        let opens = acquire(&client, case.name(&format!("opens-{polls}")));
        left_alone.push(polled(opens, polls).await);
        case.soon("another lock of a new client", case.lease(&client, &other))
            .await??
            .release()
            .await?;
    }
    let client = case.client().await?;
    let guard = case.lease(&client, &case.name("held")).await?;
    for polls in 1..=3 {
        // One asks, and the next one stands behind it.
        for place in ["first", "second"] {
            let asks = acquire(&client, case.name(&format!("{place}-{polls}")));
            left_alone.push(polled(asks, polls).await);
        }
        case.soon("another lock", case.lease(&client, &other))
            .await??
            .release()
            .await?;
    }
    let release = case.lease(&client, &released).await?.release();
    left_alone.push(polled(Box::pin(async { drop(release.await) }), 1).await);
    let (looks, name) = (client.clone(), other.clone());
    let look = Box::pin(async move { drop(looks.inspect(&name).await) });
    left_alone.push(polled(look, 1).await);
    for _ in 0..2 {
        case.pass(case.ttl()).await;
        check!(guard.is_held(), "nobody renewed it");
        case.soon("another lock", case.lease(&client, &other))
            .await??
            .release()
            .await?;
    }
    guard.release().await?;
    drop(left_alone);
    for name in names {
        case.until_idle(&name).await?;
    }
    case.until_idle(&released).await
}

/// Polls `future` so many times, while everybody else goes on.
async fn polled(
    mut future: Pin<Box<dyn Future<Output = ()> + Send>>,
    polls: u32,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    for _ in 0..polls {
        let ready =
            std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
        if ready {
            return Box::pin(std::future::ready(()));
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    future
}
