//! Locks of sessions, on real servers that each test program starts once. Looks are by the published names of locks
//! (docs/stores/mysql.md, docs/stores/postgres.md) and ask the servers out of band.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tenure::conformance::{ContenderCounts, Failure, Harness, RequestFault, Verdict};
use tenure::error::Step;
use tenure::store::BoxFuture;

use super::callers::{Connect, sessions_over_pool};
use super::server::{
    Opened, Store, at_once, by_url, disturb, methods_of_stores, open_by, requests_of,
};
use super::skips::UPGRADABLE_OUTSIDE_THE_QUEUE;
use tenure_testkit::mariadb::{self, MariaDb};
use tenure_testkit::postgres::Postgres;
use tenure_testkit::proxy::{Direction, Proxy};
use tenure_testkit::sql_client::SqlClient;
use tenure_testkit::until;

/// MariaDB, each harness with a proxy of its own in front.
pub(crate) fn open_mysql() -> Opened {
    open(by_url, mariadb())
}

/// Over a pool of the caller.
pub(crate) fn open_mysql_pool() -> Opened {
    open(sessions_over_pool, mariadb())
}

fn mariadb() -> Database {
    static SERVER: LazyLock<MariaDb> = LazyLock::new(|| MariaDb::start(&[]));
    Database::MySql(&SERVER)
}

/// PostgreSQL, likewise.
pub(crate) fn open_postgres() -> Opened {
    open(by_url, postgres())
}

pub(crate) fn open_postgres_pool() -> Opened {
    open(sessions_over_pool, postgres())
}

fn postgres() -> Database {
    static SERVER: LazyLock<Postgres> = LazyLock::new(|| Postgres::start(&[]));
    Database::Postgres(&SERVER)
}

/// The suite asks for ttls of hours, on servers that were started a moment ago. What the guard does is tested in
/// `tests/session`.
const OPTIONS: &str = "tls=off&timeout=3s&restart_guard=off";

fn open(connect: Connect, database: Database) -> Opened {
    let (proxy, url) = match database {
        Database::MySql(server) => {
            let proxy = Proxy::mysql(server.port());
            let url = server.url_at(proxy.port());
            (proxy, url)
        }
        Database::Postgres(server) => {
            let proxy = Proxy::postgres(server.port());
            let url = server.url_at(proxy.port());
            (proxy, url)
        }
    };
    let url = format!("{url}?{OPTIONS}");
    open_by(connect, url, move |store| ServerHarness {
        store,
        database,
        proxy: Arc::new(proxy),
    })
}

