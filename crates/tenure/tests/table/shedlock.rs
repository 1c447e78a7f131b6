//! `dialect=shedlock`: what ShedLock's JDBC provider does with `usingDbTime()`, statement by statement, excludes us
//! and we it.

use std::time::Duration;

use tenure::{Client, Renew};

use crate::support::{Db, TTL, connect, name, soon, take, until_renewed};
use tenure_testkit::sql_client::Row;

async fn open(db: &Db) -> Client {
    let client = connect(&format!("{}&dialect=shedlock", db.url())).await;
    soon(client.init()).await.unwrap();
    client
}

/// The clock of the database as ShedLock writes it.
fn utc(db: &Db) -> &'static str {
    match db {
        Db::MySql(_) => "UTC_TIMESTAMP(3)",
        _ => "timezone('utc', CURRENT_TIMESTAMP)",
    }
}

fn seconds(db: &Db, count: u32) -> String {
    match db {
        Db::MySql(_) => format!("INTERVAL {count} SECOND"),
        _ => format!("interval '{count} seconds'"),
    }
}

/// In a session as JDBC has it.
fn rows(db: &Db, sql: &str) -> Vec<Row> {
    match db {
        Db::MySql(_) => db.rows(&format!("SET time_zone=@@global.time_zone; {sql}")),
        _ => db.rows(sql),
    }
}

fn value(db: &Db, sql: &str) -> String {
    let row = rows(db, sql).into_iter().next();
    row.and_then(|row| row.into_iter().next())
        .flatten()
        .unwrap()
}

fn number(db: &Db, sql: &str) -> i64 {
    value(db, sql).parse().unwrap()
}

/// A Java program takes the lock, or does not: an update of a row that has run out.
fn java_locks(db: &Db, name: &str) -> bool {
    let (utc, most) = (utc(db), seconds(db, 60));
    let insert = format!(
        "INTO shedlock (name, lock_until, locked_at, locked_by) VALUES ('{name}', {utc} + {most}, {utc}, 'javahost')"
    );
    match db {
        Db::MySql(_) => rows(db, &format!("INSERT IGNORE {insert}")),
        _ => rows(db, &format!("INSERT {insert} ON CONFLICT DO NOTHING")),
    };
    rows(
        db,
        &format!(
            "UPDATE shedlock SET lock_until = {utc} + {most}, locked_at = {utc}, locked_by = 'javahost' WHERE name = '{name}' AND lock_until <= {utc}"
        ),
    );
    value(
        db,
        &format!("SELECT locked_by FROM shedlock WHERE name = '{name}'"),
    ) == "javahost"
        && number(
            db,
            &format!("SELECT COUNT(*) FROM shedlock WHERE name = '{name}' AND lock_until > {utc}"),
        ) == 1
}

fn java_unlocks(db: &Db, name: &str) {
    let utc = utc(db);
    rows(
        db,
        &format!(
            "UPDATE shedlock SET lock_until = {utc} WHERE name = '{name}' AND locked_by = 'javahost'"
        ),
    );
}

