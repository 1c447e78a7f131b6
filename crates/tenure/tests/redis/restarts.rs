//! The server is killed and started again, and has forgotten everything or nothing.

use std::time::{Duration, Instant};

use tenure::{Client, ErrorKind, Guard};

use crate::common::{answered, power};
use crate::support::{TTL, assert_says, connect, owner, soon, start_acquire, take, until};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::disk::Disk;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Direction, Proxy};
use tenure_testkit::redis::Redis;

/// The holder of before the restart, which is cut off and so does not learn of the restart, and the first holder
/// after the restart.
struct Restarted {
    old: Guard,
    next: Guard,
    /// Whether the old one still claimed to hold it when the next one had it.
    both: bool,
    _clients: [Client; 2],
}

/// `ttl`: the ttl of the old holder. All clients wait without a limit.
async fn restart(server: &Redis, options: &str, ttl: Duration) -> Restarted {
    let proxy = Proxy::redis(server.port());
    let first = connect(&format!("{}?{options}", server.url_by(proxy.port()))).await;
    let old = soon(first.lock("x").ttl(ttl).acquire()).await.unwrap();
    for direction in [Direction::Up, Direction::Down] {
        proxy.hold(direction, true);
    }
    server.restart();
    let second = connect(&format!("{}?{options}", server.url())).await;
    let lock = second.lock("x").ttl(TTL);
    let next = tokio::time::timeout(ttl + TEST_TIMEOUT, lock.acquire()).await;
    let next = next.expect("it is granted in the end").unwrap();
    let both = old.is_held();
    assert!(
        next.token() > old.token(),
        "{} follows {}",
        next.token(),
        old.token()
    );
    Restarted {
        old,
        next,
        both,
        _clients: [first, second],
    }
}

/// A client that waits when the server forgets is guarded like one that comes later: its next request goes to a fresh
/// server, where the name is free.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_guarded_as_well() {
    needs!(redis);
    let server = Redis::start(&[]);
    let proxy = Proxy::redis(server.port());
    // Long enough for the old claim to last beyond the restart and the waiter's next request; the guard is as
    // long as the longest ttl of all, as it has to be.
    let (ttl, options) = (TTL * 3 / 2, "timeout=3s&restart_guard=12s");
    let first = connect(&format!("{}?{options}", server.url_by(proxy.port()))).await;
    let second = connect(&format!("{}?{options}", server.url())).await;
    let lock = first.lock("x").ttl(ttl);
    let old = tokio::time::timeout(TEST_TIMEOUT, lock.acquire()).await;
    let old = old.expect("the guard passes").unwrap();
    let waiter = start_acquire(second.lock("x").ttl(TTL));
    until("it waits", || crate::support::waiting(&server, "x") == 1).await;
    for direction in [Direction::Up, Direction::Down] {
        proxy.hold(direction, true);
    }
    server.restart();
    // The waiter may get the key for a moment, and releases it before it believes to hold the lock.
    let waited = tokio::time::timeout(ttl + TEST_TIMEOUT, waiter).await;
    assert!(!old.is_held(), "two hold it");
    let next = waited.expect("its turn comes").unwrap().unwrap();
    assert!(next.token() > old.token());
    soon(next.release()).await.unwrap();
}

/// The server finds an old copy of its data on its disk: the upgradable hold is in it, and the reader is not.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_is_guarded_as_well() {
    needs!(redis);
    let server = Redis::start(&[]);
    // Until the restart the server is trusted.
    server.order(&["CONFIG", "SET", "appendfsync", "always"]);
    server.order(&["CONFIG", "SET", "appendonly", "yes"]);
    let proxy = Proxy::redis(server.port());
    let (ttl, options) = (TTL * 3 / 2, "timeout=3s&restart_guard=12s");
    let first = connect(&format!("{}?{options}", server.url_by(proxy.port()))).await;
    let second = connect(&format!("{}?{options}", server.url())).await;
    let lock = second.lock("x").ttl(ttl).upgradable();
    let upgradable = soon(lock.acquire()).await.unwrap();
    until("the copy can be written", || {
        server.ask(&["SAVE"]).text() == "OK"
    })
    .await;
    let reader = soon(first.lock("x").ttl(ttl).shared().acquire()).await;
    let reader = reader.unwrap();
    for direction in [Direction::Up, Direction::Down] {
        proxy.hold(direction, true);
    }
    server.restart();
    answered(async || second.inspect("x").await).await;
    let upgraded = tokio::time::timeout(ttl + TEST_TIMEOUT, upgradable.upgrade()).await;
    assert!(!reader.is_held(), "a writer holds it beside a reader");
    upgraded.expect("its turn comes").unwrap();
    soon(upgradable.release()).await.unwrap();
}

/// Of the old holder whose claim must outlive all that happens here.
const LONG: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgets_is_guarded_until_every_lease_is_over() {
    needs!(redis);
    // The guard is the longest ttl in use, as documented.
    let server = Redis::start(&[]);
    let after = restart(&server, "timeout=3s&restart_guard=8s", TTL).await;
    assert!(!after.both, "both claim to hold it");
    assert_says(soon(after.old.release()).await, ErrorKind::Lost, &[]);
    assert!(after.next.is_held());
    soon(after.next.release()).await.unwrap();
}

