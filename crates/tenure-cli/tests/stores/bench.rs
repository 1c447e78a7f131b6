//! `tenure bench`: both sides are measured on one server, and nothing of the bare requests is left.

use crate::support::{json, text};
use crate::{AnyStore, Server, on_each};

on_each![both_sides_are_measured];

fn both_sides_are_measured(store: &AnyStore) {
    let output = store.output(&["bench", "--json", "--rounds", "100"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{message}");
    let rows = json(&output.stdout);
    // One task, many tasks, and a hand-off. The hand-off is measured alone where only `tenure` has a queue.
    assert_eq!(rows.len(), 3);
    for row in &rows {
        assert!(row["ours"]["median_us"].as_f64().unwrap() > 0.0, "{row}");
    }
    for row in &rows[..2] {
        assert!(row["raw"]["rounds"].as_u64().unwrap() > 0, "{row}");
        assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
    }
    // The goals of this project are in the scripts of `benches`.
    assert!(rows.iter().all(|row| row.get("goal").is_none()));
    let is_alone = rows[2]["raw"].is_null() && rows[2]["ratio"].is_null();
    assert_eq!(is_alone, !store.server.url().contains("mode=session"));
    match &store.server {
        Server::Etcd(server) => assert_eq!(server.keys("tenure-bench").len(), 0),
        // The server removes the directories of the locks later.
        Server::Zookeeper(server) => {
            let left = server.session().children("/");
            assert!(!left.iter().any(|name| name.contains("-raw-")), "{left:?}");
        }
        Server::MariaDb(server, _) => {
            let left = server
                .admin()
                .rows("SHOW TABLES FROM locks LIKE 'tenure_bench%'");
            assert!(left.is_empty(), "{left:?}");
        }
        Server::Postgres(server, _) => {
            let sql = "SELECT relname FROM pg_class WHERE relname LIKE 'tenure_bench%'";
            let left = server.database_admin().rows(sql);
            assert!(left.is_empty(), "{left:?}");
        }
    }
}
