//! A lock that passes from task to task of a client, and what the row says of that.

use std::time::Instant;

use tenure::FencingToken;
use tenure_testkit::TEST_TIMEOUT;

use crate::common::hand_over::{pass_on, passed_on, turns};
use crate::support::{TTL, connect, name, shared, soon, take, until};

#[tokio::test(flavor = "multi_thread")]
async fn tasks_have_tokens_of_their_own_in_turns_that_end() {
    for db in shared().await {
        let (client, other) = (connect(&db.url()).await, connect(&db.url()).await);
        let name = name("turns");
        let lock = client.lock(&name).ttl(TTL * 4).local_hand_overs(3);
        let start = Instant::now();
        loop {
            let before = take(&other, &name, TTL * 4).await;
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
        let next = take(&other, &name, TTL).await;
        soon(next.release()).await.unwrap();
        assert_eq!(db.owner(&name), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_ends_the_hold_by_any_token_of_the_turn() {
    for db in shared().await {
        let (client, other) = (connect(&db.url()).await, connect(&db.url()).await);
        let name = name("break");
        for which in ["the first", "that of the holder", "the shown one"] {
            let (first, guard) = passed_on(&client, &name).await;
            let status = soon(other.inspect(&name)).await.unwrap();
            let shown = status.holds[0].token.unwrap();
            assert!(shown >= guard.token() && guard.token().get() > first);
            assert_eq!(status.holds[0].holder.pid, std::process::id());
            for wrong in [first - 1, shown.get() + 1] {
                let token = FencingToken::new(wrong);
                assert!(
                    !soon(other.break_lock(&name, token)).await.unwrap(),
                    "{wrong}"
                );
            }
            let token = match which {
                "the first" => FencingToken::new(first),
                "that of the holder" => guard.token(),
                _ => shown,
            };
            assert!(
                soon(other.break_lock(&name, token)).await.unwrap(),
                "{which}"
            );
            until("the hold is over", || db.owner(&name).is_empty()).await;
            assert!(soon(guard.release()).await.unwrap_err().is_lost());
        }
    }
}

/// The row keeps its holder and its token, and a holder of another client comes after all of them.
#[tokio::test(flavor = "multi_thread")]
async fn reserved_tokens_are_never_granted_again() {
    for db in shared().await {
        let (client, other) = (connect(&db.url()).await, connect(&db.url()).await);
        let name = name("reserved");
        let (_, guard) = passed_on(&client, &name).await;
        let shown = soon(other.inspect(&name)).await.unwrap().holds[0].token;
        // As if the hold had ended, and tokens were no times.
        let far = 1_u64 << 60;
        db.rows(&format!(
            "UPDATE tenure_locks SET token={far},until=0 WHERE name='{name}'"
        ));
        let next = take(&other, &name, TTL).await;
        assert_eq!(next.token().get(), far + 1);
        assert!(Some(next.token()) > shown);
        assert!(soon(guard.release()).await.unwrap_err().is_lost());
        soon(next.release()).await.unwrap();
    }
}
