//! The parts of one client, and how a client connects.

use std::fmt;
use std::sync::Arc;

use tenure_core::error::Error;
use tenure_core::guarantees::Guarantees;
use tenure_core::rt::{BackgroundTasks, Clock, Flag, Spawner};
use tenure_core::store::{Losses, Request};
use tenure_core::support;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use tenure_core::url::Url;

#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::database::{Kind, Server};

use crate::database::DatabasePool;
use crate::waiting::Places;

use super::guarantees::{Configuration, Database, guarantees};
#[cfg(feature = "postgres")]
use super::listener::{Listener, TableSubscribers};
use super::names::Format;
use super::pool::Pool;
use super::requests::Requests;
use super::server_info::ServerInfo;
use super::settings::{Location, Settings};
use super::sql::Dialect;
use super::subscribe::Notifications;

/// Locks in a table.
pub struct Store {
    pub(super) settings: Settings,
    pub(super) guarantees: Guarantees,
    pub(super) requests: Requests,
    /// Acquisitions under way, and holds that are being detached or attached: `close` waits for them.
    pub(super) acquisitions: Arc<BackgroundTasks>,
    pub(super) places: Places,
    pub(super) clock: Clock,
    pub(super) spawner: Spawner,
    pub(super) losses: Losses,
    /// Raised when the client is being closed.
    pub(super) closing: Arc<Flag>,
    /// `None`: no connection can be spared for notifications.
    #[cfg(feature = "postgres")]
    pub(super) listener: Option<Arc<Listener>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store")
            .field(&self.guarantees.scheme)
            .field(&self.settings.table())
            .finish()
    }
}

