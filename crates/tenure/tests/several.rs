//! Several names under one guard: any k of n names, and locks of two stores.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::time::Duration;

use tenure::error::Step;
use tenure::memory::{self, Disturbance};
use tenure::{Client, Error, ErrorKind, Guard, Lock, Mode, Owner};
use tenure_core::guard_traits::KeyValueGuard as _;
use tokio::task::JoinHandle;

/// Longer than a client keeps names before it begins again, and shorter than the default ttl.
const LONG: Duration = Duration::from_secs(20);

fn client() -> Client {
    Client::from_store(memory::Store::new()).unwrap()
}

fn clients<const N: usize>(store: &memory::Store) -> [Client; N] {
    std::array::from_fn(|_| Client::from_store(store.clone()).unwrap())
}

fn names(guard: &Guard) -> Vec<&str> {
    guard.names().map(|name| name.as_str()).collect()
}

async fn holders(client: &Client, name: &str) -> usize {
    client.inspect(name).await.unwrap().holds.len()
}

async fn waiters(client: &Client, name: &str) -> usize {
    client.inspect(name).await.unwrap().queue.unwrap().len()
}

/// Lets every other task go on until it waits.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Awaits what happens at once on an idle machine, so that a test that waits for ever fails.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(Duration::from_secs(60), future).await;
    done.expect("it did not happen")
}

fn acquire(lock: tenure::Lock) -> JoinHandle<Result<Guard, Error>> {
    tokio::spawn(async move { lock.acquire().await })
}

#[tokio::test]
async fn a_wrong_k_or_a_wrong_name_is_refused_before_any_request() {
    let store = memory::Store::new();
    let client = Client::from_store(store.clone()).unwrap();
    let group = || client.lock("x");
    for (lock, cure) in [
        (group().k_of(["a", "b"], 0), "at least 1"),
        (group().k_of(["a", "b"], 3), "at most the number of names"),
        (group().k_of(["a", "b", "a"], 2), "\"a\" twice"),
        (group().k_of([""; 0], 1), "name at least one"),
        (group().k_of(["a", ""], 1), "empty"),
        (client.lock("").k_of(["a"], 1), "empty"),
    ] {
        for outcome in [
            lock.acquire().await.map(drop),
            lock.try_acquire().await.map(drop),
        ] {
            let err = outcome.unwrap_err();
            assert_eq!(err.kind(), ErrorKind::Invalid);
            assert!(format!("{err:#}").contains(cure), "{err}");
        }
    }
    assert_eq!(store.requests(), 0);
}

#[tokio::test]
async fn k_of_keeps_one_wait_for_all_names_and_leaves_nothing() {
    let store = memory::Store::with_virtual_clock();
    let [holder, waiter] = clients(&store);
    let busy = holder.lock_all(["b", "c"]).acquire().await.unwrap();
    let lock = waiter.lock("x").k_of(["a", "b", "c"], 2);
    let waiting = acquire(lock.wait(Duration::from_millis(100)));
    settle().await;
    assert_eq!(holders(&holder, "a").await, 1);
    store.advance(Duration::from_millis(100));
    let err = waiting.await.unwrap().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::WaitElapsed);
    assert!(["b", "c"].contains(&err.name().unwrap().as_str()), "{err}");
    assert_eq!(holders(&holder, "a").await, 0);
    for name in ["b", "c"] {
        assert_eq!(waiters(&holder, name).await, 0);
    }
    busy.release().await.unwrap();
}

#[tokio::test]
async fn k_of_without_progress_lets_the_waiters_behind_it_pass() {
    let store = memory::Store::with_virtual_clock();
    let [holder, some, other] = clients(&store);
    let busy = holder
        .lock_all(["b", "c"])
        .ttl(LONG * 10)
        .acquire()
        .await
        .unwrap();
    let waiting = acquire(some.lock("x").k_of(["a", "b", "c"], 2).ttl(LONG));
    settle().await;
    let passing = acquire(other.lock("a").ttl(LONG));
    settle().await;
    assert!(!passing.is_finished(), "a is kept for a while");
    store.advance(Duration::from_secs(1));
    let guard = soon(passing).await.unwrap().unwrap();
    guard.release().await.unwrap();
    settle().await;
    assert_eq!(holders(&holder, "a").await, 1, "it has begun again");
    busy.release().await.unwrap();
    assert_eq!(soon(waiting).await.unwrap().unwrap().names().count(), 2);
}

