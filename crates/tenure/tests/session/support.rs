//! What the tests about locks of sessions share.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::{Client, Error, Guard};
use tokio::task::JoinHandle;

pub(crate) use crate::common::{assert_says, connect, soon, start_acquire, until};
use tenure_testkit::mariadb::MariaDb;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::proxy::Proxy;
use tenure_testkit::sql_client::Row;

/// Much longer than a server and two busy cores need, and short enough to wait for its end.
pub(crate) const TTL: Duration = Duration::from_secs(8);

/// For servers that were started a moment ago.
pub(crate) const OPTIONS: &str = "tls=off&timeout=3s&restart_guard=off&validate=200ms";

/// For all tests that only lock and stop no server.
pub(crate) static MARIADB: LazyLock<MariaDb> = LazyLock::new(|| MariaDb::start(&[]));
pub(crate) static POSTGRES: LazyLock<Postgres> = LazyLock::new(|| Postgres::start(&[]));

/// The same test on either server; all these tests share the two servers.
macro_rules! on_both {
    ($($name:ident)*) => {
        $crate::support::on! { &*$crate::support::MARIADB, &*$crate::support::POSTGRES; $($name)* }
    };
}

/// The same test on servers of its own, which it may stop.
macro_rules! on_both_alone {
    ($($name:ident)*) => {
        $crate::support::on! {
            &tenure_testkit::mariadb::MariaDb::start(&[]),
            &tenure_testkit::postgres::Postgres::start(&[]);
            $($name)*
        }
    };
}

macro_rules! on {
    ($mysql:expr, $postgres:expr; $($name:ident)*) => {
        $($crate::support::on! { @ $name $mysql, $postgres })*
    };
    (@ $name:ident $mysql:expr, $postgres:expr) => {
        mod $name {
            #[tokio::test(flavor = "multi_thread")]
            async fn mysql() {
                tenure_testkit::needs!(mariadb);
                super::$name($mysql).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn postgres() {
                tenure_testkit::needs!(postgres);
                super::$name($postgres).await;
            }
        }
    };
}
pub(crate) use {on, on_both, on_both_alone};

/// Either server, as its operator sees it. Names are plain keys.
pub(crate) trait Database: Sync {
    fn url_at(&self, port: u16) -> String;
    fn port(&self) -> u16;
    fn rows(&self, sql: &str) -> Vec<Row>;
    /// The sessions that run a statement with that text.
    fn running(&self, text: &str) -> Vec<u64>;
    /// The sessions that hold a lock.
    fn holders(&self, name: &str) -> Vec<u64>;
    /// The sessions that wait for a lock.
    fn waiters(&self, name: &str) -> Vec<u64>;
    /// The sessions of our user.
    fn sessions(&self) -> Vec<u64>;
    fn cancel(&self, session: u64);
    fn end(&self, session: u64);
    /// SIGKILL and a new start.
    fn restart(&self);
    /// A plain client of the server, in our database, that runs a statement and returns its value.
    fn foreign_client(&self) -> Box<dyn Fn(&str) -> String + Send + Sync + '_>;
    /// The statements with which such a client takes a free lock and releases it. Both return 1 for yes.
    fn lock_statements(&self, name: &str) -> [String; 2];

    fn url(&self) -> String {
        format!("{}?{OPTIONS}", self.url_at(self.port()))
    }
}

fn numbers(rows: Vec<Row>) -> Vec<u64> {
    let number = |cell: Option<String>| cell?.parse().ok();
    rows.into_iter().flatten().filter_map(number).collect()
}

impl Database for MariaDb {
    fn url_at(&self, port: u16) -> String {
        self.url_at(port)
    }

    fn port(&self) -> u16 {
        self.port()
    }

    fn rows(&self, sql: &str) -> Vec<Row> {
        self.admin().rows(sql)
    }

    fn holders(&self, name: &str) -> Vec<u64> {
        numbers(self.rows(&format!("SELECT IS_USED_LOCK('{name}')")))
    }

    fn waiters(&self, name: &str) -> Vec<u64> {
        numbers(self.rows(&format!(
            "SELECT id FROM information_schema.processlist WHERE state = 'User lock' AND INSTR(info, 'GET_LOCK(''{name}''') > 0"
        )))
    }

    fn running(&self, text: &str) -> Vec<u64> {
        numbers(self.rows(&format!(
            "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND INSTR(info, '{text}') > 0"
        )))
    }

    fn sessions(&self) -> Vec<u64> {
        numbers(self.rows("SELECT id FROM information_schema.processlist WHERE user = 'tenure'"))
    }

    fn cancel(&self, session: u64) {
        let _ = self.admin().try_rows(&format!("KILL QUERY {session}"));
    }

    fn end(&self, session: u64) {
        let _ = self.admin().try_rows(&format!("KILL {session}"));
    }

    fn restart(&self) {
        self.kill();
        self.launch();
    }

    fn foreign_client(&self) -> Box<dyn Fn(&str) -> String + Send + Sync + '_> {
        Box::new(|sql| self.admin().value(sql))
    }

    fn lock_statements(&self, name: &str) -> [String; 2] {
        [
            format!("SELECT GET_LOCK('{name}', 0)"),
            format!("SELECT RELEASE_LOCK('{name}')"),
        ]
    }
}

