//! The server throws keys away while it runs: by itself when its memory is full, or by order.

use std::time::Instant;

use tenure::store::Severity;

use crate::support::{
    TTL, assert_all_expire, client_of, keys, owner, soon, start_acquire, take, until,
};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::needs;
use tenure_testkit::redis::Redis;

/// Real eviction: the memory is filled until the keys of the lock are gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_evicted() {
    needs!(redis);
    let server = Redis::start(&["maxmemory 4mb", "maxmemory-policy allkeys-random"]);
    let (first, second) = (client_of(&server).await, client_of(&server).await);
    let findings = soon(first.check()).await.unwrap();
    let bad = findings.iter().find(|finding| {
        finding.severity == Severity::Bad && finding.text.contains("allkeys-random")
    });
    assert!(
        bad.is_some_and(|bad| bad.text.contains("noeviction")),
        "{findings:?}"
    );

    let old = take(&first, "x", TTL * 5).await;
    let filler = "x".repeat(10_000);
    let mut connection = server.connection();
    let start = Instant::now();
    let is_there = |key| server.ask(&["EXISTS", key]).int() == 1;
    for number in 0_u64.. {
        connection
            .ask(&["SET", &format!("filler{number}"), &filler])
            .unwrap();
        if number % 50 == 0 && !is_there("x") && !is_there("tenure:{x}:hold") {
            break;
        }
        assert!(
            start.elapsed() < TEST_TIMEOUT,
            "the keys of the lock are never evicted"
        );
    }
    server.order(&["CONFIG", "SET", "maxmemory", "0"]);
    let next = take(&second, "x", TTL * 5).await;
    assert!(
        next.token() > old.token(),
        "{} follows {}",
        next.token(),
        old.token()
    );
    soon(old.lost()).await;
    assert!(soon(old.release()).await.is_err());
    assert!(next.is_held());
    soon(next.release()).await.unwrap();
}

/// One of the keys is deleted: no client is stuck, tokens grow, and the next client has the lock within the ttl.
#[tokio::test(flavor = "multi_thread")]
async fn one_key_of_a_lock_is_deleted() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (first, second, third) = (
        client_of(&server).await,
        client_of(&server).await,
        client_of(&server).await,
    );
    let mut last = 0;
    for key in ["x", "tenure:{x}:hold", "tenure:{x}:queue"] {
        let holder = take(&first, "x", TTL).await;
        assert!(
            holder.token().get() > last,
            "{} follows {last}",
            holder.token()
        );
        last = holder.token().get();
        let waiter = start_acquire(second.lock("x").ttl(TTL));
        until("it waits", || crate::support::waiting(&server, "x") == 1).await;
        assert_eq!(server.order(&["DEL", key]).int(), 1, "{key}");
        if key != "x" {
            tokio::time::sleep(TTL).await;
            assert!(holder.is_held(), "lost without {key}: {:?}", holder.state());
        }
        let _ = soon(holder.release()).await;
        let guard = tokio::time::timeout(TTL * 2 + TEST_TIMEOUT, waiter).await;
        let guard = guard.expect("its turn comes").unwrap().unwrap();
        assert!(
            guard.token().get() > last,
            "{} follows {last} without {key}",
            guard.token()
        );
        last = guard.token().get();
        assert!(
            soon(third.lock("x").try_acquire()).await.unwrap().is_none(),
            "two hold it"
        );
        soon(guard.release()).await.unwrap();
        until("no client holds the lock", || {
            owner(&server, "x").is_empty()
        })
        .await;
        assert_all_expire(&server);
    }
}

/// All keys are deleted at once, while ten clients hold locks and ten wait.
#[tokio::test(flavor = "multi_thread")]
async fn everything_is_flushed() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (first, second) = (client_of(&server).await, client_of(&server).await);
    let names: Vec<_> = (0..10).map(|number| format!("x{number}")).collect();
    let mut holders = Vec::new();
    let mut waiters = Vec::new();
    for name in &names {
        holders.push(take(&first, name, TTL).await);
        let lock = second.lock(name).ttl(TTL);
        waiters.push(tokio::spawn(async move { lock.acquire().await }));
        until("it waits", || crate::support::waiting(&server, name) == 1).await;
    }
    server.order(&["FLUSHALL"]);
    for (holder, waiter) in holders.into_iter().zip(waiters) {
        let guard = tokio::time::timeout(TTL * 2 + TEST_TIMEOUT, waiter).await;
        let guard = guard.expect("its turn comes").unwrap().unwrap();
        assert!(guard.token() > holder.token());
        soon(holder.lost()).await;
        soon(guard.release()).await.unwrap();
    }
    assert_eq!(keys(&server).len(), names.len(), "{:?}", keys(&server));
    assert_all_expire(&server);
}
