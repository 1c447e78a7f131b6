//! Detached holds: the leases of their keys, clients that are attached with different ttls, and requests that get lost. What
//! all stores do is in the conformance suite.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tenure::etcd::{EtcdGuard as _, KeyValueGuard as _};
use tenure::{Client, ErrorKind, Guard, Lock, Receipt};
use tenure_testkit::etcd::Etcd;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Direction, Fault, Proxy};

use crate::support::{
    SHARED, TTL, assert_says, name, soon, start_acquire, take, take_and_release, until,
    until_renewed, wait_behind,
};

/// Longer than the test.
const HOUR: Duration = Duration::from_secs(3_600);

/// A client whose receipts do not say by which address or proxy it reaches the store.
async fn connect(url: &str) -> Client {
    let store = soon(tenure::etcd::Store::connect(url)).await.unwrap();
    Client::builder(store).build().unwrap()
}

async fn direct() -> Client {
    connect(&SHARED.url()).await
}

/// The whole ttl of a lease, in seconds.
fn granted(etcd: &Etcd, lease: i64) -> u64 {
    let id = serde_json::json!({ "ID": lease.to_string() });
    let times = etcd.order("lease/timetolive", &id);
    times["grantedTTL"]
        .as_str()
        .map_or(0, |it| it.parse().unwrap())
}

/// The lease of the only key of that lock.
fn lease_of(etcd: &Etcd, name: &str) -> i64 {
    let keys = etcd.keys(&format!("{name}/"));
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys[0].lease
}

async fn detach(guard: Guard) -> Receipt {
    soon(guard.detach()).await.unwrap()
}

async fn attach(client: &Client, receipt: &Receipt, ttl: Duration) -> Guard {
    let receipt = receipt.clone().with_ttl(ttl);
    soon(client.attach(receipt)).await.unwrap()
}

async fn until_nothing_is_left(etcd: &Etcd) {
    until("no key and no lease is left", || {
        etcd.keys("").is_empty() && etcd.leases().is_empty()
    })
    .await;
}

