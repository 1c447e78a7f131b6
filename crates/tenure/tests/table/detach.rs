//! Holds that go on without their client: what the rows say, and what clients that share a hold find.

use std::time::Duration;

use tenure::guarantees::Capability;
use tenure::{Client, ErrorKind, Guard, Lock, LostReason, Mode, Receipt};

use crate::support::{
    Db, OPTIONS, SHORT, TTL, assert_says, connect, name, shared, soon, take, take_and_release,
    until, until_renewed, wait_as,
};
use tenure_testkit::needs;
use tenure_testkit::pgbouncer::Pooler;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::process::Directory;
use tenure_testkit::proxy::Fault;
use tenure_testkit::sql_client::Row;

/// Longer than a test.
const LONG: Duration = Duration::from_secs(600);
const HOUR: Duration = Duration::from_secs(3_600);

fn modes() -> [Mode; 4] {
    let limit = 2.try_into().unwrap();
    [
        Mode::Exclusive,
        Mode::Shared,
        Mode::Upgradable,
        Mode::Permits { limit },
    ]
}

fn in_mode(lock: Lock, mode: Mode) -> Lock {
    match mode {
        Mode::Shared => lock.shared(),
        Mode::Upgradable => lock.upgradable(),
        Mode::Permits { limit } => lock.permits(limit.get()),
        _ => lock,
    }
}

async fn acquire(lock: Lock) -> Guard {
    soon(lock.acquire()).await.unwrap()
}

/// The receipt, as another process reads it.
async fn detach(guard: Guard) -> Receipt {
    let receipt = soon(guard.detach()).await.unwrap();
    receipt.to_string().parse().unwrap()
}

async fn attach(client: &Client, receipt: &Receipt) -> Guard {
    soon(client.attach(receipt)).await.unwrap()
}

/// A hold that was detached from a client that is closed.
async fn detached(db: &Db, name: &str, options: impl FnOnce(Lock) -> Lock) -> Receipt {
    let client = connect(&db.url()).await;
    let receipt = detach(acquire(options(client.lock(name).ttl(LONG))).await).await;
    soon(client.close()).await;
    receipt
}

async fn is_free(client: &Client, name: &str) -> bool {
    let tried = soon(client.lock(name).ttl(TTL).try_acquire()).await;
    match tried.unwrap() {
        Some(guard) => {
            soon(guard.release()).await.unwrap();
            true
        }
        None => false,
    }
}

async fn assert_lost(client: &Client, receipt: &Receipt) {
    let outcome = soon(client.attach(receipt)).await;
    assert_says(outcome, ErrorKind::Lost, &["had ended"]);
}

/// All that the tables have about the name.
fn rows(db: &Db, name: &str) -> Vec<Row> {
    let columns = "owner,token,until,since,min_hold,delay,holder";
    let selects = [
        format!("SELECT {columns},queued FROM tenure_locks WHERE name='{name}'"),
        format!("SELECT {columns},mode FROM tenure_locks_modes WHERE name='{name}' ORDER BY owner"),
        format!("SELECT owner,until FROM tenure_locks_waiters WHERE name='{name}'"),
    ];
    selects.iter().flat_map(|sql| db.rows(sql)).collect()
}

/// The ends in all rows of holders of the name.
fn ends(db: &Db, name: &str) -> Vec<i64> {
    let tables = ["tenure_locks", "tenure_locks_modes"];
    let of = |table| db.rows(&format!("SELECT until FROM {table} WHERE name='{name}'"));
    let rows = tables.into_iter().flat_map(of);
    rows.map(|row| row[0].as_deref().unwrap().parse().unwrap())
        .collect()
}

