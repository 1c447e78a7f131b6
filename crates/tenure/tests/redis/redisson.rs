//! The scripts for locks of Redisson against the reference table. What Java programs see is in `tests/interop`.

use std::num::NonZeroU32;
use std::time::Duration;

use tenure::{Client, Mode};
use tenure_testkit::needs;
use tenure_testkit::redis::Redis;

use crate::common::walk::{HolderStep, Walk, WalkOptions};
use crate::support::{TRUSTED, connect, soon, start_acquire};
use crate::walk::until_left;

/// The longest lease of a shared hold, which is renewed.
const LONG: Duration = Duration::from_secs(30);

/// What a holder of a lock without readers does in a step.
const BREAK_OR_RELEASE: &[HolderStep] = &[
    HolderStep::BreakAndTell,
    HolderStep::Release,
    HolderStep::Release,
    HolderStep::Release,
];

/// Random steps of several clients: after each, holders and queue are those of the reference table. What is left in the
/// end are the keys of `left`, with the name in the place of `NAME`.
async fn walk(lock: &str, left: &[&str], options: WalkOptions<'_>) {
    let server = Redis::start(&[]);
    let url = format!("{}{TRUSTED}&dialect=redisson&lock={lock}", server.url());
    let client = async || connect(&url).await;
    let options = WalkOptions {
        owners: 5,
        ttl: LONG,
        ..options
    };
    for seed in 0..10 {
        let name = format!("walk-{seed}");
        let mut walk = Walk::new(&name, client, seed, options).await;
        walk.goes_as_the_table_says(80).await;
        walk.close().await;
        until_left(&server, &name, left).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_write_lock_does_what_the_table_says() {
    needs!(redis);
    let options = WalkOptions {
        modes: &[Mode::Exclusive, Mode::Shared, Mode::Shared],
        holder_steps: &[
            HolderStep::Downgrade,
            HolderStep::Downgrade,
            HolderStep::BreakAndTell,
            HolderStep::Release,
        ],
        max_waiting: None,
        ..WalkOptions::default()
    };
    walk("rw", &["tenure:{NAME}:hold"], options).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fair_lock_does_what_the_table_says() {
    needs!(redis);
    let options = WalkOptions {
        modes: &[Mode::Exclusive],
        holder_steps: BREAK_OR_RELEASE,
        ..WalkOptions::default()
    };
    walk("fair", &["tenure:{NAME}:hold"], options).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_does_what_the_table_says() {
    needs!(redis);
    const THREE: Mode = Mode::Permits {
        limit: NonZeroU32::new(3).unwrap(),
    };
    let options = WalkOptions {
        modes: &[THREE],
        holder_steps: BREAK_OR_RELEASE,
        max_waiting: None,
        ..WalkOptions::default()
    };
    walk("semaphore", &["tenure:{NAME}:hold", "NAME"], options).await;
}

/// Each kind of lock in each slot of a cluster: the keys that the scripts derive are where the lock is.
#[tokio::test(flavor = "multi_thread")]
async fn locks_of_redisson_in_a_cluster() {
    needs!(redis);
    let cluster = tenure_testkit::redis::Cluster::start(false);
    for (lock, shares) in [("rw", true), ("fair", false), ("semaphore", false)] {
        let url = cluster.url();
        let url = format!("{url}{TRUSTED}&dialect=redisson&lock={lock}");
        let (one, two) = (connect(&url).await, connect(&url).await);
        for name in ["a", "b", "c", "{d}e"] {
            let name = format!("{name}-{lock}");
            let guard = soon(one.lock(&name).ttl(LONG).acquire()).await.unwrap();
            let tried = soon(two.lock(&name).try_acquire()).await.unwrap();
            assert!(tried.is_none(), "{name}");
            let waiter = start_acquire(two.lock(&name).ttl(LONG));
            assert_eq!(soon(two.inspect(&name)).await.unwrap().holds.len(), 1);
            soon(guard.release()).await.unwrap();
            let guard = soon(waiter).await.unwrap().unwrap();
            soon(guard.release()).await.unwrap();
            if shares {
                let shared = |client: &Client| client.lock(&name).shared().ttl(LONG);
                let first = soon(shared(&one).acquire()).await.unwrap();
                let second = soon(shared(&two).acquire()).await.unwrap();
                soon(first.release()).await.unwrap();
                soon(second.release()).await.unwrap();
            }
            assert!(!soon(two.inspect(&name)).await.unwrap().is_held());
        }
    }
}
