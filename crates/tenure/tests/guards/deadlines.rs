//! A process that was stopped for longer than its lease: nothing runs on that would run under the lock, although no timer
//! has fired yet.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

use tenure::{Guard, Lock, LostReason, Owner};

use crate::memory_store::{settle, store};
use crate::{TTL, take};

/// How often the work was polled. The work never ends.
#[derive(Default)]
struct Work(AtomicU32);

impl Work {
    fn polls(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    async fn run(&self) {
        poll_fn(|_| {
            self.0.fetch_add(1, Ordering::SeqCst);
            Poll::Pending
        })
        .await
    }
}

/// Polls the task that runs `work`, once before the deadline and once after it. Returns what the task came to. No other task
/// runs meanwhile, so the task itself has to read the clock.
async fn stop_past_the_deadline<T>(
    store: &tenure::memory::Store,
    work: &Work,
    task: impl Future<Output = T>,
) -> T {
    let mut task = Box::pin(task);
    let mut poll = || task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let mut polls = 0;
    while work.polls() == 0 {
        assert!(poll().is_pending(), "the work never ends");
        settle().await;
        polls += 1;
        assert!(polls < 100, "the work does not begin");
    }
    let before = work.polls();
    store.pause();
    store.advance(TTL);
    let Poll::Ready(output) = poll() else {
        panic!("the work goes on after the deadline");
    };
    assert_eq!(work.polls(), before, "the work ran on after the deadline");
    store.resume();
    settle().await;
    output
}

#[tokio::test]
async fn no_body_runs_on_after_the_deadline() {
    let (store, client) = store();
    let (_other, free) = self::store();
    let owner = Owner::new();
    let locks: [Lock; 6] = [
        client.lock("one"),
        client.lock_all(["a", "b", "c"]),
        client.lock_any(["x", "y"]),
        client.lock("buckets").k_of(["1", "2", "3"], 2),
        Lock::both(free.lock("free"), client.lock("second")),
        Lock::both(client.lock("first"), free.lock("free")),
    ];
    for lock in &locks {
        let work = Work::default();
        let run = lock.run(async |_| work.run().await);
        let ended = stop_past_the_deadline(&store, &work, run).await;
        assert!(ended.unwrap_err().is_lost());
        let work = Work::default();
        let run = lock.try_run(async |_| work.run().await);
        let ended = stop_past_the_deadline(&store, &work, run).await;
        assert!(ended.unwrap_err().is_lost());
    }
    // Both the outer body and the body of an entry end.
    let (lock, work) = (client.lock("entered").owner(&owner), Work::default());
    let outer = lock.run(async |_| lock.run(async |_| work.run().await).await);
    let ended = stop_past_the_deadline(&store, &work, outer).await;
    assert!(ended.unwrap_err().is_lost());
}

#[tokio::test]
async fn a_biased_select_with_lost_does_not_poll_the_work_after_the_deadline() {
    let (store, client) = store();
    let owner = Owner::new();
    let entered = client.lock("entered").owner(&owner);
    for lock in [
        client.lock("one"),
        client.lock_all(["a", "b"]),
        entered.clone(),
    ] {
        let _outer = entered.acquire().await.unwrap();
        let guard: Guard = lock.acquire().await.unwrap();
        let work = Work::default();
        let select = async {
            tokio::select! {
                biased;
                Some(reason) = guard.lost() => reason,
                () = work.run() => unreachable!("the work never ends"),
            }
        };
        let reason = stop_past_the_deadline(&store, &work, select).await;
        assert_eq!(reason, LostReason::Expired);
    }
}

/// The warning comes with the clock, too.
#[tokio::test]
async fn at_risk_reads_the_clock_when_it_is_polled() {
    let (store, client) = store();
    let guard = take(&client, "a").await;
    let mut risk = Box::pin(guard.at_risk());
    let mut poll = || risk.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    store.pause();
    store.advance(TTL * 3 / 4);
    let Poll::Ready(Some(left)) = poll() else {
        panic!("no warning");
    };
    assert!(!left.is_zero() && left < TTL / 3, "{left:?}");
}

/// A COMMIT that was not sent before the deadline is not sent after it.
#[tokio::test]
async fn an_end_of_a_transaction_does_not_begin_after_the_deadline() {
    let (store, client) = store();
    let guard = take(&client, "a").await;
    let work = Work::default();
    let end = async {
        work.run().await;
        Ok::<(), &str>(())
    };
    let after = guard.after(end);
    store.pause();
    store.advance(TTL);
    assert!(after.await.unwrap_err().is_lost());
    assert_eq!(work.polls(), 0);
}
