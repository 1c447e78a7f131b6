//! Users, privileges, and servers that are not what the URL says: each error is one clear line with the cure.

use std::time::Duration;

use tenure::ErrorKind;
use tenure::store::{Finding, Severity};

use crate::support::{
    Database, MARIADB, POSTGRES, TTL, assert_says, connect, name, on_both, on_both_alone, soon,
    take, until,
};
use tenure_testkit::mariadb::{DATABASE, MariaDb, PASSWORD, USER};
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;

on_both!(a_limit_of_a_user_is_named a_wrong_login_is_denied what_does_not_exist_is_named locks_need_no_table);
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

/// Waiting for a connection helps with one of the limits only.
async fn a_limit_of_a_user_is_named(database: &dyn Database) {
    let is_mysql = database.url().starts_with("mysql");
    let cases: &[(&str, &str)] = match is_mysql {
        true => &[
            ("WITH MAX_QUERIES_PER_HOUR 3", "MAX_QUERIES_PER_HOUR 0"),
            (
                "WITH MAX_CONNECTIONS_PER_HOUR 1",
                "MAX_CONNECTIONS_PER_HOUR 0",
            ),
            ("WITH MAX_USER_CONNECTIONS 1", "MAX_USER_CONNECTIONS 0"),
        ],
        false => &[("CONNECTION LIMIT 1", "ALTER ROLE \"limited")],
    };
    for (at, (limit, says)) in cases.iter().enumerate() {
        let user = name(&format!("limited{at}")).replace(['.', '-', '/'], "_");
        database.rows(&match is_mysql {
            true => format!("CREATE USER {user}@'%' IDENTIFIED BY '{PASSWORD}' {limit}; GRANT ALL ON {DATABASE}.* TO {user}@'%'"),
            false => format!("CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}' {limit}"),
        });
        let url = database
            .url()
            .replacen(&format!("{USER}:"), &format!("{user}:"), 1);
        // A client opens two connections, and sends more than three statements.
        let outcome = soon(tenure::connect(&url)).await;
        assert_says(outcome, ErrorKind::Unreachable, &[says, &user]);
    }
}

async fn what_does_not_exist_is_named(database: &dyn Database) {
    let url = database.url();
    let nowhere = url.replacen(&format!("/{DATABASE}"), "/nowhere", 1);
    // MariaDB says no more to a user without privileges than that the user may not use the database.
    let kind = match url.starts_with("postgres") {
        true => ErrorKind::Invalid,
        false => ErrorKind::Denied,
    };
    assert_says(soon(tenure::connect(&nowhere)).await, kind, &["nowhere"]);
}

/// A user that may log in may lock. Only inspection needs a table.
async fn locks_need_no_table(database: &dyn Database) {
    let (client, name) = (connect(&database.url()).await, name("no-table"));
    let guard = take(&client, &name).await;
    let status = soon(client.inspect(&name)).await.unwrap();
    assert_eq!(status.holds.len(), 1);
    let holder = &status.holds[0].holder;
    let connection = database.holders(&name)[0];
    let is_postgres = database.url().starts_with("postgres");
    let (by_hand, pid) = match is_postgres {
        true => (
            format!("SELECT pg_terminate_backend({connection})"),
            std::process::id(),
        ),
        // The client library sends no attributes of the connection.
        false => (format!("KILL {connection}"), 0),
    };
    let label = format!("connection {connection} of tenure; {by_hand} ends it");
    assert_eq!((&holder.label, holder.pid), (&label, pid), "{holder}");
    assert_eq!(holder.to_string().contains("pid"), is_postgres, "{holder}");
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
    // The number of the connection stands for the token, which nothing shows.
    assert!(
        !soon(client.break_lock(&name, connection + 1))
            .await
            .unwrap()
    );
    let other = connect(&database.url()).await;
    let broken = soon(other.break_lock(&name, connection)).await;
    if is_postgres {
        assert!(broken.unwrap());
        soon(guard.lost()).await;
        until("the lock is free", || database.holders(&name).is_empty()).await;
        let (first, second) = (
            take(&client, &name).await,
            take(&client, "no-table-2").await,
        );
        let both = database.holders(&name)[0];
        let broken = soon(other.break_lock(&name, both)).await;
        assert_says(
            broken,
            ErrorKind::Unsupported,
            &["other locks", &both.to_string()],
        );
        assert!(first.is_held() && second.is_held());
    } else {
        assert_says(broken, ErrorKind::Unsupported, &[&by_hand]);
        soon(guard.release()).await.unwrap();
    }
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
    until("the lock is free", || {
        database.holders("table/2").is_empty()
    })
    .await;
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

/// A check before a deployment says that no lock can be taken, and that holds are not shown.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_finds_every_right_that_is_missing() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let admin = server.database_admin();
    for keys in ["bigint", "pair", "raw"] {
        let url = format!("{}&keys={keys}", Database::url(&server));
        let client = connect(&url).await;
        let arguments = match keys {
            "pair" => "int, int",
            _ => "bigint",
        };
        for function in [
            "pg_try_advisory_lock",
            "pg_advisory_lock",
            "pg_advisory_unlock",
        ] {
            let function = format!("{function}({arguments})");
            admin.rows(&format!(
                "REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC"
            ));
            let findings = soon(client.check()).await.unwrap();
            let bad = findings.iter().find(|it| it.severity == Severity::Bad);
            let text = &bad.expect("nothing was bad").text;
            assert!(text.contains("GRANT EXECUTE ON FUNCTION"), "{text}");
            admin.rows(&format!("GRANT EXECUTE ON FUNCTION {function} TO PUBLIC"));
        }
        let findings = soon(client.check()).await.unwrap();
        assert!(
            findings.iter().all(|it| it.severity != Severity::Bad),
            "{findings:?}"
        );
    }
    admin.rows(include_str!("../../src/sessions/sql/postgres.sql"));
    admin.rows(&format!("GRANT SELECT ON tenure_holders TO {USER}"));
    let client = connect(&Database::url(&server)).await;
    let findings = soon(client.check()).await.unwrap();
    let is_it = |it: &Finding| {
        it.text
            .contains("are not shown in the table tenure_holders")
    };
    assert!(findings.iter().any(is_it), "{findings:?}");
    admin.rows(&format!("GRANT ALL ON tenure_holders TO {USER}"));
    let findings = soon(client.check()).await.unwrap();
    assert!(!findings.iter().any(is_it), "{findings:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_refused() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let client = connect(&Database::url(&server)).await;
    let guard = take(&client, "x").await;
    server.become_standby();
    soon(guard.lost()).await;
    // A server that was just started may be late.
    let outcome = loop {
        match soon(tenure::connect(&Database::url(&server))).await {
            Err(err) if err.kind() == ErrorKind::Unreachable => {}
            outcome => break outcome,
        }
    };
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
    assert_says::<()>(Err(err), ErrorKind::Store, &["max_locks_per_transaction"]);
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
