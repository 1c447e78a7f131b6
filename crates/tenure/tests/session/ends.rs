//! Sessions, servers and clients that end, fall silent or stand still while a lock is held.

use std::process::Command;
use std::time::{Duration, Instant};

use tenure::{ErrorKind, Guard, LostReason};

use crate::support::{
    Database, OPTIONS, TTL, assert_says, connect, name, on_both, on_both_alone, proxy, soon, take,
    take_and_release, until, wait_as,
};
use tenure_testkit::needs;
use tenure_testkit::proxy::Direction;
use tenure_testkit::{mariadb, postgres};

on_both!(a_session_that_is_ended_is_a_loss_that_is_reported_soon all_callers_get_their_error_in_time a_cut_connection_is_reported_soon the_end_of_a_connection_is_noticed_without_a_check a_holder_that_is_not_told_of_the_end_shares_the_lock an_idle_limit_does_not_end_what_is_held);
on_both_alone!(a_holder_that_is_not_told_of_a_restart_shares_the_lock a_restart_is_a_loss_and_nothing_is_granted_for_a_while a_closed_client_has_no_session_left a_locked_table_ends_no_hold);

/// The time that may pass before a client notices a fault: `validate`, and the delay of a busy machine.
const SOON: Duration = Duration::from_secs(10);

/// KILL CONNECTION, pg_terminate_backend.
async fn a_session_that_is_ended_is_a_loss_that_is_reported_soon(database: &dyn Database) {
    let (client, other) = (
        connect(&database.url()).await,
        connect(&database.url()).await,
    );
    let (sender, mut losses) = tokio::sync::mpsc::unbounded_channel();
    client.on_lost(move |loss| drop(sender.send(loss.clone())));
    let names = [name("ended"), name("ended"), name("ended")];
    let lock = |at: usize| client.lock(&names[at]).ttl(Duration::from_secs(60));
    let mut guards = Vec::new();
    for at in 0..3 {
        guards.push(soon(lock(at).acquire()).await.unwrap());
    }
    let waiting = wait_as(database, &other, &names[0], 1).await;
    database.end(database.holders(&names[0])[0]);
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(next.token() > guards[0].token());
    let limit = Instant::now() + SOON;
    for guard in &guards {
        assert_eq!(soon(guard.lost()).await, Some(LostReason::SessionGone));
    }
    assert!(Instant::now() < limit, "reported too late");
    for _ in &guards {
        let loss = soon(losses.recv()).await.unwrap();
        let cause = loss.cause().expect("what ended the session");
        assert_eq!(cause.kind(), ErrorKind::Lost, "{loss:#}");
    }
    for guard in guards {
        assert_says(soon(guard.release()).await, ErrorKind::Lost, &["session"]);
    }
    assert!(next.is_held());
    assert_eq!(database.holders(&names[0]).len(), 1);
    soon(next.release()).await.unwrap();
    // The client can be used as before. The server frees the locks of a session one after the other.
    until("the lock is free", || {
        database.holders(&names[1]).is_empty()
    })
    .await;
    take_and_release(&client, &names[1]).await;
}

async fn a_cut_connection_is_reported_soon(database: &dyn Database) {
    let proxy = proxy(database);
    let client = connect(&format!("{}?{OPTIONS}", database.url_at(proxy.port()))).await;
    let name = name("cut");
    let lock = client.lock(&name).ttl(Duration::from_secs(60));
    let guard = soon(lock.acquire()).await.unwrap();
    proxy.cut();
    let cut = Instant::now();
    assert_eq!(soon(guard.lost()).await, Some(LostReason::SessionGone));
    assert!(cut.elapsed() < SOON, "reported after {:?}", cut.elapsed());
    // No driver connects again and takes the lock without the client.
    until("the lock is free", || database.holders(&name).is_empty()).await;
    drop(guard);
    take_and_release(&client, &name).await;
}

