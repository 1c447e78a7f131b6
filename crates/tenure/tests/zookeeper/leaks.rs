//! Acquisitions that were given up leave nothing: no node, no watch, no session, no task.

use std::time::{Duration, Instant};

use tenure::Renew;

use crate::support::{
    ROOT, SHARED, client_by, client_of, connect, nodes, soon, start_acquire, take,
    take_and_release, unique, until, url,
};
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::zookeeper::Zookeeper;

const TTL: Duration = Duration::from_secs(20);

/// How many clients have a session, by the server's list of connections. The connection of this request is not counted.
fn connections(server: &Zookeeper) -> usize {
    let lines = server.word("cons");
    lines.lines().filter(|line| line.contains("sid=")).count()
}

/// Each ttl has a session of its own, which ends with the client.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_go_with_the_client() {
    needs!(zookeeper);
    let server = Zookeeper::start(&[]);
    let client = client_of(&server).await;
    let mut guards = Vec::new();
    for seconds in [9, 10, 11] {
        let ttl = Duration::from_secs(seconds);
        guards.push(take(&client, &format!("own{seconds}"), ttl).await);
    }
    assert_eq!(connections(&server), 4);
    client.close().await;
    until("they are free", || {
        (9..12).all(|seconds| nodes(&server, &format!("own{seconds}")).is_empty())
    })
    .await;
    assert!(guards.iter().all(|guard| !guard.is_held()));
    until("no session is left", || connections(&server) == 0).await;
}

/// The client deletes the node of a lease that ran out, gets no reply, and is closed meanwhile: closing does not leave
/// that request to a task that outlives the client and keeps the session open.
#[tokio::test(flavor = "multi_thread")]
async fn closing_ends_a_delete_that_is_under_way() {
    needs!(zookeeper);
    let server = Zookeeper::start(&[]);
    for attempt in 1.. {
        let (took, is_over) = close_during_a_delete(&server, attempt).await;
        if is_over {
            break;
        }
        // After a second `close` waits no longer, which may be the fault or a busy machine: then all of that happens
        // once more.
        let may_be_busy = took >= Duration::from_secs(1) && attempt < 3;
        assert!(may_be_busy, "the session lives on");
    }
}

/// How long closing took, and whether the session is over then.
async fn close_during_a_delete(server: &Zookeeper, attempt: u32) -> (Duration, bool) {
    let names = ["expires", "lasts"].map(|name| format!("{name}{attempt}"));
    let proxy = Proxy::zookeeper(server.port());
    let client = client_by(&proxy).await;
    // Neither is renewed: no other request of this session is sent when the first lease ends.
    let ttl = crate::support::TTL * 2;
    let lock = |name: &str| client.lock(name).ttl(ttl).renew(Renew::Never);
    let expiring = soon(lock(&names[0]).acquire()).await.unwrap();
    until("half of the lease is over", || {
        expiring.remaining() < ttl / 2
    })
    .await;
    let other = soon(lock(&names[1]).acquire()).await.unwrap();
    proxy.plan("release", Fault::NoReply);
    until("the delete has been applied", || proxy.is_done()).await;
    assert!(other.is_held());
    let start = Instant::now();
    soon(client.close()).await;
    let took = start.elapsed();
    let is_over = nodes(server, &names[1]).is_empty();
    proxy.resume();
    (took, is_over)
}

/// The acquisition is given up between the container and its first node: the servers never remove a container that had no
/// child, so the node is made all the same, and deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_is_made_gets_a_node() {
    needs!(zookeeper);
    // With the semaphore the container of `leases` is the fourth one: the name, `locks` and the attempts before.
    for (dialect, containers, dir) in [("curator", 1, ""), ("curator-semaphore", 4, "/leases")] {
        let proxy = Proxy::zookeeper(SHARED.port());
        let other = client_of(&SHARED).await;
        // The containers above those of the name are there.
        take_and_release(&other, &unique("above"), TTL).await;
        let client = connect(&url(proxy.port(), &format!("&dialect={dialect}"))).await;
        let name = unique("unused");
        for _ in 1..containers {
            proxy.plan("parents", Fault::Late(Duration::ZERO));
        }
        proxy.plan("parents", Fault::NoReply);
        let lock = client.lock(&name).ttl(TTL);
        let acquiring = start_acquire(match dialect {
            "curator" => lock,
            _ => lock.permits(2),
        });
        until("the container is made", || proxy.is_done()).await;
        acquiring.abort();
        assert!(soon(acquiring).await.is_err(), "{dialect}: it was granted");
        proxy.take_seen();
        proxy.resume();
        let mut seen = Vec::new();
        let is_left = || {
            seen.extend(proxy.take_seen());
            seen.iter().any(|request| request == "release")
        };
        until("the queue is left", is_left).await;
        // The server counts the children that the directory had.
        let probe = format!("{ROOT}/{name}{dir}/x-");
        let probe = SHARED.session().create(&probe, b"", 3).unwrap();
        assert!(probe.ends_with("x-0000000001"), "{dialect}: {probe}");
        client.close().await;
    }
}