/// Two clients may end up with one name each of the two that change hands. One of them begins again.
#[tokio::test]
async fn clients_do_not_share_the_last_names_for_ever() {
    let store = memory::Store::with_virtual_clock();
    let [holder, first, second] = clients(&store);
    let busy = holder
        .lock_all(["c", "d"])
        .ttl(LONG * 10)
        .acquire()
        .await
        .unwrap();
    let two = |client: &Client| client.lock("x").k_of(["a", "b", "c", "d"], 2).ttl(LONG);
    // Slow requests, so that the attempts of the two alternate: each gets one name.
    for _ in 0..8 {
        store.disturb(Step::Acquire, Disturbance::Late(Duration::from_millis(1)));
    }
    let mut waiting = vec![acquire(two(&first)), acquire(two(&second))];
    let mut guards = 0;
    for _ in 0..2_000 {
        settle().await;
        store.advance(Duration::from_millis(10));
        if let Some(at) = waiting.iter().position(JoinHandle::is_finished) {
            let guard = waiting.remove(at).await.unwrap().unwrap();
            assert_eq!(names(&guard), ["a", "b"]);
            guard.release().await.unwrap();
            guards += 1;
        }
        if waiting.is_empty() {
            break;
        }
    }
    assert_eq!(guards, 2);
    busy.release().await.unwrap();
}

