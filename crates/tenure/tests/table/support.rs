//! What the tests about lease tables share.

use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::conformance::lock_holder::LockHolder;
use tenure::{Client, Error, Guard};
use tokio::task::JoinHandle;

pub(crate) use crate::common::{
    assert_says, connect, soon, start_acquire, take, take_and_release, until, until_renewed,
};
use tenure_testkit::PASSWORD;
use tenure_testkit::mariadb::{self, DATABASE, MariaDb, USER};
use tenure_testkit::postgres::{self, Postgres};
use tenure_testkit::process::Directory;
use tenure_testkit::proxy::Proxy;
use tenure_testkit::sql_client::{Row, SqlClient};
use tenure_testkit::sqlite::DatabaseFile;

/// For leases that must not end, however busy the machine is.
pub(crate) const TTL: Duration = Duration::from_secs(6);

/// For leases whose end a test waits for.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

/// What our URLs end with.
pub(crate) const OPTIONS: &str = "?mode=table&tls=off&timeout=3s";

/// One of the databases, with its tables.
pub(crate) enum Db {
    MySql(MariaDb),
    Postgres(Box<Postgres>, SqlClient),
    File(Box<DatabaseFile>),
}

impl Db {
    pub(crate) fn mysql(options: &[&str]) -> Option<Self> {
        (!mariadb::skip_unless_installed()).then(|| Self::MySql(MariaDb::start(options)))
    }

    pub(crate) fn postgres(settings: &[&str]) -> Option<Self> {
        (!postgres::skip_unless_installed()).then(|| {
            let server = Postgres::start(settings);
            let inside = server.database_admin();
            Self::Postgres(Box::new(server), inside)
        })
    }

    /// Those that have a server.
    pub(crate) fn servers() -> Vec<Self> {
        Self::mysql(&[])
            .into_iter()
            .chain(Self::postgres(&[]))
            .collect()
    }

