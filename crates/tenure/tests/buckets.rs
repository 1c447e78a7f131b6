//! The bucket of a key; a walk over all buckets, by one client and by several.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::memory;
use tenure::{Client, Error, ErrorKind, bucket_of};

const COUNT: u32 = 8;

fn client(store: &memory::Store) -> Client {
    Client::from_store(store.clone()).unwrap()
}

/// Awaits what happens at once on an idle machine, so that a test that waits for ever fails.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(Duration::from_secs(60), future).await;
    done.expect("it did not happen")
}

#[tokio::test]
async fn a_walk_visits_each_bucket_once_and_under_its_lock() {
    let store = memory::Store::new();
    let client = client(&store);
    let mut buckets = client.clone().with_prefix("eu/").buckets("jobs", COUNT);
    let mut visited = Vec::new();
    let walk = buckets.run_each(|bucket, _| {
        visited.push(bucket);
        let is_held = client.is_held_here(format!("eu/jobs/{bucket}"));
        async move {
            assert!(is_held);
            Ok::<_, Error>(())
        }
    });
    soon(walk).await.unwrap();
    visited.sort_unstable();
    assert_eq!(visited, (0..COUNT).collect::<Vec<_>>());
    assert!(buckets.left().is_empty());
    // Done: nothing is left to visit.
    let again = buckets.run_each(async |_, _| Err(Error::new(ErrorKind::Store, "again")));
    soon(again).await.unwrap();
}