/// The key keeps its name and create revision. Its lease belongs to the hold alone, and nothing is left after the release.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_of_each_mode_moves_to_a_lease_of_its_own() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let modes: [fn(Lock) -> Lock; 6] = [
        |lock| lock,
        Lock::shared,
        Lock::upgradable,
        |lock| lock.permits(3),
        |lock| lock.lock_delay(HOUR),
        |lock| lock.min_lease(HOUR),
    ];
    for option in ["", "?lease=lock"] {
        for mode in modes {
            let url = format!("{}{option}", etcd.url());
            let (first, second) = (connect(&url).await, connect(&url).await);
            let guard = soon(mode(first.lock("x").ttl(HOUR)).acquire())
                .await
                .unwrap();
            let kept = take(&first, "kept", HOUR).await;
            let before = etcd.keys("x/").remove(0);
            let token = guard.token();
            let receipt = detach(guard).await;
            let shared = lease_of(&etcd, "kept");
            soon(kept.release()).await.unwrap();
            soon(first.close()).await;
            let after = etcd.keys("x/").remove(0);
            assert_eq!((&after.key, after.created), (&before.key, before.created));
            assert!(after.modified > before.modified && after.lease != shared);
            assert_eq!(etcd.leases(), [after.lease], "the client is closed");
            let listed = soon(second.list("")).await.unwrap();
            assert_eq!(listed.len(), 1, "{listed:?}");
            assert_eq!(listed[0].holds[0].token, Some(token));
            let guard = soon(second.attach(&receipt)).await.unwrap();
            assert_eq!(guard.token(), token);
            assert_eq!(lease_of(&etcd, "x"), after.lease);
            soon(guard.put("theirs", "1")).await.unwrap();
            let created = guard.etcd().unwrap().compare()[0].create_revision;
            assert_eq!(created.cast_unsigned(), before.created);
            etcd.delete("theirs");
            soon(guard.release()).await.unwrap();
            until_nothing_is_left(&etcd).await;
            assert_says(soon(second.attach(&receipt)).await, ErrorKind::Lost, &[]);
            soon(second.close()).await;
            assert_eq!((etcd.keys("").len(), etcd.leases().len()), (0, 0));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_attached_client_leaves_key_and_lease() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let client = connect(&etcd.url()).await;
    let receipt = detach(take(&client, "x", HOUR).await).await;
    soon(client.close()).await;
    let lease = lease_of(&etcd, "x");
    for _ in 0..2 {
        let client = connect(&etcd.url()).await;
        let guard = soon(client.attach(&receipt)).await.unwrap();
        let ordinary = take(&client, "ordinary", HOUR).await;
        soon(client.close()).await;
        drop((client, guard, ordinary));
        assert_eq!((lease_of(&etcd, "x"), etcd.leases()), (lease, vec![lease]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_served_when_the_lease_of_a_detached_hold_ends() {
    needs!(etcd);
    let (client, other, name) = (direct().await, direct().await, name("expires"));
    let ttl = Duration::from_secs(3);
    let guard = take(&client, &name, ttl).await;
    // The driver keeps the shared lease alive for this hold.
    let kept = take(&client, &crate::support::name("kept"), ttl).await;
    let waiting = wait_behind(&SHARED, &other, &name, 1).await;
    let start = Instant::now();
    let receipt = detach(guard).await;
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(start.elapsed() >= ttl, "{:?}", start.elapsed());
    assert!(next.token() > receipt.token() && kept.is_held());
    assert_says(soon(client.attach(&receipt)).await, ErrorKind::Lost, &[]);
    assert_says(soon(other.attach(&receipt)).await, ErrorKind::Lost, &[]);
    assert!(next.is_held());
    soon(next.release()).await.unwrap();
}

/// A lease for a shorter time changes nothing as long as the longer one lasts. After that the hold lasts as long as the attached
/// client wants it, and no longer.
#[tokio::test(flavor = "multi_thread")]
async fn an_attached_client_with_a_shorter_ttl_shortens_nothing() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let (client, other) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let (long, short) = (Duration::from_secs(10), Duration::from_secs(3));
    let receipt = detach(take(&client, "x", long).await).await;
    let start = Instant::now();
    let guard = attach(&other, &receipt, short).await;
    until_renewed(&guard).await;
    assert_eq!(granted(&etcd, lease_of(&etcd, "x")), 10);
    until("the key has a short lease", || {
        granted(&etcd, lease_of(&etcd, "x")) == 3
    })
    .await;
    assert!(start.elapsed() >= long.saturating_sub(short * 2));
    until("the long lease is revoked", || etcd.leases().len() == 1).await;
    let lease = lease_of(&etcd, "x");
    until_renewed(&guard).await;
    assert_eq!(lease_of(&etcd, "x"), lease, "it is kept alive");
    // The name is free when the short lease ends.
    let again = detach(guard).await;
    soon(other.close()).await;
    let next = soon(client.lock("x").ttl(long).acquire()).await.unwrap();
    assert!(start.elapsed() >= long);
    assert_says(soon(client.attach(&again)).await, ErrorKind::Lost, &[]);
    soon(next.release()).await.unwrap();
}

/// The key moves to a longer lease, and the client that was attached before follows it.
#[tokio::test(flavor = "multi_thread")]
async fn clients_with_different_ttls_are_one_holder() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let (one, other) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let short = Duration::from_secs(3);
    for is_delayed in [false, true] {
        let lock = one.lock("x").ttl(short);
        let lock = if is_delayed {
            lock.lock_delay(TTL)
        } else {
            lock
        };
        let receipt = detach(soon(lock.acquire()).await.unwrap()).await;
        let lease = lease_of(&etcd, "x");
        let first = attach(&one, &receipt, short).await;
        assert_eq!(lease_of(&etcd, "x"), lease);
        let second = attach(&other, &receipt, HOUR).await;
        let longer = lease_of(&etcd, "x");
        let delay = if is_delayed { TTL.as_secs() } else { 0 };
        assert_eq!(granted(&etcd, longer), HOUR.as_secs() + delay);
        soon(first.put("theirs", "1")).await.unwrap();
        until("the lease before is revoked", || {
            !etcd.leases().contains(&lease)
        })
        .await;
        until_renewed(&first).await;
        assert!(first.is_held() && second.is_held());
        assert_eq!(lease_of(&etcd, "x"), longer, "it is long enough for both");
        soon(first.put("theirs", "2")).await.unwrap();
        soon(second.release()).await.unwrap();
        assert!(etcd.keys("x/").is_empty());
        assert!(soon(first.lost()).await.is_some());
        assert_says(soon(first.put("theirs", "3")).await, ErrorKind::Lost, &[]);
        assert_says(soon(first.release()).await, ErrorKind::Lost, &[]);
        assert_eq!(etcd.keys("theirs")[0].value, "2");
        etcd.delete("theirs");
        take_and_release(&one, "x", TTL).await;
    }
    soon(one.close()).await;
    soon(other.close()).await;
    until_nothing_is_left(&etcd).await;
}

/// Whichever of them comes last, the lease is long enough for both, and there is one lease.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_attach_at_the_same_time_agree_on_one_lease() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let clients = [
        connect(&etcd.url()).await,
        connect(&etcd.url()).await,
        connect(&etcd.url()).await,
    ];
    for round in 0..20 {
        let owner = connect(&etcd.url()).await;
        let receipt = detach(take(&owner, "x", TTL).await).await;
        soon(owner.close()).await;
        let [a, b, c] = [100, 1_000, 10_000].map(Duration::from_secs);
        let guards = tokio::join!(
            attach(&clients[round % 3], &receipt, a),
            attach(&clients[(round + 1) % 3], &receipt, b),
            attach(&clients[(round + 2) % 3], &receipt, c),
        );
        until("one lease is left", || etcd.leases().len() == 1).await;
        let lease = lease_of(&etcd, "x");
        assert_eq!(
            (etcd.leases(), granted(&etcd, lease)),
            (vec![lease], 10_000)
        );
        soon(guards.1.release()).await.unwrap();
        until_nothing_is_left(&etcd).await;
    }
}

/// The request that moves the key to another lease comes late, after a renewal of the other client: the key stays where that
/// client knows it, until the move is decided anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_arrives_late_shortens_nothing() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    let url = format!("{}?timeout=60s", etcd.url_by(&[proxy.address()]));
    let (one, late) = (connect(&etcd.url()).await, connect(&url).await);
    let (short, longer) = (Duration::from_secs(6), Duration::from_secs(7));
    let receipt = detach(take(&one, "x", short).await).await;
    let first = attach(&one, &receipt, short).await;
    let (lease, modified) = (lease_of(&etcd, "x"), etcd.keys("x/")[0].modified);
    proxy.block("change");
    let receipt = receipt.with_ttl(longer);
    let attaching = tokio::spawn(async move { (late.attach(&receipt).await, late) });
    until("the move is on its way", || etcd.leases().len() == 2).await;
    until("the first client has renewed", || {
        etcd.keys("x/")[0].modified > modified
    })
    .await;
    proxy.take_seen();
    proxy.resume();
    let (second, _late) = soon(attaching).await.unwrap();
    let second = second.unwrap();
    let seen = proxy.take_seen();
    let grants = seen.iter().filter(|it| *it == "grant").count();
    assert_eq!(grants, 1, "the first move was refused: {seen:?}");
    assert_ne!(lease_of(&etcd, "x"), lease);
    until_renewed(&first).await;
    until("one lease is left", || etcd.leases().len() == 1).await;
    soon(second.release()).await.unwrap();
    assert!(soon(first.lost()).await.is_some());
}

