//! Servers and files that would not have us: one clear line each, with what would cure it.

use tenure::store::{Finding, Severity};
use tenure::{Error, ErrorKind, Guard};

use crate::support::{
    Db, TTL, assert_says, connect, directory, soon, take, take_and_release, until,
};
use tenure_testkit::mariadb::{DATABASE, PASSWORD, USER};
use tenure_testkit::sqlite::DatabaseFile;

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password() {
    for db in Db::servers() {
        let url = db.url().replace(PASSWORD, "wrong");
        let cure = match db {
            Db::MySql(_) => "ALTER USER 'tenure'",
            _ => "ALTER ROLE \"tenure\"",
        };
        let outcome = soon(tenure::connect(&url)).await;
        assert_says(
            outcome,
            ErrorKind::Denied,
            &["does not let \"tenure\" in", cure],
        );
        let url = db.url().replace(&format!("/{DATABASE}?"), "/nowhere?");
        let outcome = soon(tenure::connect(&url)).await;
        if let Err(err) = &outcome {
            // PostgreSQL sends a line of its own source, too.
            assert!(!format!("{err:#}").contains("at line"), "{err}");
        }
        assert_says(outcome, no_database(&db), &["\"nowhere\""]);
    }
}

/// The URL names what does not exist; MariaDB only says to this user that there may be no such database for it.
fn no_database(db: &Db) -> ErrorKind {
    match db {
        Db::Postgres(..) => ErrorKind::Invalid,
        _ => ErrorKind::Denied,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table() {
    let mut all = Db::servers();
    all.push(Db::File(Box::new(DatabaseFile::new())));
    for db in all {
        let client = connect(&db.url()).await;
        if let Db::File(file) = &db {
            // A file has its tables from the first request on, until somebody drops them.
            take_and_release(&client, "x", TTL).await;
            file.rows("DROP TABLE tenure_locks; DROP TABLE tenure_locks_waiters");
        }
        let says = [
            "tenure_locks",
            "tenure check --init",
            "docs/stores/table.md",
        ];
        let outcome = soon(client.lock("x").acquire()).await;
        assert_says(outcome, ErrorKind::Denied, &says);
        assert_says(soon(client.inspect("x")).await, ErrorKind::Denied, &says);
        assert_says(soon(client.list("")).await, ErrorKind::Denied, &says);
        let findings = soon(client.check()).await.unwrap();
        let bad = findings.iter().find(|it| it.severity == Severity::Bad);
        assert!(bad.unwrap().text.contains(says[1]), "{bad:?}");
        soon(client.init()).await.unwrap();
        take_and_release(&client, "x", TTL).await;
        let findings = soon(client.check()).await.unwrap();
        assert!(
            findings.iter().all(|it| it.severity == Severity::Good),
            "{findings:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_another_kind() {
    for db in Db::servers() {
        db.rows("CREATE TABLE tenure_locks (name varchar(20) PRIMARY KEY)");
        if let Db::Postgres(..) = db {
            db.rows(&format!("GRANT ALL ON tenure_locks TO {USER}"));
        }
        let client = connect(&db.url()).await;
        let outcome = soon(client.lock("x").acquire()).await;
        assert_says(outcome, ErrorKind::Denied, &["other columns", "table="]);
    }
}

async fn assert_check_says(client: &tenure::Client, severity: Severity, says: &str) {
    let findings = soon(client.check()).await.unwrap();
    let is_it = |it: &Finding| it.severity == severity && it.text.contains(says);
    assert!(findings.iter().any(is_it), "{findings:?}");
}

/// The line names the statement; with it, and with those of the page, everything works.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_privilege() {
    for db in Db::servers() {
        db.init().await;
        let at = match db {
            Db::MySql(_) => format!("`{DATABASE}`."),
            _ => String::new(),
        };
        db.introduce("jobs");
        // Enough to connect.
        if let Db::MySql(_) = db {
            db.rows("CREATE TABLE empty (x int); GRANT SELECT ON empty TO jobs@'%'");
        }
        let url = db.url().replace("//tenure:", "//jobs:");
        let client = connect(&url).await;
        // A check before a deployment says so, also of a user who may read.
        let tables = ["", "_waiters", "_modes"].map(|it| format!("{at}tenure_locks{it}"));
        let to = match db {
            Db::MySql(_) => "jobs@'%'",
            _ => "jobs",
        };
        for table in &tables {
            db.rows(&format!("GRANT SELECT ON {table} TO {to}"));
        }
        assert_check_says(&client, Severity::Bad, "\"jobs\" may not").await;
        let mut severity = Severity::Bad;
        for (table, right) in [
            (&tables[0], "INSERT"),
            (&tables[0], "UPDATE"),
            (&tables[1], "INSERT"),
            (&tables[1], "UPDATE"),
            (&tables[1], "DELETE"),
            (&tables[2], "INSERT"),
            (&tables[2], "UPDATE"),
            (&tables[2], "DELETE"),
        ] {
            if *table == tables[2] {
                // Enough for exclusive locks.
                severity = Severity::Warning;
            }
            assert_check_says(&client, severity, "GRANT SELECT, INSERT, UPDATE").await;
            db.rows(&format!("GRANT {right} ON {table} TO {to}"));
        }
        let findings = soon(client.check()).await.unwrap();
        assert!(
            findings.iter().all(|it| it.severity == Severity::Good),
            "{findings:?}"
        );
        for table in &tables {
            db.rows(&format!(
                "REVOKE SELECT, INSERT, UPDATE ON {table} FROM {to}"
            ));
        }
        for table in &tables[1..] {
            db.rows(&format!("REVOKE DELETE ON {table} FROM {to}"));
        }
        let outcome = soon(client.lock("x").acquire()).await;
        let cure = match db {
            Db::MySql(_) => format!("GRANT SELECT, INSERT, UPDATE ON {at}tenure_locks TO 'jobs'"),
            _ => "GRANT SELECT, INSERT, UPDATE ON tenure_locks TO \"jobs\"".to_owned(),
        };
        assert_says(outcome, ErrorKind::Denied, &["\"jobs\" may not", &cure]);
        assert_eq!(db.grant_as_published("tenure_locks"), 3);
        let guard = take(&client, "x", TTL).await;
        let other = connect(&url).await;
        let waiting = crate::support::wait_as(&db, &other, "x", 1).await;
        crate::support::until_renewed(&guard).await;
        assert!(soon(client.inspect("x")).await.unwrap().is_held());
        assert_eq!(soon(client.list("")).await.unwrap().len(), 1);
        let token = guard.token();
        assert!(soon(client.break_lock("x", token)).await.unwrap());
        soon(soon(waiting).await.unwrap().unwrap().release())
            .await
            .unwrap();
        // Whoever may not make tables is told so.
        let elsewhere = connect(&format!("{url}&table=elsewhere")).await;
        assert_says(
            soon(elsewhere.init()).await,
            ErrorKind::Denied,
            &["may not make the tables", "docs/stores/table.md"],
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server() {
    for db in Db::servers() {
        db.init().await;
        let cure = match &db {
            Db::MySql(_) => {
                db.rows("SET GLOBAL read_only = 1");
                "read_only = 0"
            }
            _ => {
                db.rows(&format!(
                    "ALTER DATABASE {DATABASE} SET default_transaction_read_only = on"
                ));
                "default_transaction_read_only = off"
            }
        };
        let client = connect(&db.url()).await;
        assert_check_says(&client, Severity::Bad, cure).await;
        let outcome = soon(client.lock("x").acquire()).await;
        assert_says(outcome, ErrorKind::Denied, &["read-only", cure]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_connection_table() {
    let some = [
        Db::mysql(&["--max-connections=10"]),
        Db::postgres(&["max_connections=10", "superuser_reserved_connections=3"]),
    ];
    for db in some.into_iter().flatten() {
        db.init().await;
        let mut held = Vec::new();
        let refused = loop {
            let url = format!("{}&connections=1", db.url());
            match soon(tenure::connect(&url)).await {
                Ok(client) => held.push(client),
                Err(err) => break err,
            }
            assert!(held.len() < 20, "there is no end to it");
        };
        let cure = match db {
            Db::MySql(_) => "SET GLOBAL max_connections",
            _ => "ALTER SYSTEM SET max_connections",
        };
        let says = ["no connection left", cure];
        assert_says::<()>(Err(refused), ErrorKind::Unreachable, &says);
        for client in held {
            client.close().await;
        }
        let mut client = None;
        until("they are gone", || db.connections() == 0).await;
        client.replace(connect(&db.url()).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_none() {
    let directory = directory();
    let path = directory.path().join("x.db");
    std::fs::write(&path, "This is a text, and it is long enough for a header, which has 100 bytes at least in any file of the kind.").unwrap();
    let client = connect(&format!("sqlite:{}", path.display())).await;
    let outcome = soon(client.lock("x").acquire()).await;
    assert_says(outcome, ErrorKind::Denied, &["no SQLite database"]);
    // No directory; one that is a file; one in which no user can make files, not even root.
    let nowhere = directory.path().join("nowhere/x.db");
    for path in [nowhere, path.join("x.db"), "/proc/self/x.db".into()] {
        let client = connect(&format!("sqlite:{}", path.display())).await;
        let says = ["cannot be made", "its directory"];
        assert_says(soon(client.init()).await, ErrorKind::Denied, &says);
        let outcome = soon(client.lock("x").acquire()).await;
        assert_says(outcome, ErrorKind::Denied, &says);
        assert_says(soon(client.list("")).await, ErrorKind::Denied, &says);
    }
}

/// A refusal names the stores that can, whichever those are.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_table_has_not_other_stores_have() {
    let Some(db) = Db::postgres(&[]) else {
        return;
    };
    let client = connect(&format!("{}&dialect=shedlock", db.url())).await;
    let says = |what: &str, have: &[&str], have_not: &[&str], outcome: Result<Guard, Error>| {
        let text = format!("{:#}", outcome.as_ref().unwrap_err());
        assert_says(outcome, ErrorKind::Unsupported, &[what]);
        let (_, listed) = text.split_once("stores that have it: ").unwrap();
        for store in have {
            assert!(listed.contains(&format!("`{store}`")), "{store}: {text}");
        }
        for store in have_not {
            assert!(!listed.contains(&format!("`{store}`")), "{store}: {text}");
        }
    };
    let outcome = client.lock("x").shared().acquire().await;
    let have = [
        "memory:",
        "file:",
        "redis:",
        "etcd:",
        "zookeeper:",
        "postgres:",
        "redlock:",
        "mysql: with mode=table",
        "postgres: with mode=table",
        "sqlite:",
    ];
    says("postgres has no shared holds", &have, &["mysql:"], outcome);
    let outcome = client.lock("x").permits(3).acquire().await;
    let have = [
        "memory:",
        "file:",
        "redis:",
        "etcd:",
        "zookeeper:",
        "sqlite:",
    ];
    says("permits", &have, &["postgres:", "mysql:"], outcome);
    // The table is not there, so each request would fail: these were refused before any.
    let outcome = soon(client.lock("x").acquire()).await;
    assert_says(outcome, ErrorKind::Denied, &["shedlock"]);
}

/// What a server may lose is said, by the promises and by the check.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_may_lose_a_commit() {
    use tenure::guarantees::Fault;
    let some = [
        (Db::mysql(&["--innodb-flush-log-at-trx-commit=0"]), false),
        (Db::mysql(&["--innodb-flush-log-at-trx-commit=2"]), true),
        (Db::postgres(&["synchronous_commit=off"]), false),
        (Db::postgres(&["fsync=off"]), true),
    ];
    for (db, survives_a_kill) in some {
        let Some(db) = db else { continue };
        db.init().await;
        let client = connect(&db.url()).await;
        let promises = client.guarantees();
        assert_eq!(promises.survives(Fault::StoreRestart), survives_a_kill);
        assert!(!promises.survives(Fault::PowerLoss));
        let findings = soon(client.check()).await.unwrap();
        let bad = findings.iter().find(|it| it.severity == Severity::Bad);
        let bad = &bad.unwrap().text;
        assert!(bad.contains("loses the last grants"), "{bad}");
    }
}
