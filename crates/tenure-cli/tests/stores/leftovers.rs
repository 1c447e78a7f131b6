//! After the process of a command has ended, nothing of it is left in the store: no lease, no session, no connection, no
//! entry of a queue, no row of a holder or waiter. One test for each store, with the same commands.
//!
//! What is documented to stay is not counted: the counter of fencing tokens of a name that was locked once (in Redis the
//! key `tenure:{NAME}:hold`, which expires after a day; in the format of Redisson `redisson_lock_token:{NAME}`, which Redisson
//! never deletes either; in a table the row of the name; in a lock directory its file), and in ZooKeeper the empty
//! directory of the name, which the server removes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{PipedProcess, Store};
use tenure_testkit::etcd::{self, Etcd};
use tenure_testkit::mariadb::MariaDb;
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::proxy::{Direction, Proxy};
use tenure_testkit::redis::Redis;
use tenure_testkit::sql_client::Row;
use tenure_testkit::sqlite::DatabaseFile;
use tenure_testkit::zookeeper::Zookeeper;
use tenure_testkit::{self, TEST_TIMEOUT};

/// Longer than the tests wait for an entry to disappear, so that an entry that disappears was removed and has not expired.
const TTL: &str = "50s";
const TTL_TIME: Duration = Duration::from_secs(50);
const _: () = assert!(TTL_TIME.as_secs() > TEST_TIMEOUT.as_secs());

/// Lists entries of a store, one line for each.
type ListEntries = Box<dyn Fn() -> Vec<String>>;

/// A store, and how its operator lists the entries in it.
struct InspectedStore {
    store: Store,
    /// The entries of holders and waiters: keys, leases, rows, nodes.
    records: ListEntries,
    /// Sessions and connections of clients.
    connections: ListEntries,
}

impl InspectedStore {
    fn all(&self) -> Vec<String> {
        let mut all = (self.records)();
        all.extend((self.connections)());
        all
    }