#[tokio::test]
async fn k_of_has_modes_labels_and_owners_as_lock_all_has() {
    let store = memory::Store::new();
    let [client, other] = clients(&store);
    let shared = |client: &Client| {
        client
            .lock("x")
            .k_of(["a", "b", "c"], 3)
            .shared()
            .label("why")
    };
    let (one, two) = (
        shared(&client).acquire().await.unwrap(),
        shared(&other).acquire().await.unwrap(),
    );
    let status = client.inspect("b").await.unwrap();
    assert_eq!(status.holds.len(), 2);
    assert_eq!(status.holds[0].holder.label, "why");
    drop((one, two));
    let owner = Owner::new();
    let lock = client.lock("x").k_of(["a", "b"], 2).owner(&owner);
    let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
    assert_eq!(owner.holds(&client, "a"), 2);
    inner.release().await.unwrap();
    assert!(other.lock("b").try_acquire().await.unwrap().is_none());
    outer.release().await.unwrap();
    assert!(other.lock("b").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn k_of_is_lost_when_one_of_its_names_is() {
    let client = client();
    let guard = client
        .lock("x")
        .k_of(["a", "b"], 2)
        .acquire()
        .await
        .unwrap();
    let token = guard.tokens().nth(1).unwrap().1;
    assert!(client.break_lock("b", token).await.unwrap());
    guard.lost().await;
    assert!(guard.release().await.unwrap_err().is_lost());
    assert_eq!(holders(&client, "a").await, 0);
}

fn two_stores() -> [Client; 2] {
    std::array::from_fn(|_| client())
}

#[tokio::test]
async fn both_holds_the_locks_of_two_stores_or_none() {
    let [a, b] = two_stores();
    let both = Lock::both(a.lock("x"), b.lock("y").shared());
    let guard = both.acquire().await.unwrap();
    assert_eq!(names(&guard), ["x", "y"]);
    let (of_a, of_b) = guard.both().unwrap();
    assert_eq!((of_a.name().as_str(), of_b.name().as_str()), ("x", "y"));
    assert_eq!((of_a.mode(), of_b.mode()), (Mode::Exclusive, Mode::Shared));
    let tokens: Vec<_> = guard.tokens().map(|(_, token)| token).collect();
    assert_eq!(tokens, [of_a.token(), of_b.token()]);
    assert!(of_a.both().is_none());
    assert!(both.try_acquire().await.unwrap().is_none());
    let err = guard.put("k", "v").await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Invalid);
    assert_eq!(
        guard.upgrade().await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
    guard.release().await.unwrap();
    for (client, name) in [(&a, "x"), (&b, "y")] {
        let busy = client.lock(name).acquire().await.unwrap();
        assert!(both.try_acquire().await.unwrap().is_none());
        let err = both.clone().wait(Duration::from_millis(5)).acquire().await;
        let err = err.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::WaitElapsed);
        assert_eq!(err.name().unwrap().as_str(), name);
        busy.release().await.unwrap();
        assert_eq!(holders(&a, "x").await + holders(&b, "y").await, 0);
    }
    let text = both.run(async |guard| format!("{guard:?}")).await.unwrap();
    assert!(text.contains('x') && text.contains('y'), "{text}");
}

#[tokio::test]
async fn both_in_either_order_does_not_deadlock() {
    let stores = [memory::Store::new(), memory::Store::new()];
    let connect = |at: usize| {
        let client = Client::from_store(stores[at].clone()).unwrap();
        client.with_address(format!("store-{at}"))
    };
    let mut players = Vec::new();
    for player in 0..4 {
        let [a, b] = [player % 2, 1 - player % 2].map(connect);
        let both = Lock::both(a.lock("x"), b.lock("x"));
        players.push(tokio::spawn(async move {
            for _ in 0..50 {
                let guard = both.acquire().await.unwrap();
                tokio::task::yield_now().await;
                guard.release().await.unwrap();
            }
        }));
    }
    for player in players {
        soon(player).await.unwrap();
    }
}

#[tokio::test]
async fn both_takes_the_lock_of_the_first_address_first() {
    let [a, b] = two_stores();
    let (a, b) = (a.with_address("a"), b.with_address("b"));
    for [first, second] in [[&a, &b], [&b, &a]] {
        let busy = b.lock("x").acquire().await.unwrap();
        let waiting = acquire(Lock::both(first.lock("x"), second.lock("x")));
        settle().await;
        assert_eq!(holders(&a, "x").await, 1, "the lock in a is held meanwhile");
        assert_eq!(waiters(&b, "x").await, 1);
        waiting.abort();
        let _ = waiting.await;
        settle().await;
        assert_eq!(holders(&a, "x").await, 0);
        assert_eq!(waiters(&b, "x").await, 0);
        busy.release().await.unwrap();
    }
}

#[tokio::test]
async fn both_is_lost_when_either_is_and_releases_the_other() {
    for lost in 0..2 {
        let clients = two_stores();
        let both = Lock::both(clients[0].lock("x"), clients[1].lock("y"));
        let guard = both.acquire().await.unwrap();
        let (name, token) = guard.tokens().nth(lost).unwrap();
        assert!(clients[lost].break_lock(name, token).await.unwrap());
        guard.lost().await;
        assert!(!guard.is_held() && guard.remaining().is_zero());
        assert!(guard.release().await.unwrap_err().is_lost());
        let other = ["y", "x"][lost];
        assert_eq!(holders(&clients[1 - lost], other).await, 0);

        let breaker = clients[lost].clone();
        let ran = both.run(async |guard| {
            let (name, token) = guard.tokens().nth(lost).unwrap();
            assert!(breaker.break_lock(name, token).await.unwrap());
            std::future::pending::<()>().await;
        });
        let err = ran.await.unwrap_err();
        assert!(err.is_lost());
        assert_eq!(err.name().unwrap().as_str(), ["x", "y"][lost]);
    }
}

#[tokio::test]
async fn both_has_the_smaller_remaining_time_and_one_wait() {
    let stores: [_; 2] = std::array::from_fn(|_| memory::Store::with_virtual_clock());
    let [a, b] = [0, 1].map(|at| Client::from_store(stores[at].clone()).unwrap());
    let both = Lock::both(a.lock("x").ttl(LONG), b.lock("y").ttl(LONG * 2));
    let guard = both.acquire().await.unwrap();
    let (of_a, _) = guard.both().unwrap();
    assert_eq!(guard.remaining(), of_a.remaining());
    guard.release().await.unwrap();
    let wait = |lock: tenure::Lock, secs| lock.wait(Duration::from_secs(secs));
    let busy = b.lock("y").ttl(LONG).acquire().await.unwrap();
    let both = Lock::both(wait(a.lock("x"), 5), wait(b.lock("y"), 3));
    let waiting = acquire(both);
    settle().await;
    stores[1].advance(Duration::from_secs(3));
    let err = waiting.await.unwrap().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::WaitElapsed);
    assert!(format!("{err:#}").contains("waited 3s"), "{err}");
    busy.release().await.unwrap();
}

