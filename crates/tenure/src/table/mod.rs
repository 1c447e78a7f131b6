//! A lease table in a database, `mysql://..?mode=table`, `postgres://..?mode=table` and `sqlite:FILE`: one row for
//! each name, which says who holds it and until when by the database's clock.
//!
//! One statement acquires a free lock and one releases it, on any of a few connections: a hold belongs to no
//! connection, so proxies and clusters that keep no session are no trouble. Who waits has a place in a second
//! table, in the order of arrival; in PostgreSQL the first is told of a release, elsewhere it looks.
//! The published format is in `docs/stores/table.md`.
//!
//! # Reading order
//! `names` and `schema/` (the format) · `statements` (what the database does) and `shedlock` (the same on Java's
//! table) · `hold` (one request each) · `wait` (the queue, from the waiter's side) · `ears` (what is pushed) ·
//! `link` (connections) · `file` (that of SQLite) · `facts` (what a server says about itself) · `outcome` (what its errors mean) ·
//! `schema` · `look`.

#[cfg(feature = "postgres")]
mod ears;
mod facts;
#[cfg(feature = "sqlite")]
mod file;
mod guarantees;
mod hold;
mod link;
mod look;
mod names;
mod outcome;
mod schema;
mod settings;
mod shedlock;
mod statements;
mod wait;

#[cfg(feature = "_fuzzing")]
pub(crate) use self::names::fuzz as fuzz_names;

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_core::backend::{
    Answer, Backend as Door, BoxFuture, Finding, Hold, Release, Renewal, Request,
};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::Status;
use tenure_core::logic::pace;
use tenure_core::name::LockName;
use tenure_core::rt::{Clock, Flag, Spawner, lock};
#[cfg(any(feature = "mysql", feature = "postgres"))]
use tenure_core::url::Url;

use crate::capabilities::stores_with;

#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::database::{Kind, Server};

use self::facts::Facts;
pub use self::guarantees::{Configuration, Database, Durability, guarantees};
use self::hold::Store;
use self::link::Pool;
use self::names::Dialect;
use self::settings::{Place, Settings};
use self::statements::Flavor;

/// How long [`Door::close`] may take: the server may be gone, and leases end by themselves.
const FAREWELL: Duration = Duration::from_secs(1);

/// Locks in a table.
pub struct Backend(Arc<Store>);

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Backend")
            .field(&self.0.guarantees.backend)
            .field(&self.0.settings.table())
            .finish()
    }
}

impl Backend {
    /// Connects to the server of a URL `mysql://` or `postgres://` with `mode=table`.
    ///
    /// # Errors
    /// `Invalid`: the URL is wrong. `Unreachable`, `Denied`: the server is not there or would not have us.
    /// Tables that are missing are an error of the first request.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) async fn connect(server: Server, url: Url) -> Result<Self, Error> {
        Self::with(Settings::of_server(server, url)?).await
    }

    /// The file of a URL `sqlite:FILE`, without its scheme. The first request opens it, and makes what is missing of
    /// file and tables.
    ///
    /// # Errors
    /// `Invalid`: the URL is wrong.
    #[cfg(feature = "sqlite")]
    pub(crate) async fn open(rest: &str) -> Result<Self, Error> {
        Self::with(Settings::of_file(rest)?).await
    }

    async fn with(settings: Settings) -> Result<Self, Error> {
        let Some(spawner) = Spawner::current() else {
            return Err(Error::new(
                ErrorKind::Closed,
                "connect was called outside a tokio runtime; use `tenure::blocking` there",
            ));
        };
        let clock = Clock::system();
        let (database, mut flavor) = spoken(&settings.place)?;
        // One connection is kept free to listen, where that is possible.
        let listens = database == Database::Postgres
            && settings.connections > 1
            && settings.dialect == Dialect::Tenure;
        let requests = settings.connections - usize::from(listens);
        let pool = Arc::new(Pool::new(
            &settings,
            requests,
            clock.clone(),
            spawner.clone(),
        ));
        let facts = match &settings.place {
            #[cfg(any(feature = "mysql", feature = "postgres"))]
            Place::Server(_) => {
                pool.warm_up().await?;
                Facts::ask(&pool, flavor).await?
            }
            #[cfg(feature = "sqlite")]
            Place::File(_) => Facts::default(),
        };
        flavor = flavor.with_version(&facts.version);
        let configuration = Configuration {
            database,
            durability: facts.durability,
            fails_over: facts.fails_over,
            is_shedlock: settings.dialect == Dialect::ShedLock,
        };
        #[cfg(feature = "postgres")]
        let ears = {
            #[allow(
                irrefutable_let_patterns,
                reason = "with one feature there is one kind of place"
            )]
            let options = match &settings.place {
                Place::Server(server) if listens => Some(server.postgres_options()?),
                _ => None,
            };
            let (pool, clock) = (pool.clone(), clock.clone());
            Arc::new(ears::Ears::new(options, pool, clock, spawner))
        };
        Ok(Self(Arc::new(Store {
            guarantees: guarantees(configuration),
            ours: statements::Statements::new(flavor, settings.table()),
            theirs: shedlock::Statements::new(flavor, settings.table()),
            settings,
            pool,
            #[cfg(feature = "postgres")]
            ears,
            clock,
            holds: Mutex::default(),
            host: OnceLock::new(),
            busy: AtomicUsize::new(0),
            closing: Flag::new(),
        })))
    }
}

