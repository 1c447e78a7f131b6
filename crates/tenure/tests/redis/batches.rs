//! Requests that a client makes at the same time are sent together, and each request gets its own answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use tenure::ErrorKind::Indeterminate;
use tenure::{Client, Error, ErrorKind, Guard};

use crate::steps::{FAULTS, Site};
use crate::support::{
    TRUSTED, TTL, assert_all_expire, assert_clear, client_of, connect, keys, owner, soon, until,
};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::clock::Clock;
use tenure_testkit::needs;
use tenure_testkit::proxy::Proxy;
use tenure_testkit::redis::Redis;

/// Far more than are served one by one.
const MANY: usize = 64;

fn names(kind: &str) -> Vec<String> {
    (0..MANY).map(|number| format!("{kind}-{number}")).collect()
}

/// One try for each name, all at once.
async fn try_all(client: &Client, names: &[String]) -> Vec<Result<Option<Guard>, Error>> {
    let locks: Vec<_> = names
        .iter()
        // So long that no request needs a second look or a renewal.
        .map(|name| client.lock(name).ttl(TTL * 10))
        .collect();
    let tries = locks.iter().map(tenure::Lock::try_acquire);
    soon(join_all(tries)).await
}

async fn take_all(client: &Client, names: &[String]) -> Vec<Guard> {
    let taken = try_all(client, names).await.into_iter();
    taken.map(|it| it.unwrap().expect("it is free")).collect()
}

async fn release_all(guards: Vec<Guard>) {
    let released = soon(join_all(guards.into_iter().map(Guard::release))).await;
    released.into_iter().for_each(|it| it.unwrap());
}

#[tokio::test]
async fn many_requests_take_a_few_scripts() {
    needs!(redis);
    let site = Site::new().await;
    let names = names("many");
    let mut last = vec![0; MANY];
    for round in 0..3 {
        let before = site.proxy.requests();
        let guards = take_all(&site.client, &names).await;
        for (guard, last) in guards.iter().zip(&mut last) {
            assert!(guard.token().get() > *last);
            *last = guard.token().get();
            let status = site.other.inspect(guard.name().as_str()).await.unwrap();
            let [hold] = &status.holds[..] else {
                panic!("one holds it: {status:?}");
            };
            assert_eq!(hold.token, Some(guard.token()));
            assert_eq!(hold.holder.pid, std::process::id());
            let owner = owner(&site.server, guard.name().as_str());
            assert_eq!(owner, guard.owner_id().to_hex());
        }
        release_all(guards).await;
        let requests = site.proxy.requests() - before;
        // One by one they would be 128. Some go alone before there are enough for a batch, and in the first round all
        // go twice, because the server does not know the scripts yet.
        assert!(
            requests < if round == 0 { 48 } else { 24 },
            "{requests} requests"
        );
    }
    assert!(
        try_all(&site.other, &names)
            .await
            .iter()
            .all(|it| matches!(it, Ok(Some(_))))
    );
    assert_all_expire(&site.server);
}

/// Locks that are held, by us or by another program, and keys that are no locks.
#[tokio::test]
async fn each_request_gets_its_own_answer() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (client, other) = (client_of(&server).await, client_of(&server).await);
    let names = names("own");
    let held = take_all(&other, &names[10..20]).await;
    for name in &names[20..30] {
        server.order(&["SET", name, "foreign"]);
    }
    for name in &names[30..40] {
        server.order(&["RPUSH", name, "no lock"]);
    }
    for name in &names[40..50] {
        server.order(&["RPUSH", &format!("tenure:{{{name}}}:hold"), "no record"]);
    }
    for _ in 0..2 {
        let mut taken = Vec::new();
        for (number, tried) in try_all(&client, &names).await.into_iter().enumerate() {
            match (number, tried) {
                (10..30, Ok(None)) => {}
                (30..50, Err(err)) => {
                    assert_eq!(err.kind(), ErrorKind::Store, "{err}");
                    assert_clear(&err);
                }
                (0..10 | 50.., Ok(Some(guard))) => taken.push(guard),
                (_, tried) => panic!("{}: {tried:?}", names[number]),
            }
        }
        release_all(taken).await;
    }
    assert!(held.iter().all(Guard::is_held));
    release_all(held).await;
    let left = keys(&server);
    for name in &names[20..40] {
        assert!(left.contains(name), "{name} is gone");
    }
    for name in &names[40..50] {
        assert!(!left.contains(name), "{name} stays behind");
    }
}