/// The same receipt with another text in it.
fn changed(receipt: &Receipt, from: &str, to: &str) -> Receipt {
    let text = receipt.to_string();
    assert!(text.contains(from), "{from} is not in {text}");
    text.replace(from, to).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_of_each_mode_is_handed_over() {
    for db in shared().await {
        let (second, other) = (connect(&db.url()).await, connect(&db.url()).await);
        for mode in modes() {
            let name = name("handed-over");
            let receipt = detached(db, &name, |lock| in_mode(lock.label("job"), mode)).await;
            let listed = soon(other.inspect(&name)).await.unwrap();
            assert_eq!(listed.holds[0].holder.label, "job");
            assert_eq!(listed.holds[0].token, Some(receipt.token()));
            assert_eq!(listed.holds[0].mode, mode);
            let guard = attach(&second, &receipt).await;
            assert_eq!((guard.token(), guard.mode()), (receipt.token(), mode));
            assert!(guard.is_held());
            assert!(!is_free(&other, &name).await, "{mode}");
            soon(guard.release()).await.unwrap();
            assert!(is_free(&other, &name).await, "{mode}");
        }
    }
}

/// A receipt counts for the mode in which the hold was detached, and for no other.
#[tokio::test(flavor = "multi_thread")]
async fn the_mode_of_the_receipt_is_that_of_the_row() {
    for db in shared().await {
        let (first, second) = (connect(&db.url()).await, connect(&db.url()).await);
        let upgraded = name("upgraded");
        let guard = acquire(first.lock(&upgraded).ttl(LONG).upgradable()).await;
        soon(guard.upgrade()).await.unwrap();
        let receipt = detach(guard).await;
        assert_eq!(receipt.mode(), Mode::Exclusive);
        let guard = attach(&second, &receipt).await;
        assert!(!is_free(&first, &upgraded).await);
        soon(guard.release()).await.unwrap();
        for mode in modes() {
            let name = name("one-mode");
            let receipt = detached(db, &name, |lock| in_mode(lock, mode)).await;
            let before = ends(db, &name);
            for other in modes().into_iter().filter(|other| *other != mode) {
                // Only an upgrade that was given up leads from here to there, for a moment.
                if (mode, other) == (Mode::Exclusive, Mode::Upgradable) {
                    continue;
                }
                let [from, to] = [mode, other].map(in_receipt);
                let receipt = changed(&receipt, from, to).with_ttl(HOUR);
                assert_lost(&second, &receipt).await;
            }
            assert_eq!(ends(db, &name), before);
            soon(attach(&second, &receipt).await.release())
                .await
                .unwrap();
        }
    }
}

fn in_receipt(mode: Mode) -> &'static str {
    match mode {
        Mode::Shared => "mode=shared",
        Mode::Upgradable => "mode=upgradable",
        Mode::Permits { .. } => "mode=permits-2",
        _ => "mode=exclusive",
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_closed_ends_its_own_holds_only() {
    for db in shared().await {
        let other = connect(&db.url()).await;
        for mode in modes() {
            let (name, own) = (name("left"), name("own"));
            let receipt = detached(db, &name, |lock| in_mode(lock, mode)).await;
            let second = connect(&db.url()).await;
            let attached = attach(&second, &receipt).await;
            let ordinary = take(&second, &own, LONG).await;
            let before = rows(db, &name);
            soon(second.close()).await;
            drop((attached, ordinary));
            assert_eq!(rows(db, &name), before);
            assert!(is_free(&other, &own).await);
            soon(attach(&other, &receipt).await.release())
                .await
                .unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_waiter_is_served_when_the_lease_is_over() {
    for db in shared().await {
        let (first, second) = (connect(&db.url()).await, connect(&db.url()).await);
        for mode in modes() {
            let name = name("expires");
            let lock = in_mode(first.lock(&name).ttl(SHORT), mode);
            let receipt = detach(acquire(lock).await).await;
            let waiting = wait_as(db, &second, &name, 1).await;
            let next = soon(waiting).await.unwrap().unwrap();
            assert!(next.token() > receipt.token());
            let before = rows(db, &name);
            assert_lost(&first, &receipt).await;
            assert_eq!(rows(db, &name), before, "{mode}");
            soon(next.release()).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_shortens_the_lease() {
    for db in shared().await {
        let second = connect(&db.url()).await;
        for mode in [Mode::Exclusive, Mode::Shared] {
            let name = name("shortens");
            let receipt = detached(db, &name, |lock| in_mode(lock, mode)).await;
            let before = ends(db, &name);
            let guard = attach(&second, &receipt.clone().with_ttl(TTL)).await;
            assert!(guard.remaining() <= TTL);
            assert_eq!(ends(db, &name), before, "attached");
            until_renewed(&guard).await;
            assert_eq!(ends(db, &name), before, "renewed");
            let again = detach(guard).await;
            assert_eq!(ends(db, &name), before, "detached");
            // A longer one counts from now on.
            let guard = attach(&second, &again.with_ttl(HOUR)).await;
            let is_later = |(now, before): (i64, i64)| now > before;
            assert!(ends(db, &name).into_iter().zip(before).all(is_later));
            soon(guard.release()).await.unwrap();
        }
    }
}

/// Two clients are attached, and one of them releases. The other one learns of it, and does nothing to the next holder.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_ends_the_hold_for_all() {
    for db in shared().await {
        for mode in modes() {
            let name = name("two");
            let receipt = detached(db, &name, |lock| in_mode(lock, mode)).await;
            let (one, other) = (connect(&db.url()).await, connect(&db.url()).await);
            let releases = attach(&one, &receipt).await;
            let learns = attach(&other, &receipt.clone().with_ttl(TTL)).await;
            assert_says(
                soon(other.attach(&receipt)).await,
                ErrorKind::Invalid,
                &["attached to the hold already"],
            );
            soon(releases.release()).await.unwrap();
            let next = take(&one, &name, LONG).await;
            let reason = soon(learns.lost()).await.unwrap();
            let expected = [LostReason::StoreSaysNo, LostReason::TakenOver];
            assert!(expected.contains(&reason), "{mode}: {reason}");
            assert_says(soon(learns.release()).await, ErrorKind::Lost, &[]);
            soon(other.close()).await;
            let ids: Vec<_> = next.owner_ids().map(|id| id.to_hex()).collect();
            assert_eq!([db.owner(&name)], ids[..], "{mode}");
            soon(next.release()).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attach_makes_nothing() {
    for db in shared().await {
        let client = connect(&db.url()).await;
        for mode in modes() {
            let name = name("makes-nothing");
            let receipt = detached(db, &name, |lock| in_mode(lock, mode)).await;
            let before = rows(db, &name);
            // A name that was never locked, and an owner that holds nothing.
            let elsewhere = changed(&receipt, &name, "elsewhere");
            assert_lost(&client, &elsewhere).await;
            assert_eq!(rows(db, "elsewhere"), Vec::<Row>::new());
            let (_, owner) = receipt
                .to_string()
                .rsplit_once("owner=")
                .map(owned)
                .unwrap();
            let other = changed(&receipt, &owner, &"0".repeat(32));
            assert_lost(&client, &other).await;
            let holders = |rows: &[Row]| rows.iter().map(|row| row[..3].to_vec()).collect();
            let held: [Vec<Row>; 2] = [holders(&rows(db, &name)), holders(&before)];
            assert_eq!(held[0], held[1]);
            soon(attach(&client, &receipt).await.release())
                .await
                .unwrap();
            let before = rows(db, &name);
            assert_lost(&client, &receipt).await;
            assert_eq!(rows(db, &name), before, "{mode}");
            assert!(is_free(&client, &name).await);
        }
    }
}

fn owned((before, after): (&str, &str)) -> (String, String) {
    (before.to_owned(), after.to_owned())
}

/// What reserves the name after the hold stands in the row, so it does not matter which process ends the hold.
#[tokio::test(flavor = "multi_thread")]
async fn reservations_are_those_of_the_hold() {
    for db in shared().await {
        let client = connect(&db.url()).await;
        for mode in modes() {
            let name = name("reserved");
            let receipt = detached(db, &name, |lock| in_mode(lock, mode).min_hold(HOUR)).await;
            soon(attach(&client, &receipt).await.release())
                .await
                .unwrap();
            assert!(!is_free(&client, &name).await, "min_hold, {mode}");
        }
        let lock_delay = |lock: Lock| lock.lock_delay(HOUR);
        let name = name("broken");
        let receipt = detached(db, &name, lock_delay).await;
        let guard = attach(&client, &receipt).await;
        let broken = soon(client.break_lock(&name, receipt.token())).await;
        assert!(broken.unwrap());
        assert!(!is_free(&client, &name).await, "lock_delay");
        drop(guard);
    }
}

/// The lease has ended, and `lock_delay` keeps the name.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_has_ended_is_not_revived_within_its_lock_delay() {
    for db in shared().await {
        let client = connect(&db.url()).await;
        for mode in modes() {
            let name = name("over");
            let lock = |lock: Lock| in_mode(lock.lock_delay(HOUR), mode);
            let receipt = detached(db, &name, lock).await;
            let later = (LONG + TTL).as_micros();
            for table in ["tenure_locks", "tenure_locks_modes"] {
                db.rows(&format!(
                    "UPDATE {table} SET until=until-{later} WHERE name='{name}' AND until>0"
                ));
            }
            let before = ends(db, &name);
            assert_lost(&client, &receipt).await;
            assert_eq!(ends(db, &name), before);
            let status = soon(client.inspect(&name)).await.unwrap();
            assert!(status.holds.is_empty() && status.reserved.is_some());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_is_lost() {
    for db in Db::servers() {
        db.init().await;
        let (proxy, url) = db.proxied();
        let (first, second) = (connect(&url).await, connect(&url).await);
        for mode in [Mode::Exclusive, Mode::Shared] {
            let name = name("lost-reply");
            take_and_release(&first, &name, TTL).await;
            let guard = acquire(in_mode(first.lock(&name).ttl(LONG), mode)).await;
            // The connection breaks, and the request is sent again.
            proxy.plan("detach", Fault::CutAfter);
            let receipt = detach(guard).await;
            take_and_release(&second, &format!("{name}-other"), TTL).await;
            proxy.plan("attach", Fault::CutAfter);
            let guard = attach(&second, &receipt).await;
            assert!(guard.is_held() && proxy.is_done());
            let receipt = detach(guard).await;
            // The server is silent: it is unknown whether the hold was renewed, and nothing else was done.
            proxy.plan("attach", Fault::NoReply);
            let silent = soon(second.attach(&receipt)).await;
            assert_says(silent, ErrorKind::Indeterminate, &["did not answer"]);
            proxy.resume();
            let guard = attach(&second, &receipt).await;
            // A hold without a receipt is released; this one has a receipt already.
            proxy.plan("detach", Fault::NoReply);
            let silent = soon(guard.detach()).await;
            assert_says(silent, ErrorKind::Indeterminate, &["did not answer"]);
            proxy.resume();
            soon(attach(&second, &receipt).await.release())
                .await
                .unwrap();
            let guard = acquire(in_mode(first.lock(&name).ttl(LONG), mode)).await;
            proxy.plan("detach", Fault::NoReply);
            let silent = soon(guard.detach()).await;
            assert_says(silent, ErrorKind::Indeterminate, &["did not answer"]);
            proxy.resume();
            until("it is released", || db.owner(&name).is_empty()).await;
        }
    }
}

/// Two sessions of the server for all clients.
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_a_hold_is_handed_over() {
    needs!(pgbouncer);
    let server = Postgres::start(&[]);
    let pooler = Pooler::start(&server, "transaction", 2);
    let pooled = server.url_at(pooler.port()) + OPTIONS;
    let direct = connect(&(server.url() + OPTIONS)).await;
    soon(direct.init()).await.unwrap();
    let other = connect(&pooled).await;
    for mode in modes() {
        let name = name("pooled");
        let first = connect(&pooled).await;
        let lock = in_mode(first.lock(&name).ttl(LONG), mode);
        let receipt = detach(acquire(lock).await).await;
        soon(first.close()).await;
        let second = connect(&pooled).await;
        let guard = attach(&second, &receipt.with_ttl(TTL)).await;
        until_renewed(&guard).await;
        assert!(!is_free(&other, &name).await);
        soon(guard.release()).await.unwrap();
        assert!(is_free(&other, &name).await);
    }
}

/// A client that has not connected yet, and one whose first request is this one.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_connects_later_attaches_itself() {
    for db in shared().await {
        let name = name("lazy");
        let receipt = detached(db, &name, |lock| lock).await;
        let lazy = tenure::connect_lazy(&db.url()).unwrap();
        lazy.require(Capability::Detach).unwrap();
        let receipt = detach(attach(&lazy, &receipt).await).await;
        let lazy = tenure::connect_lazy(&db.url()).unwrap();
        soon(attach(&lazy, &receipt).await.release()).await.unwrap();
        assert_lost(&lazy, &receipt).await;
    }
}

/// Another file is another store, whatever its path is.
#[tokio::test(flavor = "multi_thread")]
async fn the_file_is_removed_while_a_hold_is_detached() {
    let directory = Directory::new("detach");
    let path = directory.path().join("x.db");
    let url = format!("sqlite:{}", path.display());
    let client = connect(&url).await;
    let receipt = detach(take(&client, "x", LONG).await).await;
    let guard = take(&client, "y", LONG).await;
    for suffix in ["", "-wal", "-shm"] {
        let mut path = path.clone().into_os_string();
        path.push(suffix);
        let _ = std::fs::remove_file(path);
    }
    assert_says(soon(guard.detach()).await, ErrorKind::Lost, &["taken over"]);
    for client in [client, connect(&url).await] {
        assert_lost(&client, &receipt).await;
        assert!(!path.exists(), "attach made the file");
    }
}

/// Locks of sessions and rows of ShedLock: refused before any request, with the stores that have detached holds.
#[tokio::test(flavor = "multi_thread")]
async fn stores_without_detached_holds_say_so() {
    let have = ["`memory:`", "`sqlite:`", "`mysql: with mode=table`"];
    for db in Db::servers() {
        db.init().await;
        let (proxy, table) = db.proxied();
        let receipt = detach(take(&connect(&table).await, "x", LONG).await).await;
        for (from, to, in_receipt, why) in [
            (
                "mode=table",
                "restart_guard=off",
                "",
                "without `mode=table` a hold ends with its connection",
            ),
            (
                "mode=table",
                "mode=table&dialect=shedlock",
                "dialect%3Dshedlock%26mode%3Dtable",
                "ShedLock's table has no room",
            ),
        ] {
            let url = table.replace(from, to);
            let receipt = changed(&receipt, "mode%3Dtable", in_receipt);
            let client = connect(&url).await;
            soon(client.init()).await.unwrap();
            let says = [&["has no detached holds", why][..], &have].concat();
            proxy.take_seen();
            let required = client.require(Capability::Detach);
            assert_says(required, ErrorKind::Unsupported, &says);
            let attached = soon(client.attach(&receipt)).await;
            assert_says(attached, ErrorKind::Unsupported, &says);
            assert!(!proxy.take_seen().iter().any(|it| it == "attach"));
            let guard = acquire(client.lock("y").ttl(LONG)).await;
            let refused = soon(guard.detach()).await;
            assert_says(refused, ErrorKind::Unsupported, &says);
            assert!(!proxy.take_seen().iter().any(|it| it == "detach"));
            let lazy = tenure::connect_lazy(&url).unwrap();
            let attached = soon(lazy.attach(&receipt)).await;
            assert_says(attached, ErrorKind::Unsupported, &says);
            let required = lazy.require(Capability::Detach);
            assert_says(required, ErrorKind::Unsupported, &says);
        }
    }
}