/// The next check would come in 40 minutes, and the next renewal too.
async fn the_end_of_a_connection_is_noticed_without_a_check(database: &dyn Database) {
    const OPTIONS: &str = "tls=off&timeout=3s&restart_guard=off&validate=1h";
    let proxy = proxy(database);
    let url = |port| format!("{}?{OPTIONS}", database.url_at(port));
    let client = connect(&url(database.port())).await;
    let behind_proxy = connect(&url(proxy.port())).await;
    let long = Duration::from_secs(2 * 3_600);
    let take = async |client: &tenure::Client, name: &str| {
        soon(client.lock(name).ttl(long).acquire()).await.unwrap()
    };
    let (ended, cut, other) = (name("ended"), name("cut"), name("other"));
    // Once without, and once with requests between the grant and the end.
    for requests in [0, 3] {
        let guards = [take(&client, &ended).await, take(&behind_proxy, &cut).await];
        for _ in 0..requests {
            for client in [&client, &behind_proxy] {
                soon(take(client, &other).await.release()).await.unwrap();
            }
        }
        database.end(database.holders(&ended)[0]);
        assert_eq!(soon(guards[0].lost()).await, Some(LostReason::SessionGone));
        proxy.cut();
        assert_eq!(soon(guards[1].lost()).await, Some(LostReason::SessionGone));
        proxy.resume();
        drop(guards);
        until("the locks are free", || {
            database.holders(&ended).is_empty() && database.holders(&cut).is_empty()
        })
        .await;
    }
}

/// A device between the holder and the server, or the loss of the network, can end the session for the server alone. This
/// is why no holder of a session has the lock for itself under such a fault (docs/guarantees.md).
async fn a_holder_that_is_not_told_of_the_end_shares_the_lock(database: &dyn Database) {
    two_hold_when(database, |name| database.end(database.holders(name)[0])).await;
}

async fn a_holder_that_is_not_told_of_a_restart_shares_the_lock(database: &dyn Database) {
    two_hold_when(database, |_| database.restart()).await;
}

async fn two_hold_when(database: &dyn Database, end: impl Fn(&str)) {
    let proxy = proxy(database);
    let client = connect(&format!("{}?{OPTIONS}", database.url_at(proxy.port()))).await;
    let name = name("untold");
    let lock = client.lock(&name).ttl(Duration::from_secs(600));
    let guard = soon(lock.acquire()).await.unwrap();
    proxy.hold_both(true);
    end(&name);
    until("the lock is free", || database.holders(&name).is_empty()).await;
    let other = connect(&database.url()).await;
    let next = take(&other, &name).await;
    assert!(next.is_held() && guard.is_held(), "the fault had no effect");
    proxy.resume();
    assert_eq!(soon(guard.lost()).await, Some(LostReason::SessionGone));
    soon(next.release()).await.unwrap();
}

/// The task that has the connection watches the time limits of all callers: of those in its statement, of those behind it,
/// and of those that come later. The session itself is not ended before its lease is over.
async fn all_callers_get_their_error_in_time(database: &dyn Database) {
    const LEASE: Duration = Duration::from_secs(60);
    let proxy = proxy(database);
    let client = connect(&format!("{}?{OPTIONS}", database.url_at(proxy.port()))).await;
    let (kept, names) = (name("kept"), [(); 80].map(|()| name("unanswered")));
    let lock = client.lock(&kept).ttl(LEASE);
    let guard = soon(lock.acquire()).await.unwrap();
    proxy.hold(Direction::Down, true);
    let cut = Instant::now();
    let ask = |name: &String| {
        let lock = client.lock(name).ttl(LEASE);
        tokio::spawn(async move { lock.try_acquire().await.map(drop) })
    };
    let (early, late) = names.split_at(40);
    let mut asked: Vec<_> = early.iter().map(ask).collect();
    // The limits end one after the other: when the first caller has its error, the limits of others are still to come.
    let first = soon(asked.remove(0)).await.unwrap();
    asked.extend(late.iter().map(ask));
    let mut answers = vec![first];
    for asked in asked {
        answers.push(soon(asked).await.unwrap());
    }
    for answer in answers {
        assert_says(answer, ErrorKind::Indeterminate, &["3s"]);
    }
    assert!(cut.elapsed() < LEASE / 2, "reported at {:?}", cut.elapsed());
    proxy.resume();
    for name in &names {
        let lock = client.lock(name).ttl(LEASE);
        soon(soon(lock.acquire()).await.unwrap().release())
            .await
            .unwrap();
    }
    assert!(guard.is_held(), "the session was not over");
    soon(guard.release()).await.unwrap();
}