/// Old tokens with fewer digits than the clock, with as many, and far ahead of it; and a clock with fewer digits.
#[tokio::test]
async fn tokens_grow_whatever_was_there_before() {
    needs!(redis, "cc");
    const YEARS: i64 = 365 * 24 * 3_600;
    let clock = Clock::make();
    let server = Redis::start_with_clock(&clock, &[]);
    let client = connect(&format!("{}{TRUSTED}", server.url())).await;
    let names = names("known");
    let known: [u64; 4] = [
        7,
        999_999_999_999_999,
        1_500_000_000_000_000,
        8_999_999_999_999_999,
    ];
    let mut last: Vec<_> = known.into_iter().cycle().take(MANY).collect();
    for (name, token) in names.iter().zip(&last) {
        let hold = format!("{token} {} 5 0 0 - {{}}", "0".repeat(32));
        server.order(&["SET", &format!("tenure:{{{name}}}:hold"), &hold]);
    }
    for jump in [0, 0, -40 * YEARS, -40 * YEARS] {
        clock.set(jump);
        let guards = take_all(&client, &names).await;
        for (guard, last) in guards.iter().zip(&mut last) {
            let token = guard.token().get();
            assert!(token > *last, "{token} follows {last} at {jump}");
            *last = token;
        }
        release_all(guards).await;
    }
}

/// A name that this user may not touch does not disturb the other requests.
#[tokio::test]
async fn one_name_is_forbidden() {
    needs!(redis);
    let server = Redis::start(&[]);
    server.order(&[
        "ACL",
        "SETUSER",
        "some",
        "on",
        ">secret",
        "&*",
        "+@all",
        "~may-*",
        "~tenure:{may-*",
    ]);
    let url = format!("redis://some:secret@127.0.0.1:{}{TRUSTED}", server.port());
    let client = connect(&url).await;
    let mut names = names("may");
    names[MANY - 1] = "must-not".into();
    let mut tried = try_all(&client, &names).await;
    let forbidden = tried.pop().unwrap().unwrap_err();
    assert_eq!(forbidden.kind(), ErrorKind::Denied, "{forbidden}");
    let taken = tried.into_iter().map(|it| it.unwrap().expect("it is free"));
    release_all(taken.collect()).await;
    assert!(!keys(&server).contains(&"must-not".to_owned()));
}

