//! Holds that are detached from one client and attached to another: what the server has of them, and what goes wrong.

use std::sync::Arc;
use std::time::Duration;

use tenure::ErrorKind::{Invalid, Lost, Unreachable, Unsupported};
use tenure::guarantees::Capability;
use tenure::store::{Hold, Renewal, Store as _};
use tenure::{Client, Guard, Lock, LostReason, Mode, Receipt};

use crate::common::answered;
use crate::steps::{FAULTS, Site, check};
use crate::support::{
    TRUSTED, TTL, assert_all_expire, assert_says, client_of, connect, keys, owner, soon,
    start_acquire, take_and_release, until, until_renewed, waiting,
};
use tenure_testkit::needs;
use tenure_testkit::proxy::Proxy;
use tenure_testkit::redis::{Cluster, Redis};

/// Longer than the test, and so is a third of it: within the test such a hold is not renewed.
const LONG: Duration = Duration::from_secs(1_800);

const MODES: &[Mode] = &[
    Mode::Exclusive,
    Mode::Shared,
    Mode::Upgradable,
    Mode::Permits {
        limit: std::num::NonZeroU32::new(2).unwrap(),
    },
];

fn with_mode(lock: Lock, mode: Mode) -> Lock {
    match mode {
        Mode::Shared => lock.shared(),
        Mode::Upgradable => lock.upgradable(),
        Mode::Permits { limit } => lock.permits(limit.get()),
        _ => lock,
    }
}

async fn acquire(client: &Client, name: &str, mode: Mode, ttl: Duration) -> Guard {
    let lock = with_mode(client.lock(name).ttl(ttl), mode);
    soon(lock.acquire()).await.unwrap()
}

async fn detach(client: &Client, name: &str, mode: Mode, ttl: Duration) -> Receipt {
    let guard = acquire(client, name, mode, ttl).await;
    soon(guard.detach()).await.unwrap()
}

async fn attach(client: &Client, receipt: &Receipt) -> Guard {
    soon(client.attach(receipt)).await.unwrap()
}

/// What is left of the time of a key, in ms.
fn left(server: &Redis, key: &str) -> u128 {
    u128::try_from(server.ask(&["PTTL", key]).int()).unwrap()
}

/// The same receipt for the way of this client to the same server.
fn by_way_of(receipt: &Receipt, from: &Client, to: &Client) -> Receipt {
    let address = |client: &Client| client.address().replace('?', "%3F").replace('=', "%3D");
    let text = receipt.to_string();
    let moved = text.replace(&address(from), &address(to));
    moved.parse().unwrap()
}