impl Store {
    /// What [`connect`](Store::connect) refuses without a request.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn check_url(server: Server, url: Url) -> Result<(), Error> {
        Settings::of_server(server, url).map(drop)
    }

    /// What [`open`](Store::open) refuses without a request.
    #[cfg(feature = "sqlite")]
    pub(crate) fn check_file_url(rest: &str) -> Result<(), Error> {
        Settings::of_file(rest).map(drop)
    }

    /// Connects to the server of a URL `mysql://` or `postgres://` with `mode=table`.
    ///
    /// # Errors
    /// `Invalid`: the URL is wrong. `Unreachable`, `Denied`: the server is not there or refused the user.
    /// Missing tables are an error of the first request.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) async fn connect(server: Server, url: Url) -> Result<Arc<Self>, Error> {
        Self::with(Settings::of_server(server, url)?, Clock::system()).await
    }

    /// The file of a URL `sqlite:FILE`, without its scheme. The first request opens the file, and makes what is
    /// missing of file and tables.
    ///
    /// # Errors
    /// `Invalid`: the URL is wrong.
    #[cfg(feature = "sqlite")]
    pub(crate) async fn open(rest: &str) -> Result<Arc<Self>, Error> {
        Self::with(Settings::of_file(rest)?, Clock::system()).await
    }

    /// Locks in a table of the database to which a pool leads: each request borrows a connection of the pool, and this client
    /// opens none of its own. [`Settings::store_with`](super::builder::Settings::store_with) takes options too.
    ///
    /// A request borrows at most four connections at a time, or all but one if the pool has fewer. A renewal waits for a
    /// connection as all other users of the pool do, so a pool that is used up for longer than a ttl loses locks; the error
    /// says so. Waiters read their queue about five times a second, because no connection is kept for notifications of
    /// PostgreSQL. The sessions stay as the program has set them up.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # async fn example(pool: sqlx::PgPool) -> Result<(), tenure::Error> {
    /// use tenure::Client;
    /// use tenure::tables::Store;
    ///
    /// let client = Client::builder(Store::from_pool(&pool).await?).build()?;
    /// let guard = client.lock("orders/42").acquire().await?;
    /// # guard.release().await }
    /// ```
    ///
    /// # Errors
    /// `Invalid`: the pool has one connection, names no database or leads to no file. `Unsupported`: its sessions are set in a
    /// way in which no lock would be safe; the message has the remedy. `Unreachable`, `Denied`: the server is not there or
    /// refused the user. Missing tables of a server are an error of the first request; those of a file are made.
    pub async fn from_pool(pool: impl Into<DatabasePool>) -> Result<Arc<Self>, Error> {
        Self::of_pool(pool.into(), "").await
    }

    /// The same with options, written as those of a URL.
    pub(super) async fn of_pool(pool: DatabasePool, options: &str) -> Result<Arc<Self>, Error> {
        pool.make_file().await;
        Self::with(Settings::of_pool(pool, options)?, Clock::system()).await
    }

    pub(super) async fn with(settings: Settings, clock: Clock) -> Result<Arc<Self>, Error> {
        // Outside a runtime no connection can be opened.
        let spawner = support::spawner()?;
        let (database, mut dialect) = database_of(&settings.location)?;
        // One connection is kept free for notifications, where the database has them.
        let has_listener = database == Database::Postgres
            && settings.connections > 1
            && settings.pool.is_none()
            && settings.format == Format::Tenure;
        let connections = settings.connections - usize::from(has_listener);
        let pool = Arc::new(Pool::new(&settings, connections, clock.clone()));
        if let Some(callers) = &settings.pool {
            pool.check_pool(callers).await?;
        }
        let server_info = match &settings.location {
            #[cfg(any(feature = "mysql", feature = "postgres"))]
            Location::Server(_) => {
                pool.warm_up().await?;
                ServerInfo::ask(&pool, dialect).await?
            }
            #[cfg(feature = "sqlite")]
            Location::File(_) => {
                if settings.pool.is_some() {
                    pool.make_file().await?;
                }
                ServerInfo::default()
            }
        };
        dialect = dialect.with_version(&server_info.version);
        let configuration = Configuration {
            database,
            durability: server_info.durability,
            fails_over: server_info.fails_over,
            is_shedlock: settings.format == Format::ShedLock,
            is_pooled: settings.pool.is_some(),
        };
        #[cfg(feature = "postgres")]
        let listener = match has_listener {
            true => listener(&settings, &pool, &clock, &spawner)?,
            false => None,
        };
        let (format, table) = (settings.format, settings.table());
        let requests = Requests::new(format, dialect, table, pool, clock.clone());
        Ok(Arc::new(Self {
            guarantees: guarantees(configuration),
            requests,
            acquisitions: Arc::default(),
            places: Places::default(),
            clock,
            spawner,
            losses: Losses::default(),
            closing: Arc::default(),
            #[cfg(feature = "postgres")]
            listener,
            settings,
        }))
    }

    /// Notifications for one waiter. `None`: there are none.
    pub(super) fn subscribe(&self, request: &Request) -> Option<Notifications> {
        #[cfg(feature = "postgres")]
        if let Some(listener) = &self.listener {
            let digest = self.requests.own.digest(request.name.as_str());
            return listener.subscribe(digest, request.owner);
        }
        let _ = request;
        None
    }
}

/// The connection for notifications, which is opened when it is needed.
#[cfg(feature = "postgres")]
fn listener(
    settings: &Settings,
    pool: &Arc<Pool>,
    clock: &Clock,
    spawner: &Spawner,
) -> Result<Option<Arc<Listener>>, Error> {
    let Some(options) = settings.postgres_options() else {
        return Ok(None);
    };
    let (clock, spawner) = (clock.clone(), spawner.clone());
    let subscribers = TableSubscribers::new(pool.clone(), spawner.clone());
    let listener = Listener::new(subscribers, options?, settings.timeout, clock, spawner);
    Ok(Some(Arc::new(listener)))
}

/// The database at that location, and its SQL.
fn database_of(location: &Location) -> Result<(Database, Dialect), Error> {
    match location {
        #[cfg(feature = "sqlite")]
        Location::File(_) => Ok((Database::Sqlite, Dialect::Sqlite)),
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        Location::Server(server) => match server.kind {
            #[cfg(feature = "postgres")]
            Kind::Postgres => Ok((Database::Postgres, Dialect::Postgres)),
            #[cfg(feature = "mysql")]
            Kind::MySql => Ok((Database::MySql, Dialect::MySql { returns: false })),
            #[cfg(not(all(feature = "mysql", feature = "postgres")))]
            _ => Err(Error::new(
                tenure_core::error::ErrorKind::Unsupported,
                "this build has no client for that server",
            )),
        },
    }
}
