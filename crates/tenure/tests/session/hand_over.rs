//! A lock that passes from task to task of a client, and what the server and the table of holders know of that.

use std::time::{Duration, Instant};

use tenure::{Client, FencingToken, LostReason};
use tenure_testkit::TEST_TIMEOUT;

use crate::common::hand_over::{hold_for_a_moment, pass_on, passed_on, passed_on_with, turns};
use crate::support::{
    Database, TTL, connect, name, on_both, on_both_alone, soon, take, take_and_release, until,
    wait_as,
};

on_both!(tasks_have_tokens_of_their_own_in_turns_that_end a_client_that_waits_has_its_turn reserved_tokens_are_never_granted_again);
on_both_alone!(an_operator_ends_the_hold_by_any_token_of_the_turn a_request_to_let_go_reaches_the_present_holder);

async fn two_clients(database: &dyn Database) -> [Client; 2] {
    [
        connect(&database.url()).await,
        connect(&database.url()).await,
    ]
}

async fn tasks_have_tokens_of_their_own_in_turns_that_end(database: &dyn Database) {
    let [client, other] = two_clients(database).await;
    let name = name("turns");
    let lock = client.lock(&name).ttl(TTL).local_hand_overs(3);
    let start = Instant::now();
    loop {
        let before = take(&other, &name).await;
        let last = before.token().get();
        let holds = pass_on(&lock, before, 20).await;
        assert!(holds.keys().all(|token| *token > last));
        let turns = turns(&holds);
        assert!(turns.iter().all(|tasks| *tasks <= 4), "{turns:?}");
        if turns.iter().any(|tasks| *tasks > 1) {
            break;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "the lock never passes on");
    }
    take_and_release(&other, &name).await;
    assert!(database.holders(&name).is_empty());
}

/// The other client waits in the queue of the server, which knows nothing of the bound.
async fn a_client_that_waits_has_its_turn(database: &dyn Database) {
    let [client, other] = two_clients(database).await;
    let name = name("bound");
    for limit in [0, 1, 3] {
        let lock = client.lock(&name).ttl(TTL).local_hand_overs(limit);
        let before = take(&client, &name).await;
        let first = tokio::spawn(hold_for_a_moment(lock.clone()));
        until("the task waits", || database.waiters(&name).len() == 1).await;
        let many: Vec<_> = (0..20)
            .map(|_| tokio::spawn(hold_for_a_moment(lock.clone())))
            .collect();
        let other = wait_as(database, &other, &name, 2).await;
        soon(before.release()).await.unwrap();
        let other = soon(other).await.unwrap().unwrap();
        let token = other.token().get();
        soon(other.release()).await.unwrap();
        let mut before_other = u32::from(soon(first).await.unwrap().0 < token);
        for task in many {
            before_other += u32::from(soon(task).await.unwrap().0 < token);
        }
        assert!(
            (1..=limit + 1).contains(&before_other),
            "{before_other} tasks at a limit of {limit}"
        );
    }
}

/// The session ends in the middle of a turn. PostgreSQL is asked for 200 tokens more than once.
async fn reserved_tokens_are_never_granted_again(database: &dyn Database) {
    let [client, other] = two_clients(database).await;
    let name = name("reserved");
    for limit in [1, 32, 200] {
        let lock = client.lock(&name).ttl(TTL).local_hand_overs(limit);
        let (first, guard) = passed_on_with(&lock).await;
        assert!(guard.token().get() > first);
        database.end(database.holders(&name)[0]);
        assert_eq!(soon(guard.lost()).await, Some(LostReason::SessionGone));
        assert!(soon(guard.release()).await.unwrap_err().is_lost());
        until("the lock is free", || database.holders(&name).is_empty()).await;
        let next = take(&other, &name).await;
        let last = first + u64::from(limit);
        assert!(next.token().get() > last, "{} follows {last}", next.token());
        soon(next.release()).await.unwrap();
    }
}

/// The token that operators see, when the row says that tokens are reserved.
async fn shown_token(client: &Client, name: &str, first: u64) -> FencingToken {
    let start = Instant::now();
    loop {
        let status = soon(client.inspect(name)).await.unwrap();
        assert_eq!(status.holds[0].holder.pid, std::process::id());
        let shown = status.holds[0].token.unwrap();
        if shown.get() > first {
            return shown;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "the row is not written");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn an_operator_ends_the_hold_by_any_token_of_the_turn(database: &dyn Database) {
    let [client, other] = two_clients(database).await;
    soon(client.init()).await.unwrap();
    soon(other.init()).await.unwrap();
    let name = name("break");
    for which in ["the first", "that of the holder", "the shown one"] {
        let (first, guard) = passed_on(&client, &name).await;
        let shown = shown_token(&other, &name, first).await;
        assert_eq!(shown.get(), first + 32);
        for wrong in [first - 1, shown.get() + 1] {
            let broken = other.break_lock(&name, FencingToken::new(wrong));
            assert!(!soon(broken).await.unwrap(), "{wrong}");
        }
        let token = match which {
            "the first" => FencingToken::new(first),
            "that of the holder" => guard.token(),
            _ => shown,
        };
        let broken = other.break_lock(&name, token);
        assert!(soon(broken).await.unwrap(), "{which}");
        assert_eq!(soon(guard.lost()).await, Some(LostReason::TakenOver));
        assert!(database.holders(&name).is_empty());
    }
}

async fn a_request_to_let_go_reaches_the_present_holder(database: &dyn Database) {
    let [client, other] = two_clients(database).await;
    soon(client.init()).await.unwrap();
    soon(other.init()).await.unwrap();
    let name = name("ask");
    let (first, guard) = passed_on(&client, &name).await;
    shown_token(&other, &name, first).await;
    let asked = tokio::spawn(guard.asked_to_release());
    let holder = soon(other.election(&name).ask_to_resign()).await.unwrap();
    assert!(holder.is_some());
    assert!(soon(asked).await.unwrap(), "the hold has ended");
    soon(guard.release()).await.unwrap();
}
