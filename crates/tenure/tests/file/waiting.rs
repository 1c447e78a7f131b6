//! Waiting, giving up, and what a waiter leaves behind.

use std::sync::Arc;
use std::time::Duration;

use tenure::Mode;
use tenure::store::{Answer, Operate as _, Release, Store as _};

use crate::support::{
    Scratch, block_on, blocked_on, hold, inspect, is_free, name, now, open_below, poll, release,
    request, start_waiting, take, try_acquire, until, waiting,
};

/// A client waits, gives up and waits again: the same thread is still blocked in the kernel.
#[test]
fn a_thread_that_is_left_behind_is_adopted_by_the_next_waiter() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    let path = scratch.locks().join("a");
    let first = take(&one, "a");
    for _ in 0..5 {
        let (request, future) = start_waiting(&two, waiting("a"));
        until(|| blocked_on(&path) == 1);
        request.stop.raise();
        assert!(matches!(block_on(future).unwrap(), Answer::Busy));
    }
    until(|| blocked_on(&path) == 1);
    let (request, future) = start_waiting(&two, waiting("a"));
    until(|| blocked_on(&path) == 1);
    release(&one, first);
    let (second, _) = hold(&request, block_on(future).unwrap()).unwrap();
    assert_eq!(blocked_on(&path), 0);
    release(&two, second);
}

#[test]
fn giving_up_leaves_nothing_once_the_holder_is_gone() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    let path = scratch.locks().join("a");
    let first = take(&one, "a");
    let (request, future) = start_waiting(&two, waiting("a"));
    until(|| blocked_on(&path) == 1);
    request.stop.raise();
    assert!(matches!(block_on(future).unwrap(), Answer::Busy));
    release(&one, first);
    until(|| blocked_on(&path) == 0);
    // The thread of the waiter that gave up may have the lock for an instant.
    until(|| is_free(&one, "a"));
    drop((one, two));
    until(|| open_below(scratch.path()).is_empty());
}

/// Stop and release at the same time, many times: whether the waiter is granted or not, the name becomes free.
#[test]
fn a_grant_that_comes_after_the_stop_is_given_back() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    for round in 0..600 {
        let first = take_eventually(&one);
        let mut request = waiting("a");
        // A shared lock is handed over by other code than an exclusive one.
        request.mode = if round % 2 == 0 {
            Mode::Exclusive
        } else {
            Mode::Shared
        };
        let (request, future) = start_waiting(&two, request);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Each round the stop comes a little later in relation to the release.
                (0..round * 10).for_each(|_| std::hint::spin_loop());
                request.stop.raise();
            });
            release(&one, first);
        });
        if let Some((second, _)) = hold(&request, block_on(future).unwrap()) {
            release(&two, second);
        }
    }
    let last = take_eventually(&one);
    release(&one, last);
}

fn take_eventually(store: &Arc<tenure::file::Store>) -> tenure::store::Hold {
    let request = Arc::new(waiting("a"));
    hold(
        &request,
        block_on(store.clone().acquire(request.clone())).unwrap(),
    )
    .unwrap()
    .0
}

/// A runtime that shuts down drops its futures at any await.
#[test]
fn a_waiter_dropped_with_its_runtime_gives_back_what_it_was_handed() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    let first = take(&one, "a");
    let (_request, future) = start_waiting(&two, waiting("a"));
    release(&one, first);
    // The grant is recorded for the waiter, which never polls again.
    until(|| inspect(&one, "a").is_held());
    drop(future);
    assert!(is_free(&one, "a"));
}

/// The kernel does not wake a thread that is blocked on the replaced file, because the holder of that file still lives.
#[test]
fn a_waiter_gets_the_name_when_it_is_broken() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    let first = take(&one, "a");
    let path = scratch.locks().join("a");
    let request = Arc::new(waiting("a"));
    let (second, grant) = block_on(async {
        let waiter = tokio::spawn(two.clone().acquire(request.clone()));
        while blocked_on(&path) == 0 {
            tokio::task::yield_now().await;
        }
        assert!(
            one.clone()
                .break_lock(name("a"), first.token)
                .await
                .unwrap()
        );
        hold(&request, waiter.await.unwrap().unwrap()).unwrap()
    });
    assert!(grant.token > first.token);
    assert_eq!(now(one.clone().release(first)).unwrap(), Release::NotHeld);
    release(&two, second);
}

#[test]
fn giving_up_during_a_reservation_frees_the_kernel_lock() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    let mut kept = request("a");
    kept.min_hold = Duration::from_secs(3600);
    let (first, _) = try_acquire(&one, kept).unwrap().unwrap();
    release(&one, first);
    let (request, mut future) = start_waiting(&two, waiting("a"));
    let file = std::fs::File::open(scratch.locks().join("a")).unwrap();
    until(|| {
        let is_taken = file.try_lock().is_err();
        file.unlock().unwrap();
        is_taken
    });
    assert!(poll(&mut future).is_pending());
    request.stop.raise();
    assert!(matches!(block_on(future).unwrap(), Answer::Busy));
    file.lock().unwrap();
}
