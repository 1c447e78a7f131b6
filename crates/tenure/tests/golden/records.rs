//! The data in a store while a lock is held, while another client waits for the lock, and after its release.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::{connect, soon, until};
use crate::mask::mask;
use tenure_testkit::etcd;
use tenure_testkit::etcd::Etcd;
use tenure_testkit::jute::Session;
use tenure_testkit::mariadb::{self, MariaDb};
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::process::Directory;
use tenure_testkit::redis::Redis;
use tenure_testkit::sql_client::Row;
use tenure_testkit::sqlite::DatabaseFile;
use tenure_testkit::zookeeper::{PASSWORD, USER, Zookeeper};

const NAME: &str = "orders/42";
const TTL: Duration = Duration::from_secs(600);

/// Reads the lines of a record, which are masked and sorted afterwards.
type Dump<'a> = &'a dyn Fn() -> Vec<String>;

/// The clients whose labels a store shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ShownLabels {
    Nothing,
    Holder,
    HolderAndWaiter,
}

async fn compare(store: &str, url: &str, dump: Dump<'_>, shown: ShownLabels) {
    let (holder, waiter) = (connect(url).await, connect(url).await);
    let mut text = String::new();
    let mut record = |moment: &str| {
        let mut lines: Vec<_> = dump().iter().map(|line| mask(line)).collect();
        lines.sort();
        text += &format!("# {moment}\n{}\n", lines.join("\n"));
    };
    let lock = |client: &tenure::Client, label: &str| client.lock(NAME).ttl(TTL).label(label);
    let guard = soon(lock(&holder, "the holder").acquire()).await.unwrap();
    let is_shown = || shown == ShownLabels::Nothing || dump().join(" ").contains("the holder");
    until("the label of the holder is shown", is_shown).await;
    record("held");
    if shown == ShownLabels::HolderAndWaiter {
        let waiting = lock(&waiter, "the waiter");
        let waiting = tokio::spawn(async move { waiting.acquire().await });
        until("the waiter is shown", || {
            dump().join(" ").contains("the waiter")
        })
        .await;
        record("held, and somebody waits");
        waiting.abort();
        let _ = waiting.await;
        // Otherwise the release could hand the lock over to the waiter.
        until("the waiter is gone", || {
            !dump().join(" ").contains("the waiter")
        })
        .await;
    }
    soon(guard.release()).await.unwrap();
    waiter.close().await;
    holder.close().await;
    record("released");
    crate::compare(&format!("records/{store}"), &text);
}

