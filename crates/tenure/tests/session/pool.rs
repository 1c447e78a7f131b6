//! Locks of the sessions of a pool of the caller.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions, PgSslMode};

use tenure::sessions::{Settings, Store};
use tenure::{Client, ErrorKind};
use tenure_testkit::needs;
use tenure_testkit::pgbouncer::Pooler;
use tenure_testkit::postgres::Postgres;

use crate::common::{assert_says, soon, until};

const TTL: Duration = Duration::from_secs(10);

/// The name that the program gives to its connections.
const PROGRAM: &str = "a service";

fn pool(server: &Postgres, connections: u32) -> PgPool {
    let options: PgConnectOptions = server.url().parse().unwrap();
    let options = options
        .ssl_mode(PgSslMode::Disable)
        .application_name(PROGRAM);
    PgPoolOptions::new()
        .max_connections(connections)
        .connect_lazy_with(options)
}

async fn client(pool: &PgPool) -> Client {
    let settings = Settings::for_pool().without_restart_guard();
    let store = soon(settings.store_with(pool)).await.unwrap();
    Client::builder(store).build().unwrap()
}

fn count(server: &Postgres, condition: &str) -> usize {
    let user = tenure_testkit::USER;
    let sql =
        format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{user}' AND {condition}");
    server.admin().value(&sql).parse().unwrap()
}

/// The server sees no other connection than those of the pool, and after `close` the pool is as before.
#[tokio::test(flavor = "multi_thread")]
async fn connections_are_those_of_the_pool() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let pool = pool(&server, 6);
    let client = client(&pool).await;
    let other = client.clone();
    let held = soon(client.lock("a").ttl(TTL).acquire()).await.unwrap();
    let waiter = tokio::spawn(async move { other.lock("a").ttl(TTL).acquire().await });
    until("a session waits", || {
        count(&server, "wait_event = 'advisory'") == 1
    })
    .await;
    assert_eq!(
        count(&server, &format!("application_name <> '{PROGRAM}'")),
        0
    );
    // One for everything but locks, one for free locks, one that waits; half of the pool is left.
    assert_eq!(count(&server, "true"), 3);
    let mut rest = Vec::new();
    for _ in 0..3 {
        rest.push(soon(pool.acquire()).await.unwrap());
    }
    drop(rest);
    soon(held.release()).await.unwrap();
    soon(soon(waiter).await.unwrap().unwrap().release())
        .await
        .unwrap();
    soon(client.close()).await;
    // The sessions that had locks are closed, with their settings.
    until("no session of ours is left", || {
        let set = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        server.admin().value(set) == "0" && pool.size() as usize == pool.num_idle()
    })
    .await;
    let timeout: String = soon(sqlx::query_scalar("SHOW idle_session_timeout").fetch_one(&pool))
        .await
        .unwrap();
    assert_eq!(timeout, "0");
    soon(pool.close()).await;
}

/// A pool of one, and one without a connection for the program.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_is_too_small_is_refused() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    for connections in [1, 3] {
        let refused = Store::from_pool(pool(&server, connections)).await;
        let words = ["max_connections", "allow 4 or more", "tables"];
        assert_says(refused, ErrorKind::Invalid, &words);
    }
}

/// The program uses all connections itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_is_used_up_is_an_error_and_no_deadlock() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let pool = pool(&server, 4);
    let settings = Settings::for_pool()
        .without_restart_guard()
        .timeout(Duration::from_secs(3));
    let store = soon(settings.store_with(&pool)).await.unwrap();
    let client = Client::builder(store).build().unwrap();
    let held = soon(client.lock("a").ttl(TTL).acquire()).await.unwrap();
    let mut transactions = Vec::new();
    for _ in 0..2 {
        transactions.push(soon(pool.begin()).await.unwrap());
    }
    let wait = Duration::from_secs(5);
    let refused = soon(client.lock("a").ttl(TTL).wait(wait).acquire()).await;
    assert!(refused.is_err());
    assert!(held.is_held());
    for transaction in transactions {
        soon(transaction.rollback()).await.unwrap();
    }
    soon(held.release()).await.unwrap();
}

/// The server would grant the lock once more to the session that has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_locks_of_its_own_is_refused() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let pool = pool(&server, 4);
    let lock = sqlx::query("SELECT pg_advisory_lock(17)");
    soon(lock.execute(&pool)).await.unwrap();
    // The one connection of the pool is back.
    until("the connection is idle", || pool.num_idle() == 1).await;
    let refused = soon(Store::from_pool(&pool)).await;
    let words = ["advisory locks already", "pg_advisory_unlock_all"];
    assert_says(refused, ErrorKind::Unsupported, &words);
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 17";
    assert_eq!(server.admin().value(held), "1");
}

/// As with a URL: the pool leads to a pooler, which gives sessions to others after each transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_behind_the_pool_is_refused() {
    needs!(postgres, pgbouncer);
    let server = Postgres::start(&[]);
    let pooler = Pooler::start(&server, "transaction", 20);
    let options: PgConnectOptions = server.url_at(pooler.port()).parse().unwrap();
    // The pooler refuses a parameter that the client library sends otherwise.
    let options = options
        .ssl_mode(PgSslMode::Disable)
        .extra_float_digits(None);
    let pool = PgPoolOptions::new()
        .max_connections(4)
        .connect_lazy_with(options);
    let refused = soon(Store::from_pool(pool)).await;
    let words = [
        "gives the sessions of the server to other clients",
        "mode=table",
    ];
    assert_says(refused, ErrorKind::Unsupported, &words);
}

/// No connection of the pool listens, so observers read, and the guarantees say so.
#[tokio::test(flavor = "multi_thread")]
async fn observers_read_over_a_pool() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let pool = pool(&server, 6);
    let client = client(&pool).await;
    soon(client.init()).await.unwrap();
    assert!(client.guarantees().observers.starts_with("poll"));
    let election = client.election("e").value("v").ttl(TTL);
    let mut observer = election.observe();
    assert!(soon(observer.next()).await.unwrap().unwrap().is_none());
    let term = soon(election.campaign()).await.unwrap();
    let leader = soon(observer.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(leader.value(), Some("v"));
    assert!(soon(election.ask_to_resign()).await.unwrap().is_some());
    assert!(soon(term.asked_to_resign()).await);
    soon(term.resign()).await.unwrap();
    assert!(soon(observer.next()).await.unwrap().unwrap().is_none());
    assert_eq!(count(&server, "query LIKE 'LISTEN%'"), 0);
    soon(client.close()).await;
}
