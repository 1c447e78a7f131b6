//! `redlock:` elections over real servers, of which one is killed, stopped or emptied.

use std::time::Duration;

use tenure::{Client, Leader, Observer};

use crate::common::answered;
use crate::support::{TRUSTED, TTL, connect, keys, soon, until};
use tenure_testkit::needs;
use tenure_testkit::redis::{Redis, independent, redlock_url};

/// A lease that lasts for the whole test, in a tenth of which each server answers.
const UNHURRIED: Duration = Duration::from_secs(40);

async fn client_of(servers: &[Redis]) -> Client {
    connect(&format!("{}{TRUSTED}", redlock_url(servers))).await
}

/// Passes over what the observer sees until the leader has this value.
async fn until_seen(observer: &mut Observer, value: Option<&str>) {
    let seeing = async {
        loop {
            let item = observer.next().await.expect("the stream goes on");
            if let Ok(leader) = item
                && leader.as_ref().and_then(Leader::value) == value
            {
                return;
            }
        }
    };
    soon(seeing).await;
}

fn subscribers(server: &Redis) -> i64 {
    let count = ["PUBSUB", "NUMSUB", "tenure:{x}:leader"];
    server.ask(&count).items()[1].int()
}

fn hold(server: &Redis) -> String {
    server.ask(&["GET", "tenure:{x}:hold"]).text()
}

#[tokio::test(flavor = "multi_thread")]
async fn observers_see_what_a_majority_has() {
    needs!(redis);
    let servers = independent(3);
    let (leader, outsider) = (client_of(&servers).await, client_of(&servers).await);
    let mut observers: Vec<_> = (0..3).map(|_| outsider.election("x").observe()).collect();
    for observer in &mut observers {
        until_seen(observer, None).await;
    }
    let election = leader.election("x").ttl(UNHURRIED);
    let term = soon(election.clone().value("first").campaign())
        .await
        .unwrap();
    for observer in &mut observers {
        until_seen(observer, Some("first")).await;
    }
    let shown = soon(outsider.election("x").leader())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(shown.token, Some(term.token()));
    // One of three may fail.
    servers[0].kill();
    answered(async || term.proclaim("second").await).await;
    for observer in &mut observers {
        until_seen(observer, Some("second")).await;
    }
    assert!(
        soon(outsider.election("x").ask_to_resign())
            .await
            .unwrap()
            .is_some()
    );
    assert!(soon(term.asked_to_resign()).await);
    soon(term.resign()).await.unwrap();
    for observer in &mut observers {
        until_seen(observer, None).await;
    }
    // And comes back.
    servers[0].launch();
    let term = soon(election.value("third").campaign()).await.unwrap();
    for observer in &mut observers {
        until_seen(observer, Some("third")).await;
    }
    // An observer works only while it is polled.
    tokio::select! {
        () = until("it is observed again", || subscribers(&servers[0]) == 1) => {}
        () = async { while observers[0].next().await.is_some() {} } => panic!("the stream ends"),
    }
    soon(term.resign()).await.unwrap();
    for observer in &mut observers {
        until_seen(observer, None).await;
    }
    drop(observers);
    for server in &servers {
        until("no subscription is left", || subscribers(server) == 0).await;
        until("no key is left", || {
            keys(server).iter().all(|key| key == "tenure:{x}:hold")
        })
        .await;
    }
}

/// A renewal restores the hold with the value of now.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgot_the_leader_gets_its_last_value() {
    needs!(redis);
    let servers = independent(3);
    let client = client_of(&servers).await;
    let election = client.election("x").ttl(TTL).value("first");
    let term = answered(async || election.campaign().await).await;
    answered(async || term.proclaim("second").await).await;
    until("all have it", || {
        servers.iter().all(|server| hold(server).contains("second"))
    })
    .await;
    servers[1].order(&["FLUSHALL"]);
    until("it has the hold again", || {
        hold(&servers[1]).contains("second")
    })
    .await;
    let leader = soon(client.election("x").leader()).await.unwrap().unwrap();
    assert_eq!(
        (leader.token, leader.value()),
        (Some(term.token()), Some("second"))
    );
    soon(term.resign()).await.unwrap();
}

/// Candidates queue on each server, and each server hands over in its own order.
#[tokio::test(flavor = "multi_thread")]
async fn candidates_follow_each_other_and_observers_go_forward() {
    needs!(redis);
    let servers = independent(3);
    let outsider = client_of(&servers).await;
    let mut observer = outsider.election("x").observe();
    let mut tasks = Vec::new();
    for number in 0..3 {
        let client = client_of(&servers).await;
        tasks.push(tokio::spawn(async move {
            let mut last = 0;
            for turn in 0..5 {
                let value = format!("{number}-{turn}");
                let election = client.election("x").ttl(UNHURRIED).value(value);
                let term = loop {
                    match soon(election.campaign()).await {
                        Err(err) if err.is_retryable() => {}
                        elected => break elected.unwrap(),
                    }
                };
                assert!(term.token().get() > last);
                last = term.token().get();
                let _ = term.resign().await;
            }
            last
        }));
    }
    let mut last = 0;
    for task in tasks {
        last = last.max(soon(task).await.unwrap());
    }
    // The last term may have been too short to be seen.
    let election = outsider.election("x").ttl(UNHURRIED).value("last");
    let term = soon(election.campaign()).await.unwrap();
    assert!(term.token().get() > last);
    let mut before = 0;
    let watching = async {
        while before < term.token().get() {
            let item = observer.next().await.expect("the stream goes on").unwrap();
            if let Some(token) = item.and_then(|leader| leader.token) {
                assert!(token.get() > before, "{token} after {before}");
                before = token.get();
            }
        }
    };
    soon(watching).await;
    assert_eq!(before, term.token().get());
    soon(term.resign()).await.unwrap();
}
