//! The server, or something in front of it, closes the connection of a holder (FIN).

use std::time::{Duration, Instant};

use tenure::Client;
use tenure_testkit::process::Port;
use tenure_testkit::proxy::Proxy;

use super::{soon, start_acquire, take, until, until_renewed};

/// A holder by way of a proxy, and a waiter with a connection of its own.
pub(crate) struct Contenders<'a> {
    pub(crate) proxy: &'a Proxy,
    pub(crate) holder: Client,
    pub(crate) waiter: Client,
    /// How many clients hold `x` or wait for `x`, as the server knows.
    pub(crate) count: &'a dyn Fn() -> usize,
}

/// The client connects again, and the hold goes on. `ttl`: longer than the machine may be busy with other things.
pub(crate) async fn a_hold_outlives_its_connection(all: Contenders<'_>, ttl: Duration) {
    let guard = take(&all.holder, "x", ttl).await;
    let waiting = start_acquire(all.waiter.lock("x").ttl(ttl));
    until("it waits", || (all.count)() == 2).await;
    for _ in 0..2 {
        let connections = all.proxy.connections();
        all.proxy.cut();
        until("the client connects again", || {
            all.proxy.connections() > connections
        })
        .await;
        until_renewed(&guard).await;
        assert!(guard.is_held() && !waiting.is_finished());
    }
    let token = guard.token();
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    soon(next.release()).await.unwrap();
}

/// No new connection is to be had: the hold ends for its holder before the next one begins.
pub(crate) async fn a_hold_without_a_connection_ends_before_the_next_begins(
    all: Contenders<'_>,
    ttl: Duration,
) {
    let guard = take(&all.holder, "x", ttl).await;
    let waiting = start_acquire(all.waiter.lock("x").ttl(ttl));
    until("it waits", || (all.count)() == 2).await;
    let nowhere = Port::reserve();
    all.proxy.redirect(nowhere.number());
    all.proxy.cut();
    let start = Instant::now();
    let lost = async {
        let reason = soon(guard.lost()).await;
        (start.elapsed(), reason)
    };
    let granted = async {
        let next = soon(waiting).await.unwrap().unwrap();
        let both = guard.is_held();
        (start.elapsed(), next, both)
    };
    let ((lost, reason), (granted, next, both)) = tokio::join!(lost, granted);
    println!("ttl {ttl:?}: lost after {lost:?}, granted after {granted:?}");
    assert!(reason.is_some() && !both, "two hold it");
    assert!(next.token() > guard.token());
    soon(next.release()).await.unwrap();
}

/// Each of these is a test. `start` calls a function with the contenders.
#[allow(unused_macros, reason = "not every program has such contenders")]
macro_rules! on_a_closed_connection {
    ($with:ident) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn a_hold_outlives_its_connection() {
            $with(async |all, ttl| {
                $crate::common::closed::a_hold_outlives_its_connection(all, ttl * 2).await;
            })
            .await;
        }

        #[tokio::test(flavor = "multi_thread")]
        async fn a_hold_without_a_connection_ends_before_the_next_begins() {
            $with(async |all, ttl| {
                $crate::common::closed::a_hold_without_a_connection_ends_before_the_next_begins(
                    all, ttl,
                )
                .await;
            })
            .await;
        }
    };
}
#[allow(unused_imports, reason = "likewise")]
pub(crate) use on_a_closed_connection;
