//! The store on a lease table: MariaDB and PostgreSQL, each a real server that each test program starts once, and
//! SQLite, a file for each harness. Looks are by the published format (docs/stores/table.md), over a connection
//! of their own.

use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use sqlx::Executor as _;
use sqlx::sqlite::SqliteConnection;

use tenure::conformance::{ContenderCounts, Failure, Harness, RequestFault, Verdict};
use tenure::error::Step;
use tenure::store::BoxFuture;

use super::callers::{Connect, table_over_pool};
use super::server::{
    Opened, Store, at_once, by_url, disturb, methods_of_stores, open_by, requests_of,
};
use super::session::ask;
use tenure_testkit::mariadb::{self, MariaDb};
use tenure_testkit::postgres::Postgres;
use tenure_testkit::proxy::{Direction, Planner, Proxy};
use tenure_testkit::sql_client::{Row, SqlClient};
use tenure_testkit::sqlite::{self, DatabaseFile};

const OPTIONS: &str = "?mode=table&tls=off&timeout=3s";

/// Each harness with a proxy of its own in front.
pub(crate) fn open_mysql() -> Opened {
    open_mysql_by(by_url)
}

/// Over a pool of the caller.
pub(crate) fn open_mysql_pool() -> Opened {
    open_mysql_by(table_over_pool)
}

fn open_mysql_by(connect: Connect) -> Opened {
    static SERVER: LazyLock<MariaDb> = LazyLock::new(|| MariaDb::start(&[]));
    let proxy = Proxy::mysql(SERVER.port());
    let url = SERVER.url_at(proxy.port()) + OPTIONS;
    open_harness(connect, url, Database::MySql(&SERVER), Some(proxy))
}

pub(crate) fn open_postgres() -> Opened {
    open_postgres_by(by_url)
}

pub(crate) fn open_postgres_pool() -> Opened {
    open_postgres_by(table_over_pool)
}

fn open_postgres_by(connect: Connect) -> Opened {
    static SERVER: LazyLock<(Postgres, SqlClient)> = LazyLock::new(|| {
        let server = Postgres::start(&[]);
        let inside = server.database_admin();
        (server, inside)
    });
    let (server, inside) = &*SERVER;
    let proxy = Proxy::postgres(server.port());
    let url = server.url_at(proxy.port()) + OPTIONS;
    open_harness(
        connect,
        url,
        Database::Postgres(server, inside),
        Some(proxy),
    )
}

pub(crate) fn open_sqlite() -> Opened {
    open_sqlite_by(by_url)
}

pub(crate) fn open_sqlite_pool() -> Opened {
    open_sqlite_by(table_over_pool)
}

fn open_sqlite_by(connect: Connect) -> Opened {
    let file = Arc::new(DatabaseFile::new());
    let url = format!("{}?timeout=3s", file.url());
    open_harness(connect, url, Database::File(file), None)
}

fn open_harness(connect: Connect, url: String, database: Database, proxy: Option<Proxy>) -> Opened {
    open_by(connect, url, |store| ServerHarness {
        store,
        database,
        proxy: proxy.map(Arc::new),
        pause: Arc::default(),
    })
}

#[derive(Clone)]
pub(crate) enum Database {
    MySql(&'static MariaDb),
    Postgres(&'static Postgres, &'static SqlClient),
    File(Arc<DatabaseFile>),
}

impl Database {
    fn rows(&self, sql: &str) -> Vec<Row> {
        match self {
            Self::MySql(server) => server.admin().rows(sql),
            Self::Postgres(_, inside) => ask(inside, sql),
            Self::File(file) => file.rows(sql),
        }
    }

    /// Who holds and who waits.
    pub(crate) fn look(&self, name: &str) -> ContenderCounts {
        let (table, now, name) = (self.table(), self.now(), self.name(name));
        let rows = self.rows(&format!(
            "SELECT (SELECT COUNT(*) FROM {table} WHERE name={name} AND owner NOT IN ('', '*') AND until-delay>{now})
                    +(SELECT COUNT(*) FROM {table} l JOIN {table}_modes m ON m.name=l.name
                      WHERE l.name={name} AND l.owner='*' AND m.token>0 AND m.until-m.delay>{now}),
                    (SELECT COUNT(*) FROM {table}_waiters WHERE name={name} AND until>{now})"
        ));
        let count = |at: usize| {
            let cell: Option<&str> = rows[0][at].as_deref();
            cell.unwrap_or_default().parse().unwrap_or(0)
        };
        ContenderCounts {
            holders: count(0),
            waiters: Some(count(1)),
        }
    }

