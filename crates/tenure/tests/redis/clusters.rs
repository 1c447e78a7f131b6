//! Slots that move, masters that die.

use std::time::{Duration, Instant};

use tenure::{ErrorKind, Guard};

use crate::support::{
    TTL, assert_all_expire, assert_clear, assert_says, connect, owner, soon, start_acquire, take,
    take_and_release, until, until_renewed,
};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::needs;
use tenure_testkit::redis::{Cluster, Redis};

fn url(cluster: &Cluster) -> String {
    format!("{}?timeout=3s&restart_guard=off", cluster.url())
}

/// Longer than a failover takes, and that twice.
const LONG: Duration = Duration::from_secs(24);

/// Names in many slots are held and renewed together, though no script may touch two slots.
#[tokio::test(flavor = "multi_thread")]
async fn locks_of_all_slots_are_renewed() {
    needs!(redis);
    let cluster = Cluster::start(false);
    let client = connect(&url(&cluster)).await;
    let mut names: Vec<_> = (0..60).map(|number| format!("x{number}")).collect();
    names.extend(["{tag}a", "{tag}b", "a{}b", "a}b{", "tenure:{x}:hold"].map(String::from));
    // The process may stand still for some seconds, and the lease lasts.
    let ttl = TTL * 3 / 2;
    let mut guards = Vec::new();
    for name in &names {
        guards.push(take(&client, name, ttl).await);
    }
    let start = Instant::now();
    while start.elapsed() < TTL * 2 {
        for guard in &guards {
            assert!(guard.is_held(), "{}: {:?}", guard.name(), guard.state());
        }
        tokio::time::sleep(TTL / 20).await;
    }
    for master in cluster.masters() {
        assert!(
            !crate::support::keys(master).is_empty(),
            "a master has nothing"
        );
    }
    assert_eq!(soon(client.list("")).await.unwrap().len(), names.len());
    for guard in guards {
        soon(guard.release()).await.unwrap();
    }
    assert!(soon(client.list("")).await.unwrap().is_empty());
    for master in cluster.masters() {
        assert_all_expire(master);
    }
}

/// MOVED, ASK and TRYAGAIN, of a real migration: while the slot is on its way nothing can be asked of it;
/// then all goes on at the new node.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_moves_while_its_lock_is_held() {
    needs!(redis);
    let cluster = Cluster::start(false);
    let (first, second) = (connect(&url(&cluster)).await, connect(&url(&cluster)).await);
    let slot = cluster.slot("x");
    let mut last = 0;
    for _ in 0..2 {
        let guard = take(&first, "x", LONG).await;
        assert!(
            guard.token().get() > last,
            "{} follows {last}",
            guard.token()
        );
        let waiter = start_acquire(second.lock("x").ttl(LONG));
        let from = cluster.owner(slot);
        until("it waits", || crate::support::waiting(from, "x") == 1).await;
        let to = cluster
            .masters()
            .iter()
            .find(|node| node.port() != from.port())
            .unwrap();
        let third = connect(&url(&cluster)).await;
        let meanwhile = async {
            let refused = soon(third.lock("x").ttl(TTL).try_acquire()).await;
            match refused {
                // Answered before the keys were on their way.
                Ok(tried) => assert!(tried.is_none(), "two hold it"),
                Err(err) => {
                    assert_clear(&err);
                    assert_eq!(err.kind(), ErrorKind::Unreachable, "{err}");
                }
            }
        };
        let handle = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| cluster.migrate(slot, to, || handle.block_on(meanwhile)));
        assert_eq!(owner(to, "x").len(), 32);
        until("the waiter is subscribed at the new owner", || {
            to.ask(&["PUBSUB", "SHARDCHANNELS"]).items().len() == 1
        })
        .await;
        until_renewed(&guard).await;
        last = guard.token().get();
        soon(guard.release()).await.unwrap();
        let next = tokio::time::timeout(LONG + TEST_TIMEOUT, waiter).await;
        let next = next.expect("its turn comes").unwrap().unwrap();
        assert!(next.token().get() > last, "{} follows {last}", next.token());
        last = next.token().get();
        soon(next.release()).await.unwrap();
        assert_eq!(owner(to, "x"), "");
        assert_all_expire(to);
    }
}

/// The replica takes over; locks of other masters notice nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_is_killed() {
    needs!(redis);
    let cluster = Cluster::start(true);
    let (first, second) = (connect(&url(&cluster)).await, connect(&url(&cluster)).await);
    let names: Vec<_> = (0..12).map(|number| format!("x{number}")).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(take(&first, name, LONG).await);
    }
    let victim = cluster.owner(cluster.slot("x0"));
    let replica = tokio::task::block_in_place(|| cluster.replica_with_all(victim));
    victim.kill();
    until("the replica takes over", || {
        replica.info_is("replication", "role", "master")
    })
    .await;
    let mut last: Vec<_> = guards.iter().map(Guard::remaining).collect();
    let mut renewed = vec![false; guards.len()];
    until("all are renewed", || {
        for ((guard, last), renewed) in guards.iter().zip(&mut last).zip(&mut renewed) {
            assert!(guard.is_held(), "{}: {:?}", guard.name(), guard.state());
            let now = guard.remaining();
            *renewed |= now > std::mem::replace(last, now);
        }
        renewed.iter().all(|it| *it)
    })
    .await;
    for guard in guards {
        let name = guard.name().as_str().to_owned();
        assert!(
            soon(second.lock(&name).try_acquire())
                .await
                .unwrap()
                .is_none(),
            "two hold {name}"
        );
        let token = guard.token();
        soon(guard.release()).await.unwrap();
        let next = take(&second, &name, TTL).await;
        assert!(next.token() > token, "{} follows {token}", next.token());
        soon(next.release()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn some_nodes_of_the_url_are_down() {
    needs!(redis);
    let cluster = Cluster::start(true);
    let down = tenure_testkit::process::Port::reserve();
    let nodes = [down.number(), cluster.nodes[1].port()].map(|port| format!("127.0.0.1:{port}"));
    let options = "?timeout=3s&restart_guard=off";
    let client = connect(&format!("redis+cluster://{}{options}", nodes.join(","))).await;
    for name in ["a", "b", "c", "d"] {
        take_and_release(&client, name, TTL).await;
    }
    let refused = soon(tenure::connect(&format!(
        "redis+cluster://{}{options}",
        nodes[0]
    )))
    .await;
    assert_says(refused, ErrorKind::Unreachable, &[&nodes[0]]);
    // A server of its own is no cluster, and is told so.
    let server = Redis::start(&[]);
    let wrong = format!("redis+cluster://{}{options}", server.address());
    let err = soon(tenure::connect(&wrong)).await.unwrap_err();
    assert_clear(&err);
    assert!(format!("{err:#}").contains("cluster"), "{err}");
}