/// What the option costs: this is why the guard is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgets_without_a_guard_grants_what_is_held() {
    needs!(redis);
    let server = Redis::start(&[]);
    let after = restart(&server, "timeout=3s&restart_guard=off", LONG).await;
    assert!(after.both, "two hold it, and the first one cannot know");
    // The fence is what is left: the greater token wins.
    assert!(after.next.token() > after.old.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_keeps_every_write_goes_on_where_it_was() {
    needs!(redis);
    let server = Redis::start(&["appendonly yes", "appendfsync always"]);
    let after = restart(&server, "timeout=3s", TTL).await;
    assert!(!after.both, "both claim to hold it");
    soon(after.next.release()).await.unwrap();
}

/// The server says itself when it was started: no client has to have seen it.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_comes_later_is_guarded_too() {
    needs!(redis);
    let server = Redis::start(&[]);
    let client = connect(&format!("{}?timeout=3s&restart_guard=60s", server.url())).await;
    let refused = soon(client.lock("x").ttl(TTL).try_acquire()).await;
    assert_says(
        refused,
        ErrorKind::Unreachable,
        &["started lately", "restart_guard"],
    );
    let (wait, began) = (Duration::from_secs(30), Instant::now());
    let lock = client.lock("x").ttl(TTL).wait(wait);
    let err = soon(lock.acquire()).await.unwrap_err();
    // The wait would end before the guard does, so it is refused at once.
    assert!(began.elapsed() < wait, "{err}");
    assert_eq!(err.kind(), ErrorKind::Unreachable);
    let guard = err.restart_guard().expect("it says why");
    assert_eq!(guard.server, server.address());
    assert_eq!(guard.guard, Duration::from_secs(60));
    let text = format!("{err:#}");
    assert!(text.contains("`?restart_guard=off`"), "{text}");
    let status = soon(client.inspect("x")).await.unwrap();
    assert_eq!(status.restart_guard.unwrap().server, server.address());
    assert_eq!(owner(&server, "x"), "");
    let findings = soon(client.check()).await.unwrap();
    let says = findings
        .iter()
        .any(|finding| finding.text.contains("started lately"));
    assert!(says, "{findings:?}");
}

/// `kill -9` between request and answer, a hundred times: tokens grow, and no two clients hold the lock at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_killed_again_and_again() {
    needs!(redis);
    let server = std::sync::Arc::new(Redis::start(&["appendonly yes", "appendfsync always"]));
    let url = format!("{}?timeout=3s", server.url());
    let claims = std::sync::Arc::new(std::sync::Mutex::new((0_u64, 0_u32)));
    let mut workers = Vec::new();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    for _ in 0..3 {
        let (client, claims, stop) = (connect(&url).await, claims.clone(), stop.clone());
        workers.push(tokio::spawn(async move {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                let lock = client.lock("x").ttl(TTL).wait(TTL * 3);
                let Ok(guard) = lock.acquire().await else {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                if guard.is_held() {
                    let mut claims = claims.lock().unwrap();
                    assert!(
                        guard.token().get() > claims.0,
                        "{} follows {}",
                        guard.token(),
                        claims.0
                    );
                    *claims = (guard.token().get(), claims.1 + 1);
                }
                let _ = guard.release().await;
            }
        }));
    }
    for round in 0..20_u64 {
        // Too many kills hide what is wrong: it works in each life.
        let at_start = claims.lock().unwrap().1;
        until("it works", || claims.lock().unwrap().1 >= at_start + 2).await;
        tokio::time::sleep(Duration::from_millis(round * 3)).await;
        let server = server.clone();
        tokio::task::spawn_blocking(move || server.restart())
            .await
            .unwrap();
    }
    let before = claims.lock().unwrap().1;
    until("it works when the kills are over", || {
        claims.lock().unwrap().1 > before + 20
    })
    .await;
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    for worker in workers {
        soon(worker).await.unwrap();
    }
    crate::support::assert_all_expire(&server);
}

/// The power is gone for a moment: the server finds on its disk what it has synced, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn the_power_is_lost() {
    needs!(redis, "cc");
    for (fsync, remembers) in [("always", true), ("no", false)] {
        let disk = Disk::make();
        let lines = ["appendonly yes", &format!("appendfsync {fsync}")];
        let server = Redis::start_with(&disk.command(), &lines);
        let url = server.url() + crate::support::TRUSTED;
        let tokens = power::lose_power(&disk, &url, TTL * 10, remembers, |act| {
            server.kill();
            act(server.dir());
            server.launch();
        })
        .await;
        assert!(tokens.new > tokens.old);
    }
}

/// While the server is away a waiter pauses between its attempts to connect.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_pauses_between_attempts_to_connect() {
    needs!(redis);
    let server = Redis::start(&[]);
    let proxy = Proxy::redis(server.port());
    let (ttl, options) = (TTL * 10, "timeout=3s&restart_guard=off");
    let client = connect(&format!("{}?{options}", server.url_by(proxy.port()))).await;
    let other = connect(&format!("{}?{options}", server.url())).await;
    let holder = take(&other, "x", ttl).await;
    let waiter = start_acquire(client.lock("x").ttl(ttl));
    until("it waits", || crate::support::waiting(&server, "x") == 1).await;
    let before = proxy.connections();
    server.kill();
    // Longer than the waiter's place in the queue lasts.
    tokio::time::sleep(Duration::from_secs(6)).await;
    // After some short ones, a pause lasts an eighth of a second or longer.
    let attempts = proxy.connections() - before;
    assert!(attempts < 150, "{attempts} attempts");
    server.launch();
    let next = soon(waiter).await.unwrap().unwrap();
    soon(next.release()).await.unwrap();
    drop(holder);
}