fn faults() -> [Fault; 4] {
    [
        Fault::CutBefore,
        Fault::CutAfter,
        Fault::NoReply,
        // Later than the time limit of a request.
        Fault::Late(Duration::from_secs(3)),
    ]
}

/// Each request of a detach gets lost, or its reply does: the hold is detached, or it is released and nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_detach_of_unknown_fate_leaves_a_receipt_or_nothing() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let other = connect(&etcd.url()).await;
    for step in ["look", "grant", "change"] {
        for fault in faults() {
            let proxy = Proxy::etcd(etcd.members[0].port());
            let url = format!("{}?timeout=2s", etcd.url_by(&[proxy.address()]));
            let client = connect(&url).await;
            let guard = take(&client, "x", HOUR).await;
            let case = format!("{step}, {fault:?}");
            proxy.plan(step, fault);
            match soon(guard.detach()).await {
                Ok(receipt) => {
                    // A request that is late arrives before this.
                    proxy.resume();
                    until("the fault happened", || proxy.is_done()).await;
                    let guard = soon(other.attach(&receipt)).await.unwrap();
                    soon(guard.release()).await.unwrap();
                }
                Err(err) => {
                    let kind = err.kind();
                    let is_unknown =
                        matches!(kind, ErrorKind::Indeterminate | ErrorKind::Unreachable);
                    assert!(is_unknown, "{case}: {err:#}");
                    // Released in the background.
                    proxy.resume();
                    until("the name is free", || etcd.keys("x/").is_empty()).await;
                }
            }
            proxy.resume();
            until("the fault happened", || proxy.is_done()).await;
            soon(client.close()).await;
            until_nothing_is_left(&etcd).await;
        }
    }
}

