//! Making the tables.

use std::sync::{Arc, Mutex};

use tenure::ErrorKind;
use tenure::conformance::lock_holder::LockHolder;
use tenure::store::{Finding, Severity};

use crate::support::{Db, TTL, assert_says, connect, lock_holder, soon, take, take_and_release};
use tenure_testkit::sqlite::DatabaseFile;

#[tokio::test(flavor = "multi_thread")]
async fn tables_are_made_once_and_only_when_asked_for() {
    for db in Db::servers() {
        let made = db.init().await;
        let tables = ["tenure_locks", "tenure_locks_waiters", "tenure_locks_modes"];
        assert_eq!(made, tables.map(|table| format!("table {table}")));
        assert_eq!(db.init().await, [""; 0]);
        let client = connect(&format!("{}&table=others", db.url())).await;
        let outcome = soon(client.lock("x").acquire()).await;
        assert_says(outcome, ErrorKind::Denied, &["others"]);
        let made = soon(client.init()).await.unwrap();
        let tables = ["others", "others_waiters", "others_modes"];
        assert_eq!(made, tables.map(|table| format!("table {table}")));
        // Two tables, two locks.
        let first = take(&client, "x", TTL).await;
        let second = take(&connect(&db.url()).await, "x", TTL).await;
        soon(first.release()).await.unwrap();
        soon(second.release()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_and_its_tables_are_made_when_they_are_needed() {
    let file = DatabaseFile::new();
    let shown = format!("file {}", file.path().display());
    let tables = [
        "table tenure_locks",
        "table tenure_locks_waiters",
        "table tenure_locks_modes",
    ];
    let client = connect(&file.url()).await;
    let made = soon(client.init()).await.unwrap();
    assert_eq!(made, [&[shown.as_str()][..], &tables].concat());
    assert_eq!(soon(client.init()).await.unwrap(), [""; 0]);
    // Another table in the same file.
    let others = connect(&format!("{}?table=others", file.url())).await;
    let first = take(&others, "x", TTL).await;
    let second = take(&client, "x", TTL).await;
    assert_eq!(soon(others.init()).await.unwrap(), [""; 0]);
    soon(first.release()).await.unwrap();
    soon(second.release()).await.unwrap();
    // Without `init`, whatever the first request is.
    for ask in 0..4 {
        let file = DatabaseFile::new();
        let client = connect(&file.url()).await;
        match ask {
            0 => take_and_release(&client, "x", TTL).await,
            1 => assert!(!soon(client.inspect("x")).await.unwrap().is_held()),
            2 => assert!(soon(client.list("")).await.unwrap().is_empty()),
            _ => assert!(soon(client.check()).await.unwrap().iter().all(is_good)),
        }
        assert_eq!(file.value("PRAGMA journal_mode"), "wal");
        assert_eq!(soon(client.init()).await.unwrap(), [""; 0]);
    }
}

fn is_good(finding: &Finding) -> bool {
    finding.severity == Severity::Good
}

/// An empty file, and the database of another program: our tables are put beside the others.
#[tokio::test(flavor = "multi_thread")]
async fn tables_are_made_in_a_file_that_is_there() {
    let file = DatabaseFile::new();
    std::fs::write(file.path(), "").unwrap();
    let client = connect(&file.url()).await;
    take_and_release(&client, "x", TTL).await;
    let file = DatabaseFile::new();
    std::fs::write(file.path(), "").unwrap();
    file.rows("CREATE TABLE jobs (id INTEGER); INSERT INTO jobs VALUES (7)");
    let client = connect(&file.url()).await;
    take_and_release(&client, "x", TTL).await;
    assert_eq!(file.value("SELECT id FROM jobs"), "7");
    assert_eq!(soon(client.init()).await.unwrap(), [""; 0]);
}

/// Processes that find no file and take the same lock: all use the same file, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn many_may_make_a_file_by_their_first_locks() {
    let file = Arc::new(DatabaseFile::new());
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let hold = |mut lock_holder: LockHolder,
                file: Arc<DatabaseFile>,
                tokens: Arc<Mutex<Vec<u64>>>| async move {
        let token = soon(lock_holder.held()).await.unwrap();
        let granted = file.value("SELECT token FROM tenure_locks WHERE name='x'");
        assert_eq!(granted, token.to_string());
        tokens.lock().unwrap().push(token);
        lock_holder.say("release").unwrap();
        soon(lock_holder.expect("released")).await.unwrap();
    };
    let holders: Vec<_> = (0..6).map(|_| lock_holder(&file.url(), "x")).collect();
    let holding = holders
        .into_iter()
        .map(|lock_holder| tokio::spawn(hold(lock_holder, file.clone(), tokens.clone())));
    for holding in holding.collect::<Vec<_>>() {
        holding.await.unwrap();
    }
    let tokens = tokens.lock().unwrap();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_may_make_them_at_the_same_time() {
    let mut all = Db::servers();
    all.push(Db::File(Box::new(DatabaseFile::new())));
    for db in all {
        let mut makers = Vec::new();
        for _ in 0..8 {
            let client = connect(&db.url()).await;
            makers.push(tokio::spawn(async move { client.init().await }));
        }
        for maker in makers {
            soon(maker).await.unwrap().unwrap();
        }
        let client = connect(&db.url()).await;
        take_and_release(&client, "x", TTL).await;
    }
}

/// By hand, with the statements of the page.
#[tokio::test(flavor = "multi_thread")]
async fn the_statements_of_the_page_make_the_tables() {
    let page = include_str!("../../../../docs/stores/table.md");
    for db in Db::servers() {
        let schema = match db {
            Db::MySql(_) => include_str!("../../src/tables/sql/schema/mysql.sql"),
            _ => include_str!("../../src/tables/sql/schema/postgres.sql"),
        };
        let schema = schema
            .replace("{locks}", "tenure_locks")
            .replace("{waiters}", "tenure_locks_waiters")
            .replace("{modes}", "tenure_locks_modes")
            .replace("{index}", "tenure_locks_queue");
        assert!(page.contains(&schema));
        db.rows(&schema);
        if let Db::Postgres(..) = db {
            db.rows("ALTER TABLE tenure_locks OWNER TO tenure; ALTER TABLE tenure_locks_waiters OWNER TO tenure; ALTER TABLE tenure_locks_modes OWNER TO tenure");
        }
        assert_eq!(db.init().await, [""; 0]);
        let client = connect(&db.url()).await;
        take_and_release(&client, "x", TTL).await;
    }
}