/// A node that has all slots of its cluster: each lock is in another slot, so no two fit into one script.
#[tokio::test]
async fn the_locks_are_in_different_slots() {
    needs!(redis);
    let server = Redis::start_in_cluster();
    server.order(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    until("it serves its slots", || {
        let info = server.ask(&["CLUSTER", "INFO"]).text();
        info.contains("cluster_state:ok")
    })
    .await;
    let proxy = Proxy::redis(server.port());
    let client = connect(&format!("redis://127.0.0.1:{}{TRUSTED}", proxy.port())).await;
    let names = names("apart");
    // The scripts are known after this.
    release_all(take_all(&client, &names[..8]).await).await;
    let before = proxy.requests();
    for _ in 0..3 {
        release_all(take_all(&client, &names).await).await;
    }
    let requests = proxy.requests() - before;
    let single = 3 * 2 * MANY as u64;
    // What is refused together is tried again after a second at the earliest.
    assert!(
        (single..single + 32).contains(&requests),
        "{requests} requests"
    );
    assert_all_expire(&server);
}

/// Two clients want the same names all the time: each name has one holder, and all waiters are served.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_served() {
    const ROUNDS: u64 = 10;
    needs!(redis);
    let server = Redis::start(&[]);
    let counts: Arc<Vec<_>> = Arc::new((0..16).map(|_| AtomicU64::new(0)).collect());
    let mut tasks = Vec::new();
    for number in 0..4 {
        let client = client_of(&server).await;
        for task in 0..32 {
            let (client, counts, at) = (client.clone(), counts.clone(), (task + number) % 16);
            tasks.push(tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let lock = client.lock(format!("count-{at}")).ttl(TTL * 10);
                    let guard = lock.acquire().await.unwrap();
                    let count = counts[at].load(Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    counts[at].store(count + 1, Ordering::Relaxed);
                    guard.release().await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        soon(task).await.unwrap();
    }
    for count in counts.iter() {
        assert_eq!(count.load(Ordering::Relaxed), 8 * ROUNDS);
    }
    assert_all_expire(&server);
}

/// The request for all of them goes wrong. A refused request is sent again alone; a request of unknown outcome is
/// reported as such, and leaves nothing behind.
// On one thread all of them are one request or two: an answer made for two fits none.
#[tokio::test]
async fn a_batch_of_acquires_goes_wrong() {
    needs!(redis);
    let server = Arc::new(Redis::start(&[]));
    for (i, (fault, due)) in FAULTS.iter().enumerate() {
        // A client of its own: after a refusal it asks for each lock alone for a while.
        let site = Site::for_fault(&server, fault).await;
        let names = names(&format!("acquire{i}"));
        site.proxy.plan("acquire_many", fault.clone());
        let mut unknown = 0;
        for tried in try_all(&site.client, &names).await {
            match tried {
                Ok(guard) => site.release(guard.expect("it is free")).await,
                Err(err) => {
                    assert_eq!(err.kind(), Indeterminate, "after {fault:?}: {err}");
                    assert_clear(&err);
                    unknown += 1;
                }
            }
        }
        assert_eq!(
            unknown > 0,
            *due == Some(Indeterminate),
            "{unknown} after {fault:?}"
        );
        settle(&site, &names).await;
    }
}

// On one thread all of them are one request or two: an answer made for two fits none.
#[tokio::test]
async fn a_batch_of_releases_goes_wrong() {
    needs!(redis);
    let server = Arc::new(Redis::start(&[]));
    for (i, (fault, due)) in FAULTS.iter().enumerate() {
        // A client of its own: after a refusal it asks for each lock alone for a while.
        let site = Site::for_fault(&server, fault).await;
        let names = names(&format!("release{i}"));
        let guards = take_each(&site, &site.client, &names).await;
        site.proxy.plan("release_many", fault.clone());
        let mut unknown = 0;
        for released in soon(join_all(guards.into_iter().map(Guard::release))).await {
            if let Err(err) = released {
                assert_eq!(err.kind(), Indeterminate, "after {fault:?}: {err}");
                assert_clear(&err);
                unknown += 1;
            }
        }
        assert_eq!(
            unknown > 0,
            *due == Some(Indeterminate),
            "{unknown} after {fault:?}"
        );
        settle(&site, &names).await;
    }
}

/// All names are free in the end, for both.
async fn settle(site: &Site, names: &[String]) {
    assert!(site.proxy.is_done(), "the fault did not happen");
    site.proxy.resume();
    until("no lock is held", || {
        names
            .iter()
            .all(|name| owner(&site.server, name).is_empty())
    })
    .await;
    for client in [&site.other, &site.client] {
        let guards = take_each(site, client, names).await;
        join_all(guards.into_iter().map(|it| site.release(it))).await;
    }
    assert_all_expire(&site.server);
}

/// [`take_all`] by a client whose timeout may be short.
async fn take_each(site: &Site, client: &Client, names: &[String]) -> Vec<Guard> {
    let taken = names.iter().map(|name| site.take(client, name, TTL * 10));
    join_all(taken).await
}

/// All requests are dropped on the way, again and again: nothing stays behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_dropped_requests() {
    needs!(redis);
    let server = Redis::start(&[]);
    let client = client_of(&server).await;
    let names = names("mind");
    for round in 0..50 {
        let locks = names.iter().map(|name| client.lock(name).ttl(TTL * 100));
        let locks: Vec<_> = locks.collect();
        let tries = locks.iter().map(tenure::Lock::acquire);
        let mut all = std::pin::pin!(join_all(tries));
        for _ in 0..round % 7 {
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            if all.as_mut().poll(&mut cx).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    until("no lock is held", || {
        names.iter().all(|name| owner(&server, name).is_empty())
    })
    .await;
    release_all(take_all(&client, &names).await).await;
    assert_all_expire(&server);
}

/// The runtime of the client ends, and with it the task that sends the batch: no caller waits for ever.
#[test]
fn a_batch_whose_runtime_is_gone() {
    needs!(redis);
    let server = Redis::start(&[]);
    let first = tokio::runtime::Runtime::new().unwrap();
    let client = first.block_on(client_of(&server));
    let names = names("gone");
    first.block_on(async { release_all(take_all(&client, &names).await).await });
    first.shutdown_background();
    let second = tokio::runtime::Runtime::new().unwrap();
    let tried = second.block_on(try_all(&client, &names));
    let failed = tried.iter().filter(|it| it.is_err()).count();
    assert!(
        failed > 0,
        "some were to be made by a task of the first runtime"
    );
    for err in tried.iter().filter_map(|it| it.as_ref().err()) {
        assert_clear(err);
    }
    drop(tried);
    assert_all_expire(&server);
}

/// Each reader has a token of its own.
#[tokio::test]
async fn many_readers_of_one_lock_take_a_few_scripts() {
    needs!(redis);
    let site = Site::new().await;
    let shared = site.client.lock("x").ttl(TTL * 10).shared();
    let mut last = 0;
    // A reader with a longer lease stays.
    for long in [None, Some(site.other.lock("x").ttl(TTL * 100).shared())] {
        let long = match long {
            Some(lock) => Some(soon(lock.acquire()).await.unwrap()),
            None => None,
        };
        last = long.as_ref().map_or(last, |it| it.token().get());
        let before = site.proxy.requests();
        let tries = (0..MANY).map(|_| shared.try_acquire());
        let tried = soon(join_all(tries)).await.into_iter();
        let guards: Vec<_> = tried.map(|it| it.unwrap().expect("a reader")).collect();
        let mut tokens: Vec<_> = guards.iter().map(|it| it.token().get()).collect();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), MANY);
        assert!(tokens[0] > last);
        last = tokens[MANY - 1];
        let status = site.other.inspect("x").await.unwrap();
        assert_eq!(status.holds.len(), MANY + usize::from(long.is_some()));
        assert!(status.holds.iter().all(|it| it.ttl_left > Some(TTL * 9)));
        assert!(site.other.lock("x").try_acquire().await.unwrap().is_none());
        release_all(guards).await;
        let requests = site.proxy.requests() - before;
        // One by one they would be 128.
        assert!(requests < 40, "{requests} requests");
        assert_eq!(owner(&site.server, "x").is_empty(), long.is_none());
        if let Some(guard) = long {
            soon(guard.release()).await.unwrap();
        }
    }
    assert_eq!(owner(&site.server, "x"), "");
    assert_all_expire(&site.server);
}

#[tokio::test]
async fn readers_do_not_overtake_a_writer_that_waits() {
    needs!(redis);
    let site = Site::new().await;
    let shared = site.client.lock("x").ttl(TTL * 10).shared();
    let first = soon(shared.acquire()).await.unwrap();
    let writer = crate::support::start_acquire(site.other.lock("x").ttl(TTL * 10));
    until("the writer waits", || {
        crate::support::waiting(&site.server, "x") == 1
    })
    .await;
    let tries = (0..MANY).map(|_| shared.try_acquire());
    let tried = soon(join_all(tries)).await;
    assert!(tried.into_iter().all(|it| it.unwrap().is_none()));
    soon(first.release()).await.unwrap();
    let writer = soon(writer).await.unwrap().unwrap();
    soon(writer.release()).await.unwrap();
}

/// A script for many holders whose answer is lost: what was granted is given back.
#[tokio::test]
async fn a_batch_of_readers_goes_wrong() {
    needs!(redis);
    let server = Arc::new(Redis::start(&[]));
    for (fault, _) in FAULTS {
        for step in ["acquire_shared_many", "release_shared_many"] {
            let site = Site::for_fault(&server, fault).await;
            let shared = site.client.lock("x").ttl(TTL).shared();
            site.proxy.plan(step, fault.clone());
            let start = std::time::Instant::now();
            while !site.proxy.is_done() {
                assert!(start.elapsed() < TEST_TIMEOUT, "no batch is sent");
                let tries = (0..MANY).map(|_| shared.try_acquire());
                let tried = soon(join_all(tries)).await.into_iter();
                // The kinds of errors are those of a batch of exclusive locks.
                let guards: Vec<_> = tried.filter_map(|it| it.ok().flatten()).collect();
                let released = soon(join_all(guards.into_iter().map(Guard::release))).await;
                for err in released.into_iter().filter_map(Result::err) {
                    assert!(err.is_retryable() || err.is_lost(), "{fault:?}: {err}");
                }
            }
            site.proxy.resume();
            site.next_one(&site.other, "x", 0).await;
            site.settles("x").await;
        }
    }
}