/// The server would end the session after one ttl of silence, so the client is never silent for that long.
async fn an_idle_limit_does_not_end_what_is_held(database: &dyn Database) {
    let client = connect(&format!(
        "{}&validate=10s",
        database.url().replace("&validate=200ms", "")
    ))
    .await;
    let name = name("long");
    let lock = client.lock(&name).ttl(TTL);
    let guard = soon(lock.acquire()).await.unwrap();
    let session = database.holders(&name);
    let start = Instant::now();
    until("two ttls have passed", || start.elapsed() > TTL * 2).await;
    assert!(guard.is_held());
    assert_eq!(database.holders(&name), session);
    soon(guard.release()).await.unwrap();
}

async fn a_restart_is_a_loss_and_nothing_is_granted_for_a_while(database: &dyn Database) {
    // The guard is longer than the server has run when the test begins.
    let guarded = database
        .url()
        .replace("restart_guard=off", "restart_guard=12s");
    let (client, name) = (connect(&database.url()).await, name("restart"));
    let lock = client.lock(&name).ttl(Duration::from_secs(60));
    let old = soon(lock.acquire()).await.unwrap();
    let before = Instant::now();
    database.restart();
    let started = Instant::now();
    assert_eq!(soon(old.lost()).await, Some(LostReason::SessionGone));
    assert!(started.elapsed() < SOON, "reported too late");
    let second = connect(&guarded).await;
    let lock = second.lock(&name).ttl(TTL);
    let refused = soon(lock.try_acquire()).await;
    assert_says(
        refused,
        ErrorKind::Unreachable,
        &["started lately", "restart_guard"],
    );
    let short = second.lock(&name).ttl(TTL).wait(Duration::from_millis(200));
    let refused = soon(short.acquire()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unreachable);
    assert!(!refused.restart_guard().unwrap().left(TTL).is_zero());
    assert!(format!("{refused:#}").contains("`?restart_guard=off`"));
    let next = soon(lock.acquire()).await.unwrap();
    assert!(before.elapsed() > Duration::from_secs(11), "granted early");
    assert!(next.token() > old.token());
    soon(next.release()).await.unwrap();
}

/// `close` waits for the tasks that end sessions. The client stays in scope: nothing ends because the client is dropped.
async fn a_closed_client_has_no_session_left(database: &dyn Database) {
    let holder = connect(&database.url()).await;
    let names = [name("closed"), name("closed"), name("closed")];
    let mut guards = Vec::new();
    for name in &names {
        guards.push(take(&holder, name).await);
    }
    for _ in 0..10 {
        let before = database.sessions();
        let client = connect(&database.url()).await;
        let mut waiting = Vec::new();
        for name in &names {
            waiting.push(wait_as(database, &client, name, 1).await);
        }
        soon(client.close()).await;
        for waiter in waiting {
            assert!(soon(waiter).await.unwrap().is_err());
        }
        until("no session of the client is left", || {
            let sessions = database.sessions();
            sessions.iter().all(|session| before.contains(session))
        })
        .await;
        drop(client);
    }
    assert!(guards.iter().all(Guard::is_held));
}