/// Everything that the server has.
fn content(server: &Redis) -> Vec<(String, String)> {
    let mut keys = keys(server);
    keys.sort();
    let dump = |key: String| {
        let value = format!("{:?}", server.ask(&["DUMP", &key]));
        (key, value)
    };
    keys.into_iter().map(dump).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_of_each_mode_is_handed_over() {
    needs!(redis);
    let server = Redis::start(&[]);
    for mode in MODES {
        let (first, second) = (client_of(&server).await, client_of(&server).await);
        let lock = with_mode(first.lock("x").ttl(TTL).label("deploy"), *mode);
        let guard = soon(lock.acquire()).await.unwrap();
        let (token, value) = (guard.token(), owner(&server, "x"));
        let receipt = soon(guard.detach()).await.unwrap();
        soon(first.close()).await;
        assert_eq!(owner(&server, "x"), value, "{mode}");
        let receipt: Receipt = receipt.to_string().parse().unwrap();
        let guard = attach(&second, &receipt).await;
        assert_eq!((guard.token(), guard.mode()), (token, *mode));
        let status = soon(second.inspect("x")).await.unwrap();
        let [hold] = &status.holds[..] else {
            panic!("one holds it: {status:?}");
        };
        assert_eq!((hold.token, hold.mode), (Some(token), *mode));
        assert_eq!(hold.holder.label, "deploy");
        assert!(hold.ttl_left.unwrap() > TTL / 2, "{status:?}");
        until_renewed(&guard).await;
        {
            use tenure::redis::KeyValueGuard as _;
            soon(guard.put("data", "by the second")).await.unwrap();
        }
        soon(guard.release()).await.unwrap();
        assert_eq!(owner(&server, "x"), "", "{mode}");
        server.order(&["DEL", "data"]);
        assert_eq!(keys(&server), ["tenure:{x}:hold"], "{mode}");
        assert_all_expire(&server);
    }
}

/// One client after another holds it: the ends are those of the hold, and it does not matter which client renews.
#[tokio::test(flavor = "multi_thread")]
async fn no_request_makes_the_lease_shorter() {
    needs!(redis);
    let server = Redis::start(&[]);
    let long = Duration::from_secs(3 * 24 * 3600);
    for mode in MODES {
        let (first, second) = (client_of(&server).await, client_of(&server).await);
        let receipt = detach(&first, "x", *mode, TTL).await;
        let guard = attach(&first, &receipt.clone().with_ttl(long)).await;
        let at_least = (long - TTL * 10).as_millis();
        assert!(left(&server, "x") > at_least, "{mode}");
        let short = attach(&second, &receipt).await;
        assert!(left(&server, "x") > at_least, "{mode}");
        assert!(short.remaining() <= TTL);
        until_renewed(&short).await;
        // A renewal that the client sent before it detached the hold, and that arrives now.
        let url = server.url() + TRUSTED;
        let late = soon(tenure::redis::Store::connect(&url)).await.unwrap();
        let mut hold = Hold::of(guard.name().clone(), guard.owner_id());
        (hold.ttl, hold.mode) = (TTL, *mode);
        let renewals = soon(late.renew(vec![hold])).await;
        let is_shared_hold = *mode != Mode::Exclusive;
        match &renewals[..] {
            [Renewal::Renewed { .. }] => assert!(!is_shared_hold),
            // A client that knows nothing of the hold asks for an exclusive one.
            [Renewal::Lost(LostReason::TakenOver)] => assert!(is_shared_hold),
            other => panic!("{other:?}"),
        }
        // Another holder beside it.
        if is_shared_hold {
            let beside = match mode {
                Mode::Permits { .. } => *mode,
                _ => Mode::Shared,
            };
            let beside = acquire(&second, "x", beside, TTL).await;
            until_renewed(&beside).await;
            assert!(left(&server, "tenure:{x}:holders") > at_least, "{mode}");
            soon(beside.release()).await.unwrap();
        }
        assert!(left(&server, "x") > at_least, "{mode}");
        assert!(left(&server, "tenure:{x}:hold") > at_least, "{mode}");
        soon(short.detach()).await.unwrap();
        assert!(left(&server, "x") > at_least, "{mode}");
        soon(guard.release()).await.unwrap();
        assert_eq!(keys(&server), ["tenure:{x}:hold"], "{mode}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_served_when_the_lease_ends() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (first, second) = (client_of(&server).await, client_of(&server).await);
    for mode in MODES {
        let receipt = detach(&first, "x", *mode, TTL / 4).await;
        let waiter = start_acquire(second.lock("x").ttl(TTL * 10));
        let next = soon(waiter).await.unwrap().unwrap();
        assert!(next.token() > receipt.token());
        let before = content(&server);
        assert_says(soon(first.attach(&receipt)).await, Lost, &[]);
        assert_eq!(content(&server), before, "{mode}");
        soon(next.release()).await.unwrap();
    }
}

/// The release itself grants the lock to the waiter, as the release of the client that acquired it.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_hands_the_lock_over_to_the_waiter() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (first, second) = (client_of(&server).await, client_of(&server).await);
    for mode in MODES {
        let receipt = detach(&first, "x", *mode, LONG).await;
        let value = owner(&server, "x");
        let waiter = start_acquire(second.lock("x").ttl(LONG));
        until("it waits", || waiting(&server, "x") == 1).await;
        let guard = attach(&second, &receipt).await;
        soon(guard.release()).await.unwrap();
        let next = owner(&server, "x");
        assert!(next.len() == 32 && next != value, "{mode}: {next}");
        let guard = soon(waiter).await.unwrap().unwrap();
        assert_eq!(guard.owner_id().to_hex(), next);
        soon(guard.release()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_client_ends_neither_detached_nor_attached_holds() {
    needs!(redis);
    let server = Redis::start(&[]);
    for mode in MODES {
        let client = client_of(&server).await;
        let ordinary = acquire(&client, "ordinary", *mode, LONG).await;
        let receipt = detach(&client, "x", *mode, LONG).await;
        soon(client.close()).await;
        assert!(!ordinary.is_held());
        assert_eq!(owner(&server, "ordinary"), "");
        let value = owner(&server, "x");
        assert_ne!(value, "");
        let client = client_of(&server).await;
        let attached = attach(&client, &receipt).await;
        soon(client.close()).await;
        assert!(!attached.is_held());
        drop(attached);
        assert_eq!(owner(&server, "x"), value, "{mode}");
        // The whole runtime of a client ends.
        let (url, again) = (server.url() + TRUSTED, receipt.clone());
        let die = move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async move {
                let client = connect(&url).await;
                std::mem::forget(attach(&client, &again).await);
            });
        };
        tokio::task::spawn_blocking(die).await.unwrap();
        assert_eq!(owner(&server, "x"), value, "{mode}");
        let client = client_of(&server).await;
        soon(attach(&client, &receipt).await.release())
            .await
            .unwrap();
        assert_eq!(owner(&server, "x"), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_released_is_lost_and_nothing_is_made() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (first, second) = (client_of(&server).await, client_of(&server).await);
    for mode in MODES {
        let receipt = detach(&first, "x", *mode, LONG).await;
        soon(attach(&second, &receipt).await.release())
            .await
            .unwrap();
        let free = content(&server);
        for _ in 0..2 {
            assert_says(soon(second.attach(&receipt)).await, Lost, &["x"]);
            assert_eq!(content(&server), free, "{mode}");
        }
        for other in MODES {
            let other = acquire(&first, "x", *other, LONG).await;
            let held = content(&server);
            assert_says(soon(second.attach(&receipt)).await, Lost, &["x"]);
            assert_eq!(content(&server), held, "{mode}");
            soon(other.release()).await.unwrap();
        }
    }
    // A key of another program, and a key that is no lock.
    let receipt = detach(&first, "y", Mode::Exclusive, LONG).await;
    server.order(&["SET", "y", "theirs"]);
    let before = content(&server);
    assert_says(soon(second.attach(&receipt)).await, Lost, &["y"]);
    assert_eq!(content(&server), before);
    server.order(&["DEL", "y"]);
    server.order(&["RPUSH", "y", "no lock"]);
    let before = content(&server);
    assert_says(soon(second.attach(&receipt)).await, Lost, &["y"]);
    assert_eq!(content(&server), before);
}

/// Two clients are attached: they are one holder, and each learns of what the other one, or an operator, does.
#[tokio::test(flavor = "multi_thread")]
async fn two_clients_are_attached() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (first, second) = (client_of(&server).await, client_of(&server).await);
    for mode in MODES {
        let receipt = detach(&first, "x", *mode, TTL).await;
        let (one, two) = (
            attach(&first, &receipt).await,
            attach(&second, &receipt).await,
        );
        assert_says(soon(first.attach(&receipt)).await, Invalid, &["already"]);
        soon(one.release()).await.unwrap();
        soon(two.lost()).await;
        assert_says(soon(two.release()).await, Lost, &[]);

        // The client that was attached last is told, long before its next renewal.
        let receipt = detach(&first, "x", *mode, LONG).await;
        let last = attach(&second, &receipt).await;
        let broken = soon(first.break_lock("x", receipt.token())).await.unwrap();
        assert!(broken, "{mode}");
        soon(last.lost()).await;
        drop(last);
        assert_eq!(keys(&server), ["tenure:{x}:hold"], "{mode}");
    }
}

/// A receipt stands for its mode or for nothing: this hold has become a weaker one.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_of_a_weaker_mode_is_not_that_of_the_receipt() {
    needs!(redis);
    let server = Redis::start(&[]);
    let client = client_of(&server).await;
    let url = server.url() + TRUSTED;
    let store = soon(tenure::redis::Store::connect(&url)).await.unwrap();
    for mode in [Mode::Exclusive, Mode::Upgradable] {
        let receipt = detach(&client, "x", mode, LONG).await;
        let guard = attach(&client, &receipt).await;
        let mut hold = Hold::of(guard.name().clone(), guard.owner_id());
        hold.ttl = LONG;
        let change = store.clone().as_change_mode().unwrap();
        let changed = change.downgrade(hold.clone(), Mode::Shared);
        assert!(soon(changed).await.unwrap());
        soon(guard.detach()).await.unwrap_err();
        let before = content(&server);
        assert_says(soon(client.attach(&receipt)).await, Lost, &[]);
        assert_eq!(content(&server), before, "{mode}");
        soon(store.clone().release(hold)).await.unwrap();
        assert_eq!(keys(&server), ["tenure:{x}:hold"], "{mode}");
    }
}

/// `min_hold` and `lock_delay` are in the server, so they count for a client that does not know them.
#[tokio::test(flavor = "multi_thread")]
async fn reservations_outlive_the_hand_over() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (first, second) = (client_of(&server).await, client_of(&server).await);
    for mode in [Mode::Exclusive, Mode::Shared] {
        let name = format!("min-{mode}");
        let lock = with_mode(first.lock(&name).ttl(TTL).min_hold(LONG), mode);
        let guard = soon(lock.acquire()).await.unwrap();
        let receipt = soon(guard.detach()).await.unwrap();
        assert!(left(&server, &name) > LONG.as_millis() / 2);
        let guard = attach(&second, &receipt).await;
        until_renewed(&guard).await;
        soon(guard.release()).await.unwrap();
        let status = soon(second.inspect(&name)).await.unwrap();
        assert!(status.reserved.unwrap() > LONG / 2, "{status:?}");

        let name = format!("delay-{mode}");
        let lock = with_mode(first.lock(&name).ttl(TTL).lock_delay(LONG), mode);
        let guard = soon(lock.acquire()).await.unwrap();
        let receipt = soon(guard.detach()).await.unwrap().with_ttl(LONG);
        let guard = attach(&second, &receipt).await;
        assert!(left(&server, &name) > LONG.as_millis() * 3 / 2);
        let status = soon(second.inspect(&name)).await.unwrap();
        let lease = status.holds[0].ttl_left.unwrap();
        assert!(lease <= LONG && lease > LONG / 2, "{status:?}");
        soon(guard.release()).await.unwrap();
        take_and_release(&second, &name, TTL).await;
    }
}

/// A request to let go that was made while no client was attached.
#[tokio::test(flavor = "multi_thread")]
async fn the_holder_was_asked_to_let_go_before_it_was_attached() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (first, second) = (client_of(&server).await, client_of(&server).await);
    let receipt = detach(&first, "x", Mode::Exclusive, TTL).await;
    let asked = soon(second.election("x").ask_to_resign()).await.unwrap();
    assert!(asked.is_some());
    let guard = attach(&second, &receipt.clone().with_ttl(TTL * 2)).await;
    assert!(soon(guard.asked_to_release()).await);
    soon(guard.release()).await.unwrap();
    assert_eq!(keys(&server), ["tenure:{x}:hold"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_redisson_are_refused_before_any_request() {
    needs!(redis);
    let server = Redis::start(&[]);
    let proxy = Proxy::redis(server.port());
    let ours = connect(&format!("{}{TRUSTED}", server.url())).await;
    for (lock, mode) in [
        ("plain", Mode::Exclusive),
        ("rw", Mode::Shared),
        ("fair", Mode::Exclusive),
        ("semaphore", Mode::Exclusive),
    ] {
        let url = server.url_by(proxy.port());
        let url = format!("{url}{TRUSTED}&dialect=redisson&lock={lock}");
        let client = connect(&url).await;
        let guard = acquire(&client, lock, mode, LONG).await;
        let receipt = detach(&ours, "ours", mode, LONG).await;
        let receipt = by_way_of(&receipt, &ours, &client);
        let before = proxy.requests();
        let words = ["detached holds", "stores that have it", "redis:"];
        assert_says(client.require(Capability::Detach), Unsupported, &words);
        assert_says(soon(client.attach(&receipt)).await, Unsupported, &words);
        assert_eq!(proxy.requests(), before);
        assert_says(soon(guard.detach()).await, Unsupported, &words);
        let is_held = async || soon(client.inspect(lock)).await.unwrap().is_held();
        soon(async { while is_held().await {} }).await;
        let receipt = by_way_of(&receipt, &client, &ours);
        soon(attach(&ours, &receipt).await.release()).await.unwrap();
        server.order(&["FLUSHALL"]);
    }
}

/// After an error nothing is held that no receipt is about.
#[tokio::test(flavor = "multi_thread")]
async fn a_detach_goes_wrong() {
    needs!(redis);
    let server = Arc::new(Redis::start(&[]));
    for (i, (fault, due)) in FAULTS.iter().enumerate() {
        let site = Site::for_fault(&server, fault).await;
        let name = format!("detach{i}");
        let guard = site.take(&site.client, &name, LONG).await;
        let token = guard.token().get();
        site.proxy.plan("detach", fault.clone());
        let outcome = soon(guard.detach()).await;
        check(fault, *due, &outcome);
        site.proxy.resume();
        if let Ok(receipt) = outcome {
            let receipt = by_way_of(&receipt, &site.client, &site.other);
            soon(attach(&site.other, &receipt).await.release())
                .await
                .unwrap();
        }
        site.next_one(&site.other, &name, token).await;
        site.settles(&name).await;
    }
}

/// After an error the hold is what it was, under its receipt.
#[tokio::test(flavor = "multi_thread")]
async fn an_attach_goes_wrong() {
    needs!(redis);
    let server = Arc::new(Redis::start(&[]));
    for (i, (fault, due)) in FAULTS.iter().enumerate() {
        let site = Site::for_fault(&server, fault).await;
        let name = format!("attach{i}");
        let receipt = detach(&site.other, &name, Mode::Exclusive, LONG).await;
        let value = owner(&server, &name);
        site.proxy.plan("attach", fault.clone());
        let moved = by_way_of(&receipt, &site.other, &site.client);
        let outcome = soon(site.client.attach(&moved)).await;
        check(fault, *due, &outcome);
        site.proxy.resume();
        assert_eq!(owner(&server, &name), value, "after {fault:?}");
        // Neither the end of that client nor another attempt ends the hold.
        match outcome {
            Ok(guard) => drop(soon(guard.detach()).await.unwrap()),
            Err(_) => {
                let again = answered(async || site.client.attach(&moved).await).await;
                drop(soon(again.detach()).await.unwrap());
            }
        }
        soon(site.client.close()).await;
        assert!(site.proxy.is_done(), "the fault did not happen");
        assert_eq!(owner(&server, &name), value, "after {fault:?}");
        soon(attach(&site.other, &receipt).await.release())
            .await
            .unwrap();
        assert_eq!(owner(&server, &name), "");
    }
}

/// A server that may have forgotten a release is not believed that the hold is there, and keeps the hold meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_started_lately_is_not_trusted() {
    needs!(redis);
    let server = Redis::start(&["appendonly yes", "appendfsync everysec"]);
    let client = client_of(&server).await;
    let receipt = detach(&client, "x", Mode::Exclusive, LONG).await;
    let value = owner(&server, "x");
    server.restart();
    let careful = connect(&format!("{}?timeout=3s&restart_guard=8s", server.url())).await;
    let longer = receipt.with_ttl(LONG * 2);
    let refused = soon(careful.attach(&longer)).await;
    assert_says(refused, Unreachable, &["started lately", "restart_guard"]);
    assert_eq!(owner(&server, "x"), value);
    assert!(left(&server, "x") > LONG.as_millis() * 3 / 2);
    // The guard ends long before the ttl of the receipt does.
    let guard = answered(async || careful.attach(&longer).await).await;
    soon(guard.release()).await.unwrap();
    assert_eq!(owner(&server, "x"), "");
}

/// A detached hold is not renewed, so the replicas must have its lease before the client forgets the hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_no_replica_has_is_not_detached() {
    needs!(redis);
    let primary = Redis::start(&[]);
    let replica = Redis::start(&[&format!("replicaof 127.0.0.1 {}", primary.port())]);
    let options = format!("{TRUSTED}&wait_replicas=1");
    let client = connect(&(primary.url() + &options)).await;
    let one = answered(async || client.lock("one").ttl(LONG).acquire().await).await;
    let two = answered(async || client.lock("two").ttl(LONG).acquire().await).await;
    let receipt = soon(one.detach()).await.unwrap();
    assert!(left(&replica, "one") > LONG.as_millis() / 2);
    replica.stop();
    // Or the kernel would keep for it what it is sent.
    primary.order(&["CLIENT", "KILL", "TYPE", "replica"]);
    let refused = soon(two.detach()).await;
    assert_says(refused, Unreachable, &["0 of 1 replicas", "wait_replicas"]);
    until("it is released", || owner(&primary, "two").is_empty()).await;
    // Renewals and releases do not wait for replicas.
    let guard = attach(&client, &receipt).await;
    soon(guard.release()).await.unwrap();
    replica.resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn holds_in_each_slot_of_a_cluster() {
    needs!(redis);
    let cluster = Cluster::start(false);
    let url = format!("{}{TRUSTED}", cluster.url());
    let (first, second) = (connect(&url).await, connect(&url).await);
    for name in ["a", "b", "c", "{d}e"] {
        for mode in MODES {
            let receipt = detach(&first, name, *mode, LONG).await;
            let waiter = start_acquire(second.lock(name).ttl(LONG));
            let guard = attach(&second, &receipt).await;
            let node = cluster.owner(cluster.slot(name));
            until("it waits", || {
                let lengths = keys(node).into_iter().filter(|key| key.contains("}:queue"));
                lengths.count() == 1
            })
            .await;
            soon(guard.release()).await.unwrap();
            let next = soon(waiter).await.unwrap().unwrap();
            soon(next.release()).await.unwrap();
        }
        // The message goes to the channel of the client, and not to that of the slot.
        let receipt = detach(&first, name, Mode::Exclusive, LONG).await;
        let guard = attach(&second, &receipt).await;
        assert!(soon(first.break_lock(name, receipt.token())).await.unwrap());
        soon(guard.lost()).await;
    }
    // The slot moves while no client has anything to do with the hold.
    let receipt = detach(&first, "x", Mode::Exclusive, LONG).await;
    let slot = cluster.slot("x");
    let from = cluster.owner(slot);
    let others = cluster.masters().iter();
    let to = others.into_iter().find(|it| it.port() != from.port());
    cluster.migrate(slot, to.unwrap(), || {});
    let guard = attach(&second, &receipt).await;
    soon(guard.release()).await.unwrap();
    for master in cluster.masters() {
        assert_all_expire(master);
    }
}

/// The receipt is one of another server, although the hold would be there under its name.
#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_of_another_server_is_refused() {
    needs!(redis);
    let (one, two) = (Redis::start(&[]), Redis::start(&[]));
    let (first, second) = (client_of(&one).await, client_of(&two).await);
    let receipt = detach(&first, "x", Mode::Exclusive, LONG).await;
    let refused = soon(second.attach(&receipt)).await;
    assert_says(refused, Invalid, &[&one.address(), &two.address()]);
    assert!(keys(&two).is_empty());
}