/// The key of a plain name, as published.
pub(crate) fn postgres_key(name: &str) -> String {
    format!("('x' || left(encode(sha256('{name}'), 'hex'), 16))::bit(64)::bigint")
}

fn in_pg_locks(name: &str, granted: bool) -> String {
    let granted = if granted { "granted" } else { "NOT granted" };
    format!(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND {granted} \
         AND database = (SELECT oid FROM pg_database WHERE datname = 'locks') \
         AND (classid::bigint << 32) | objid::bigint = {}",
        postgres_key(name)
    )
}

impl Database for Postgres {
    fn url_at(&self, port: u16) -> String {
        self.url_at(port)
    }

    fn port(&self) -> u16 {
        self.port()
    }

    fn rows(&self, sql: &str) -> Vec<Row> {
        self.admin().rows(sql)
    }

    fn holders(&self, name: &str) -> Vec<u64> {
        numbers(self.rows(&in_pg_locks(name, true)))
    }

    fn waiters(&self, name: &str) -> Vec<u64> {
        numbers(self.rows(&in_pg_locks(name, false)))
    }

    fn running(&self, text: &str) -> Vec<u64> {
        numbers(self.rows(&format!(
            "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND state = 'active' AND strpos(query, '{text}') > 0"
        )))
    }

    fn sessions(&self) -> Vec<u64> {
        numbers(self.rows("SELECT pid FROM pg_stat_activity WHERE usename = 'tenure'"))
    }

    fn cancel(&self, session: u64) {
        self.rows(&format!("SELECT pg_cancel_backend({session})"));
    }

    fn end(&self, session: u64) {
        self.rows(&format!("SELECT pg_terminate_backend({session})"));
    }

    fn restart(&self) {
        self.kill();
        self.launch();
    }

    fn foreign_client(&self) -> Box<dyn Fn(&str) -> String + Send + Sync + '_> {
        let inside = self.database_admin();
        Box::new(move |sql| inside.value(sql))
    }

    fn lock_statements(&self, name: &str) -> [String; 2] {
        let key = postgres_key(name);
        [
            format!("SELECT pg_try_advisory_lock({key})::int"),
            format!("SELECT pg_advisory_unlock({key})::int"),
        ]
    }
}

/// A proxy in front of the server.
pub(crate) fn proxy(database: &dyn Database) -> Proxy {
    match database.url_at(1).starts_with("mysql") {
        true => Proxy::mysql(database.port()),
        false => Proxy::postgres(database.port()),
    }
}

/// A name of this test only.
pub(crate) fn name(tail: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{tail}-{}", COUNT.fetch_add(1, Ordering::SeqCst))
}

/// One try on a free name.
#[track_caller]
pub(crate) fn take(client: &Client, name: &str) -> impl Future<Output = Guard> {
    crate::common::take(client, name, TTL)
}

/// One try on a free name, and the release.
#[track_caller]
pub(crate) fn take_and_release(client: &Client, name: &str) -> impl Future<Output = ()> {
    crate::common::take_and_release(client, name, TTL)
}

/// Begins to wait, and returns when the server's queue has `place` waiters.
pub(crate) async fn wait_as(
    database: &dyn Database,
    client: &Client,
    name: &str,
    place: usize,
) -> JoinHandle<Result<Guard, Error>> {
    let waiting = start_acquire(client.lock(name).ttl(TTL));
    until("the server has the waiter in its queue", || {
        database.waiters(name).len() == place
    })
    .await;
    waiting
}