#[derive(Clone, Copy)]
enum Database {
    MySql(&'static MariaDb),
    Postgres(&'static Postgres),
}

struct ServerHarness {
    store: Store,
    database: Database,
    proxy: Arc<Proxy>,
}

impl Harness for ServerHarness {
    methods_of_stores!();

    fn cannot_show(&self, behaviour: &str) -> Option<&'static str> {
        let (reason, behaviours) = UPGRADABLE_OUTSIDE_THE_QUEUE;
        let is_postgres = matches!(self.database, Database::Postgres(_));
        (is_postgres && behaviours.contains(&behaviour)).then_some(reason)
    }

    fn count_contenders(&self, name: &str) -> BoxFuture<Result<ContenderCounts, Failure>> {
        let counts = match self.database {
            Database::MySql(server) => look_at_mysql(server, name),
            Database::Postgres(server) => look_at_postgres(server, name),
        };
        Box::pin(std::future::ready(Ok(counts)))
    }

    /// Ten round trips on a busy machine; MySQL has whole seconds.
    fn ttl(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn secret(&self) -> Option<String> {
        Some(mariadb::PASSWORD.into())
    }

    /// Another session can be asked whether that of a request is over, and then the request is made again.
    fn recovers(&self) -> bool {
        true
    }

    fn ends_with_connection(&self) -> bool {
        true
    }

    fn requests(&self) -> Option<u64> {
        Some(self.proxy.requests())
    }

    fn disturb(&self, step: Step, request_fault: RequestFault) -> Option<BoxFuture<Verdict>> {
        let refusal = match self.database {
            Database::MySql(_) => "1040 Too many connections",
            Database::Postgres(_) => "53300 sorry, too many clients already",
        };
        disturb(
            self.proxy.planner(),
            requests_of(step),
            request_fault,
            refusal,
        )
    }

    fn break_connection(&self) -> Option<BoxFuture<Verdict>> {
        let planner = self.proxy.planner();
        at_once(move || planner.cut())
    }

    fn pause_store(&self) -> Option<BoxFuture<Verdict>> {
        match self.database {
            Database::MySql(server) => at_once(move || server.stop()),
            // Its processes are many; so nothing gets through to them.
            Database::Postgres(_) => {
                let proxy = self.proxy.clone();
                at_once(move || {
                    proxy.hold(Direction::Up, true);
                    proxy.hold(Direction::Down, true);
                })
            }
        }
    }

    /// Also wakes up a server that was not stopped, which does no harm.
    fn resume_store(&self) -> Option<BoxFuture<Verdict>> {
        let (planner, database) = (self.proxy.planner(), self.database);
        at_once(move || {
            planner.resume();
            if let Database::MySql(server) = database {
                server.resume();
            }
        })
    }

    /// What a server forgets while it runs it forgets with its sessions.
    fn wipe_store(&self) -> Option<BoxFuture<Verdict>> {
        let database = self.database;
        at_once(move || match database {
            Database::MySql(server) => {
                let ids = server
                    .admin()
                    .rows("SELECT id FROM information_schema.processlist WHERE user = 'tenure'");
                for id in ids.into_iter().flatten().flatten() {
                    let _ = server.admin().try_rows(&format!("KILL {id}"));
                }
            }
            Database::Postgres(server) => {
                server.admin().rows(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'tenure'",
                    );
            }
        })
    }

    fn restart_store(&self) -> Option<BoxFuture<Verdict>> {
        let database = self.database;
        at_once(move || match database {
            Database::MySql(server) => {
                server.kill();
                server.launch();
            }
            Database::Postgres(server) => {
                server.kill();
                server.launch();
            }
        })
    }
}

/// What a lock is called in the server, by the published rule and not by the library's code: an expression.
pub(crate) fn mysql_key(name: &str) -> String {
    let is_plain = name.len() <= 63
        && name
            .bytes()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || b"._-/".contains(&c));
    match is_plain {
        true => format!("'{name}'"),
        false => format!("SHA2(X'{}', 256)", hex(name)),
    }
}

/// The same, as a number.
pub(crate) fn postgres_key(name: &str) -> String {
    format!(
        "('x' || left(encode(sha256(decode('{}', 'hex')), 'hex'), 16))::bit(64)::bigint",
        hex(name)
    )
}

fn hex(name: &str) -> String {
    name.bytes().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn look_at_mysql(server: &MariaDb, name: &str) -> ContenderCounts {
    let key = mysql_key(name);
    let row = ask(
        server.admin(),
        &format!(
            "SELECT IS_USED_LOCK({key}) IS NOT NULL, (SELECT COUNT(*) FROM information_schema.processlist \
         WHERE state = 'User lock' AND INSTR(info, CONCAT('GET_LOCK(''', {key}, ''', 3600)')) > 0)"
        ),
    );
    counts(&row[0])
}

pub(crate) fn look_at_postgres(server: &Postgres, name: &str) -> ContenderCounts {
    static INSIDE: LazyLock<Mutex<Option<SqlClient>>> = LazyLock::new(Mutex::default);
    let mut inside = INSIDE.lock().unwrap_or_else(PoisonError::into_inner);
    let inside = inside.get_or_insert_with(|| server.database_admin());
    let row = ask(
        inside,
        &format!(
            "SELECT count(DISTINCT pid) FILTER (WHERE granted), count(DISTINCT pid) FILTER (WHERE NOT granted) FROM pg_locks, (SELECT {} AS key) k \
         WHERE locktype = 'advisory' AND objsubid = 1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
         AND ((classid::bigint << 32) | objid::bigint) = key",
            postgres_key(name)
        ),
    );
    counts(&row[0])
}

/// After a restart the server's last words come first, and then the connection is broken.
pub(crate) fn ask(operator: &SqlClient, sql: &str) -> Vec<Vec<Option<String>>> {
    let mut rows = None;
    until("the server answers", || {
        rows = operator.try_rows(sql).ok();
        rows.is_some()
    });
    rows.unwrap_or_default()
}

fn counts(row: &[Option<String>]) -> ContenderCounts {
    let count = |at: usize| row[at].as_deref().unwrap_or("0").parse().unwrap_or(0);
    ContenderCounts {
        holders: count(0),
        waiters: Some(count(1)),
    }
}
