//! Users, privileges, and servers that are not what the URL says: each error is one clear line with the cure.

use std::time::Duration;

use tenure::ErrorKind;
use tenure::backend::Severity;

use crate::support::{
    Database, MARIADB, OPTIONS, POSTGRES, TTL, assert_says, connect, name, on_both, on_both_alone,
    soon, take,
};
use tenure_testkit::mariadb::{DATABASE, MariaDb, PASSWORD, USER};
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;

on_both!(a_wrong_login_is_denied what_does_not_exist_is_named locks_need_no_table);
on_both_alone!(the_holder_table_is_made_on_request);

async fn a_wrong_login_is_denied(database: &dyn Database) {
    let url = database.url();
    let wrong = url.replacen(PASSWORD, "hunter2", 1);
    let denied = soon(tenure::connect(&wrong)).await;
    assert_says(
        denied,
        ErrorKind::Denied,
        &["does not let \"tenure\" in", "password"],
    );
    let nobody = url.replacen(&format!("{USER}:"), "nobody:", 1);
    let denied = soon(tenure::connect(&nobody)).await;
    assert_says(denied, ErrorKind::Denied, &["does not let \"nobody\" in"]);
}

async fn what_does_not_exist_is_named(database: &dyn Database) {
    let url = database.url();
    let nowhere = url.replacen(&format!("/{DATABASE}"), "/nowhere", 1);
    // MariaDB says no more than this to a user without privileges.
    assert_says(
        soon(tenure::connect(&nowhere)).await,
        ErrorKind::Denied,
        &["nowhere"],
    );
    let port = {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        nobody.local_addr().unwrap().port()
    };
    let away = format!("{}?{OPTIONS}", database.url_at(port));
    let outcome = soon(tenure::connect(&away)).await;
    assert_says(outcome, ErrorKind::Unreachable, &["cannot be reached"]);
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = deaf.local_addr().unwrap().port();
    let deaf_url = format!("{}?{OPTIONS}", database.url_at(port));
    let outcome = soon(tenure::connect(&deaf_url)).await;
    assert_says(
        outcome,
        ErrorKind::Unreachable,
        &["did not answer within 3s"],
    );
}

/// A user that may log in may lock. Only inspection needs a table.
async fn locks_need_no_table(database: &dyn Database) {
    let (client, name) = (connect(&database.url()).await, name("no-table"));
    let guard = take(&client, &name).await;
    let status = soon(client.inspect(&name)).await.unwrap();
    assert_eq!(status.holds.len(), 1);
    let holder = &status.holds[0].holder;
    assert!(holder.label.contains("of tenure"), "{holder}");
    let list = soon(client.list("")).await;
    assert_says(
        list,
        ErrorKind::Unsupported,
        &["tenure_holders", "check --init"],
    );
    let broken = soon(client.break_lock(&name, guard.token())).await;
    assert_says(
        broken,
        ErrorKind::Unsupported,
        &["tenure_holders", "check --init"],
    );
    let findings = soon(client.check()).await.unwrap();
    let found = |severity, word: &str| {
        findings
            .iter()
            .any(|it| it.severity == severity && it.text.contains(word))
    };
    assert!(
        found(Severity::Warning, "restart_guard is off"),
        "{findings:?}"
    );
    assert!(
        found(Severity::Warning, "no table tenure_holders"),
        "{findings:?}"
    );
    assert!(found(Severity::Warning, "not replicated"), "{findings:?}");
    assert!(found(Severity::Good, "silent for a ttl"), "{findings:?}");
    soon(guard.release()).await.unwrap();
}

async fn the_holder_table_is_made_on_request(database: &dyn Database) {
    let client = connect(&database.url()).await;
    let made = soon(client.init()).await.unwrap();
    assert_eq!(made, ["table tenure_holders"]);
    assert!(soon(client.init()).await.unwrap().is_empty());
    let other = connect(&database.url()).await;
    let guard = take(&client, "table/1").await;
    let listed = soon(other.list("table/")).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].holds[0].token, Some(guard.token()));
    assert_eq!(listed[0].holds[0].holder.pid, std::process::id());
    assert!(
        soon(other.break_lock("table/1", guard.token()))
            .await
            .unwrap()
    );
    assert!(!guard.is_held());
    // A holder that has died leaves a row that does not count.
    let guard = take(&client, "table/2").await;
    assert_eq!(soon(other.list("table/")).await.unwrap().len(), 1);
    database.end(database.holders("table/2")[0]);
    soon(guard.lost()).await;
    assert!(soon(other.list("table/")).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_table_of_connections_is_named() {
    needs!(mariadb, postgres);
    MARIADB.admin().rows(&format!(
        "CREATE USER few@'%' IDENTIFIED BY '{PASSWORD}' WITH MAX_USER_CONNECTIONS 1; GRANT ALL ON {DATABASE}.* TO few@'%'"
    ));
    let url = Database::url(&*MARIADB).replacen("tenure:", "few:", 1);
    let outcome = soon(tenure::connect(&url)).await;
    assert_says(
        outcome,
        ErrorKind::Unreachable,
        &["no connection left", "MAX_USER_CONNECTIONS"],
    );
    POSTGRES.admin().rows(&format!(
        "CREATE ROLE few LOGIN CONNECTION LIMIT 1 PASSWORD '{PASSWORD}'"
    ));
    let url = Database::url(&*POSTGRES).replacen("tenure:", "few:", 1);
    let outcome = soon(tenure::connect(&url)).await;
    assert_says(
        outcome,
        ErrorKind::Unreachable,
        &["no connection left", "CONNECTION LIMIT"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_refused() {
    needs!(mariadb);
    let server = MariaDb::start(&["--read-only=1"]);
    let outcome = soon(tenure::connect(&Database::url(&server))).await;
    assert_says(
        outcome,
        ErrorKind::Unsupported,
        &["read-only", "SET GLOBAL read_only = 0"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_refused() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let client = connect(&Database::url(&server)).await;
    let guard = take(&client, "x").await;
    server.become_standby();
    soon(guard.lost()).await;
    let outcome = soon(tenure::connect(&Database::url(&server))).await;
    assert_says(outcome, ErrorKind::Unsupported, &["standby", "primary"]);
}

/// PostgreSQL keeps all locks of all sessions in a table of a fixed size.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_table_of_locks_is_named() {
    needs!(postgres);
    let server = Postgres::start(&["max_locks_per_transaction=10", "max_connections=20"]);
    let client = connect(&Database::url(&server)).await;
    let ttl = Duration::from_secs(60);
    let mut guards = Vec::new();
    let err = loop {
        let lock = client.lock(format!("many/{}", guards.len())).ttl(ttl);
        match soon(lock.try_acquire()).await {
            Ok(guard) => guards.push(guard.unwrap()),
            Err(err) => break err,
        }
        assert!(guards.len() < 100_000, "the table of locks was never full");
    };
    assert_says::<()>(Err(err), ErrorKind::Backend, &["max_locks_per_transaction"]);
    // The other locks are still held, and their release makes room.
    let held = guards.len();
    assert!(guards.iter().all(|guard| guard.is_held()));
    for guard in guards {
        soon(guard.release()).await.unwrap();
    }
    assert!(held > 100, "{held}");
    let guard = soon(client.lock("one more").ttl(TTL).try_acquire()).await;
    soon(guard.unwrap().unwrap().release()).await.unwrap();
}
