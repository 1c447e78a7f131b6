//! Shared holds and permits.

use std::sync::Arc;
use std::time::Duration;

use tenure::file;
use tenure::store::{Answer, BoxFuture, Operate as _, Request, Store as _};
use tenure::{Error, ErrorKind, Mode};

use crate::support::{
    Scratch, Taken, block_on, hold, inspect, is_free, name, now, permits, release, request,
    start_waiting, try_acquire, waiting, with,
};

fn shared(store: &Arc<file::Store>, mode: Mode) -> Option<Taken> {
    try_acquire(store, with(request("a"), mode)).unwrap()
}

#[test]
fn there_are_as_many_permits_as_the_limit_says() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let (first, _) = shared(&store, permits(2)).unwrap();
    let (second, _) = shared(&store, permits(2)).unwrap();
    assert!(shared(&store, permits(2)).is_none());
    // A request is admitted by its own limit, and shared holders do not count as permits.
    let (third, _) = shared(&store, permits(3)).unwrap();
    let (fourth, _) = shared(&store, Mode::Shared).unwrap();
    assert!(!is_free(&store, "a"));
    let modes: Vec<_> = inspect(&store, "a")
        .holds
        .iter()
        .map(|hold| hold.mode)
        .collect();
    assert_eq!(modes, [permits(2), permits(2), permits(3), Mode::Shared]);
    release(&store, first);
    release(&store, third);
    assert!(shared(&store, permits(2)).is_some());
    release(&store, second);
    release(&store, fourth);
}

/// A waiter for a permit must not keep out a waiter for the exclusive lock.
#[test]
fn waiting_for_a_permit_does_not_hold_the_name() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    let (first, _) = shared(&one, permits(1)).unwrap();
    let (permit, waiter) = start_waiting(&one, with(waiting("a"), permits(1)));
    let (alone, future) = start_waiting(&two, waiting("a"));
    release(&one, first);
    // Whichever of the two is granted first, the other is granted when the first has released.
    block_on(async {
        let run = async |store: &Arc<file::Store>, request: &Request, future: BoxFuture<_>| {
            let answer: Result<Answer, Error> = future.await;
            release(store, hold(request, answer.unwrap()).unwrap().0);
        };
        tokio::join!(run(&one, &permit, waiter), run(&two, &alone, future));
    });
}

#[test]
fn break_ends_one_shared_hold() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let (first, one) = shared(&store, permits(1)).unwrap();
    let (second, two) = shared(&store, Mode::Shared).unwrap();
    assert!(now(store.clone().break_lock(name("a"), one.token)).unwrap());
    let tokens: Vec<_> = inspect(&store, "a")
        .holds
        .iter()
        .map(|hold| hold.token.unwrap().get())
        .collect();
    assert_eq!(tokens, [two.token]);
    assert!(shared(&store, permits(1)).is_some(), "the permit is free");
    assert_eq!(
        now(store.clone().release(first)).unwrap(),
        tenure::store::Release::NotHeld
    );
    release(&store, second);
}

#[test]
fn what_cannot_be_combined_is_refused() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let mut kept = with(request("a"), Mode::Shared);
    kept.min_hold = Duration::from_secs(1);
    let refused = try_acquire(&store, kept).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(!scratch.locks().join("a").exists());
}
