//! Many who give up leave nothing: no node, no watch, no session, no task.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::support::{ROOT, client_of, nodes, soon, take, until};
use tenure_testkit::zookeeper::{self, Zookeeper};

const TTL: Duration = Duration::from_secs(20);

/// Sessions of clients, by the server's count of connections; ours for looking not counted.
fn connections(server: &Zookeeper) -> usize {
    let lines = server.word("cons");
    lines.lines().filter(|line| line.contains("sid=")).count()
}

/// Paths on which somebody has a watch.
fn watched(server: &Zookeeper) -> usize {
    let lines = server.word("wchp");
    lines.lines().filter(|line| line.starts_with('/')).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_tries_and_dropped_acquires() {
    if zookeeper::skip_unless_installed() {
        return;
    }
    let server = Zookeeper::start(&[]);
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    let (client, other) = (client_of(&server).await, client_of(&server).await);
    let holder = take(&other, "held", TTL).await;
    for _ in 0..300 {
        let tried = soon(client.lock("held").ttl(TTL).try_acquire()).await;
        assert!(tried.unwrap().is_none());
    }
    assert_eq!(nodes(&server, "held").len(), 1);
    for number in 0..1_000_u32 {
        let name = match number % 4 {
            0 => "held".to_owned(),
            _ => format!("free{}", number % 23),
        };
        let lock = client.lock(&name).ttl(TTL);
        let mut acquire = pin!(lock.acquire());
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..number % 5 {
            if let Poll::Ready(guard) = acquire.as_mut().poll(&mut cx) {
                drop(guard.unwrap());
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    until("nothing is held, nobody waits", || {
        let mut wire = server.session();
        let all = wire.children(ROOT);
        let left: usize = all
            .iter()
            .map(|name| wire.children(&format!("{ROOT}/{name}")).len())
            .sum();
        left == 1
    })
    .await;
    assert!(holder.is_held());
    soon(holder.release()).await.unwrap();
    // One per directory that is remembered, at most.
    until("no watch but those on directories", || {
        watched(&server) <= 25
    })
    .await;
    client.close().await;
    other.close().await;
    drop((client, other));
    until("no session is left", || connections(&server) == 0).await;
    assert_eq!(watched(&server), 0);
    until("no task is left", || tasks() == before).await;
}

/// A ttl of its own has a session of its own, which goes with the client.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_go_with_the_client() {
    if zookeeper::skip_unless_installed() {
        return;
    }
    let server = Zookeeper::start(&[]);
    let client = client_of(&server).await;
    let mut guards = Vec::new();
    for seconds in [6, 7, 8] {
        let ttl = Duration::from_secs(seconds);
        guards.push(take(&client, &format!("own{seconds}"), ttl).await);
    }
    assert_eq!(connections(&server), 4);
    client.close().await;
    until("they are free", || {
        (6..9).all(|seconds| nodes(&server, &format!("own{seconds}")).is_empty())
    })
    .await;
    assert!(guards.iter().all(|guard| !guard.is_held()));
    until("no session is left", || connections(&server) == 0).await;
}
