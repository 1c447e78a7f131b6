//! The parts of one client, and how a client connects.

use std::fmt;
use std::sync::{Arc, Weak};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::guarantees::Guarantees;
use tenure_core::rt::{Clock, Flag, lock};
use tenure_core::store::{Losses, Request};
use tenure_core::support::{self, HoldRegistry};
use tenure_core::url::Url;

use crate::database::{DatabasePool, Kind, Server};

use super::connection::Connector;
use super::context::Context;
use super::control::ControlConnection;
use super::dialect::Dialect;
use super::guarantees::{Configuration, guarantees};
use super::holder_table::HolderTable;
use super::key_cache::KeyCache;
#[cfg(feature = "postgres")]
use super::listener::Listener;
#[cfg(feature = "mysql")]
use super::mysql::MySql;
use super::pool::Sessions;
#[cfg(feature = "postgres")]
use super::postgres::Postgres;
use super::session::{Session, SessionObserver};
use super::settings::Settings;

/// Locks of sessions in a database.
pub struct Store {
    pub(super) guarantees: Guarantees,
    pub(super) context: Arc<Context>,
    pub(super) connector: Arc<Connector>,
    pub(super) control: Arc<ControlConnection>,
    pub(super) sessions: Arc<Sessions>,
    pub(super) holder_table: Arc<HolderTable>,
    pub(super) keys: KeyCache,
    /// The session that carries each acquisition.
    pub(super) holds: HoldRegistry<Arc<Session>>,
    pub(super) losses: Losses,
    /// `None`: no connection listens.
    #[cfg(feature = "postgres")]
    pub(super) listener: Option<Arc<Listener>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = &self.context.settings.server;
        f.debug_tuple("Store").field(&server.host).finish()
    }
}

impl Store {
    /// What [`connect`](Store::connect) refuses without a request.
    pub(crate) fn check_url(server: Server, url: Url) -> Result<(), Error> {
        Settings::new(server, url).map(drop)
    }

    /// Connects to a server; `url` is what [`Server::parse`] has left of the URL.
    ///
    /// # Errors
    /// `Invalid`: the URL is wrong. `Unreachable`, `Denied`: the server is not there or refused the user.
    /// `Unsupported`: locks of its sessions would not exclude all other clients, and the message says why.
    pub(crate) async fn connect(server: Server, url: Url) -> Result<Arc<Self>, Error> {
        Self::with(Settings::new(server, url)?).await
    }

    /// Locks of the sessions of a pool: this client takes connections out of the pool, and opens none of its own.
    /// [`Settings::store_with`](super::builder::Settings::store_with) takes options too.
    ///
    /// A client has at most half of the pool's connections: one for everything but locks, two or more for locks, and each
    /// waiter has one. A connection on which locks were taken is closed in the end and not given back, because its session was
    /// set up for locks; the pool opens another one in its place. Close the client before the pool, which waits for all of its
    /// connections.
    ///
    /// Two things are weaker than with a URL. The end of a connection is noticed by the next check
    /// ([`validate`](super::builder::Settings::validate), 1 s) and not at once, because the socket belongs to the pool. And a
    /// lock that the program has taken in a session of its pool by itself and not released is the same session's: with
    /// PostgreSQL such a session is refused, with MySQL that cannot be seen.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # async fn example(pool: sqlx::PgPool) -> Result<(), tenure::Error> {
    /// use tenure::Client;
    /// use tenure::sessions::Store;
    ///
    /// let client = Client::builder(Store::from_pool(&pool).await?).build()?;
    /// let guard = client.lock("orders/42").acquire().await?;
    /// # guard.release().await }
    /// ```
    ///
    /// # Errors
    /// `Invalid`: the pool is one of SQLite, or has fewer than four connections. `Unsupported`: a pooler stands between the pool
    /// and the server, the server cannot keep locks, or a session of the pool has locks already. `Unreachable`, `Denied`: the
    /// server is not there, no connection of the pool is free, or the user was refused.
    pub async fn from_pool(pool: impl Into<DatabasePool>) -> Result<Arc<Self>, Error> {
        Self::with(Settings::of_pool(pool.into(), "")?).await
    }

    pub(super) async fn with(settings: Settings) -> Result<Arc<Self>, Error> {
        let spawner = support::spawner()?;
        let configuration = Configuration {
            is_postgres: settings.server.kind == Kind::Postgres,
            is_guarded: settings.restart_guard.is_some(),
            is_pooled: settings.pool.is_some(),
        };
        let context = Arc::new(Context {
            dialect: dialect_of(settings.server.kind)?,
            settings,
            clock: Clock::system(),
            spawner,
            maintenance: Arc::default(),
            tasks: Arc::default(),
            closing: Flag::new(),
        });
        #[cfg(feature = "postgres")]
        let options = Listener::options(&context)?;
        let store = Arc::new_cyclic(|store: &Weak<Self>| {
            let observer: Weak<dyn SessionObserver> = store.clone();
            let connector = Arc::new(Connector::new(context.clone(), observer));
            let control = ControlConnection::new(context.clone(), connector.clone());
            let control = Arc::new(control);
            Self {
                #[cfg(feature = "postgres")]
                listener: options.map(|options| Listener::of(options, &context, &control)),
                guarantees: guarantees(configuration),
                sessions: Arc::new(Sessions::new(context.clone(), connector.clone())),
                holder_table: Arc::new(HolderTable::new(context.clone(), control.clone())),
                keys: KeyCache::new(control.clone()),
                holds: HoldRegistry::default(),
                losses: Losses::default(),
                context,
                connector,
                control,
            }
        });
        store.connector.refuse_pooler().await?;
        let control = store.control.session().await?;
        store.connector.prewarm().await?;
        if let Some(guard) = store.context.settings.restart_guard {
            support::warn_of_restart(store.guarantees.scheme, &control.restart_guard(guard));
        }
        // Locks work without the table, which only shows the holders to operators.
        let _ = store.holder_table.find().await;
        store.connector.note_connected();
        Ok(store)
    }

    /// The caller gave up, or the client is being closed.
    pub(super) fn is_cancelled(&self, request: &Request) -> bool {
        request.stop.is_raised() || self.context.closing.is_raised()
    }

    /// What `work` returns; `None` when the caller gives up or the client is closed before that.
    pub(super) async fn until_cancelled<T>(
        &self,
        request: &Request,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            () = request.stop.raised() => None,
            () = self.context.closing.raised() => None,
            output = work => Some(output),
        }
    }

    /// Removes an acquisition of which nothing is left in the server.
    pub(super) fn remove_acquisition(&self, owner: OwnerId) {
        if let Some(session) = self.holds.remove(owner) {
            lock(&session.acquisitions).remove(&owner);
            session.changed.notify_waiters();
        }
    }
}

/// The SQL of that kind of server.
fn dialect_of(kind: Kind) -> Result<Box<dyn Dialect>, Error> {
    match kind {
        #[cfg(feature = "mysql")]
        Kind::MySql => Ok(Box::new(MySql)),
        #[cfg(feature = "postgres")]
        Kind::Postgres => Ok(Box::new(Postgres)),
        #[allow(unreachable_patterns, reason = "with both features there is none left")]
        kind => Err(Error::new(
            ErrorKind::Unsupported,
            format!("this build cannot talk to {kind:?}"),
        )),
    }
}
