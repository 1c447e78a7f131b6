//! Three members, some of which are killed, stopped, cut off or started again.

use std::time::Duration;

use tenure::{Client, ErrorKind, Guard, LostReason};

use crate::common::power;
use crate::support::{
    LONG, TTL, assert_says, connect, soon, start_acquire, take, take_and_release, until,
    until_renewed, wait_behind,
};
use tenure_testkit::disk::Disk;
use tenure_testkit::etcd::Etcd;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Proxy};

/// Longer than a leader is stopped. A leader that goes on after a whole ttl ends leases that its successor has kept
/// alive, in versions that `tenure check` warns of (etcd-io/etcd#15247).
const LONGER_THAN_A_STOP: Duration = Duration::from_secs(30);

async fn client(etcd: &Etcd) -> Client {
    connect(&etcd.url()).await
}

/// Acquires, and tries again after each error that allows that.
async fn acquire(client: &Client, name: &str) -> Guard {
    let lock = client.lock(name).ttl(LONGER_THAN_A_STOP);
    loop {
        match soon(lock.acquire()).await {
            Ok(guard) => return guard,
            Err(err) => assert!(err.is_retryable(), "{err}"),
        }
    }
}

/// A name that is free can be acquired, and a name that is held cannot.
async fn assert_works(etcd: &Etcd, held: &Guard) {
    let client = loop {
        match soon(tenure::connect(&etcd.url())).await {
            Ok(client) => break client,
            Err(err) => assert!(err.is_retryable(), "{err}"),
        }
    };
    soon(acquire(&client, "after").await.release())
        .await
        .unwrap();
    let lock = client.lock(held.name()).ttl(LONG);
    assert!(
        soon(lock.try_acquire()).await.unwrap().is_none(),
        "two clients hold the lock"
    );
}

/// One client holds, one waits, one acquires again and again. What `act` does to the leader costs none of them its lock
/// or its place.
async fn survives(act: impl Fn(&Etcd, usize), undo: impl Fn(&Etcd, usize)) {
    let etcd = Etcd::start(3, &[]);
    let (first, second, third) = (
        client(&etcd).await,
        client(&etcd).await,
        client(&etcd).await,
    );
    let mut guard = take(&first, "x", LONGER_THAN_A_STOP).await;
    for round in 0..2 {
        // A lease that is shorter than the stop is revoked by the old leader of an etcd before 3.4.32 and 3.5.14,
        // although it was renewed at the new leader (etcd-io/etcd#15247).
        let waiting = start_acquire(second.lock("x").ttl(LONGER_THAN_A_STOP));
        until("the second client waits", || etcd.keys("x/").len() == 2).await;
        let lock = third.lock(format!("busy-{round}")).ttl(LONGER_THAN_A_STOP);
        let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
        let acquiring = tokio::spawn(async move {
            let (mut has_held, mut is_over) = (false, false);
            while !(has_held && is_over) {
                is_over |= stopped.try_recv().is_ok();
                let outcome = lock.acquire().await;
                // The outcome may be unknown; a grant is never wrong.
                if let Ok(guard) = outcome {
                    let _ = guard.release().await;
                    has_held = true;
                }
            }
        });
        let leader = etcd.leader();
        act(&etcd, leader);
        assert_works(&etcd, &guard).await;
        assert!(guard.is_held(), "lost with the leader");
        assert!(!waiting.is_finished(), "two clients hold the lock");
        let token = guard.token();
        soon(guard.release()).await.unwrap();
        guard = soon(waiting).await.unwrap().unwrap();
        assert!(guard.token() > token);
        stop.send(()).unwrap();
        soon(acquiring).await.unwrap();
        undo(&etcd, leader);
        etcd.until_ready();
        soon(guard.release()).await.unwrap();
        guard = acquire(&first, "x").await;
    }
    soon(guard.release()).await.unwrap();
    // Keys of requests of unknown outcome are deleted with their leases.
    for client in [first, second, third] {
        soon(client.close()).await;
    }
    until("nothing is left", || etcd.keys("").is_empty()).await;
}