    /// The table of locks.
    fn table(&self) -> String {
        match self {
            Self::MySql(_) => format!("{}.tenure_locks", mariadb::DATABASE),
            _ => "tenure_locks".into(),
        }
    }

    /// The clock of the store in µs.
    fn now(&self) -> &'static str {
        match self {
            Self::MySql(_) => "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))",
            Self::Postgres(..) => "(extract(epoch from clock_timestamp())*1000000)::bigint",
            Self::File(_) => "CAST(unixepoch('subsec')*1000000 AS INTEGER)",
        }
    }

    /// A name as a literal.
    fn name(&self, name: &str) -> String {
        let escaped = name.replace('\\', r"\\").replace('\0', r"\0");
        match self {
            Self::MySql(_) => {
                let digits: String = escaped.bytes().map(|b| format!("{b:02x}")).collect();
                format!("X'{digits}'")
            }
            _ => format!("'{}'", escaped.replace('\'', "''")),
        }
    }
}

struct ServerHarness {
    store: Store,
    database: Database,
    proxy: Option<Arc<Proxy>>,
    /// Keeps a file locked.
    pause: Arc<Mutex<Option<SqliteConnection>>>,
}

impl ServerHarness {
    fn planner(&self) -> Option<Planner> {
        self.proxy.as_ref().map(|proxy| proxy.planner())
    }

    fn order(&self, sql: String) -> Option<BoxFuture<Verdict>> {
        let database = self.database.clone();
        at_once(move || drop(database.rows(&sql)))
    }
}

impl Harness for ServerHarness {
    methods_of_stores!();

    fn count_contenders(&self, name: &str) -> BoxFuture<Result<ContenderCounts, Failure>> {
        let counts = self.database.look(name);
        Box::pin(std::future::ready(Ok(counts)))
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn secret(&self) -> Option<String> {
        self.proxy.is_some().then(|| mariadb::PASSWORD.into())
    }

    /// A request whose connection broke is sent again over another one.
    fn recovers(&self) -> bool {
        true
    }

    fn requests(&self) -> Option<u64> {
        self.proxy.as_ref().map(|proxy| proxy.requests())
    }

    fn evict(&self, name: &str) -> Option<BoxFuture<Verdict>> {
        let (table, name) = (self.database.table(), self.database.name(name));
        self.order(format!("DELETE FROM {table} WHERE name={name}"))
    }

    fn disturb(&self, step: Step, request_fault: RequestFault) -> Option<BoxFuture<Verdict>> {
        let planner = self.planner()?;
        disturb(planner, requests_of(step), request_fault, "")
    }

    fn break_connection(&self) -> Option<BoxFuture<Verdict>> {
        let planner = self.planner()?;
        at_once(move || planner.cut())
    }

    /// The proxy forwards no reply; a file is locked by another connection.
    fn pause_store(&self) -> Option<BoxFuture<Verdict>> {
        if let Some(proxy) = self.proxy.clone() {
            return at_once(
                move || // The server executes the requests, so that no request is pending when the pause ends.
                proxy.hold(Direction::Down, true),
            );
        }
        let Database::File(file) = self.database.clone() else {
            return None;
        };
        let pause = self.pause.clone();
        Some(Box::pin(async move {
            let mut link = sqlite::open(&file.path()).await;
            link.execute("BEGIN IMMEDIATE")
                .await
                .map_err(Failure::new)?;
            *pause.lock().expect("nobody panics with it") = Some(link);
            Ok(())
        }))
    }

    fn resume_store(&self) -> Option<BoxFuture<Verdict>> {
        let (planner, pause) = (self.planner(), self.pause.clone());
        Some(Box::pin(async move {
            if let Some(planner) = planner {
                planner.resume();
            }
            let link = pause.lock().expect("nobody panics with it").take();
            if let Some(mut link) = link {
                link.execute("ROLLBACK").await.map_err(Failure::new)?;
            }
            Ok(())
        }))
    }

    fn wipe_store(&self) -> Option<BoxFuture<Verdict>> {
        let table = self.database.table();
        self.order(format!(
            "DELETE FROM {table}; DELETE FROM {table}_waiters; DELETE FROM {table}_modes"
        ))
    }

    fn restart_store(&self) -> Option<BoxFuture<Verdict>> {
        let database = self.database.clone();
        if matches!(database, Database::File(_)) {
            return None;
        }
        at_once(move || match database {
            Database::MySql(server) => {
                server.kill();
                server.launch();
            }
            Database::Postgres(server, inside) => {
                server.kill();
                inside.disconnect();
                server.launch();
            }
            Database::File(_) => {}
        })
    }
}