/// The database of that place, and its language.
fn spoken(place: &Place) -> Result<(Database, Flavor), Error> {
    match place {
        #[cfg(feature = "sqlite")]
        Place::File(_) => Ok((Database::Sqlite, Flavor::Sqlite)),
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        Place::Server(server) => match server.kind {
            #[cfg(feature = "postgres")]
            Kind::Postgres => Ok((Database::Postgres, Flavor::Postgres)),
            #[cfg(feature = "mysql")]
            Kind::MySql => Ok((Database::MySql, Flavor::MySql { returns: false })),
            #[cfg(not(all(feature = "mysql", feature = "postgres")))]
            _ => Err(Error::new(
                ErrorKind::Unsupported,
                "this build has no client for that server",
            )),
        },
    }
}

impl Door for Backend {
    fn guarantees(&self) -> &Guarantees {
        &self.0.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        stores_with(capability)
    }

    fn acquire(&self, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(self.0.clone().acquire(request))
    }

    fn renew(&self, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        let store = self.0.clone();
        Box::pin(async move { store.renew(holds).await })
    }

    fn release(&self, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        let store = self.0.clone();
        Box::pin(async move { store.release(hold).await })
    }

    fn inspect(&self, name: LockName) -> BoxFuture<Result<Status, Error>> {
        let store = self.0.clone();
        Box::pin(async move { store.inspect(name).await })
    }

    fn list(&self, prefix: String) -> BoxFuture<Result<Vec<Status>, Error>> {
        let store = self.0.clone();
        Box::pin(async move { store.list(&prefix).await })
    }

    fn break_lock(&self, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        let store = self.0.clone();
        Box::pin(async move { store.break_lock(name, token).await })
    }

    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Error>> {
        let store = self.0.clone();
        Box::pin(async move { store.check().await })
    }

    fn init(&self) -> BoxFuture<Result<Vec<String>, Error>> {
        let store = self.0.clone();
        Box::pin(async move { store.init().await })
    }

    fn close(&self) -> BoxFuture<()> {
        let store = self.0.clone();
        Box::pin(async move { store.close().await })
    }
}

impl Store {
    /// Gives back what is held, lets those who wait leave, and ends the connections.
    async fn close(&self) {
        self.closing.raise();
        let limit = self.clock.now().after(FAREWELL);
        let farewell = async {
            let holds: Vec<_> = {
                let kept = lock(&self.holds);
                let hold = |(owner, name): (_, LockName)| {
                    Hold::new(&Request::new(name, owner, Duration::ZERO), 0)
                };
                kept.iter()
                    .map(|(owner, kept)| hold((*owner, kept.name.clone())))
                    .collect()
            };
            for hold in holds {
                // What cannot be given back runs out.
                if self.release(hold).await.is_err() {
                    break;
                }
            }
            // The driver has stopped them; they are on their way out.
            for attempt in 0_u32.. {
                if self.busy.load(Ordering::SeqCst) == 0 {
                    return;
                }
                let pause = pace::next(attempt, 0, None, None).unwrap_or(pace::FIRST);
                self.clock.sleep_until(self.clock.now().after(pause)).await;
            }
        };
        let end = async {
            farewell.await;
            self.pool.close().await;
        };
        tokio::select! {
            () = end => {}
            () = self.clock.sleep_until(limit) => {}
        }
        #[cfg(feature = "postgres")]
        self.ears.close();
    }
}