/// A member that is silent in a keep-alive leaves time for the next member.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_keep_alive_leaves_time_for_the_next_member() {
    needs!(etcd);
    /// The first keep-alive is sent after a third of that. The time limit of a request would take the rest.
    const LEASE: Duration = Duration::from_secs(24);
    let etcd = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    // Two members for the client.
    let url = etcd.url_by(&[proxy.address(), proxy.address()]);
    let client = connect(&format!("{url}?timeout=18s")).await;
    let guard = take(&client, "x", LEASE).await;
    proxy.plan("keep-alive", Fault::NoReply);
    until("the keep-alive got no reply", || proxy.is_done()).await;
    until_renewed(&guard).await;
    assert!(guard.is_held());
    soon(guard.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_is_killed() {
    needs!(etcd);
    survives(
        |etcd, leader| etcd.members[leader].kill(),
        |etcd, leader| etcd.members[leader].start(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_is_stopped() {
    needs!(etcd);
    survives(
        |etcd, leader| etcd.members[leader].stop(),
        |etcd, leader| etcd.members[leader].resume(),
    )
    .await;
}

/// Each of them is, in its turn, the member that the clients use.
#[tokio::test(flavor = "multi_thread")]
async fn each_member_in_turn_is_cut_off_from_the_clients() {
    needs!(etcd);
    let etcd = Etcd::start(3, &[]);
    let ports = etcd.members.iter().map(|member| member.port());
    let relays: Vec<_> = ports.map(Proxy::tcp).collect();
    let addresses: Vec<_> = relays.iter().map(Proxy::address).collect();
    let url = format!("{}?timeout=1s", etcd.url_by(&addresses));
    let (first, second) = (connect(&url).await, connect(&url).await);
    let guard = take(&first, "x", LONG).await;
    for relay in &relays {
        let waiting = wait_behind(&etcd, &second, "x", 1).await;
        relay.hold_both(true);
        until_renewed(&guard).await;
        take_and_release(&first, "y", LONG).await;
        waiting.abort();
        until("the waiter leaves", || etcd.keys("x/").len() == 1).await;
        relay.hold_both(false);
    }
    assert!(guard.is_held());
    soon(guard.release()).await.unwrap();
}

/// Without a majority nothing is granted and nothing is renewed; when there is a majority again, both go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_majority_is_away() {
    needs!(etcd);
    let etcd = Etcd::start(3, &[]);
    let (first, second) = (client(&etcd).await, client(&etcd).await);
    let guard = take(&first, "x", TTL).await;
    for member in &etcd.members[1..] {
        member.stop();
    }
    let lock = second.lock("y").ttl(TTL);
    let outcome = soon(lock.try_acquire()).await;
    let kind = outcome.map(|_| ()).map_err(|err| err.kind());
    assert!(
        matches!(kind, Err(ErrorKind::Unreachable | ErrorKind::Indeterminate)),
        "{kind:?}"
    );
    assert_eq!(soon(guard.lost()).await, Some(LostReason::Expired));
    // A member that is alone refuses with one line.
    let alone = format!("{}?timeout=1s", etcd.url_by(&[etcd.members[0].address()]));
    until("the member knows that it is alone", || {
        etcd.leader_of(&etcd.members[0]) == 0
    })
    .await;
    assert_says(
        soon(tenure::connect(&alone)).await,
        ErrorKind::Unreachable,
        &["no leader"],
    );
    for member in &etcd.members[1..] {
        member.resume();
    }
    etcd.until_ready();
    drop(guard);
    let next = soon(second.lock("x").ttl(TTL).acquire()).await.unwrap();
    soon(next.release()).await.unwrap();
    soon(soon(lock.acquire()).await.unwrap().release())
        .await
        .unwrap();
}

/// Locks are on disk; a waiter keeps its place.
#[tokio::test(flavor = "multi_thread")]
async fn all_members_are_started_again() {
    needs!(etcd);
    let etcd = Etcd::start(3, &[]);
    let (first, second) = (client(&etcd).await, client(&etcd).await);
    let guard = take(&first, "x", LONG * 2).await;
    let waiting = wait_behind(&etcd, &second, "x", 1).await;
    let before = etcd.keys("x/");
    etcd.members.iter().for_each(|member| member.kill());
    etcd.members.iter().for_each(|member| member.start());
    etcd.until_ready();
    assert_works(&etcd, &guard).await;
    assert!(guard.is_held());
    let created = |keys: &[tenure_testkit::etcd::Key]| -> Vec<u64> {
        keys.iter().map(|key| key.created).collect()
    };
    assert_eq!(created(&etcd.keys("x/"))[0], created(&before)[0]);
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(next.token().get() >= created(&before)[1]);
    soon(next.release()).await.unwrap();
}

/// After a power loss the member finds on its disk only what it has synced.
#[tokio::test(flavor = "multi_thread")]
async fn the_power_is_lost() {
    needs!(etcd, tracer);
    for (careless, remembers) in [("false", true), ("true", false)] {
        let disk = Disk::make();
        let setting = format!("--unsafe-no-fsync={careless}");
        let etcd = Etcd::start_after(&disk.traced_command(), 1, &[&setting]);
        let member = &etcd.members[0];
        power::lose_power(&disk, &etcd.url(), LONGER_THAN_A_STOP, remembers, |act| {
            member.kill();
            act(member.dir());
            member.start();
            etcd.until_ready();
        })
        .await;
    }
}
