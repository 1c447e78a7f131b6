//! `min_hold`: the server keeps the lock itself, whatever becomes of its holder.

use std::process::Command;
use std::time::{Duration, Instant};

use tenure::conformance::lock_holder::LockHolder;
use tenure::{ErrorKind, Guard, LockStatus, LostReason, Mode};
use tenure_testkit::{TEST_TIMEOUT, needs};

use crate::support::{
    Database, OPTIONS, POSTGRES, TTL, assert_says, connect, name, on_both, on_both_alone, proxy,
    soon, start_acquire, take, take_and_release, until,
};

on_both!(a_reservation_outlives_the_process_of_its_holder a_hold_may_be_longer_than_its_reservation an_ended_reservation_ends_its_hold a_cut_connection_leaves_the_reservation);
on_both_alone!(a_reservation_outlives_its_client a_hold_is_renewed_while_its_lock_is_kept a_broken_hold_leaves_its_reservation);

/// Longer than a server takes to notice that the client of a statement is gone: 5 s in MySQL, 1 s in PostgreSQL.
const MIN_HOLD: Duration = Duration::from_secs(8);

/// Longer than a test.
const LONG: Duration = Duration::from_secs(300);

/// Makes the table that says who holds: without it a lock that is kept looks like one that is held.
async fn init(database: &dyn Database) {
    let client = connect(&database.url()).await;
    soon(client.init()).await.unwrap();
    client.close().await;
}

async fn status(database: &dyn Database, name: &str) -> LockStatus {
    let client = connect(&database.url()).await;
    let status = soon(client.inspect(name)).await.unwrap();
    client.close().await;
    status
}

fn is_free(database: &dyn Database, name: &str) -> bool {
    database.holders(name).is_empty()
}

/// Takes the lock with `min_hold`, in one try.
async fn keep(database: &dyn Database, name: &str, min_hold: Duration) -> (tenure::Client, Guard) {
    let client = connect(&database.url()).await;
    let lock = client.lock(name).ttl(TTL).min_hold(min_hold);
    let guard = soon(lock.try_acquire()).await.unwrap().unwrap();
    (client, guard)
}

/// The process is killed, and another one ends in order: a client of the server that knows nothing of us is kept out.
async fn a_reservation_outlives_the_process_of_its_holder(database: &dyn Database) {
    let foreign = database.foreign_client();
    for is_killed in [true, false] {
        let name = name("process");
        let [lock, unlock] = database.lock_statements(&name);
        let start = Instant::now();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-lock-holder"));
        let millis = format!("{}ms", MIN_HOLD.as_millis());
        command.args([
            &database.url(),
            &name,
            "--ttl",
            "10s",
            "--min-hold",
            &millis,
        ]);
        let mut holder = LockHolder::spawn(command).unwrap();
        soon(holder.held()).await.unwrap();
        match is_killed {
            true => holder.kill().unwrap(),
            false => holder.hang_up(),
        }
        holder.wait().unwrap();
        let mut is_ours = foreign(&lock) == "1";
        assert!(!is_ours || start.elapsed() >= MIN_HOLD, "the lock was free");
        until("the lock is free", || {
            is_ours = is_ours || foreign(&lock) == "1";
            is_ours
        })
        .await;
        assert!(
            start.elapsed() >= MIN_HOLD,
            "free after {:?}",
            start.elapsed()
        );
        assert_eq!(foreign(&unlock), "1");
    }
}

async fn a_reservation_outlives_its_client(database: &dyn Database) {
    init(database).await;
    let (name, start) = (name("client"), Instant::now());
    let (client, guard) = keep(database, &name, TTL).await;
    let token = guard.token();
    soon(guard.release()).await.unwrap();
    let shown = soon(client.inspect(&name)).await.unwrap();
    assert!(!shown.is_held(), "{shown:?}");
    assert!(shown.reserved.is_some_and(|left| left <= TTL), "{shown:?}");
    // The client that had the hold is kept out as well.
    assert!(
        soon(client.lock(&name).ttl(TTL).try_acquire())
            .await
            .unwrap()
            .is_none()
    );
    client.close().await;
    let other = connect(&database.url()).await;
    let waiting = start_acquire(other.lock(&name).ttl(TTL));
    until("it waits in the server", || {
        waiting.is_finished() || database.waiters(&name).len() == 1
    })
    .await;
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(start.elapsed() >= TTL, "free after {:?}", start.elapsed());
    assert!(next.token() > token);
    soon(next.release()).await.unwrap();
    assert!(is_free(database, &name));
}

/// The session serves its hold as any other when the reservation is over.
async fn a_hold_may_be_longer_than_its_reservation(database: &dyn Database) {
    let name = name("longer");
    let (client, guard) = keep(database, &name, Duration::from_millis(500)).await;
    until("the reservation is over", || {
        let keeping = database.running("tenure:keep");
        !database
            .holders(&name)
            .iter()
            .any(|it| keeping.contains(it))
    })
    .await;
    let start = Instant::now();
    while start.elapsed() < TTL + TTL / 2 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(guard.is_held(), "lost after {:?}", start.elapsed());
    }
    soon(guard.release()).await.unwrap();
    assert!(is_free(database, &name));
    // The session is not left behind, and takes other locks.
    take_and_release(&client, &name).await;
}