/// The same for the requests that attach a client: the hold stays, with one lease.
#[tokio::test(flavor = "multi_thread")]
async fn an_attach_of_unknown_fate_leaves_the_hold() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let owner = connect(&etcd.url()).await;
    for step in ["look", "left", "keep-alive", "grant", "change"] {
        for fault in faults() {
            let proxy = Proxy::etcd(etcd.members[0].port());
            let url = format!("{}?timeout=2s", etcd.url_by(&[proxy.address()]));
            let client = connect(&url).await;
            let receipt = detach(take(&owner, "x", HOUR).await).await;
            let case = format!("{step}, {fault:?}");
            // Longer, so that the key moves, or a little shorter, so that the lease is kept alive after a while.
            let ttl = match step {
                "keep-alive" => HOUR,
                _ => HOUR * 3,
            };
            proxy.plan(step, fault);
            let attached = soon(client.attach(receipt.clone().with_ttl(ttl))).await;
            match attached {
                Ok(guard) => {
                    assert_eq!(guard.token(), receipt.token());
                    soon(guard.detach()).await.unwrap();
                }
                Err(err) => {
                    let kind = err.kind();
                    let is_unknown =
                        matches!(kind, ErrorKind::Indeterminate | ErrorKind::Unreachable);
                    assert!(is_unknown, "{case}: {err:#}");
                }
            }
            proxy.resume();
            until("the fault happened", || proxy.is_done()).await;
            soon(client.close()).await;
            let guard = soon(owner.attach(&receipt)).await.unwrap();
            assert_eq!(guard.token(), receipt.token(), "{case}");
            soon(guard.release()).await.unwrap();
            take_and_release(&owner, "x", TTL).await;
        }
    }
    soon(owner.close()).await;
    until_nothing_is_left(&etcd).await;
}

/// The reply to the release of an attached client gets lost, or the request does.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_of_unknown_fate_ends_the_hold() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let owner = connect(&etcd.url()).await;
    for fault in faults() {
        let proxy = Proxy::etcd(etcd.members[0].port());
        let url = format!("{}?timeout=2s", etcd.url_by(&[proxy.address()]));
        let client = connect(&url).await;
        let receipt = detach(take(&owner, "x", HOUR).await).await;
        let guard = soon(client.attach(&receipt)).await.unwrap();
        proxy.plan("release", fault);
        drop(soon(guard.release()).await);
        proxy.resume();
        until("the fault happened", || proxy.is_done()).await;
        let next = soon(owner.lock("x").ttl(TTL).acquire()).await.unwrap();
        assert!(next.token() > receipt.token());
        soon(next.release()).await.unwrap();
        soon(client.close()).await;
    }
    soon(owner.close()).await;
    until_nothing_is_left(&etcd).await;
}

/// The request that made the key was sent twice, so the client goes on to delete what may be put late. That is not the key of
/// the detached hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_may_be_put_late_is_not_that_of_a_detached_hold() {
    needs!(etcd);
    let proxy = Proxy::etcd(SHARED.members[0].port());
    // Two members for the client, so that it sends its request again.
    let client = connect(&SHARED.url_by(&[proxy.address(), proxy.address()])).await;
    let (name, ttl) = (name("twice"), Duration::from_secs(3));
    let kept = take(&client, &crate::support::name("kept"), ttl).await;
    proxy.plan("acquire", Fault::CutAfter);
    let guard = soon(client.lock(&name).ttl(ttl).acquire()).await.unwrap();
    assert!(proxy.is_done());
    let receipt = detach(guard).await;
    let other = direct().await;
    let guard = attach(&other, &receipt, HOUR).await;
    let lease = lease_of(&SHARED, &name);
    proxy.take_seen();
    until("what may be put late is deleted", || {
        proxy.take_seen().contains(&"release".to_owned())
    })
    .await;
    assert_eq!(lease_of(&SHARED, &name), lease);
    soon(guard.release()).await.unwrap();
    assert!(kept.is_held());
}