fn redis_keys(server: &Redis) -> Vec<String> {
    let keys = server.order(&["KEYS", "*"]).items();
    let line = |key: &str| {
        let kind = server.order(&["TYPE", key]).text();
        let content = match kind.as_str() {
            "string" => server.order(&["GET", key]),
            "list" => server.order(&["LRANGE", key, "0", "-1"]),
            "hash" => server.order(&["HGETALL", key]),
            "zset" => server.order(&["ZRANGE", key, "0", "-1", "WITHSCORES"]),
            // The key was deleted between the two requests: the waiter has left the queue.
            "none" => return None,
            other => panic!("{key} is a {other}"),
        };
        Some(format!("{key} ({kind}): {}", content.text()))
    };
    keys.iter().filter_map(|key| line(&key.text())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn redis() {
    needs!(redis);
    for (store, options, shown) in [
        ("redis", "", ShownLabels::HolderAndWaiter),
        ("redis-redisson", "&dialect=redisson", ShownLabels::Nothing),
    ] {
        let server = Redis::start(&[]);
        let url = format!(
            "{}?restart_guard=off{options}",
            server.url_by(server.port())
        );
        compare(store, &url, &|| redis_keys(&server), shown).await;
    }
}

/// The keys of a leader, of a candidate that waits, and after the term.
#[tokio::test(flavor = "multi_thread")]
async fn redis_election() {
    needs!(redis);
    let server = Redis::start(&[]);
    let url = format!("{}?restart_guard=off", server.url_by(server.port()));
    let (leader, waiter) = (connect(&url).await, connect(&url).await);
    let mut text = String::new();
    let mut record = |moment: &str| {
        let lines = redis_keys(&server);
        let mut lines: Vec<_> = lines.iter().map(|line| mask(line)).collect();
        lines.sort();
        text += &format!("# {moment}\n{}\n", lines.join("\n"));
    };
    let election = |client: &tenure::Client| client.election(NAME).ttl(TTL);
    let candidate = election(&leader).label("the leader").value("http://a:1");
    let term = soon(candidate.campaign()).await.unwrap();
    record("led");
    soon(term.proclaim("\"b\"\n")).await.unwrap();
    record("led, with another value");
    soon(election(&waiter).ask_to_resign()).await.unwrap();
    record("led, and the leader is asked to resign");
    let candidate = election(&waiter).label("the candidate");
    let waiting = tokio::spawn(async move { candidate.campaign().await });
    until("the candidate is shown", || {
        redis_keys(&server).join(" ").contains("the candidate")
    })
    .await;
    record("led, and a candidate waits");
    soon(term.resign()).await.unwrap();
    let term = soon(waiting).await.unwrap().unwrap();
    record("led by the next one");
    soon(term.resign()).await.unwrap();
    waiter.close().await;
    leader.close().await;
    record("nobody leads");
    crate::compare("records/redis-election", &text);
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd() {
    needs!(etcd);
    let server = Etcd::start(1, &[]);
    let dump = || etcd_keys(&server);
    compare("etcd", &server.url(), &dump, ShownLabels::HolderAndWaiter).await;
}

fn etcd_keys(server: &Etcd) -> Vec<String> {
    let keys = server.keys("");
    let lease = |lease| if lease == 0 { "no lease" } else { "a lease" };
    let line = |key: &etcd::Key| format!("{} ({}): {}", key.key, lease(key.lease), key.value);
    keys.iter().map(line).collect()
}

/// The keys of a leader, after its first value and after the next one.
#[tokio::test(flavor = "multi_thread")]
async fn etcd_election() {
    needs!(etcd);
    let server = Etcd::start(1, &[]);
    let client = connect(&server.url()).await;
    let mut text = String::new();
    let mut record = |moment: &str| {
        let lines = etcd_keys(&server);
        let mut lines: Vec<_> = lines.iter().map(|line| mask(line)).collect();
        lines.sort();
        text += &format!("# {moment}\n{}\n", lines.join("\n"));
    };
    let election = client.election(NAME).ttl(TTL).label("the leader");
    let term = soon(election.value("http://h:1").campaign()).await.unwrap();
    record("leads");
    soon(term.proclaim("http://h:2")).await.unwrap();
    record("has proclaimed");
    soon(term.resign()).await.unwrap();
    client.close().await;
    record("resigned");
    crate::compare("records/etcd-election", &text);
}

/// All nodes below `path`.
fn nodes(wire: &mut Session, path: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for child in wire.children(path) {
        let child = format!("{path}/{child}");
        let data = wire.get(&child).map(|node| node.data).unwrap_or_default();
        lines.push(format!("{child}: {}", String::from_utf8_lossy(&data)));
        lines.extend(nodes(wire, &child));
    }
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper() {
    needs!(zookeeper);
    let server = Zookeeper::start(&[]);
    let url = format!(
        "zookeeper://{USER}:{PASSWORD}@127.0.0.1:{}/locks",
        server.port()
    );
    for (store, options) in [
        ("zookeeper", ""),
        ("zookeeper-session-prefix", "?dialect=session-prefix"),
    ] {
        let dump = || {
            let mut wire = server.session();
            wire.sync("/");
            nodes(&mut wire, "/locks")
        };
        compare(
            store,
            &format!("{url}{options}"),
            &dump,
            ShownLabels::HolderAndWaiter,
        )
        .await;
        server.session().delete_all("/locks");
    }
}

/// Hides a number of a transaction behind its field.
fn without_zxid(line: &str, field: &str) -> String {
    let Some((before, after)) = line.split_once(&format!("\"{field}\":")) else {
        return line.to_owned();
    };
    let after = after.trim_start_matches(|char: char| char.is_ascii_digit());
    format!("{before}\"{field}\":ZXID{after}")
}

/// The nodes of a leader and of a candidate that waits, and what a request to resign changes.
#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_elections() {
    needs!(zookeeper);
    let server = Zookeeper::start(&[]);
    let mut text = String::new();
    for dialect in ["curator", "curator-selector", "curator-latch"] {
        let url = format!(
            "zookeeper://{USER}:{PASSWORD}@127.0.0.1:{}/locks?dialect={dialect}",
            server.port()
        );
        let dump = || {
            let mut wire = server.session();
            wire.sync("/");
            nodes(&mut wire, "/locks")
        };
        let mut record = |moment: &str| {
            let line = |line: &String| without_zxid(&without_zxid(&mask(line), "asked"), "last");
            let mut lines: Vec<_> = dump().iter().map(line).collect();
            lines.sort();
            text += &format!("# {dialect}: {moment}\n{}\n", lines.join("\n"));
        };
        let (leader, candidate) = (connect(&url).await, connect(&url).await);
        let election = leader.election(NAME).ttl(TTL).value("the leader");
        let term = soon(election.campaign()).await.unwrap();
        record("led");
        let waiting = candidate.election(NAME).ttl(TTL).value("the candidate");
        let waiting = tokio::spawn(async move { waiting.campaign().await });
        until("the candidate waits", || {
            dump().join(" ").contains("the candidate")
        })
        .await;
        let asked = soon(candidate.election(NAME).ask_to_resign()).await;
        assert!(asked.unwrap().is_some());
        record("another candidate waits, and the leader was asked to resign");
        soon(term.resign()).await.unwrap();
        let term = soon(waiting).await.unwrap().unwrap();
        soon(term.resign()).await.unwrap();
        leader.close().await;
        candidate.close().await;
        record("nobody leads");
        server.session().delete_all("/locks");
    }
    crate::compare("records/zookeeper-elections", &text);
}

/// A line for each row, with the names of its columns.
fn rows(table: &str, columns: &[&str], rows: &dyn Fn(&str) -> Vec<Row>) -> Vec<String> {
    let found = rows(&format!("SELECT {} FROM {table}", columns.join(",")));
    let cell = |(column, value): (&&str, Option<String>)| {
        format!("{column}={}", value.unwrap_or_else(|| "NULL".into()))
    };
    let line = |row: Row| {
        let cells: Vec<_> = columns.iter().zip(row).map(cell).collect();
        format!("{table}: {}", cells.join(" "))
    };
    found.into_iter().map(line).collect()
}

/// The tables of locks and waiters, without the columns with numbers that depend on the time of the run.
const LOCKS: [&str; 6] = ["name", "owner", "token", "min_hold", "delay", "holder"];
const WAITERS: [&str; 3] = ["name", "owner", "holder"];
/// The table of holders of session locks. Its texts are stored as bytes.
const HOLDERS_OF_MYSQL: [&str; 6] = [
    "lock_key",
    "CONVERT(name USING utf8mb4)",
    "mode",
    "CONVERT(holder USING utf8mb4)",
    "ttl",
    "wanted",
];
const HOLDERS_OF_POSTGRES: [&str; 6] = [
    "lock_key",
    "convert_from(name, 'UTF8')",
    "mode",
    "convert_from(holder, 'UTF8')",
    "ttl",
    "wanted",
];

#[tokio::test(flavor = "multi_thread")]
async fn mysql() {
    needs!(mariadb);
    let server = MariaDb::start(&[]);
    let operator = server.admin();
    let ask = |sql: &str| operator.rows(sql);
    let url = server.url_at(server.port());
    let table = |name: &str| format!("{}.{name}", mariadb::DATABASE);
    init(&format!("{url}?mode=table&tls=off")).await;
    let dump = || {
        let locks = rows(&table("tenure_locks"), &LOCKS, &ask);
        let waiters = rows(&table("tenure_locks_waiters"), &WAITERS, &ask);
        [locks, waiters].concat()
    };
    let by = format!("{url}?mode=table&tls=off");
    compare("mysql-table", &by, &dump, ShownLabels::HolderAndWaiter).await;
    let by = format!("{url}?tls=off&restart_guard=off");
    init(&by).await;
    let dump = || rows(&table("tenure_holders"), &HOLDERS_OF_MYSQL, &ask);
    compare("mysql", &by, &dump, ShownLabels::Holder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let inside = server.database_admin();
    let ask = |sql: &str| inside.rows(sql);
    let url = server.url_at(server.port());
    let by = format!("{url}?mode=table&tls=off");
    init(&by).await;
    let dump = || lease_tables(&ask);
    compare("postgres-table", &by, &dump, ShownLabels::HolderAndWaiter).await;
    let by = format!("{url}?tls=off&restart_guard=off");
    init(&by).await;
    let dump = || rows("tenure_holders", &HOLDERS_OF_POSTGRES, &ask);
    compare("postgres", &by, &dump, ShownLabels::Holder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite() {
    let file = DatabaseFile::new();
    init(&file.url()).await;
    let ask = |sql: &str| file.rows(sql);
    let dump = || lease_tables(&ask);
    compare("sqlite", &file.url(), &dump, ShownLabels::HolderAndWaiter).await;
}

fn lease_tables(ask: &dyn Fn(&str) -> Vec<Row>) -> Vec<String> {
    let locks = rows("tenure_locks", &LOCKS, ask);
    [locks, rows("tenure_locks_waiters", &WAITERS, ask)].concat()
}

async fn init(url: &str) {
    let client = connect(url).await;
    client.init().await.unwrap();
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file() {
    let dir = Directory::new("records");
    let dump = || {
        let files = std::fs::read_dir(dir.path()).unwrap();
        let line = |path: PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            format!("{name}: {}", lock_file(&std::fs::read(&path).unwrap()))
        };
        files.map(|entry| line(entry.unwrap().path())).collect()
    };
    let url = format!("file:{}", dir.path().display());
    compare("file", &url, &dump, ShownLabels::Holder).await;
}

/// A lock file as its format says: two slots of 1,024 bytes, each with eight bytes of text, ten numbers of 64 bits, and
/// a holder at byte 96. Other content is shown as it is.
fn lock_file(content: &[u8]) -> String {
    if !content.starts_with(b"tenure1\n") {
        return String::from_utf8_lossy(content).into_owned();
    }
    let slot = |slot: &[u8]| {
        let (head, rest) = slot.split_at(88);
        let (magic, numbers) = head.split_at(8);
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap()).to_string();
        let numbers: Vec<_> = numbers.chunks(8).map(number).collect();
        format!(
            "{} {} {}",
            String::from_utf8_lossy(magic),
            numbers.join(" "),
            String::from_utf8_lossy(rest).trim_matches([' ', '\0', '\n'])
        )
    };
    content
        .chunks(1_024)
        .map(slot)
        .collect::<Vec<_>>()
        .join(" | ")
}
