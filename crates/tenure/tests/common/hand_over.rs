//! A lock that passes from task to task of a client: what the tests of several stores share.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tenure::{Client, Guard, Lock, OwnerId};
use tenure_testkit::TEST_TIMEOUT;

use super::{soon, start_acquire};

/// Far above what a busy machine needs.
const TTL: Duration = Duration::from_secs(32);

/// The owner and the token of each task, by the token: a task holds the lock for a moment.
pub(crate) type Holds = BTreeMap<u64, OwnerId>;

pub(crate) async fn hold_for_a_moment(lock: Lock) -> (u64, OwnerId) {
    let guard = soon(lock.acquire()).await.unwrap();
    let hold = (guard.token().get(), guard.owner_id());
    soon(guard.release()).await.unwrap();
    hold
}

/// Lets so many tasks wait for the lock that `before` holds, and then have it.
pub(crate) async fn pass_on(lock: &Lock, before: Guard, tasks: usize) -> Holds {
    let tasks: Vec<_> = (0..tasks)
        .map(|_| tokio::spawn(hold_for_a_moment(lock.clone())))
        .collect();
    // All of them have been polled, unless the machine is busy; then some come later.
    tokio::task::yield_now().await;
    soon(before.release()).await.unwrap();
    let (mut holds, count) = (Holds::new(), tasks.len());
    for task in tasks {
        let (token, owner) = soon(task).await.unwrap();
        holds.insert(token, owner);
    }
    assert_eq!(holds.len(), count, "each task has a token of its own");
    holds
}

/// How many tasks had the lock in each turn.
pub(crate) fn turns(holds: &Holds) -> Vec<usize> {
    let mut turns: Vec<(OwnerId, usize)> = Vec::new();
    for owner in holds.values() {
        match turns.last_mut() {
            Some((last, count)) if last == owner => *count += 1,
            _ => turns.push((*owner, 1)),
        }
    }
    turns.into_iter().map(|(_, count)| count).collect()
}

/// Two guards of one turn, of tasks that had the lock one after the other: the first is released. The hold of the store is the
/// same unless the machine was so slow that the time of the turn was over.
pub(crate) async fn passed_on(client: &Client, name: &str) -> (u64, Guard) {
    passed_on_with(&client.lock(name).ttl(TTL)).await
}

/// The same for a lock with options.
pub(crate) async fn passed_on_with(lock: &Lock) -> (u64, Guard) {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < TEST_TIMEOUT, "the lock never passes on");
        let before = soon(lock.acquire()).await.unwrap();
        let (first, second) = (start_acquire(lock.clone()), start_acquire(lock.clone()));
        tokio::task::yield_now().await;
        soon(before.release()).await.unwrap();
        let (mut first, mut second) = (first, second);
        // Whichever task was polled first.
        let (guard, other) = tokio::select! {
            guard = &mut first => (guard, second),
            guard = &mut second => (guard, first),
        };
        let guard = guard.unwrap().unwrap();
        let (token, owner) = (guard.token().get(), guard.owner_id());
        soon(guard.release()).await.unwrap();
        let next = soon(other).await.unwrap().unwrap();
        if next.owner_id() == owner {
            return (token, next);
        }
        soon(next.release()).await.unwrap();
    }
}