async fn a_hold_is_renewed_while_its_lock_is_kept(database: &dyn Database) {
    init(database).await;
    let name = name("renewed");
    let (client, guard) = keep(database, &name, TTL * 2).await;
    let other = take(&client, &format!("{name}-other")).await;
    let start = Instant::now();
    while start.elapsed() < TTL + TTL / 2 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(guard.is_held(), "lost after {:?}", start.elapsed());
        assert!(other.is_held(), "lost after {:?}", start.elapsed());
    }
    let shown = status(database, &name).await;
    assert!(shown.is_held() && shown.reserved.is_none(), "{shown:?}");
    assert_eq!(shown.holds[0].token, Some(guard.token()));
    soon(other.release()).await.unwrap();
    soon(guard.release()).await.unwrap();
    until("it is free", || is_free(database, &name)).await;
}

/// An operator cancels the statement, or ends the session: no reservation is left, and the holder learns it.
async fn an_ended_reservation_ends_its_hold(database: &dyn Database) {
    for is_cancelled in [true, false] {
        let name = name("ended");
        let (_client, guard) = keep(database, &name, LONG).await;
        let session = database.holders(&name)[0];
        match is_cancelled {
            true => database.cancel(session),
            false => database.end(session),
        }
        assert_eq!(soon(guard.lost()).await, Some(LostReason::SessionGone));
        until("it is free", || is_free(database, &name)).await;
    }
}

/// The holder loses its hold, and the name stays taken, as after the end of the process of the holder.
async fn a_cut_connection_leaves_the_reservation(database: &dyn Database) {
    let (proxy, name) = (proxy(database), name("cut"));
    let client = connect(&format!("{}?{OPTIONS}", database.url_at(proxy.port()))).await;
    let lock = client.lock(&name).ttl(TTL).min_hold(LONG);
    let guard = soon(lock.try_acquire()).await.unwrap().unwrap();
    let session = database.holders(&name)[0];
    proxy.cut();
    assert_eq!(soon(guard.lost()).await, Some(LostReason::SessionGone));
    // The release returns when the client has done what it does about the session.
    assert!(soon(guard.release()).await.is_err());
    client.close().await;
    assert_eq!(database.holders(&name), [session]);
    database.end(session);
    until("it is free", || is_free(database, &name)).await;
}

/// `break` ends a hold, and `min_hold` says that the name stays taken after that.
async fn a_broken_hold_leaves_its_reservation(database: &dyn Database) {
    init(database).await;
    let name = name("broken");
    let (client, guard) = keep(database, &name, LONG).await;
    let other = connect(&database.url()).await;
    // The row of a hold is written a moment after its grant.
    let start = Instant::now();
    while !soon(other.break_lock(&name, guard.token().get()))
        .await
        .unwrap()
    {
        assert!(start.elapsed() < TEST_TIMEOUT, "there was no hold to break");
    }
    assert_eq!(soon(guard.lost()).await, Some(LostReason::TakenOver));
    let shown = soon(other.inspect(&name)).await.unwrap();
    assert!(!shown.is_held() && shown.reserved.is_some(), "{shown:?}");
    assert!(
        soon(other.lock(&name).ttl(TTL).try_acquire())
            .await
            .unwrap()
            .is_none()
    );
    client.close().await;
    let session = database.holders(&name)[0];
    database.end(session);
    until("it is free", || is_free(database, &name)).await;
    take_and_release(&other, &name).await;
}

/// A shared hold reserves the name for readers, and the session that keeps the lock cannot change its mode.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_keeps_its_mode() {
    needs!(postgres);
    let database = &*POSTGRES;
    let name = name("mode");
    let client = connect(&Database::url(database)).await;
    let lock = client.lock(&name).ttl(TTL).min_hold(LONG);
    let refused = soon(lock.clone().upgradable().try_acquire()).await;
    assert_says(refused, ErrorKind::Unsupported, &["`min_hold`", "mode"]);
    assert!(is_free(database, &name));
    let reader = soon(lock.shared().try_acquire()).await.unwrap().unwrap();
    soon(reader.release()).await.unwrap();
    let lock = client.lock(&name).ttl(TTL);
    let reader = soon(lock.clone().shared().try_acquire())
        .await
        .unwrap()
        .unwrap();
    assert!(soon(lock.try_acquire()).await.unwrap().is_none());
    soon(reader.release()).await.unwrap();
    for session in database.holders(&name) {
        database.end(session);
    }
    until("it is free", || is_free(database, &name)).await;
    let (_client, guard) = keep(database, &name, LONG).await;
    assert_eq!(guard.mode(), Mode::Exclusive);
    let refused = soon(guard.downgrade()).await;
    assert_says(refused, ErrorKind::Unsupported, &["`min_hold`", "mode"]);
    for session in database.holders(&name) {
        database.end(session);
    }
    soon(guard.lost()).await;
}

/// A lock that is kept has a connection of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_kept_lock_needs_a_connection() {
    needs!(postgres);
    let database = &*POSTGRES;
    let url = database.url_at(Database::port(database));
    let client = connect(&format!("{url}?{OPTIONS}&connections=2")).await;
    let kept = |tail: &str| client.lock(name(tail)).ttl(TTL).min_hold(TTL);
    let first = soon(kept("one").try_acquire()).await.unwrap().unwrap();
    let second = soon(kept("two").try_acquire()).await.unwrap().unwrap();
    let refused = soon(kept("three").try_acquire()).await;
    assert_says(refused, ErrorKind::Store, &["`connections`", "all 2"]);
    // A session that was left to the server is none of the client any more.
    soon(first.release()).await.unwrap();
    let third = soon(kept("three").try_acquire()).await.unwrap().unwrap();
    assert!(second.is_held() && third.is_held());
}