/// A renewal of an attached client whose replies are lost, and then the store is silent for a while.
#[tokio::test(flavor = "multi_thread")]
async fn an_attached_hold_outlasts_lost_renewals() {
    needs!(etcd);
    let proxy = Proxy::etcd(SHARED.members[0].port());
    let url = SHARED.url_by(&[proxy.address()]);
    let client = connect(&format!("{url}?timeout=2s")).await;
    let (owner, name) = (direct().await, name("renewals"));
    let receipt = detach(take(&owner, &name, TTL).await).await;
    let guard = attach(&client, &receipt, TTL).await;
    for step in ["keep-alive", "change"] {
        proxy.plan(step, Fault::CutAfter);
        until("the fault happened", || proxy.is_done()).await;
        until_renewed(&guard).await;
    }
    proxy.hold(Direction::Down, true);
    tokio::time::timeout(TTL / 4, guard.lost())
        .await
        .unwrap_err();
    proxy.hold(Direction::Down, false);
    until_renewed(&guard).await;
    soon(guard.release()).await.unwrap();
    assert!(SHARED.keys(&format!("{name}/")).is_empty());
}

/// A break ends the lease too, which no client would revoke; with a `lock_delay` the name stays reserved.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_hold_leaves_no_lease() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let (client, other) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    for is_delayed in [false, true] {
        let owner = connect(&etcd.url()).await;
        let lock = owner.lock("x").ttl(HOUR);
        let lock = match is_delayed {
            true => lock.lock_delay(HOUR),
            false => lock,
        };
        let receipt = detach(soon(lock.acquire()).await.unwrap()).await;
        soon(owner.close()).await;
        let guard = attach(&client, &receipt, TTL).await;
        let token = receipt.token().get();
        assert!(soon(other.break_lock("x", token)).await.unwrap());
        assert!(soon(guard.lost()).await.is_some());
        drop(guard);
        assert_says(soon(client.attach(&receipt)).await, ErrorKind::Lost, &[]);
        let left = usize::from(is_delayed);
        until("the lease of the hold is revoked", || {
            (etcd.keys("").len(), etcd.leases().len()) == (left, left)
        })
        .await;
    }
    let status = soon(other.inspect("x")).await.unwrap();
    assert!(status.holds.is_empty() && status.reserved > Some(HOUR / 2));
}

/// The history is compacted and the member is killed and started again: the hold is what it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_detached_hold_outlasts_a_restart() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let receipt = {
        let client = connect(&etcd.url()).await;
        detach(take(&client, "x", HOUR).await).await
    };
    etcd.compact();
    let client = connect(&etcd.url()).await;
    let guard = attach(&client, &receipt, TTL).await;
    let lease = lease_of(&etcd, "x");
    etcd.members[0].kill();
    etcd.members[0].start();
    etcd.until_ready();
    etcd.compact();
    until_renewed(&guard).await;
    assert_eq!(lease_of(&etcd, "x"), lease);
    let again = detach(guard).await;
    let longer = attach(&client, &again, HOUR * 2).await;
    assert_eq!(longer.token(), receipt.token());
    soon(longer.release()).await.unwrap();
    assert!(etcd.keys("x/").is_empty());
}

/// A program of another library waits behind a detached hold, while its key moves from lease to lease.
#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_waits_behind_a_detached_hold() {
    needs!(etcd, "etcdctl");
    let (client, other, name) = (direct().await, direct().await, name("foreign"));
    let guard = take(&client, &name, HOUR).await;
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").stdout(Stdio::piped());
    command.arg(format!(
        "--endpoints=127.0.0.1:{}",
        SHARED.members[0].port()
    ));
    let child = command
        .args(["lock", &name, "echo", "served"])
        .spawn()
        .unwrap();
    let keys = || SHARED.keys(&format!("{name}/"));
    until("it waits", || keys().len() == 2).await;
    let receipt = detach(guard).await;
    soon(client.close()).await;
    let guard = attach(&other, &receipt, HOUR * 3).await;
    let last = start_acquire(direct().await.lock(&name).ttl(TTL));
    until("we wait behind it", || keys().len() == 3).await;
    assert_eq!(keys()[0].created, receipt.token().get());
    assert!(!last.is_finished());
    soon(guard.release()).await.unwrap();
    let output = tokio::task::spawn_blocking(|| child.wait_with_output());
    let output = soon(output).await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("served"));
    soon(soon(last).await.unwrap().unwrap().release())
        .await
        .unwrap();
}
