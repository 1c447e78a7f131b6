//! Holds beside others in PostgreSQL: the server against the reference table, foreign clients beside our modes, and what
//! is left afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::{Client, Error, ErrorKind, Guard, Lock, LostReason, Mode};
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::sql_client::SqlClient;
use tokio::task::JoinHandle;

use crate::common::walk::{Walk, WalkOptions};
use crate::support::{
    Database, OPTIONS, TTL, assert_says, connect, name, postgres_key, soon, start_acquire, take,
    until,
};

/// Two clients of a server of this test, and a client that knows nothing of us.
async fn parties(server: &Postgres) -> (Client, Client, SqlClient) {
    let first = connect(&Database::url(server)).await;
    soon(first.init()).await.unwrap();
    let second = connect(&Database::url(server)).await;
    (first, second, server.database_admin())
}

/// How many advisory locks all sessions have or wait for.
fn advisory_locks(server: &Postgres) -> Vec<u64> {
    let count = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    let value = server.rows(count)[0][0].clone();
    vec![value.unwrap().parse().unwrap()]
}

async fn assert_nothing_left(server: &Postgres) {
    until("no lock is left in the server", || {
        advisory_locks(server) == [0]
    })
    .await;
}

/// Whether a session that has the lock waits for more of it.
fn has_upgrading(server: &Postgres, name: &str) -> bool {
    let holders = server.holders(name);
    server.waiters(name).iter().any(|it| holders.contains(it))
}

async fn upgradable(client: &Client, name: &str) -> Arc<Guard> {
    let lock = client.lock(name).ttl(TTL).upgradable();
    Arc::new(soon(lock.try_acquire()).await.unwrap().unwrap())
}

async fn reader(client: &Client, name: &str) -> Guard {
    let lock = client.lock(name).ttl(TTL).shared();
    soon(lock.try_acquire()).await.unwrap().unwrap()
}

/// Begins to upgrade, and returns when the server has the request in its queue.
async fn upgrade_behind_readers(
    server: &Postgres,
    guard: &Arc<Guard>,
) -> JoinHandle<Result<(), Error>> {
    let task = guard.clone();
    let upgrading = tokio::spawn(async move { task.upgrade().await });
    until("the upgrade waits", || {
        has_upgrading(server, guard.name().as_str())
    })
    .await;
    upgrading
}

/// Random steps of four clients: after each, holders and queue are those of the reference table.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_does_what_the_table_says() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let (first, ..) = parties(&server).await;
    first.close().await;
    let url = Database::url(&server);
    let client = async || connect(&url).await;
    let options = WalkOptions {
        modes: &[
            Mode::Exclusive,
            Mode::Shared,
            Mode::Shared,
            Mode::Upgradable,
            Mode::Upgradable,
        ],
        // Requests for upgradable holds wait for each other before they enter the queue of the lock, so the order of
        // several is not that of the table.
        one_upgradable: true,
        // The rows that show the holders are written in the background.
        tokens_lag: true,
        shows_upgrade: &|name, expected| has_upgrading(&server, name) == expected,
        ..WalkOptions::default()
    };
    for seed in 0..6 {
        let mut walk = Walk::new(&format!("walk-{seed}"), client, seed, options).await;
        walk.goes_as_the_table_says(50).await;
        walk.close().await;
        assert_nothing_left(&server).await;
    }
}