#[tokio::test]
async fn the_lock_of_a_key_is_that_of_its_bucket() {
    let store = memory::Store::new();
    let buckets = client(&store).buckets("jobs", COUNT);
    let guard = buckets.lock_of("order 42").acquire().await.unwrap();
    let bucket = bucket_of("order 42", COUNT);
    assert_eq!(guard.name().as_str(), format!("jobs/{bucket}"));
    // The walk of another client visits all other buckets, and waits for this one.
    let left = Arc::new(AtomicU32::new(COUNT));
    let walk = {
        let (mut buckets, left) = (client(&store).buckets("jobs", COUNT), left.clone());
        tokio::spawn(async move {
            let left = &left;
            let visit = |_, _| async move {
                left.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, Error>(())
            };
            buckets.run_each(visit).await
        })
    };
    let others = async {
        while left.load(Ordering::SeqCst) > 1 {
            tokio::task::yield_now().await;
        }
    };
    soon(others).await;
    assert!(!walk.is_finished());
    guard.release().await.unwrap();
    soon(walk).await.unwrap().unwrap();
    assert_eq!(left.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn walks_of_several_clients_never_meet_in_a_bucket() {
    let store = memory::Store::new();
    let inside: Arc<[AtomicU32]> = (0..COUNT).map(|_| AtomicU32::new(0)).collect();
    let visits = Arc::new(Mutex::new(Vec::new()));
    let walks: Vec<_> = (0..4)
        .map(|_| {
            let mut buckets = client(&store).buckets("jobs", COUNT);
            let (inside, visits) = (inside.clone(), visits.clone());
            tokio::spawn(async move {
                let (inside, visits) = (&inside, &visits);
                let visit = |bucket: u32, _| async move {
                    let here = &inside[bucket as usize];
                    assert_eq!(here.fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    here.fetch_sub(1, Ordering::SeqCst);
                    visits.lock().unwrap().push(bucket);
                    Ok::<_, Error>(())
                };
                buckets.run_each(visit).await
            })
        })
        .collect();
    for walk in walks {
        soon(walk).await.unwrap().unwrap();
    }
    assert_eq!(visits.lock().unwrap().len(), 4 * COUNT as usize);
}

/// An error type of the user.
#[derive(Debug)]
enum Mine {
    Lock(Error),
    Full(u32),
}

impl From<Error> for Mine {
    fn from(err: Error) -> Self {
        Self::Lock(err)
    }
}

#[tokio::test]
async fn a_walk_goes_on_after_an_error_of_its_body() {
    let store = memory::Store::new();
    let mut buckets = client(&store).buckets("jobs", COUNT);
    let mut visited = Vec::new();
    let walk = buckets.run_each(|bucket, _| {
        let is_full = visited.len() == 3;
        if !is_full {
            visited.push(bucket);
        }
        async move {
            match is_full {
                true => Err(Mine::Full(bucket)),
                false => Ok(()),
            }
        }
    });
    let Err(Mine::Full(failed)) = soon(walk).await else {
        panic!("the fourth bucket is full");
    };
    assert_eq!(buckets.left().len(), COUNT as usize - 3);
    assert!(buckets.left().contains(&failed));
    let rest = buckets.run_each(|bucket, _| {
        visited.push(bucket);
        async { Ok::<_, Mine>(()) }
    });
    soon(rest).await.unwrap();
    visited.sort_unstable();
    assert_eq!(visited, (0..COUNT).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_bucket_whose_lock_was_lost_is_left() {
    let store = memory::Store::with_virtual_clock();
    let mut buckets = client(&store).buckets("jobs", COUNT);
    let mut visits = 0;
    let walk = buckets.run_each(|_, _| {
        visits += 1;
        store.pause();
        store.advance(Duration::from_secs(600));
        std::future::pending::<Result<(), Mine>>()
    });
    let Err(Mine::Lock(err)) = soon(walk).await else {
        panic!("the lock was lost");
    };
    assert!(err.is_lost(), "{err:#}");
    store.resume();
    assert_eq!(buckets.left().len(), COUNT as usize);
    let rest = buckets.run_each(|_, _| {
        visits += 1;
        async { Ok::<_, Mine>(()) }
    });
    soon(rest).await.unwrap();
    assert_eq!(visits, COUNT + 1);
}

#[tokio::test]
async fn a_dropped_walk_leaves_its_bucket_free() {
    let store = memory::Store::new();
    let client = client(&store);
    let mut buckets = client.buckets("jobs", COUNT);
    {
        let walk = buckets.run_each(|_, _| std::future::pending::<Result<(), Error>>());
        tokio::select! {
            biased;
            _ = walk => panic!("it never ends"),
            () = tokio::task::yield_now() => {}
        }
    }
    assert_eq!(buckets.left().len(), COUNT as usize);
    let again = buckets.run_each(async |_, _| Ok::<_, Error>(()));
    soon(again).await.unwrap();
}

#[tokio::test]
async fn there_may_be_no_buckets() {
    let mut buckets = client(&memory::Store::new()).buckets("jobs", 0);
    let walk = buckets.run_each(async |_, _| Err(Error::new(ErrorKind::Store, "a bucket")));
    soon(walk).await.unwrap();
}

/// Computed by another program. Clients of other versions depend on these numbers.
#[test]
fn a_key_has_the_same_bucket_for_ever() {
    let counts = [1, 2, 10, 16, 1000, u32::MAX];
    let expected = [
        ("", [0, 0, 2, 6, 342, 2_859_026_567]),
        ("a", [0, 1, 5, 11, 315, 744_585_140]),
        ("order 42", [0, 1, 7, 11, 267, 2_277_252_302]),
        ("orders/42", [0, 1, 1, 15, 831, 3_911_372_651]),
        ("account-1", [0, 1, 7, 7, 127, 3_421_316_827]),
        ("ключ", [0, 1, 1, 5, 421, 1_898_741_676]),
    ];
    for (key, buckets) in expected {
        assert_eq!(counts.map(|count| bucket_of(key, count)), buckets, "{key}");
    }
    assert_eq!(bucket_of("a", 0), 0);
}

/// Keys that differ in one digit or by an even step.
#[test]
fn similar_keys_are_spread_over_all_buckets() {
    for step in [1, 2, 16, 100] {
        let mut sizes = [0_u32; 16];
        for number in 0..1600 {
            let bucket = bucket_of(format!("order {}", number * step), 16);
            sizes[bucket as usize] += 1;
        }
        let [least, most] = [sizes.iter().min(), sizes.iter().max()];
        assert!(least > Some(&60) && most < Some(&145), "{step}: {sizes:?}");
    }
}
