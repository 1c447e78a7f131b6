//! Waiting, and what ends it.

use std::time::{Duration, Instant};

use tenure::ErrorKind;
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;

use crate::support::{
    Database, TTL, connect, name, on_both, soon, start_acquire, take, until, wait_as,
};

on_both!(a_wait_that_ends_as_it_is_granted_leaves_nothing a_client_that_gave_up_waits_still_sees_the_holder a_wait_that_an_administrator_cancels_goes_on a_waiting_session_that_is_ended_is_replaced a_try_that_is_interrupted_takes_nothing waiters_are_seen other_programs_take_the_same_lock two_that_want_what_the_other_has_wait_for_their_limit);

/// The end of the wait and the grant meet at all moments.
async fn a_wait_that_ends_as_it_is_granted_leaves_nothing(database: &dyn Database) {
    let holder = connect(&database.url()).await;
    let (client, name) = (connect(&database.url()).await, name("race"));
    // A wait first opens a session of its own. The two instants are spread over the time that this takes.
    let before = take(&holder, &name).await;
    let start = Instant::now();
    let waiting = wait_as(database, &client, &name, 1).await;
    let spread = u64::try_from(start.elapsed().as_micros())
        .unwrap()
        .max(30_000)
        * 2;
    soon(before.release()).await.unwrap();
    soon(soon(waiting).await.unwrap().unwrap().release())
        .await
        .unwrap();
    let mut granted = 0;
    for round in 0..200_u64 {
        // A wait that was given up may still take the lock for a moment, and release it.
        let guard = soon(holder.lock(&name).ttl(TTL).acquire()).await.unwrap();
        let wait = Duration::from_micros(500 + spread * (round * 83 % 200) / 200);
        let waiting = start_acquire(client.lock(&name).ttl(TTL).wait(wait));
        tokio::time::sleep(Duration::from_micros(
            500 + spread * (round * 37 % 200) / 200,
        ))
        .await;
        soon(guard.release()).await.unwrap();
        match soon(waiting).await.unwrap() {
            Ok(guard) => {
                granted += 1;
                soon(guard.release()).await.unwrap();
            }
            // `Unreachable`: the wait was shorter than the time until the first answer, and the name is free by now.
            Err(err) => assert!(
                matches!(err.kind(), ErrorKind::WaitElapsed | ErrorKind::Unreachable),
                "{err}"
            ),
        }
        until("nothing is left", || {
            database.holders(&name).is_empty() && database.waiters(&name).is_empty()
        })
        .await;
    }
    assert!((1..200).contains(&granted), "{granted} of 200 were granted");
}

/// A session that waits holds nothing, so the servers' search for deadlocks never picks one of ours as its victim
/// (1213, 3058, 40P01): two clients that take locks in opposite order wait until their limit, and keep their locks.
async fn two_that_want_what_the_other_has_wait_for_their_limit(database: &dyn Database) {
    let clients = [
        connect(&database.url()).await,
        connect(&database.url()).await,
    ];
    let names = [name("left"), name("right")];
    let mut guards = Vec::new();
    for (client, name) in clients.iter().zip(&names) {
        // Granted after a wait: the session that waited is the session that holds the lock now.
        let before = take(&clients[0], name).await;
        let waiting = wait_as(database, client, name, 1).await;
        soon(before.release()).await.unwrap();
        guards.push(soon(waiting).await.unwrap().unwrap());
    }
    // PostgreSQL searches after a second.
    let limit = Duration::from_secs(2);
    let wants = [(&clients[0], &names[1]), (&clients[1], &names[0])].map(|(client, name)| {
        let lock = client.lock(name).ttl(TTL).wait(limit);
        tokio::spawn(async move { lock.acquire().await })
    });
    for want in wants {
        let err = soon(want).await.unwrap().map(drop).unwrap_err();
        assert_eq!(err.kind(), ErrorKind::WaitElapsed, "{err}");
    }
    for guard in guards {
        assert!(guard.is_held());
        soon(guard.release()).await.unwrap();
    }
}

/// A command that was dropped on its way cost the control connection, and inspection failed then.
async fn a_client_that_gave_up_waits_still_sees_the_holder(database: &dyn Database) {
    let holder = connect(&database.url()).await;
    let (client, name) = (connect(&database.url()).await, name("gave-up"));
    let guard = take(&holder, &name).await;
    for _ in 0..30 {
        let lock = client.lock(&name).ttl(TTL).wait(Duration::from_millis(30));
        let err = soon(lock.acquire()).await.map(drop).unwrap_err();
        // A busy server need not answer in so short a time.
        let expected = [ErrorKind::WaitElapsed, ErrorKind::Unreachable];
        assert!(expected.contains(&err.kind()), "{err}");
        let status = soon(client.inspect(&name)).await.unwrap();
        assert_eq!(status.holds.len(), 1, "{status:?}");
    }
    soon(guard.release()).await.unwrap();
}

/// The first session that waits. A waiter that was interrupted may be out of the queue for a moment.
async fn waiting_session(database: &dyn Database, name: &str) -> u64 {
    let mut session = None;
    until("a session waits", || {
        session = database.waiters(name).first().copied();
        session.is_some()
    })
    .await;
    session.unwrap()
}

