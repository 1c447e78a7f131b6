//! How names and holds stand in the tables, by the published format.

use std::time::Duration;

use tenure::Renew;

use crate::support::{Db, SHORT, TTL, connect, name, shared, soon, take};

/// A text as a literal of hexadecimal digits, and a column as such digits.
fn hex(db: &Db, column: &str) -> String {
    match db {
        Db::Postgres(..) => format!("encode(convert_to({column},'UTF8'),'hex')"),
        _ => format!("LOWER(HEX({column}))"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_stand_as_published() {
    for db in shared().await {
        let client = connect(&db.url()).await;
        let long = format!("rows{}", "x".repeat(996));
        for (name, written) in [
            ("rows/plain", "rows/plain"),
            ("rows/Größe 🔒", "rows/Größe 🔒"),
            ("rows/a b ", "rows/a b "),
            ("rows/a b", "rows/a b"),
            ("rows/CASE", "rows/CASE"),
            ("rows/case", "rows/case"),
            ("rows/nul\0.", r"rows/nul\0."),
            (r"rows/nul\0.", r"rows/nul\\0."),
            (
                r"rows/'; DROP TABLE tenure_locks; --",
                r"rows/'; DROP TABLE tenure_locks; --",
            ),
            (long.as_str(), long.as_str()),
        ] {
            let guard = take(&client, name, TTL).await;
            let digits: String = written.bytes().map(|b| format!("{b:02x}")).collect();
            let column = hex(db, "name");
            let rows = db.rows(&format!(
                "SELECT token FROM tenure_locks WHERE owner<>'' AND {column}='{digits}'"
            ));
            let token = u64::from(guard.token()).to_string();
            assert_eq!(rows, [[Some(token)]], "{name:?}");
            let listed = soon(client.list(name)).await.unwrap();
            let listed: Vec<_> = listed.iter().map(|status| status.name.as_str()).collect();
            assert_eq!(listed, [name]);
            soon(guard.release()).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_stands_as_published() {
    for db in shared().await {
        let client = connect(&db.url()).await;
        let name = crate::support::name("row");
        let delay = std::time::Duration::from_secs(7);
        let lock = client.lock(&name).ttl(TTL).lock_delay(delay).label("why");
        let guard = soon(lock.acquire()).await.unwrap();
        let now = db.now();
        let row = db.rows(&format!(
            "SELECT LENGTH(owner),token,until-{now},{now}-since,min_hold,delay,holder,queued FROM tenure_locks WHERE name='{name}'"
        ));
        let cell = |at: usize| row[0][at].clone().unwrap();
        let number = |at: usize| cell(at).parse::<i64>().unwrap();
        assert_eq!(number(0), 32);
        assert_eq!(cell(1), u64::from(guard.token()).to_string());
        assert!(
            (7_000_000..=13_002_000).contains(&number(2)),
            "{}",
            number(2)
        );
        assert!((-2_000..=6_000_000).contains(&number(3)), "{}", number(3));
        assert_eq!((number(4), number(5)), (0, 7_000_000));
        let holder: serde_json::Value = serde_json::from_str(&cell(6)).unwrap();
        assert_eq!(holder["pid"], std::process::id());
        assert_eq!(holder["label"], "why");
        assert_eq!(number(7), 0);
        soon(guard.release()).await.unwrap();
        let row = db.rows(&format!(
            "SELECT owner,until,holder FROM tenure_locks WHERE name='{name}'"
        ));
        let expected = ["", "0", ""].map(|cell| Some(cell.to_owned()));
        assert_eq!(row, [expected]);
    }
}

/// The row of a hold that has run out reserves the name for the `lock_delay`. The release by a dropped guard, which comes
/// late, must not free the name.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_guard_of_a_lost_hold_leaves_its_lock_delay() {
    for db in shared().await {
        let name = name("dropped");
        let (client, other) = (connect(&db.url()).await, connect(&db.url()).await);
        let lock = client.lock(&name).ttl(SHORT).renew(Renew::Never);
        let lock = lock.lock_delay(Duration::from_secs(3_600));
        let guard = soon(lock.acquire()).await.unwrap();
        soon(guard.lost()).await;
        drop(guard);
        // Returns after the release was sent and answered.
        soon(client.close()).await;
        let tried = soon(other.lock(&name).ttl(TTL).try_acquire()).await;
        assert!(tried.unwrap().is_none(), "the name is free");
    }
}
