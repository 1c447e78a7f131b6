//! Members that are silent, cut off from their clients, or without power.

use std::time::Duration;

use crate::common::power;
use crate::support::{
    LONG, connect, soon, take, take_and_release, until, until_renewed, wait_behind,
};
use tenure_testkit::disk::Disk;
use tenure_testkit::etcd::Etcd;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Proxy};

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

/// After a power loss the member finds on its disk only what it has synced.
#[tokio::test(flavor = "multi_thread")]
async fn the_power_is_lost() {
    needs!(etcd, tracer);
    for (careless, remembers) in [("false", true), ("true", false)] {
        let disk = Disk::make();
        let setting = format!("--unsafe-no-fsync={careless}");
        let etcd = Etcd::start_after(&disk.traced_command(), 1, &[&setting]);
        let member = &etcd.members[0];
        power::lose_power(&disk, &etcd.url(), LONG * 4, remembers, |act| {
            member.kill();
            act(member.dir());
            member.start();
            etcd.until_ready();
        })
        .await;
    }
}
