//! A lock in memory beside the least that such a lock needs. Prints ns; asserts nothing.
//!
//! `cargo bench -p tenure --bench memory` measures for some seconds; as a test it only runs through.

#![allow(clippy::unwrap_used, reason = "a measurement that fails is to stop")]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::{LockName, OwnerId};

/// Locks by name with an owner, a token and a deadline, without waiting, renewal, loss or several clients.
#[derive(Default)]
struct Least(Mutex<LeastState>);

#[derive(Default)]
struct LeastState {
    holds: HashMap<LockName, LeastHold>,
    last_token: u64,
}

struct LeastHold {
    owner: OwnerId,
    _token: u64,
    _deadline: Instant,
}

struct LeastGuard {
    name: LockName,
    owner: OwnerId,
}

impl Least {
    fn acquire(&self, name: &LockName, ttl: Duration) -> Option<LeastGuard> {
        let owner = OwnerId::random();
        let mut state = self.0.lock().unwrap();
        state.last_token += 1;
        let hold = LeastHold {
            owner,
            _token: state.last_token,
            _deadline: Instant::now() + ttl,
        };
        match state.holds.entry(name.clone()) {
            Entry::Vacant(entry) => entry.insert(hold),
            Entry::Occupied(_) => return None,
        };
        let name = name.clone();
        Some(LeastGuard { name, owner })
    }

    fn release(&self, guard: &LeastGuard) -> bool {
        let mut state = self.0.lock().unwrap();
        let is_ours = |hold: &LeastHold| hold.owner == guard.owner;
        state.holds.get(&guard.name).is_some_and(is_ours)
            && state.holds.remove(&guard.name).is_some()
    }
}

/// The time of one pair, in ns.
async fn time(rounds: u32, mut pair: impl AsyncFnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..rounds {
        pair().await;
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(rounds)
}

async fn measure(rounds: u32) {
    let mutex = Arc::new(tokio::sync::Mutex::new(()));
    let least = Least::default();
    let name = LockName::new("nightly-report").unwrap();
    let client = tenure::connect("memory:").await.unwrap();
    let lock = client.lock("nightly-report");
    for round in 1..=5 {
        let tokio = time(rounds, async || {
            drop(black_box(mutex.clone().lock_owned().await))
        })
        .await;
        let least = time(rounds, async || {
            let guard = least.acquire(&name, Duration::from_secs(30)).unwrap();
            assert!(least.release(black_box(&guard)));
        })
        .await;
        let ours = time(rounds, async || {
            let guard = lock.acquire().await.unwrap();
            black_box(guard).release().await.unwrap();
        })
        .await;
        let named = time(rounds, async || {
            let guard = client.lock("nightly-report").acquire().await.unwrap();
            black_box(guard).release().await.unwrap();
        })
        .await;
        println!(
            "pair {round}: tokio's mutex {tokio:.0} ns, the least lock {least:.0} ns, tenure {ours:.0} ns, \
             with a new `Lock` {named:.0} ns"
        );
    }
    client.close().await;
}

fn main() {
    let is_bench = std::env::args().any(|arg| arg == "--bench");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(measure(if is_bench { 300_000 } else { 100 }));
}