/// An administrator alters the table of holders, or forgets an open transaction that has done so.
async fn a_locked_table_ends_no_hold(database: &dyn Database) {
    let client = connect(&database.url()).await;
    soon(client.init()).await.unwrap();
    let (name, kept) = (name("table"), name("kept"));
    let guard = take(&client, &name).await;
    // The client asks for this hold on another connection, which also writes the table.
    let lock = client.lock(&kept).ttl(TTL).min_hold(TTL * 100);
    let kept = soon(lock.try_acquire()).await.unwrap().unwrap();
    let foreign = database.foreign_client();
    let (lock_it, unlock_it) = match database.url_at(1).starts_with("mysql") {
        true => ("LOCK TABLES locks.tenure_holders WRITE", "UNLOCK TABLES"),
        false => (
            "BEGIN; LOCK TABLE tenure_holders IN ACCESS EXCLUSIVE MODE",
            "COMMIT",
        ),
    };
    foreign(&format!("{lock_it}; SELECT 1"));
    let start = Instant::now();
    while start.elapsed() < TTL * 2 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(guard.is_held(), "lost after {:?}", start.elapsed());
        assert!(kept.is_held(), "lost after {:?}", start.elapsed());
    }
    // A wait for the lock itself has no such limit.
    let other = connect(&database.url()).await;
    let waiting = wait_as(database, &other, &name, 1).await;
    let waiter = database.waiters(&name);
    let start = Instant::now();
    until("twice the limit for tables is over", || {
        start.elapsed() > Duration::from_secs(2)
    })
    .await;
    assert_eq!(database.waiters(&name), waiter);
    foreign(&format!("{unlock_it}; SELECT 1"));
    soon(guard.release()).await.unwrap();
    soon(soon(waiting).await.unwrap().unwrap().release())
        .await
        .unwrap();
    soon(kept.release()).await.unwrap();
}

/// kill -9 of any process of PostgreSQL makes all of them start over, without a new start of the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_one_process_of_postgres_is_a_restart() {
    needs!(postgres);
    let server = postgres::Postgres::start(&[]);
    let guarded = Database::url(&server).replace("restart_guard=off", "restart_guard=12s");
    let client = connect(&Database::url(&server)).await;
    let start = server.admin().value("SELECT pg_postmaster_start_time()");
    let name = name("crash");
    let lock = client.lock(&name).ttl(Duration::from_secs(60));
    let mut last = 0;
    for _ in 0..3 {
        let old = soon(lock.acquire()).await.unwrap();
        assert!(old.token().get() > last, "{} follows {last}", old.token());
        last = old.token().get();
        let process = server
            .admin()
            .value("SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'");
        let killed = Instant::now();
        let kill = Command::new("kill").args(["-9", &process]).status();
        assert!(kill.unwrap().success());
        assert_eq!(soon(old.lost()).await, Some(LostReason::SessionGone));
        assert!(killed.elapsed() < SOON, "reported too late");
        // The server answers for a moment before it starts over.
        let successor = format!(
            "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'background writer' AND pid <> {process}"
        );
        until("the server has started over", || {
            let rows = server.admin().try_rows(&successor);
            rows.is_ok_and(|rows| !rows.is_empty())
        })
        .await;
        let second = connect(&guarded).await;
        let refused = soon(second.lock(&name).ttl(TTL).try_acquire()).await;
        assert_says(refused, ErrorKind::Unreachable, &["started lately"]);
        second.close().await;
    }
    let now = server.admin().value("SELECT pg_postmaster_start_time()");
    assert_eq!(start, now, "that was no restart of the first process");
}

/// The counter of `UUID_SHORT()` carries into the time of the server's start after 2^24 calls.
#[tokio::test(flavor = "multi_thread")]
async fn many_calls_of_uuid_short_are_no_restart() {
    needs!(mariadb);
    let server = mariadb::MariaDb::start(&[]);
    let url = Database::url(&server);
    let start = "SELECT UUID_SHORT() >> 24";
    let (client, name) = (connect(&url).await, name("calls"));
    // The client asks on another connection whether the session of this hold is there.
    let lock = client.lock(&name).ttl(TTL).min_hold(TTL * 100);
    let guard = soon(lock.try_acquire()).await.unwrap().unwrap();
    let before = server.admin().value(start);
    for _ in 0..2 {
        server.rows("SELECT BENCHMARK(16777216, UUID_SHORT())");
    }
    assert_ne!(server.admin().value(start), before);
    let since = Instant::now();
    while since.elapsed() < TTL + TTL / 2 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(guard.is_held(), "lost after {:?}", since.elapsed());
    }
    // Commands of the old control session reach a session that was opened after the calls.
    let waiting = wait_as(&server, &client, &name, 1).await;
    waiting.abort();
    until("the wait is cancelled", || server.waiters(&name).is_empty()).await;
    soon(guard.release()).await.unwrap();
}