#[tokio::test]
async fn a_release_of_both_says_what_became_of_each() {
    let stores: [_; 2] = std::array::from_fn(|_| memory::Store::with_virtual_clock());
    let [a, b] = [0, 1].map(|at| Client::from_store(stores[at].clone()).unwrap());
    let both = Lock::both(a.lock("x"), b.lock("y"));
    for at in 0..2 {
        let guard = both.acquire().await.unwrap();
        stores[at].disturb(Step::Release, Disturbance::ReplyLost);
        let err = guard.release().await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Indeterminate);
        settle().await;
        stores[at].advance(Duration::from_secs(1));
        settle().await;
        assert!(stores.iter().all(memory::Store::is_idle));
    }
    // One release is lost, and the hold of the other store is lost.
    let guard = both.acquire().await.unwrap();
    stores[0].disturb(Step::Release, Disturbance::ReplyLost);
    let token = guard.both().unwrap().1.token();
    assert!(b.break_lock("y", token).await.unwrap());
    assert!(guard.release().await.unwrap_err().is_lost());
}

#[tokio::test]
async fn what_both_cannot_do_is_refused_before_any_request() {
    let store = memory::Store::new();
    let [a, b] = clients(&store);
    let (a, b) = (a.with_address("s"), b.with_address("s"));
    let elsewhere = client();
    let nested = Lock::both(a.lock("x"), elsewhere.lock("x"));
    for (lock, cure) in [
        (Lock::both(a.lock("x"), a.lock("x")), "name two locks"),
        (Lock::both(a.lock("x"), b.lock("x")), "name two locks"),
        (
            Lock::both(a.lock("x"), b.lock_all(["y", "z"])),
            "`lock_all` takes",
        ),
        (Lock::both(nested.clone(), a.lock("z")), "one store less"),
        (Lock::both(a.lock("z"), nested.clone()), "one store less"),
        (nested.k_of(["a", "b"], 1), "before `both`"),
        (Lock::both(a.lock("x"), elsewhere.lock("")), "empty"),
    ] {
        for outcome in [
            lock.acquire().await.map(drop),
            lock.try_acquire().await.map(drop),
        ] {
            let err = outcome.unwrap_err();
            assert_eq!(err.kind(), ErrorKind::Invalid);
            assert!(format!("{err:#}").contains(cure), "{err}");
        }
    }
    assert_eq!(store.requests(), 0);
    // Two names of one store, each with options of its own.
    let both = Lock::both(b.lock("y").shared(), a.lock("x"));
    let guard = both.acquire().await.unwrap();
    assert_eq!(names(&guard), ["y", "x"]);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn each_lock_of_both_may_have_several_names() {
    let [a, b] = two_stores();
    let of_b = b.lock("group").k_of(["k", "l", "m"], 2).label("why");
    let both = Lock::both(a.lock_all(["x", "y"]), of_b);
    let guard = both.acquire().await.unwrap();
    assert_eq!(guard.names().count(), 4);
    assert_eq!(&names(&guard)[..2], ["x", "y"]);
    guard.release().await.unwrap();
}

#[test]
fn both_works_without_async() {
    let connect = || tenure::blocking::connect("memory:").unwrap();
    let (a, b) = (connect(), connect());
    let both = tenure::blocking::Lock::both(a.lock("x"), b.lock("x"));
    let guard = both.acquire().unwrap();
    // The thread enters its own locks again.
    let inner = both.try_acquire().unwrap().unwrap();
    assert_eq!((a.holds("x"), b.holds("x")), (2, 2));
    inner.release().unwrap();
    let (of_a, of_b) = guard.both().unwrap();
    assert_eq!((of_a.token().get(), of_b.token().get()), (1, 1));
    drop((a, b, both));
    assert!(guard.is_held());
    guard.release().unwrap();
}

#[tokio::test]
async fn lock_all_of_free_names_is_one_request() {
    let store = memory::Store::new();
    let [client, other] = clients(&store);
    let names = ["a", "b", "c", "d"];
    let guard = client.lock_all(names).acquire().await.unwrap();
    assert_eq!(store.requests(), 1);
    guard.release().await.unwrap();
    let before = store.requests();
    let guard = client.lock("x").k_of(names, 3).acquire().await.unwrap();
    assert_eq!(store.requests() - before, 1);
    guard.release().await.unwrap();
    // An attempt finds out with one request too.
    let busy = other.lock("c").acquire().await.unwrap();
    let before = store.requests();
    assert!(
        client
            .lock_all(names)
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(store.requests() - before, 1);
    // What the owner has already is not asked for.
    let owner = Owner::new();
    let outer = client.lock("a").owner(&owner).acquire().await.unwrap();
    let before = store.requests();
    let inner = client
        .lock_all(["a", "b", "d"])
        .owner(&owner)
        .acquire()
        .await
        .unwrap();
    assert_eq!(store.requests() - before, 1);
    assert_eq!(owner.holds(&client, "a"), 2);
    drop((outer, inner, busy));
}

#[tokio::test]
async fn lock_all_waits_behind_the_waiters_of_each_name() {
    let store = memory::Store::new();
    let [holder, reader, writer, all] = clients(&store);
    let shared = holder.lock("b").shared().acquire().await.unwrap();
    let waiting = acquire(writer.lock("b"));
    settle().await;
    // A reader would fit beside the reader, but a writer waits.
    let readers = all.lock_all(["a", "b"]).shared();
    assert!(readers.try_acquire().await.unwrap().is_none());
    assert_eq!(holders(&reader, "a").await, 0);
    let readers = acquire(readers);
    settle().await;
    shared.release().await.unwrap();
    let exclusive = soon(waiting).await.unwrap().unwrap();
    settle().await;
    assert!(!readers.is_finished());
    exclusive.release().await.unwrap();
    soon(readers)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test]
async fn one_request_for_several_names_leaves_nothing_whatever_becomes_of_it() {
    let store = memory::Store::with_virtual_clock();
    let [client] = clients(&store);
    let lock = client.lock_all(["a", "b", "c"]).ttl(LONG * 100);
    for disturbance in [
        Disturbance::RequestLost,
        Disturbance::ReplyLost,
        Disturbance::ReplyNever,
        Disturbance::Late(Duration::from_secs(1)),
    ] {
        store.disturb(Step::Acquire, disturbance);
        match disturbance {
            Disturbance::RequestLost | Disturbance::ReplyLost => {
                let kind = lock.acquire().await.unwrap_err().kind();
                assert!(matches!(
                    kind,
                    ErrorKind::Unreachable | ErrorKind::Indeterminate
                ));
            }
            _ => {
                let waiting = acquire(lock.clone());
                settle().await;
                waiting.abort();
                let _ = waiting.await;
                store.resume();
            }
        }
        for _ in 0..100 {
            settle().await;
            store.advance(Duration::from_millis(100));
        }
        assert!(store.is_idle(), "after {disturbance:?}");
        lock.try_acquire()
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

/// Without addresses only the names of the stores' kinds are known, and these are equal.
#[cfg(all(feature = "file", unix))]
#[tokio::test]
async fn both_wants_addresses_where_nothing_else_orders_two_stores() {
    let directories = ["tie-a", "tie-b"].map(|tail| {
        std::env::temp_dir().join(format!("tenure-several-{}-{tail}", std::process::id()))
    });
    let open = |at: usize| {
        Client::from_store(tenure::file::Store::open(&directories[at]).unwrap()).unwrap()
    };
    let (a, b) = (open(0), open(1));
    let err = Lock::both(a.lock("x"), b.lock("x")).acquire().await;
    let err = err.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Invalid);
    assert!(format!("{err:#}").contains("with_address"), "{err}");
    drop(
        Lock::both(a.lock("x"), b.lock("y"))
            .acquire()
            .await
            .unwrap(),
    );
    let (a, b) = (open(0).with_address("a"), open(1).with_address("b"));
    drop(
        Lock::both(a.lock("x"), b.lock("x"))
            .acquire()
            .await
            .unwrap(),
    );
    for directory in directories {
        std::fs::remove_dir_all(directory).unwrap();
    }
}

/// Rule 12: also while the names are tried one after the other.
#[tokio::test]
async fn a_wait_for_any_name_ends_in_time_if_the_store_is_silent() {
    let store = memory::Store::with_virtual_clock();
    let client = Client::from_store(store.clone()).unwrap();
    let lock = client.lock_any(["a", "b"]).wait(LONG);
    store.pause();
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    settle().await;
    store.advance(LONG);
    let err = waiting.await.unwrap().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unreachable);
    store.resume();
    settle().await;
    assert!(store.is_idle());
}