/// A program that knows only the key excludes all our modes, and is excluded by them, as its own mode wants.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_client_excludes_each_mode_and_is_excluded() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let (client, _, foreign) = parties(&server).await;
    let name = name("foreign");
    let key = postgres_key(&name);
    let call = |function: &str| foreign.value(&format!("SELECT {function}({key})::int"));
    let modes = |lock: &dyn Fn() -> Lock| [lock(), lock().shared(), lock().upgradable()];
    let lock = || client.lock(&name).ttl(TTL);

    assert_eq!(call("pg_try_advisory_lock"), "1");
    for lock in modes(&lock) {
        assert!(soon(lock.try_acquire()).await.unwrap().is_none());
        let mine = start_acquire(lock);
        until("it waits", || server.waiters(&name).len() == 1).await;
        mine.abort();
        // The session of an upgradable request gives back the lock of such requests some time after it left the queue.
        until("only the foreign lock is left", || {
            advisory_locks(&server) == [1]
        })
        .await;
    }
    assert_eq!(call("pg_advisory_unlock"), "1");

    for lock in modes(&lock) {
        let guard = soon(lock.try_acquire()).await.unwrap().unwrap();
        let is_exclusive = guard.mode() == Mode::Exclusive;
        assert_eq!(call("pg_try_advisory_lock"), "0");
        let beside = if is_exclusive { "0" } else { "1" };
        assert_eq!(call("pg_try_advisory_lock_shared"), beside);
        if !is_exclusive {
            assert_eq!(call("pg_advisory_unlock_shared"), "1");
        }
        soon(guard.release()).await.unwrap();
    }

    // An upgrade waits for a foreign reader.
    assert_eq!(call("pg_try_advisory_lock_shared"), "1");
    let guard = upgradable(&client, &name).await;
    assert!(!soon(guard.try_upgrade()).await.unwrap());
    let upgrading = upgrade_behind_readers(&server, &guard).await;
    assert_eq!(call("pg_advisory_unlock_shared"), "1");
    soon(upgrading).await.unwrap().unwrap();
    assert_eq!(call("pg_try_advisory_lock_shared"), "0");
    soon(guard.downgrade()).await.unwrap();
    assert_eq!(call("pg_try_advisory_lock_shared"), "1");
    assert_eq!(call("pg_advisory_unlock_shared"), "1");
    soon(Arc::into_inner(guard).unwrap().release())
        .await
        .unwrap();
    assert_eq!(call("pg_try_advisory_lock"), "1");
    assert_eq!(call("pg_advisory_unlock"), "1");
    assert_nothing_left(&server).await;
}

/// `pg_try_advisory_lock` fails as long as any session waits, and an upgrade must not.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_comes_before_a_foreign_writer_that_waits() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let (client, other, foreign) = parties(&server).await;
    let name = name("before");
    let lock = format!("SELECT pg_advisory_lock({})::text", postgres_key(&name));
    for has_reader in [false, true] {
        let guard = upgradable(&client, &name).await;
        let reader = match has_reader {
            true => Some(reader(&other, &name).await),
            false => None,
        };
        let writer = std::thread::scope(|scope| {
            let writer = scope.spawn(|| foreign.value(&lock));
            let runtime = tokio::runtime::Handle::current();
            tokio::task::block_in_place(|| {
                runtime.block_on(async {
                    until("the writer waits", || !server.waiters(&name).is_empty()).await;
                    if let Some(reader) = reader {
                        assert!(!soon(guard.try_upgrade()).await.unwrap());
                        let upgrading = upgrade_behind_readers(&server, &guard).await;
                        soon(reader.release()).await.unwrap();
                        soon(upgrading).await.unwrap().unwrap();
                    } else {
                        assert!(soon(guard.try_upgrade()).await.unwrap());
                    }
                    assert_eq!(guard.mode(), Mode::Exclusive);
                    assert!(!writer.is_finished(), "the writer came in between");
                    let guard = Arc::into_inner(guard).unwrap();
                    soon(guard.release()).await.unwrap();
                })
            });
            writer.join().unwrap()
        });
        assert_eq!(writer, "");
        let unlock = format!("SELECT pg_advisory_unlock({})::int", postgres_key(&name));
        assert_eq!(foreign.value(&unlock), "1");
    }
    assert_nothing_left(&server).await;
}

