//! A lock that passes from task to task of a client, and what the server knows of that.

use std::sync::Arc;
use std::time::Instant;

use tenure::{Client, Guard, Lock, LostReason};

use crate::common::hand_over::{hold_for_a_moment, pass_on, passed_on, turns};
use crate::steps::{FAULTS, Site};
use crate::support::{
    TRUSTED, TTL, assert_all_expire, client_of, connect, owner, soon, take, until, waiting,
};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::clock::Clock;
use tenure_testkit::needs;
use tenure_testkit::redis::Redis;

/// Acquires once, after errors that may be retried.
async fn acquire_after_faults(lock: Lock) -> Guard {
    let start = Instant::now();
    loop {
        match soon(lock.acquire()).await {
            Ok(guard) => return guard,
            Err(err) => assert!(
                err.is_retryable() && start.elapsed() < TEST_TIMEOUT,
                "{err}"
            ),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_have_tokens_of_their_own_and_few_requests() {
    needs!(redis);
    let site = Site::new().await;
    let lock = site.client.lock("x").ttl(TTL * 4);
    let start = Instant::now();
    loop {
        let before = take(&site.other, "x", TTL * 4).await;
        let last = before.token().get();
        let requests = site.proxy.requests();
        let holds = pass_on(&lock, before, 40).await;
        let requests = site.proxy.requests() - requests;
        assert!(holds.keys().all(|token| *token > last));
        let turns = turns(&holds);
        assert!(turns.iter().all(|tasks| *tasks <= 33), "{turns:?}");
        // One by one they would be 80.
        if requests < 40 {
            break;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "{requests} requests");
    }
    assert_eq!(owner(&site.server, "x"), "");
    assert_all_expire(&site.server);
}

/// The bound holds between processes: the server knows nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_waits_has_its_turn() {
    needs!(redis);
    let server = Redis::start(&[]);
    let clients = [client_of(&server).await, client_of(&server).await];
    let lock = |client: &Client, limit| client.lock("x").ttl(TTL * 4).local_hand_overs(limit);
    for limit in [0, 1, 3] {
        let before = take(&clients[0], "x", TTL * 4).await;
        let first = tokio::spawn(hold_for_a_moment(lock(&clients[0], limit)));
        until("the task waits", || waiting(&server, "x") == 1).await;
        let many: Vec<_> = (0..20)
            .map(|_| tokio::spawn(hold_for_a_moment(lock(&clients[0], limit))))
            .collect();
        let other = tokio::spawn(hold_for_a_moment(lock(&clients[1], limit)));
        until("the other client waits", || waiting(&server, "x") == 2).await;
        soon(before.release()).await.unwrap();
        let (other, _) = soon(other).await.unwrap();
        let mut before_other = u32::from(soon(first).await.unwrap().0 < other);
        for task in many {
            before_other += u32::from(soon(task).await.unwrap().0 < other);
        }
        assert!(
            (1..=limit + 1).contains(&before_other),
            "{before_other} tasks at a limit of {limit}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_ends_the_hold_by_any_token_of_the_turn() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (client, other) = (client_of(&server).await, client_of(&server).await);
    for which in ["the first", "that of the holder", "the shown one"] {
        let (first, guard) = passed_on(&client, "x").await;
        let status = soon(other.inspect("x")).await.unwrap();
        let shown = status.holds[0].token.unwrap();
        assert!(shown >= guard.token() && guard.token().get() > first);
        assert_eq!(status.holds[0].holder.pid, std::process::id());
        for wrong in [first - 1, shown.get() + 1] {
            let token = tenure::FencingToken::new(wrong);
            assert!(
                !soon(other.break_lock("x", token)).await.unwrap(),
                "{wrong}"
            );
        }
        let token = match which {
            "the first" => tenure::FencingToken::new(first),
            "that of the holder" => guard.token(),
            _ => shown,
        };
        assert!(soon(other.break_lock("x", token)).await.unwrap(), "{which}");
        assert_eq!(soon(guard.lost()).await, Some(LostReason::TakenOver));
        assert_eq!(owner(&server, "x"), "");
    }
}

/// The client ends in the middle of a turn, and the server's clock, from which tokens are made, was set back.
#[tokio::test(flavor = "multi_thread")]
async fn reserved_tokens_are_never_granted_again() {
    needs!(redis, "cc");
    let clock = Clock::make();
    let server = Redis::start_with_clock(&clock, &[]);
    let url = format!("{}{TRUSTED}", server.url());
    let (client, other) = (connect(&url).await, connect(&url).await);
    let (_, guard) = passed_on(&client, "x").await;
    let status = soon(other.inspect("x")).await.unwrap();
    let shown = status.holds[0].token.unwrap();
    clock.set(-3_600);
    server.order(&["DEL", "x"]);
    let next = take(&other, "x", TTL).await;
    assert_eq!(next.token().get(), shown.get() + 1);
    assert!(soon(guard.release()).await.unwrap_err().is_lost());
    soon(next.release()).await.unwrap();
}

/// A hold that is detached in the middle of a turn is attached under its receipt.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_has_passed_on_can_be_detached() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (client, other) = (client_of(&server).await, client_of(&server).await);
    let (first, guard) = passed_on(&client, "x").await;
    let token = guard.token();
    let receipt = soon(guard.detach()).await.unwrap();
    client.close().await;
    let guard = soon(other.attach(&receipt)).await.unwrap();
    assert_eq!(guard.token(), token);
    let first = tenure::FencingToken::new(first);
    assert!(soon(other.break_lock("x", first)).await.unwrap());
    assert_eq!(soon(guard.lost()).await, Some(LostReason::TakenOver));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_goes_wrong() {
    needs!(redis);
    let server = Arc::new(Redis::start(&[]));
    for (i, (fault, _)) in FAULTS.iter().enumerate() {
        let site = Site::for_fault(&server, fault).await;
        let name = format!("reserve{i}");
        let start = Instant::now();
        site.proxy.plan("reserve", fault.clone());
        // On a slow machine the time of a turn may be over before the request.
        while !site.proxy.is_done() {
            assert!(start.elapsed() < TEST_TIMEOUT, "no tokens are reserved");
            let before = site.take(&site.client, &name, TTL * 4).await;
            let lock = site.client.lock(&name).ttl(TTL * 4);
            let tasks = [(); 3].map(|()| tokio::spawn(acquire_after_faults(lock.clone())));
            tokio::task::yield_now().await;
            let mut last = before.token();
            site.release(before).await;
            let mut tasks = Vec::from(tasks);
            while !tasks.is_empty() {
                let (guard, _, rest) = soon(futures_util::future::select_all(tasks)).await;
                let guard = guard.unwrap();
                assert!(guard.token() > last, "{} follows {last}", guard.token());
                last = guard.token();
                // The release may meet the consequences of the fault; the client goes on to release the lock.
                if let Err(err) = soon(guard.release()).await {
                    assert!(err.is_retryable(), "after {fault:?}: {err}");
                }
                tasks = rest;
            }
        }
        site.proxy.resume();
        let token = site.next_one(&site.client, &name, 0).await;
        site.next_one(&site.other, &name, token).await;
        site.settles(&name).await;
    }
}