/// Also when the server has a time zone of its own.
fn servers() -> Vec<Db> {
    [
        Db::mysql(&["--default-time-zone=+05:00"]),
        Db::postgres(&["timezone=America/New_York"]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn java_and_we_exclude_each_other() {
    for db in servers() {
        let client = open(&db).await;
        let name = name("both");
        let guard = take(&client, &name, TTL).await;
        assert!(!java_locks(&db, &name), "Java took what we hold");
        soon(guard.release()).await.unwrap();
        assert!(java_locks(&db, &name), "free, and Java does not get it");
        let lock = client.lock(&name).ttl(TTL);
        assert!(
            soon(lock.try_acquire()).await.unwrap().is_none(),
            "two hold it"
        );
        let status = soon(client.inspect(&name)).await.unwrap();
        assert_eq!(status.holds[0].holder.host, "javahost");
        let waiting = tokio::spawn(async move { lock.acquire().await });
        java_unlocks(&db, &name);
        let guard = soon(waiting).await.unwrap().unwrap();
        assert!(!java_locks(&db, &name));
        soon(guard.release()).await.unwrap();
    }
}

/// UTC in whole ms by the server's clock; a row is never deleted.
#[tokio::test(flavor = "multi_thread")]
async fn rows_are_those_of_shedlock() {
    for db in servers() {
        let client = open(&db).await;
        let name = name("row");
        let guard = take(&client, &name, TTL).await;
        let (utc, micros) = match db {
            Db::MySql(_) => (utc(&db), "MICROSECOND(locked_at)"),
            _ => (utc(&db), "extract(microseconds from locked_at)::bigint"),
        };
        let near = |column: &str, offset: u32| {
            let (offset, second) = (seconds(&db, offset), seconds(&db, 1));
            let tolerated = seconds(&db, 5);
            number(
                &db,
                &format!(
                    "SELECT COUNT(*) FROM shedlock WHERE name='{name}' AND {column} BETWEEN {utc} + {offset} - {tolerated} AND {utc} + {offset} + {second}"
                ),
            ) == 1
        };
        assert!(near("locked_at", 0) && near("lock_until", 6), "not UTC");
        let micros = number(
            &db,
            &format!("SELECT {micros} FROM shedlock WHERE name='{name}'"),
        );
        assert_eq!(micros % 1_000, 0, "{micros} µs");
        let by = value(
            &db,
            &format!("SELECT locked_by FROM shedlock WHERE name='{name}'"),
        );
        let (host, owner) = by.rsplit_once(':').unwrap();
        assert!(!host.is_empty() && owner.len() == 32, "{by}");
        assert_eq!(u64::from(guard.token()) % 1_000, 0);
        let first = guard.token();
        soon(guard.release()).await.unwrap();
        assert_eq!(
            number(
                &db,
                &format!("SELECT COUNT(*) FROM shedlock WHERE name='{name}'")
            ),
            1
        );
        let mut last = first;
        for _ in 0..5 {
            // Times are in ms and grow with each grant, so right after a release it can be taken for one more.
            let guard = soon(client.lock(&name).ttl(TTL).acquire()).await.unwrap();
            assert!(guard.token() > last, "{} follows {last}", guard.token());
            last = guard.token();
            soon(guard.release()).await.unwrap();
        }
    }
}

/// Sets the times of a row back by so many seconds: as if that time had passed.
fn pass(db: &Db, name: &str, count: u32) {
    let time = seconds(db, count);
    rows(
        db,
        &format!(
            "UPDATE shedlock SET lock_until = lock_until - {time}, locked_at = locked_at - {time} WHERE name = '{name}'"
        ),
    );
}

/// A holder that dies cannot release, and the lock is still taken for `min_hold`.
#[tokio::test(flavor = "multi_thread")]
async fn lock_at_least_is_honoured_without_a_release() {
    for db in &servers() {
        let (client, name) = (open(db).await, name("least-dead"));
        let lock = client.lock(&name).ttl(Duration::from_secs(600));
        let lock = lock.min_hold(Duration::from_secs(7_200));
        std::mem::forget(soon(lock.renew(Renew::Never).acquire()).await.unwrap());
        pass(db, &name, 3_600);
        assert!(!java_locks(db, &name));
        pass(db, &name, 3_600);
        assert!(java_locks(db, &name));
    }
}

/// `lockAtLeast` is our `min_hold`.
#[tokio::test(flavor = "multi_thread")]
async fn lock_at_least_is_honoured() {
    for db in servers() {
        let client = open(&db).await;
        let name = name("least");
        let lock = client
            .lock(&name)
            .ttl(TTL)
            .min_hold(Duration::from_secs(3600));
        soon(soon(lock.acquire()).await.unwrap().release())
            .await
            .unwrap();
        assert!(!java_locks(&db, &name), "Java took what is reserved");
        assert!(
            soon(client.lock(&name).try_acquire())
                .await
                .unwrap()
                .is_none()
        );
    }
}

/// A Java program of the same host cannot end our hold, nor we its.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_ends_what_is_not_his() {
    for db in servers() {
        let client = open(&db).await;
        let name = name("mine");
        let guard = take(&client, &name, TTL).await;
        java_unlocks(&db, &name);
        crate::support::until_renewed(&guard).await;
        let other = open(&db).await;
        assert!(
            soon(other.lock(&name).try_acquire())
                .await
                .unwrap()
                .is_none()
        );
        assert!(soon(other.break_lock(&name, guard.token())).await.unwrap());
        let next = soon(other.lock(&name).ttl(TTL).acquire()).await.unwrap();
        assert!(next.token() > guard.token());
        soon(guard.lost()).await;
        drop(guard);
        assert!(next.is_held());
        soon(next.release()).await.unwrap();
    }
}

/// The column does not count spaces at the end of a name, so both texts are one lock, under the text that came first.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_mysql_counts_as_equal_is_renewed() {
    let Some(db) = Db::mysql(&[]) else {
        return;
    };
    let client = open(&db).await;
    let name = name("spaces");
    soon(take(&client, &name, TTL).await.release())
        .await
        .unwrap();
    let guard = take(&client, &format!("{name} "), TTL).await;
    assert!(!java_locks(&db, &name));
    until_renewed(&guard).await;
    soon(guard.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_published_rights_are_enough() {
    for db in Db::servers() {
        soon(open(&db).await.close()).await;
        db.introduce("jobs");
        assert_eq!(db.grant_as_published("shedlock"), 1);
        let url = db.url().replace("//tenure:", "//jobs:") + "&dialect=shedlock";
        let (client, other) = (connect(&url).await, connect(&url).await);
        let guard = take(&client, "x", TTL).await;
        let lock = other.lock("x").ttl(TTL);
        assert!(soon(lock.try_acquire()).await.unwrap().is_none());
        until_renewed(&guard).await;
        assert!(soon(client.inspect("x")).await.unwrap().is_held());
        assert_eq!(soon(client.list("")).await.unwrap().len(), 1);
        soon(guard.release()).await.unwrap();
        let next = soon(lock.acquire()).await.unwrap();
        assert!(soon(client.break_lock("x", next.token())).await.unwrap());
        soon(next.lost()).await;
    }
}