/// KILL QUERY, pg_cancel_backend.
async fn a_wait_that_an_administrator_cancels_goes_on(database: &dyn Database) {
    let (first, second) = (
        connect(&database.url()).await,
        connect(&database.url()).await,
    );
    let name = name("cancelled");
    let guard = take(&first, &name).await;
    let waiting = wait_as(database, &second, &name, 1).await;
    for _ in 0..3 {
        database.cancel(waiting_session(database, &name).await);
        // The waiter is out of the queue for a moment, or back already.
        tokio::time::sleep(Duration::from_millis(20)).await;
        until("it waits again", || database.waiters(&name).len() == 1).await;
        assert!(!waiting.is_finished(), "granted, or given up");
    }
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    assert_eq!(database.holders(&name).len(), 1);
    soon(next.release()).await.unwrap();
    assert!(database.holders(&name).is_empty());
}

/// KILL, pg_terminate_backend.
async fn a_waiting_session_that_is_ended_is_replaced(database: &dyn Database) {
    let (first, second) = (
        connect(&database.url()).await,
        connect(&database.url()).await,
    );
    let name = name("replaced");
    let guard = take(&first, &name).await;
    let waiting = wait_as(database, &second, &name, 1).await;
    let session = waiting_session(database, &name).await;
    database.end(session);
    until("another one waits", || {
        let waiters = database.waiters(&name);
        waiters.len() == 1 && waiters[0] != session
    })
    .await;
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    soon(next.release()).await.unwrap();
}

/// A request whose answer is NULL, or that the query was interrupted, has not got the lock.
async fn a_try_that_is_interrupted_takes_nothing(database: &dyn Database) {
    let (client, name) = (connect(&database.url()).await, name("interrupted"));
    let other = take(&client, &format!("{name}-other")).await;
    let session = database.holders(other.name().as_str())[0];
    for _ in 0..100 {
        database.cancel(session);
        let lock = client.lock(&name).ttl(TTL);
        match soon(lock.try_acquire()).await {
            // If the release is interrupted, it is repeated.
            Ok(Some(guard)) => drop(soon(guard.release()).await),
            Ok(None) => panic!("the lock is free"),
            Err(err) => assert!(!err.is_lost(), "{err}"),
        }
        until("nothing is left", || database.holders(&name).is_empty()).await;
    }
    assert!(other.is_held());
    soon(other.release()).await.unwrap();
}

async fn waiters_are_seen(database: &dyn Database) {
    let (first, second) = (
        connect(&database.url()).await,
        connect(&database.url()).await,
    );
    let name = name("seen");
    let guard = take(&first, &name).await;
    let waiting = start_acquire(second.lock(&name).ttl(TTL).label("it's /* me */ ü"));
    until("it waits", || database.waiters(&name).len() == 1).await;
    let status = soon(first.inspect(&name)).await.unwrap();
    let queue = status.queue.unwrap();
    assert_eq!(queue.len(), 1);
    assert_eq!(queue[0].label, "it's /* me */ ü");
    assert_eq!(queue[0].pid, std::process::id());
    soon(guard.release()).await.unwrap();
    soon(soon(waiting).await.unwrap().unwrap().release())
        .await
        .unwrap();
}

/// Programs that call the server's own functions, with the published key.
async fn other_programs_take_the_same_lock(database: &dyn Database) {
    let (client, name) = (connect(&database.url()).await, name("foreign"));
    let (foreign, [lock_it, unlock_it]) =
        (database.foreign_client(), database.lock_statements(&name));
    assert_eq!(foreign(&lock_it), "1");
    let lock = client.lock(&name).ttl(TTL);
    assert!(soon(lock.try_acquire()).await.unwrap().is_none());
    let status = soon(client.inspect(&name)).await.unwrap();
    assert_eq!(status.holds.len(), 1);
    assert_eq!(status.holds[0].token, None);
    let waiting = wait_as(database, &client, &name, 1).await;
    assert_eq!(foreign(&unlock_it), "1");
    let guard = soon(waiting).await.unwrap().unwrap();
    assert_eq!(foreign(&lock_it), "0");
    soon(guard.release()).await.unwrap();
    assert_eq!(foreign(&lock_it), "1");
    assert_eq!(foreign(&unlock_it), "1");
}

/// The server grants what the first part of a statement asks for, and then another part fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_refused_after_its_grant_leaves_nothing() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let url = Database::url(&server);
    let (holder, client) = (connect(&url).await, connect(&url).await);
    let admin = server.database_admin();
    let locks = || admin.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'");
    let break_function = |name: &str, arguments: &str, returns: &str| {
        admin.rows(&format!(
            "ALTER FUNCTION pg_catalog.{name}({arguments}) RENAME TO {name}_before; \
             CREATE FUNCTION pg_catalog.{name}({arguments}) RETURNS {returns} LANGUAGE plpgsql \
             AS $$BEGIN RAISE EXCEPTION 'broken for a test'; END$$"
        ));
    };

    let (name, other) = (name("refused"), name("upgradable"));
    let (guard, beside) = (take(&holder, &name).await, take(&holder, &other).await);
    break_function("txid_current", "", "bigint");
    let waiting = wait_as(&server, &client, &name, 1).await;
    soon(guard.release()).await.unwrap();
    let refused = soon(waiting).await.unwrap().unwrap_err();
    assert!(format!("{refused:#}").contains("broken"), "{refused}");
    assert_eq!(locks(), "1", "the lock of the name is left");

    // The second key of an upgradable hold is granted before the key of the name.
    break_function("pg_advisory_lock_shared", "bigint", "void");
    let refused = soon(client.lock(&other).ttl(TTL).upgradable().acquire()).await;
    let refused = refused.unwrap_err();
    assert!(format!("{refused:#}").contains("broken"), "{refused}");
    assert_eq!(locks(), "1", "the second key is left");
    soon(beside.release()).await.unwrap();
}