    /// The records when they have stopped changing: a file is locked for a moment by each look at it.
    fn settled_records(&self) -> Vec<String> {
        let mut records = (self.records)();
        tenure_testkit::until("the records stay as they are", || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let before = std::mem::replace(&mut records, (self.records)());
            before == records
        });
        records
    }

    /// Waits until `list` returns the expected entries: the server may need a moment to notice that a connection was closed.
    #[track_caller]
    fn until_left(&self, after: &str, expected: &[String], list: impl Fn() -> Vec<String>) {
        let start = Instant::now();
        loop {
            let left = list();
            if left == expected {
                return;
            }
            let waited = start.elapsed();
            assert!(
                waited < TEST_TIMEOUT,
                "left after {after}: {left:#?}\nexpected: {expected:#?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    fn until_empty(&self, after: &str) {
        self.until_left(after, &[], || self.all());
    }

    /// A `tenure hold` whose entries have all been written.
    fn holder(&self) -> PipedProcess {
        let holder = self.store.start_hold(&["--ttl", TTL, "x"]);
        let pid = holder.child.id();
        tenure_testkit::until("the holder can be seen", || {
            let output = self.store.output(&["status", "--json", "x"]);
            let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let nodes = &status["nodes"];
            status["holds"][0]["pid"] == pid && (nodes.is_null() || nodes["agree"] == nodes["all"])
        });
        holder
    }
}

/// Commands while no other process holds the lock.
fn alone(inspected: &InspectedStore) {
    let store = &inspected.store;
    let run = |options: &[&str], command: &str| {
        let options = [&["run", "--ttl", TTL][..], options].concat();
        store.code(&[&options[..], &["x", "--", "sh", "-c", command]].concat())
    };
    assert_eq!(run(&[], "exit 3"), 3);
    inspected.until_empty("run");
    assert_eq!(run(&["-n"], "true"), 0);
    inspected.until_empty("run -n");
    assert_eq!(run(&["-w", "10s"], "true"), 0);
    inspected.until_empty("run -w");
    let command = ["run", "--ttl", TTL, "x", "y", "z", "--", "true"];
    assert_eq!(store.code(&command), 0);
    inspected.until_empty("run with three names");
    let command = ["run", "--ttl", TTL, "x", "--", "/no/such/command"];
    assert_eq!(store.code(&command), 127);
    inspected.until_empty("run of a command that does not exist");

    for command in [&["list"][..], &["status", "x"], &["check"]] {
        assert_eq!(store.code(command), 0, "{command:?}");
        inspected.until_empty(command[0]);
    }
    assert_eq!(store.code(&["break", "x", "--token", "7"]), 1);
    inspected.until_empty("break");
    let mut watch = store.start(&["watch", "--json", "--interval", "50ms"]);
    let mut held = inspected.holder();
    watch.line();
    watch.signal(Signal::INT);
    assert_eq!(watch.code(), 0);
    held.close_input();
    assert_eq!(held.code(), 0);
    inspected.until_empty("watch, and hold at the end of its input");
    let mut held = inspected.holder();
    held.signal(Signal::TERM);
    assert_eq!(held.code(), 0);
    inspected.until_empty("hold ended by a signal");
}

/// Commands while another process holds the lock.
fn contended(inspected: &InspectedStore) {
    let store = &inspected.store;
    let mut holder = inspected.holder();
    let before = inspected.settled_records();
    assert!(!before.is_empty(), "a hold can be seen");
    let left_to_holder =
        |after: &str| inspected.until_left(after, &before, || (inspected.records)());
    let try_run = |options: &[&str]| {
        let options = [&["run", "--ttl", TTL][..], options].concat();
        store.code(&[&options[..], &["x", "--", "true"]].concat())
    };
    assert_eq!(try_run(&["-n"]), 75);
    left_to_holder("run -n of a busy name");
    assert_eq!(try_run(&["-w", "2s"]), 75);
    left_to_holder("run -w that has elapsed");
    let waiting = |command: &[&str]| {
        let mut waiter = store.start(command);
        waiter.event("waiting");
        waiter
    };
    let run = ["run", "--json", "--ttl", TTL, "x", "--", "true"];
    let mut waiter = waiting(&run);
    waiter.signal(Signal::INT);
    assert_eq!(waiter.code(), 130);
    left_to_holder("run that was interrupted while it waited");
    let mut waiter = waiting(&["hold", "--json", "--ttl", TTL, "x"]);
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.code(), 143);
    left_to_holder("hold that was ended while it waited");

    let mut next = waiting(&run);
    holder.close_input();
    assert_eq!(holder.code(), 0);
    assert_eq!(next.code(), 0);
    inspected.until_empty("all of them");
}

fn commands_leave_nothing(inspected: &InspectedStore) {
    if inspected.store.url().contains("mode=") || inspected.store.url().starts_with("sqlite") {
        assert_eq!(inspected.store.code(&["check", "--init"]), 0);
    }
    inspected.until_empty("the start");
    alone(inspected);
    contended(inspected);
}

#[test]
fn file() {
    let store = Store::new();
    let dir = store.path("locks");
    // The locks of the kernel. A line with an arrow is a waiter.
    let locked = move || {
        let of_dir = inodes(&dir);
        let all = fs::read_to_string("/proc/locks").unwrap();
        let is_ours = |line: &&str| {
            let place = line
                .split_whitespace()
                .find(|word| word.matches(':').count() == 2);
            place
                .is_some_and(|place| of_dir.contains(&place.rsplit(':').next().unwrap().to_owned()))
        };
        // The line begins with its number in the list, which may change.
        let line = |line: &str| line.split_once(": ").unwrap().1.to_owned();
        all.lines().filter(is_ours).map(line).collect()
    };
    commands_leave_nothing(&InspectedStore {
        store,
        records: Box::new(locked),
        connections: Box::new(Vec::new),
    });
}

fn inodes(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    // A file may be removed meanwhile.
    let all = entries.filter_map(|entry| Some(entry.metadata().ok()?.ino().to_string()));
    all.collect()
}

fn redis_records(server: &Redis) -> Vec<String> {
    let keys = server.order(&["KEYS", "*"]).items();
    let mut all: Vec<_> = keys.iter().map(|key| key.text()).collect();
    all.retain(|key| {
        let is_ours = key.starts_with("tenure:");
        let ttl = server.order(&["PTTL", key]).int();
        assert!(!is_ours || ttl != -1, "{key} has no ttl");
        let is_counter = is_ours && key.ends_with(":hold");
        !is_counter && !key.starts_with("redisson_lock_token:")
    });
    all.sort();
    all
}