    pub(crate) fn all() -> Vec<Self> {
        let mut all = Self::servers();
        all.push(Self::File(Box::new(DatabaseFile::new())));
        all
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::MySql(server) => server.url() + OPTIONS,
            Self::Postgres(server, _) => server.url() + OPTIONS,
            Self::File(file) => file.url(),
        }
    }

    /// A proxy in front, and the URL by way of it.
    pub(crate) fn proxied(&self) -> (Proxy, String) {
        let (proxy, url) = match self {
            Self::MySql(server) => {
                let proxy = Proxy::mysql(server.port());
                let url = server.url_at(proxy.port());
                (proxy, url)
            }
            Self::Postgres(server, _) => {
                let proxy = Proxy::postgres(server.port());
                let url = server.url_at(proxy.port());
                (proxy, url)
            }
            Self::File(_) => panic!("nothing stands in front of a file"),
        };
        (proxy, url + OPTIONS)
    }

    /// Makes the tables.
    pub(crate) async fn init(&self) -> Vec<String> {
        let client = connect(&self.url()).await;
        let made = soon(client.init()).await.unwrap();
        client.close().await;
        made
    }

    /// As its operator, inside the database.
    pub(crate) fn rows(&self, sql: &str) -> Vec<Row> {
        self.try_rows(sql)
            .unwrap_or_else(|err| panic!("{sql}: {err}"))
    }

    pub(crate) fn try_rows(&self, sql: &str) -> Result<Vec<Row>, sqlx::Error> {
        match self {
            Self::MySql(server) => server.admin().try_rows(&format!("USE {DATABASE}; {sql}")),
            Self::Postgres(_, inside) => inside.try_rows(sql),
            Self::File(file) => Ok(file.rows(sql)),
        }
    }

    /// A user with [`PASSWORD`] who may do nothing yet.
    pub(crate) fn introduce(&self, user: &str) {
        self.rows(&match self {
            Self::MySql(_) => format!("CREATE USER {user}@'%' IDENTIFIED BY '{PASSWORD}'"),
            _ => format!("CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}'"),
        });
    }

    /// Runs what docs/stores/table.md says that the user `jobs` needs on these tables; how many statements that is.
    pub(crate) fn grant_as_published(&self, table: &str) -> usize {
        let page = include_str!("../../../../docs/stores/table.md");
        let is_mysql = matches!(self, Self::MySql(_));
        let is_for_us = |line: &&str| {
            line.starts_with("GRANT ")
                && line.contains(table)
                && line.contains("'jobs'@") == is_mysql
        };
        let lines: Vec<_> = page.lines().filter(is_for_us).collect();
        for line in &lines {
            self.rows(line.trim_end_matches(';'));
        }
        lines.len()
    }

    /// The one value of a statement that has one.
    pub(crate) fn value(&self, sql: &str) -> String {
        let row = self.rows(sql).into_iter().next();
        let value = row.and_then(|row| row.into_iter().next()).flatten();
        value.unwrap_or_else(|| panic!("{sql}: no value"))
    }

    pub(crate) fn number(&self, sql: &str) -> i64 {
        self.value(sql).parse().unwrap()
    }

    /// The clock of the database in µs, in SQL.
    pub(crate) fn now(&self) -> &'static str {
        match self {
            Self::MySql(_) => "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))",
            Self::Postgres(..) => "(extract(epoch from clock_timestamp())*1000000)::bigint",
            Self::File(_) => "CAST(unixepoch('subsec')*1000000 AS INTEGER)",
        }
    }

    pub(crate) fn waiting(&self, name: &str) -> i64 {
        let now = self.now();
        self.number(&format!(
            "SELECT COUNT(*) FROM tenure_locks_waiters WHERE name='{name}' AND until>{now}"
        ))
    }

    /// The owner of a name, empty when nobody holds it.
    pub(crate) fn owner(&self, name: &str) -> String {
        let now = self.now();
        let rows = self.rows(&format!(
            "SELECT owner FROM tenure_locks WHERE name='{name}' AND until>{now}"
        ));
        let row = rows.into_iter().next();
        row.and_then(|row| row.into_iter().next().flatten())
            .unwrap_or_default()
    }

    /// Connections of our user.
    pub(crate) fn connections(&self) -> i64 {
        self.number(&match self {
            Self::MySql(_) => {
                format!("SELECT COUNT(*) FROM information_schema.processlist WHERE user='{USER}'")
            }
            _ => format!("SELECT COUNT(*) FROM pg_stat_activity WHERE usename='{USER}'"),
        })
    }

    /// Ends all connections of our user, as an administrator would.
    pub(crate) fn kill_connections(&self) {
        match self {
            Self::MySql(_) => {
                for row in self.rows(&format!(
                    "SELECT id FROM information_schema.processlist WHERE user='{USER}'"
                )) {
                    // It may have ended by itself.
                    let _ = self.try_rows(&format!("KILL {}", row[0].as_deref().unwrap()));
                }
            }
            _ => {
                self.rows(&format!(
                    "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE usename='{USER}'"
                ));
            }
        }
    }

    /// SIGKILL, and a new start.
    pub(crate) fn restart(&self) {
        self.restart_after(|_| ());
    }

    /// The same, and something is done to its directory in between.
    pub(crate) fn restart_after(&self, act: impl Fn(&Path)) {
        match self {
            Self::MySql(server) => {
                server.kill();
                act(server.dir());
                server.launch();
            }
            Self::Postgres(server, inside) => {
                server.kill();
                inside.disconnect();
                act(server.dir());
                server.launch();
            }
            Self::File(_) => {}
        }
    }
}

/// One server of each kind for all tests that do nothing to it but lock.
pub(crate) static SHARED: LazyLock<Vec<Db>> = LazyLock::new(Db::all);

/// The shared ones, with their tables.
pub(crate) async fn shared() -> &'static [Db] {
    let all = tokio::task::spawn_blocking(|| &*SHARED).await.unwrap();
    for db in all {
        db.init().await;
    }
    all
}

/// A name of this test only.
pub(crate) fn name(tail: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{tail}-{}", COUNT.fetch_add(1, Ordering::SeqCst))
}

/// Begins to wait, and returns when it is one of so many in the queue.
pub(crate) async fn wait_as(
    db: &Db,
    client: &Client,
    name: &str,
    place: i64,
) -> JoinHandle<Result<Guard, Error>> {
    let waiting = start_acquire(client.lock(name).ttl(TTL));
    until("it stands in the queue", || db.waiting(name) >= place).await;
    waiting
}

/// Another process that takes `name`.
pub(crate) fn lock_holder(url: &str, name: &str) -> LockHolder {
    crate::common::holders::start(url, name, TTL)
}

/// A process that is killed, and whose lease or place in the queue is over soon.
pub(crate) fn short_lock_holder(url: &str, name: &str) -> LockHolder {
    crate::common::holders::start(url, name, SHORT)
}

/// A directory of a test's own.
pub(crate) fn directory() -> Directory {
    Directory::new("table")
}
