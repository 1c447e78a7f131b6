//! Breaking a lock while others acquire and release it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tenure::store::{Operate as _, Release, Store as _};

use crate::support::{Scratch, block_on, hold, inspect, name, now, waiting};

/// Whatever the order of events: only a hold that was broken is lost, and no token is granted twice.
#[test]
fn break_beside_acquirers_ends_no_other_hold() {
    let scratch = Scratch::new();
    let (broken, tokens, lost) = (Mutex::default(), Mutex::default(), Mutex::default());
    let (breaks, late) = (AtomicU32::new(0), AtomicU32::new(0));
    let is_going_on = || breaks.load(Ordering::SeqCst) < 50 || late.load(Ordering::SeqCst) < 50;
    let insert = |set: &Mutex<BTreeSet<u64>>, token, what| {
        assert!(
            set.lock().unwrap().insert(token),
            "{token} was {what} twice"
        );
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let store = scratch.open();
                while is_going_on() {
                    let holds = inspect(&store, "a").holds;
                    for token in holds.iter().filter_map(|hold| hold.token) {
                        if now(store.clone().break_lock(name("a"), token.get())).unwrap() {
                            insert(&broken, token.get(), "broken");
                            breaks.fetch_add(1, Ordering::SeqCst);
                        } else {
                            late.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
            });
        }
        for _ in 0..3 {
            scope.spawn(|| {
                let store = scratch.open();
                while is_going_on() {
                    let request = Arc::new(waiting("a"));
                    let answer = block_on(store.clone().acquire(request.clone())).unwrap();
                    let (held, grant) = hold(&request, answer).unwrap();
                    insert(&tokens, grant.token, "granted");
                    std::thread::yield_now();
                    if now(store.clone().release(held)).unwrap() == Release::NotHeld {
                        insert(&lost, grant.token, "lost");
                    }
                }
            });
        }
    });
    let (lost, broken) = (lost.into_inner().unwrap(), broken.into_inner().unwrap());
    let innocent: Vec<_> = lost.difference(&broken).collect();
    assert!(
        innocent.is_empty(),
        "lost without being broken: {innocent:?}"
    );
}