/// The clients except the one that asks, and the channels with subscribers.
fn redis_connections(server: &Redis) -> Vec<String> {
    let mut asking = server.connection();
    let clients = asking.ask(&["CLIENT", "LIST"]).unwrap().text();
    let id = asking.ask(&["CLIENT", "ID"]).unwrap().int();
    let own = format!("id={id} ");
    let others = clients.lines().filter(|line| !line.starts_with(&own));
    let mut all: Vec<_> = others.map(ToOwned::to_owned).collect();
    let channels = server.order(&["PUBSUB", "CHANNELS", "*"]).items();
    all.extend(channels.iter().map(|channel| channel.text()));
    all
}

fn on_redis(scheme: &str, servers: usize, options: &str) {
    needs!(redis);
    let servers: Arc<Vec<_>> = Arc::new((0..servers).map(|_| Redis::start(&[])).collect());
    let hosts: Vec<_> = servers.iter().map(Redis::address).collect();
    let url = format!("{scheme}://{}/?restart_guard=off{options}", hosts.join(","));
    let (of_records, of_connections) = (servers.clone(), servers);
    commands_leave_nothing(&InspectedStore {
        store: Store::at(url),
        records: Box::new(move || {
            let records = of_records.iter().map(redis_records);
            records.flatten().collect()
        }),
        connections: Box::new(move || of_connections.iter().flat_map(redis_connections).collect()),
    });
}

#[test]
fn redis() {
    on_redis("redis", 1, "");
}

#[test]
fn redis_as_redisson() {
    on_redis("redis", 1, "&dialect=redisson");
}

#[test]
fn redis_as_a_read_write_lock_of_redisson() {
    on_redis("redis", 1, "&dialect=redisson&lock=rw");
}

#[test]
fn redis_as_a_fair_lock_of_redisson() {
    on_redis("redis", 1, "&dialect=redisson&lock=fair");
}

#[test]
fn redlock() {
    on_redis("redlock", 3, "");
}

fn on_etcd(options: &str) {
    needs!(etcd);
    let server = Etcd::start(1, &[]);
    let store = Store::at(format!("{}?{options}", server.url()));
    let records = move || {
        let keys = server.keys("");
        let key = |key: &etcd::Key| format!("key {}", key.key);
        let mut all: Vec<_> = keys.iter().map(key).collect();
        let mut leases = server.leases();
        leases.sort_unstable();
        all.extend(leases.iter().map(|lease| format!("lease {lease:x}")));
        all.extend((0..server.watches()).map(|_| "a watch".to_owned()));
        all
    };
    commands_leave_nothing(&InspectedStore {
        store,
        records: Box::new(records),
        connections: Box::new(Vec::new),
    });
}

#[test]
fn etcd() {
    on_etcd("names=encoded");
}

#[test]
fn etcd_with_a_lease_for_each_lock() {
    on_etcd("lease=lock");
}

#[test]
fn zookeeper() {
    needs!(zookeeper);
    let server = Arc::new(Zookeeper::start(&[]));
    let url = format!("zookeeper://127.0.0.1:{}/?tls=off&ttl={TTL}", server.port());
    let of_records = server.clone();
    let nodes = move || {
        let dump = of_records.word("dump");
        let lines = dump.lines().map(str::trim);
        lines
            .filter(|line| line.starts_with('/'))
            .map(ToOwned::to_owned)
            .collect()
    };
    commands_leave_nothing(&InspectedStore {
        store: Store::at(url),
        records: Box::new(nodes),
        connections: Box::new(move || zookeeper_sessions(&server)),
    });
}