/// The session of the upgrade answers nothing meanwhile, and no lock of the client depends on an answer of it.
#[tokio::test(flavor = "multi_thread")]
async fn holds_are_renewed_while_an_upgrade_waits() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let (client, other, _) = parties(&server).await;
    let (name, beside) = (name("renewed"), name("beside"));
    let reader = reader(&other, &name).await;
    let guard = upgradable(&client, &name).await;
    let exclusive = take(&client, &beside).await;
    let upgrading = upgrade_behind_readers(&server, &guard).await;
    let start = Instant::now();
    while start.elapsed() < TTL * 2 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(guard.is_held(), "lost after {:?}", start.elapsed());
        assert!(exclusive.is_held(), "lost after {:?}", start.elapsed());
    }
    assert!(!upgrading.is_finished());
    soon(reader.release()).await.unwrap();
    soon(upgrading).await.unwrap().unwrap();
    // An upgrade that is over does not keep the session from being silent.
    assert!(guard.remaining() <= TTL);
    soon(exclusive.release()).await.unwrap();
    soon(Arc::into_inner(guard).unwrap().release())
        .await
        .unwrap();
    assert_nothing_left(&server).await;
}

/// A session that dies frees both keys, whatever it was doing.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_session_frees_both_keys() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let (client, other, _) = parties(&server).await;
    let name = name("dead");
    let reader = reader(&other, &name).await;
    let guard = upgradable(&client, &name).await;
    let holder = server.holders(&name);
    let next = start_acquire(other.lock(&name).ttl(TTL).upgradable());
    let upgrading = upgrade_behind_readers(&server, &guard).await;
    let upgrader = server.waiters(&name)[0];
    assert!(
        holder.contains(&upgrader),
        "the upgrade is on the session of the hold"
    );
    server.end(upgrader);
    let ended = soon(upgrading).await.unwrap();
    assert_says(ended, ErrorKind::Lost, &[]);
    // The end of the session and the answer to the upgrade are two reports of the same loss.
    let reasons = [LostReason::SessionGone, LostReason::StoreSaysNo];
    assert!(reasons.map(Some).contains(&soon(guard.lost()).await));
    let next = soon(next).await.unwrap().unwrap();

    // A waiter for the second key dies, and asks again on another session.
    let waiting = start_acquire(client.lock(&name).ttl(TTL).upgradable());
    let gate = |granted: bool| {
        let query = format!(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted = {granted}"
        );
        let rows = server.rows(&query);
        rows.into_iter().flatten().flatten().collect::<Vec<_>>()
    };
    until("it waits", || gate(false).len() == 1).await;
    let dead = gate(false);
    server.end(dead[0].parse().unwrap());
    until("it waits again", || {
        let waiters = gate(false);
        waiters.len() == 1 && waiters != dead
    })
    .await;
    soon(next.release()).await.unwrap();
    let last = soon(waiting).await.unwrap().unwrap();
    assert_eq!(gate(true).len(), 1);
    soon(last.release()).await.unwrap();
    soon(reader.release()).await.unwrap();
    drop(guard);
    assert_nothing_left(&server).await;
}

/// Each upgradable hold has a connection of its own, and a client says so when it may open no more.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgradable_hold_needs_a_connection() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let url = server.url_at(Postgres::port(&server));
    let client = connect(&format!("{url}?{OPTIONS}&connections=2")).await;
    let (one, two, three) = (name("one"), name("two"), name("three"));
    let first = upgradable(&client, &one).await;
    let second = upgradable(&client, &two).await;
    let lock = client.lock(&three).ttl(TTL).upgradable();
    let refused = soon(lock.try_acquire()).await;
    assert_says(refused, ErrorKind::Store, &["`connections`", "all 2"]);
    let waiting = start_acquire(lock);
    soon(Arc::into_inner(first).unwrap().release())
        .await
        .unwrap();
    let third = soon(waiting).await.unwrap().unwrap();
    assert!(second.is_held() && third.is_held());
    drop((second, third));
    assert_nothing_left(&server).await;
}
