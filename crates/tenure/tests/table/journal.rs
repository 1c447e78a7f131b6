//! The journal of a database file.

use crate::support::{Db, TTL, connect, take_and_release};
use tenure_testkit::sqlite::DatabaseFile;

/// A file that was restored from a dump, or that another program has set back, has the tables and another journal.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_with_another_journal_gets_a_write_ahead_log() {
    let db = Db::File(Box::new(DatabaseFile::new()));
    db.init().await;
    assert_eq!(db.value("PRAGMA journal_mode=DELETE"), "delete");
    let client = connect(&db.url()).await;
    take_and_release(&client, "x", TTL).await;
    assert_eq!(db.value("PRAGMA journal_mode"), "wal");
}
