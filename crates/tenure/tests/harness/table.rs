//! The backend on a lease table: MariaDB and PostgreSQL, each a real server that each test program starts once, and
//! SQLite, a file for each harness. Looks are by the published format (docs/stores/table.md), over a connection
//! of their own.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use sqlx::Executor as _;
use sqlx::sqlite::SqliteConnection;

use tenure::backend::BoxFuture;
use tenure::conformance::{Failure, Harness, Look, Trouble, Verdict};
use tenure::error::Step;
use tenure::guarantees::Guarantees;
use tenure::{Client, Error};

use tenure_testkit::database;
use tenure_testkit::mariadb::{self, MariaDb};
use tenure_testkit::postgres::Postgres;
use tenure_testkit::proxy::{Direction, Fault, Planner, Proxy};
use tenure_testkit::sql_client::{Row, SqlClient};
use tenure_testkit::sqlite::{self, DatabaseFile};

const OPTIONS: &str = "?mode=table&tls=off&timeout=3s";

/// Each harness with a proxy of its own in front.
pub(crate) fn open_mysql() -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
    static SERVER: LazyLock<MariaDb> = LazyLock::new(|| MariaDb::start(&[]));
    let proxy = database::mysql(SERVER.port());
    Site::new(
        SERVER.url_at(proxy.port()) + OPTIONS,
        Store::MySql(&SERVER),
        Some(proxy),
    )
    .open()
}

pub(crate) fn open_postgres() -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
    static SERVER: LazyLock<(Postgres, SqlClient)> = LazyLock::new(|| {
        let server = Postgres::start(&[]);
        let inside = server.database_admin();
        (server, inside)
    });
    let (server, inside) = &*SERVER;
    let proxy = database::postgres(server.port());
    let url = server.url_at(proxy.port()) + OPTIONS;
    Site::new(url, Store::Postgres(server, inside), Some(proxy)).open()
}

pub(crate) fn open_sqlite() -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
    let file = Arc::new(DatabaseFile::new());
    let url = format!("{}?timeout=3s", file.url());
    Site::new(url, Store::File(file), None).open()
}

#[derive(Clone)]
enum Store {
    MySql(&'static MariaDb),
    Postgres(&'static Postgres, &'static SqlClient),
    File(Arc<DatabaseFile>),
}

impl Store {
    fn rows(&self, sql: &str) -> Vec<Row> {
        match self {
            Self::MySql(server) => server.admin().rows(sql),
            Self::Postgres(_, inside) => inside.rows(sql),
            Self::File(file) => file.rows(sql),
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

struct Site {
    url: String,
    store: Store,
    proxy: Option<Arc<Proxy>>,
    guarantees: Option<Guarantees>,
    /// Keeps a file locked.
    pause: Arc<Mutex<Option<SqliteConnection>>>,
}

impl Site {
    fn new(url: String, store: Store, proxy: Option<Proxy>) -> Self {
        Self {
            url,
            store,
            proxy: proxy.map(Arc::new),
            guarantees: None,
            pause: Arc::default(),
        }
    }

    /// Makes the tables, and asks for what is promised here.
    fn open(mut self) -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
        Box::pin(async move {
            let client = tenure::connect(&self.url).await?;
            client.init().await?;
            self.guarantees = Some(client.guarantees().clone());
            client.close().await;
            Ok(Arc::new(self) as _)
        })
    }

    fn planner(&self) -> Option<Planner> {
        self.proxy.as_ref().map(|proxy| proxy.planner())
    }

    fn order(&self, sql: String) -> Option<BoxFuture<Verdict>> {
        let store = self.store.clone();
        Some(Box::pin(async move {
            store.rows(&sql);
            Ok(())
        }))
    }
}

impl Harness for Site {
    fn client(&self) -> BoxFuture<Result<Client, Error>> {
        let url = self.url.clone();
        Box::pin(async move { tenure::connect(&url).await })
    }

    fn guarantees(&self) -> Guarantees {
        self.guarantees
            .clone()
            .expect("asked for when this was opened")
    }

    fn look(&self, name: &str) -> BoxFuture<Result<Look, Failure>> {
        let (table, now, name) = (self.store.table(), self.store.now(), self.store.name(name));
        let rows = self.store.rows(&format!(
            "SELECT (SELECT COUNT(*) FROM {table} WHERE name={name} AND owner<>'' AND until-delay>{now}),
                    (SELECT COUNT(*) FROM {table}_waiters WHERE name={name} AND until>{now})"
        ));
        let count = |at: usize| {
            rows[0][at]
                .as_deref()
                .unwrap_or_default()
                .parse()
                .unwrap_or(0)
        };
        let look = Look {
            holders: count(0),
            waiters: Some(count(1)),
        };
        Box::pin(std::future::ready(Ok(look)))
    }

    fn leases(&self) -> bool {
        true
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(4)
    }

    fn url(&self) -> Option<String> {
        Some(self.url.clone())
    }

    fn taker(&self) -> Option<PathBuf> {
        Some(env!("CARGO_BIN_EXE_tenure-taker").into())
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
        let (table, name) = (self.store.table(), self.store.name(name));
        self.order(format!("DELETE FROM {table} WHERE name={name}"))
    }

    fn disturb(&self, step: Step, trouble: Trouble) -> Option<BoxFuture<Verdict>> {
        let planner = self.planner()?;
        let fault = match trouble {
            Trouble::RequestLost => Fault::Answer(""),
            Trouble::ReplyLost => Fault::CutAfter,
            Trouble::ReplyNever => Fault::NoReply,
            Trouble::Late(by) => Fault::Late(by),
            _ => return None,
        };
        let step = match step {
            Step::Acquire => "acquire",
            Step::Renew => "renew",
            Step::Release => "release",
            _ => "look",
        };
        Some(Box::pin(async move {
            planner.plan(step, fault);
            Ok(())
        }))
    }

    fn break_connection(&self) -> Option<BoxFuture<Verdict>> {
        let planner = self.planner()?;
        Some(Box::pin(async move {
            planner.cut();
            Ok(())
        }))
    }

    /// Behind a proxy that passes nothing on; a file is locked by somebody else.
    fn pause_store(&self) -> Option<BoxFuture<Verdict>> {
        if let Some(proxy) = self.proxy.clone() {
            return Some(Box::pin(async move {
                // What is asked is done, so that nothing is under way any more when this ends.
                proxy.hold(Direction::Down, true);
                Ok(())
            }));
        }
        let Store::File(file) = self.store.clone() else {
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
        let table = self.store.table();
        self.order(format!("DELETE FROM {table}; DELETE FROM {table}_waiters"))
    }

    fn restart_store(&self) -> Option<BoxFuture<Verdict>> {
        let store = self.store.clone();
        if matches!(store, Store::File(_)) {
            return None;
        }
        Some(Box::pin(async move {
            match store {
                Store::MySql(server) => {
                    server.kill();
                    server.launch();
                }
                Store::Postgres(server, inside) => {
                    server.kill();
                    inside.disconnect();
                    server.launch();
                }
                Store::File(_) => {}
            }
            Ok(())
        }))
    }
}
