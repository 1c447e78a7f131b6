//! Making the tables.

use tenure::ErrorKind;

use crate::servers::database::File;
use crate::support::{Db, TTL, assert_says, connect, soon, take};

#[tokio::test(flavor = "multi_thread")]
async fn tables_are_made_once_and_only_when_asked_for() {
    let mut all = Db::servers();
    all.push(Db::File(Box::new(File::new())));
    for db in all {
        let made = db.init().await;
        let mut expected = vec!["table tenure_locks", "table tenure_locks_waiters"];
        let file;
        if let Db::File(at) = &db {
            file = format!("file {}", at.path().display());
            expected.insert(0, &file);
        }
        assert_eq!(made, expected);
        assert_eq!(db.init().await, [""; 0]);
        let other = format!(
            "{}{}table=others",
            db.url(),
            if db.url().contains('?') { "&" } else { "?" }
        );
        let client = connect(&other).await;
        let outcome = soon(client.lock("x").acquire()).await;
        assert_says(outcome, ErrorKind::Denied, &["others"]);
        let made = soon(client.init()).await.unwrap();
        assert_eq!(made, ["table others", "table others_waiters"]);
        // Two tables, two locks.
        let first = take(&client, "x", TTL).await;
        let second = take(&connect(&db.url()).await, "x", TTL).await;
        soon(first.release()).await.unwrap();
        soon(second.release()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_may_make_them_at_the_same_time() {
    let mut all = Db::servers();
    all.push(Db::File(Box::new(File::new())));
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
        soon(take(&client, "x", TTL).await.release()).await.unwrap();
    }
}

/// By hand, with the statements of the page.
#[tokio::test(flavor = "multi_thread")]
async fn the_statements_of_the_page_make_the_tables() {
    let page = include_str!("../../../../docs/stores/table.md");
    for db in Db::servers() {
        let schema = match db {
            Db::MySql(_) => include_str!("../../src/backend/table/schema/mysql.sql"),
            _ => include_str!("../../src/backend/table/schema/postgres.sql"),
        };
        let schema = schema
            .replace("{locks}", "tenure_locks")
            .replace("{waiters}", "tenure_locks_waiters")
            .replace("{index}", "tenure_locks_queue");
        assert!(page.contains(&schema));
        db.rows(&schema);
        if let Db::Postgres(..) = db {
            db.rows("ALTER TABLE tenure_locks OWNER TO tenure; ALTER TABLE tenure_locks_waiters OWNER TO tenure");
        }
        assert_eq!(db.init().await, [""; 0]);
        let client = connect(&db.url()).await;
        soon(take(&client, "x", TTL).await.release()).await.unwrap();
    }
}
