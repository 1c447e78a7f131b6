//! How waiters for a permit learn of their turn.

use std::sync::Arc;
use tenure::Mode;
use tenure::file;
use tenure::store::Answer;

use crate::support::{
    LockProcess, Scratch, block_on, blocked_on, hold, open_below, permits, release, start_waiting,
    try_mode, until, waiting, with,
};

/// The file that the first waiter for a permit has locked.
fn queue(scratch: &Scratch) -> std::path::PathBuf {
    scratch.locks().join("a%q0")
}

/// Whether a waiter is at the head of the queue, and `count` others are blocked behind it.
fn are_waiting(scratch: &Scratch, count: usize) -> bool {
    let Ok(file) = std::fs::File::open(queue(scratch)) else {
        return false;
    };
    file.try_lock_shared().is_err() && blocked_on(&queue(scratch)) == count
}

/// Whether the first waiter has the pipes of the permits open, so that it does not poll.
fn are_watched(scratch: &Scratch, limit: usize) -> bool {
    let pipes = open_below(&scratch.locks());
    let is_pipe = |path: &&std::path::PathBuf| path.to_string_lossy().contains("a%w");
    // The holders are in this process, too.
    pipes.iter().filter(is_pipe).count() == 2 * limit
}

/// The permits are released in the order of their numbers, and in the opposite order: any of them wakes the first waiter.
#[test]
fn waiters_for_a_permit_are_served_in_the_order_of_their_arrival() {
    for is_reversed in [false, true] {
        let scratch = Scratch::new();
        let stores: Vec<Arc<file::Store>> = (0..4).map(|_| scratch.open()).collect();
        let holder = scratch.open();
        let mut holds: Vec<_> = (0..3)
            .map(|_| try_mode(&holder, "a", permits(3)).unwrap().0)
            .collect();
        let mut waiters = Vec::new();
        for (at, store) in stores.iter().enumerate() {
            waiters.push(start_waiting(store, with(waiting("a"), permits(3))));
            until(|| are_waiting(&scratch, at));
        }
        until(|| are_watched(&scratch, 3));
        if is_reversed {
            holds.reverse();
        }
        let mut granted = Vec::new();
        for (store, (request, future)) in stores.iter().zip(waiters) {
            let next = if holds.is_empty() {
                granted.remove(0)
            } else {
                (&holder, holds.remove(0))
            };
            release(next.0, next.1);
            let (hold, _) = hold(&request, block_on(future).unwrap()).unwrap();
            granted.push((store, hold));
        }
        for (store, hold) in granted {
            release(store, hold);
        }
    }
}

#[test]
fn the_death_of_any_holder_of_a_permit_wakes_the_first_waiter() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let (kept, _) = try_mode(&store, "a", permits(2)).unwrap();
    let mut other = LockProcess::start(&scratch.locks());
    other.ask("permits 2 a");
    let (request, future) = start_waiting(&store, with(waiting("a"), permits(2)));
    until(|| are_waiting(&scratch, 0));
    other.kill();
    let (hold, _) = hold(&request, block_on(future).unwrap()).unwrap();
    release(&store, hold);
    release(&store, kept);
}

#[test]
fn a_first_waiter_that_dies_or_gives_up_lets_the_next_one_in() {
    let scratch = Scratch::new();
    let (store, second) = (scratch.open(), scratch.open());
    let (kept, _) = try_mode(&store, "a", permits(1)).unwrap();
    let mut dies = LockProcess::start(&scratch.locks());
    dies.send("permit a");
    until(|| are_waiting(&scratch, 0));
    let (gives_up, first) = start_waiting(&store, with(waiting("a"), permits(1)));
    until(|| are_waiting(&scratch, 1));
    let (request, future) = start_waiting(&second, with(waiting("a"), permits(1)));
    until(|| are_waiting(&scratch, 2));
    dies.kill();
    until(|| are_waiting(&scratch, 1));
    gives_up.stop.raise();
    assert!(matches!(block_on(first).unwrap(), Answer::Busy));
    until(|| are_waiting(&scratch, 0));
    release(&store, kept);
    let (hold, _) = hold(&request, block_on(future).unwrap()).unwrap();
    release(&second, hold);
    drop((store, second));
    until(|| open_below(scratch.path()).is_empty());
}

/// A stopped process keeps its place at the head of the queue. The others try for themselves, once a second.
#[test]
fn a_stopped_first_waiter_keeps_no_permit_from_others() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let (kept, _) = try_mode(&store, "a", permits(1)).unwrap();
    let mut stopped = LockProcess::start(&scratch.locks());
    stopped.send("permit a");
    until(|| are_waiting(&scratch, 0));
    stopped.stop();
    let waits = std::sync::Arc::new(with(waiting("a"), permits(1)));
    let (hold, _) = block_on(async {
        use tenure::store::Store as _;
        let waiter = tokio::spawn(store.clone().acquire(waits.clone()));
        while blocked_on(&queue(&scratch)) == 0 {
            tokio::task::yield_now().await;
        }
        release(&store, kept);
        hold(&waits, waiter.await.unwrap().unwrap()).unwrap()
    });
    release(&store, hold);
}

#[test]
fn permits_wait_for_an_exclusive_holder_without_a_permit_lost() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    let alone = try_mode(&one, "a", Mode::Exclusive).unwrap().0;
    let waiters: Vec<_> = (0..2)
        .map(|_| start_waiting(&two, with(waiting("a"), permits(2))))
        .collect();
    assert!(try_mode(&one, "a", permits(2)).is_none());
    release(&one, alone);
    for (request, future) in waiters {
        assert!(hold(&request, block_on(future).unwrap()).is_some());
    }
    assert!(try_mode(&one, "a", permits(2)).is_none());
    assert!(try_mode(&one, "a", Mode::Exclusive).is_none());
    drop(two);
    until(|| try_mode(&one, "a", Mode::Exclusive).is_some());
}