/// Sessions are listed and not connections, because a session stays after its connection was closed.
fn zookeeper_sessions(server: &Zookeeper) -> Vec<String> {
    let dump = server.word("dump");
    let lines = dump.lines().map(str::trim);
    let ids = lines.filter(|line| line.starts_with("0x"));
    let mut ids: Vec<_> = ids.map(ToOwned::to_owned).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The server has opened the session, but its answer has not reached the client yet.
#[test]
fn a_signal_while_a_session_is_being_opened_leaves_none() {
    needs!(zookeeper);
    let server = Zookeeper::start(&[]);
    let proxy = Proxy::zookeeper(server.port());
    let url = format!("zookeeper://127.0.0.1:{}/?tls=off&ttl={TTL}", proxy.port());
    let store = Store::at(url);
    proxy.hold(Direction::Down, true);
    let mut run = store.start_run(&["--ttl", TTL], "x", "echo ran");
    let sessions = || zookeeper_sessions(&server);
    tenure_testkit::until("the server has opened the session", || {
        !sessions().is_empty()
    });
    run.signal(Signal::INT);
    proxy.hold(Direction::Down, false);
    assert_eq!(run.code(), 130);
    assert_eq!(run.rest(), "");
    tenure_testkit::until("the session has ended", || sessions().is_empty());
}

/// Runs a query in a database.
type Query = Arc<dyn Fn(&str) -> Vec<Row>>;

/// The rows of these statements.
fn rows(query: &Query, statements: &'static [&'static str]) -> ListEntries {
    let query = query.clone();
    let line = |row: Row| {
        let cells = row.into_iter().map(Option::unwrap_or_default);
        cells.collect::<Vec<_>>().join(" ")
    };
    Box::new(move || {
        statements
            .iter()
            .flat_map(|sql| query(sql))
            .map(line)
            .collect()
    })
}

/// In a table: locks that are held, waiters, and the rows of holders and waiters in other modes than exclusive.
const IN_TABLE: &[&str] = &[
    "SELECT name, owner FROM tenure_locks WHERE until > 0 ORDER BY name",
    "SELECT name, owner FROM tenure_locks_waiters ORDER BY place",
    "SELECT name, owner FROM tenure_locks_modes ORDER BY name, owner",
];

fn on_mysql(options: &str, records: &'static [&'static str]) {
    needs!(mariadb);
    let server = MariaDb::start(&[]);
    let store = Store::at(format!("{}?tls=off&{options}", server.url()));
    server.admin().rows("USE locks");
    let query: Query = Arc::new(move |sql| server.admin().rows(sql));
    commands_leave_nothing(&InspectedStore {
        store,
        records: rows(&query, records),
        connections: rows(
            &query,
            &["SELECT id, command, info FROM information_schema.processlist WHERE user = 'tenure'"],
        ),
    });
}

#[test]
fn mysql() {
    let records = &[
        "SELECT name, connection, wanted FROM tenure_holders WHERE connection > 0 ORDER BY token",
        "SELECT IS_USED_LOCK('x') FROM dual WHERE IS_USED_LOCK('x') IS NOT NULL",
        "SELECT id, info FROM information_schema.processlist WHERE state = 'User lock'",
    ];
    on_mysql("mode=session&restart_guard=off", records);
}

#[test]
fn mysql_table() {
    on_mysql("mode=table", IN_TABLE);
}

fn on_postgres(options: &str, records: &'static [&'static str]) {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let store = Store::at(format!("{}?tls=off&{options}", server.url()));
    let operator = server.database_admin();
    let query: Query = Arc::new(move |sql| {
        // The server runs until this closure is dropped.
        let _ = &server;
        operator.rows(sql)
    });
    commands_leave_nothing(&InspectedStore {
        store,
        records: rows(&query, records),
        connections: rows(
            &query,
            &["SELECT pid, state, query FROM pg_stat_activity WHERE usename = 'tenure'"],
        ),
    });
}

#[test]
fn postgres() {
    let records = &[
        "SELECT name, connection, wanted FROM tenure_holders WHERE connection > 0 ORDER BY token",
        "SELECT pid, granted FROM pg_locks WHERE locktype = 'advisory' ORDER BY pid",
    ];
    on_postgres("mode=session&restart_guard=off", records);
}

#[test]
fn postgres_table() {
    on_postgres("mode=table", IN_TABLE);
}

#[test]
fn sqlite() {
    let file = DatabaseFile::new();
    let store = Store::at(file.url());
    let query: Query = Arc::new(move |sql| file.rows(sql));
    commands_leave_nothing(&InspectedStore {
        store,
        records: rows(&query, IN_TABLE),
        connections: Box::new(Vec::new),
    });
}
