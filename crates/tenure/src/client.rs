//! A client: one process's link to a store. The one file that knows every backend.

#[cfg(all(feature = "file", unix))]
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use crate::backend::{Backend, Finding};
#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::database::{Mode, Server};
use crate::driver::Driver;
use crate::error::{Error, ErrorKind, Step};
#[cfg(feature = "etcd")]
use crate::etcd;
#[cfg(all(feature = "file", unix))]
use crate::file;
use crate::guarantees::{Capability, Guarantees};
use crate::holder::Status;
use crate::lock::{Lock, Target};
use crate::lost::Loss;
use crate::memory;
use crate::name::{Escaped, LockName};
#[cfg(feature = "redis")]
use crate::redis;
#[cfg(feature = "redis")]
use crate::redlock;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::session;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
use crate::table;
#[cfg(feature = "zookeeper")]
use crate::zookeeper;

/// What this build can talk to, for messages.
pub const SCHEMES: &[&str] = &[
    "memory:",
    #[cfg(all(feature = "file", unix))]
    "file:",
    #[cfg(feature = "redis")]
    "redis:",
    #[cfg(feature = "redis")]
    "rediss:",
    #[cfg(feature = "redis")]
    "redis+sentinel:",
    #[cfg(feature = "redis")]
    "redis+cluster:",
    #[cfg(feature = "redis")]
    "redlock:",
    #[cfg(feature = "etcd")]
    "etcd:",
    #[cfg(feature = "etcd")]
    "etcds:",
    #[cfg(feature = "zookeeper")]
    "zookeeper:",
    #[cfg(feature = "mysql")]
    "mysql:",
    #[cfg(feature = "postgres")]
    "postgres:",
    #[cfg(feature = "sqlite")]
    "sqlite:",
];

/// Schemes of backends that are not in this build, with what to do about it.
const NOT_HERE: &[(&str, &str)] = &[
    #[cfg(not(unix))]
    (
        "file",
        "it works on Linux and macOS only; on one host use `sqlite:`, else a server",
    ),
    #[cfg(all(unix, not(feature = "file")))]
    ("file", "build with the feature `file`"),
    #[cfg(not(feature = "redis"))]
    ("redis", REDIS),
    #[cfg(not(feature = "redis"))]
    ("rediss", REDIS),
    #[cfg(not(feature = "redis"))]
    ("redis+sentinel", REDIS),
    #[cfg(not(feature = "redis"))]
    ("redis+cluster", REDIS),
    #[cfg(not(feature = "redis"))]
    ("redlock", REDLOCK),
    #[cfg(not(feature = "etcd"))]
    ("etcd", ETCD),
    #[cfg(not(feature = "etcd"))]
    ("etcds", ETCD),
    #[cfg(not(feature = "zookeeper"))]
    ("zookeeper", "build with the feature `zookeeper`"),
    #[cfg(not(feature = "mysql"))]
    ("mysql", "build with the feature `mysql`"),
    #[cfg(not(feature = "postgres"))]
    ("postgres", "build with the feature `postgres`"),
    #[cfg(not(feature = "sqlite"))]
    ("sqlite", "build with the feature `sqlite`"),
];
#[cfg(not(feature = "etcd"))]
const ETCD: &str = "build with the feature `etcd`";
#[cfg(not(feature = "redis"))]
const REDLOCK: &str = "build with the feature `redlock`";
#[cfg(not(feature = "redis"))]
const REDIS: &str = "build with the feature `redis`";

/// Connects to the store that `url` names; the scheme selects the backend.
///
/// | URL | store |
/// | --- | --- |
/// | `memory:` | this client and its clones only |
/// | `file:DIR` | all processes on this host that use the same directory; everything up to a `?` is the path |
/// | `file:` | the same, in `$XDG_STATE_HOME/tenure/locks` or `~/.local/state/tenure/locks` |
/// | `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]` | a Redis or Valkey server; `rediss://` with TLS |
/// | `redis+sentinel://HOST,HOST,../SERVICE[/DATABASE]` | the primary that these sentinels name |
/// | `redis+cluster://HOST,HOST,..` | a Redis Cluster |
/// | `redlock://HOST,HOST,HOST` | a majority of independent Redis servers; a minority may fail at any time |
/// | `etcd://[USER:PASSWORD@]HOST[:PORT],HOST,..` | an etcd cluster, by all or some of its members; `etcds://` with TLS |
/// | `mysql://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]` | a MySQL or MariaDB server, by locks of its sessions |
/// | `postgres://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]` | a PostgreSQL server, by locks of its sessions in that database |
/// | `mysql://[USER:PASSWORD@]HOST[:PORT]/DATABASE?mode=table` | a table in MySQL or MariaDB |
/// | `postgres://[USER:PASSWORD@]HOST[:PORT]/DATABASE?mode=table` | a table in PostgreSQL |
/// | `sqlite:FILE` | all processes on this host that use the same file |
/// | `zookeeper://[USER:PASSWORD@]HOST[:PORT],HOST,..[/PATH]` | a ZooKeeper ensemble; locks are stored under that path, which is made if it is missing |
///
/// Options come after a `?` and are joined by `&`. Those of `redis`:
///
/// | option | meaning |
/// | --- | --- |
/// | `prefix=TEXT` | put before every key |
/// | `dialect=redisson` | locks in the format of Redisson's `RLock`, to share them with Java |
/// | `restart_guard=30s` | for this long after its start a server grants nothing, because it may have forgotten who held what. Set it to the longest ttl that any client uses (default 30 s); `off`: grant at once, for a server that has no locks to lose, for example a fresh container in a test |
/// | `timeout=2s` | limit of each request and each attempt to connect |
/// | `wait_replicas=N` | a grant counts only after N replicas have it |
/// | `tls=on`, `ca=FILE`, `cert=FILE`, `key=FILE` | TLS; the authority to trust instead of the system's; a certificate of our own |
/// | `sentinel_user=NAME`, `sentinel_password=TEXT` | for the sentinels themselves |
///
/// Options of `etcd`:
///
/// | option | meaning |
/// | --- | --- |
/// | `prefix=TEXT` | put before every key |
/// | `timeout=2s` | limit of each request and each attempt to connect |
/// | `names=raw` | names are written into keys as they are, to share such a lock with another program; then a waiter for `a` also waits for `a/b` |
/// | `lease=lock` | every lock has a lease of its own, and exactly the key that etcd's own lock library would make |
/// | `ca=FILE`, `cert=FILE`, `key=FILE` | the authority to trust instead of the system's; a certificate of our own |
///
/// Options of `zookeeper`:
///
/// | option | meaning |
/// | --- | --- |
/// | `ttl=30s` | for this ttl the client opens a session when it connects; for another ttl, at its first use |
/// | `timeout=2s` | limit of each request |
/// | `names=raw` | a name is a path and may contain `/`, to share such a lock with another program |
/// | `dialect=session-prefix` | nodes have the names of the lock that comes with ZooKeeper; exclusive locks only |
/// | `acl=open`, `acl=creator` | everybody may access our nodes (default without a user), or our user only (default with a user) |
/// | `tls=on`, `ca=FILE`, `cert=FILE`, `key=FILE` | TLS; the authority to trust, which has to be named; a certificate of our own |
///
/// Options of `mysql` and `postgres` in both modes:
///
/// | option | meaning |
/// | --- | --- |
/// | `mode=session` | locks of the server's sessions (default); `mode=table`: rows of a table |
/// | `timeout=2s` | limit of each request and each attempt to connect |
/// | `socket=PATH` | a socket on this machine instead of the host |
/// | `tls=on`, `ca=FILE`, `cert=FILE`, `key=FILE` | `on` (default for a server on another machine); `off`; `prefer`, TLS if the server offers it (default on this machine); the authority to trust instead of the system's; a certificate of our own |
///
/// With `mode=session`:
///
/// | option | meaning |
/// | --- | --- |
/// | `prefix=TEXT` | put before every name |
/// | `keys=bigint` | PostgreSQL only: how a name becomes a key; `pair`, `raw` and the mappings of other libraries (`hashtext`, `csharp`, `ruby`, `sqlx`), to share such a lock with them |
/// | `connections=16` | the largest number of connections of a client for locks; each waiter takes one of its own |
/// | `validate=1s` | the longest time until the end of a session is noticed |
/// | `restart_guard=30s` | for this long after its start a server grants nothing, because it has forgotten who held what. Set it to the longest ttl that any client uses (default 30 s); `off`: grant at once, for a server that has no locks to lose, for example a fresh container in a test |
///
/// With `mode=table`:
///
/// | option | meaning |
/// | --- | --- |
/// | `table=NAME` | the name of the table (default `tenure_locks`); in a server [`Client::init`] makes it |
/// | `connections=4` | the largest number of connections of this client |
/// | `dialect=shedlock` | the table has the format of ShedLock, to share locks with Java |
///
/// Options of `sqlite`: `table`, `connections` and `timeout`.
/// The first request makes the file and its tables if they are missing.
///
/// Durations are written `500ms`, `5s`, `2m`, `1h30m` or `1d`; see [`parse_duration`](crate::time::parse_duration).
///
/// Must be called inside a tokio runtime (with time enabled); background work of the client runs there.
///
/// # Cancel safety
/// Cancel safe.
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid): the URL is wrong, the message says where.
/// [`Unsupported`](ErrorKind::Unsupported): no backend of this build has that scheme.
/// `Denied`: the store refused the user or password. `Unreachable`: the store did not answer.
pub async fn connect(url: &str) -> Result<Client, Error> {
    Client::connect(url).await
}

/// One process's link to a store. A clone is cheap; all clones share one link, one renewal task and one
/// queue per name.
///
/// The link ends when the last clone and the last guard are dropped, or with [`close`](Client::close).
#[derive(Clone, Debug)]
pub struct Client {
    driver: Arc<Driver>,
}

impl Client {
    /// See [`connect`].
    ///
    /// # Errors
    /// See [`connect`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let client = Self::open(url).await;
        client.map_err(|err| err.with_step(Step::Connect))
    }

    async fn open(url: &str) -> Result<Self, Error> {
        let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        let Some((scheme, rest)) = url.split_once(':') else {
            // Not echoed beyond its length: it may be a password that was put in the wrong place.
            return invalid(format!(
                "the URL has no scheme; it begins with one of {}, for example file:/var/lib/myapp/locks",
                SCHEMES.join(", ")
            ));
        };
        match scheme {
            "memory" if rest.is_empty() => Self::from_backend(memory::Backend::new()),
            "memory" => invalid(
                "`memory:` takes nothing after the colon; every connect makes a store of its own"
                    .into(),
            ),
            #[cfg(all(feature = "file", unix))]
            "file" => Self::from_backend(file::Backend::open(&directory(rest)?)?),
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis+sentinel" | "redis+cluster" => {
                Self::from_backend(redis::Backend::connect(url).await?)
            }
            #[cfg(feature = "redis")]
            "redlock" => {
                let nodes = redis::Backend::masters(url).await?;
                Self::from_backend(redlock::Backend::new(nodes, redlock::Settings::default())?)
            }
            #[cfg(feature = "etcd")]
            "etcd" | "etcds" => Self::from_backend(etcd::Backend::connect(url).await?),
            #[cfg(feature = "zookeeper")]
            "zookeeper" => Self::from_backend(zookeeper::Backend::connect(url).await?),
            #[cfg(feature = "mysql")]
            "mysql" => Self::open_database(url).await,
            #[cfg(feature = "postgres")]
            "postgres" => Self::open_database(url).await,
            #[cfg(feature = "sqlite")]
            "sqlite" => Self::from_backend(table::Backend::open(rest).await?),
            _ => {
                let cure = NOT_HERE
                    .iter()
                    .find(|(known, _)| *known == scheme)
                    .map_or_else(
                        || format!("this build has {}", SCHEMES.join(", ")),
                        |(_, cure)| (*cure).into(),
                    );
                let scheme: String = scheme.chars().take(40).collect();
                Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("there is no backend for \"{}:\"; {cure}", Escaped(&scheme)),
                ))
            }
        }
    }

    #[cfg(any(feature = "mysql", feature = "postgres"))]
    async fn open_database(url: &str) -> Result<Self, Error> {
        let (server, mode, url) = Server::parse(url)?;
        match mode {
            Mode::Session => Self::from_backend(session::Backend::connect(server, url).await?),
            Mode::Table => Self::from_backend(table::Backend::connect(server, url).await?),
        }
    }

    /// A client of a backend that you made: a [`memory::Backend`] shared by several clients,
    /// or a backend of your own.
    ///
    /// # Errors
    /// [`Closed`](ErrorKind::Closed) outside a tokio runtime.
    pub fn from_backend(backend: impl Backend) -> Result<Self, Error> {
        Ok(Self {
            driver: Driver::new(Arc::new(backend), stores_with)?,
        })
    }

    /// Tells clients apart within this process; clones are the same.
    pub(crate) fn id(&self) -> usize {
        self.driver.id()
    }

    /// Calls `callback` for every lock that this client or a clone of it loses: one place for alarms and logs.
    /// The callback runs once for each lost hold, whether its guard waits for [`lost`](crate::Guard::lost), learns of
    /// the loss at its [`release`](crate::Guard::release), or is dropped by then. It does not run for a hold that was
    /// released in time.
    ///
    /// The callbacks run one after the other on a thread where they may block; deadlines and renewals of other locks
    /// do not wait for them. A callback runs after the loss: work that must stop at once listens to
    /// [`lost`](crate::Guard::lost) or runs in [`run`](Lock::run).
    /// A panic in a callback is logged; the callback stays registered.
    ///
    /// Several callbacks may be registered; all of them run. A callback stays registered until it is
    /// [unregistered](LossCallback::unregister), until [`close`](Client::close), or as long as the client lives;
    /// dropping the handle changes nothing. A callback that owns a clone of the client keeps the client alive until then.
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// let client = tenure::connect("memory:").await?;
    /// client.on_lost(|loss| eprintln!("{loss}"));
    /// # client.close().await;
    /// # Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub fn on_lost(&self, callback: impl Fn(&Loss) + Send + Sync + 'static) -> LossCallback {
        LossCallback {
            driver: Arc::downgrade(&self.driver),
            id: self.driver.register_loss_callback(callback),
        }
    }

    /// The lock of that name. Sends nothing; acquire the lock with the methods of [`Lock`].
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.driver.clone(), Target::one(name.as_ref()))
    }

    /// Several locks at once: all or none, acquired in byte order of their names (which keeps clients
    /// from waiting for each other in a circle), under one guard and one `wait`.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        Lock::new(self.driver.clone(), Target::all(names))
    }

    /// Any one of these locks (buckets): the one that is free first. The search starts at a random place.
    /// [`Guard::name`](crate::Guard::name) is the name that was acquired.
    pub fn lock_any<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        Lock::new(self.driver.clone(), Target::any(names))
    }

    /// Who holds `name`, since when, with which fencing token, and who waits.
    ///
    /// # Errors
    /// `Invalid` for a name that cannot be; `Unreachable` and `Denied` from the store.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<Status, Error> {
        let name = LockName::new(name)?;
        let driver = &self.driver;
        let status = driver.carried(driver.backend.inspect(name.clone())).await;
        status.map_err(|err| self.driver.explain(err, &name, Step::Inspect))
    }

    /// All held names that start with `prefix`, sorted.
    ///
    /// # Errors
    /// `Unreachable` and `Denied` from the store.
    pub async fn list(&self, prefix: impl Into<String>) -> Result<Vec<Status>, Error> {
        let driver = &self.driver;
        let list = driver.carried(driver.backend.list(prefix.into())).await;
        list.map_err(|err| {
            err.with_backend(self.driver.backend_name)
                .with_step(Step::Inspect)
        })
    }

    /// Ends the hold of `name` that has this token, and no other. `false`: there is no such hold (any more).
    ///
    /// For operators who know that the holder is dead. The name is granted to the next waiter at once.
    /// A holder that is alive is told that it lost the lock, and its work may continue until then.
    ///
    /// # Errors
    /// `Invalid` for a name that cannot be; `Unreachable` and `Denied` from the store.
    pub async fn break_lock(
        &self,
        name: impl AsRef<str>,
        token: impl Into<u64>,
    ) -> Result<bool, Error> {
        let name = LockName::new(name)?;
        let driver = &self.driver;
        let breaking = driver.backend.break_lock(name.clone(), token.into());
        let broken = driver.carried(breaking).await;
        broken.map_err(|err| self.driver.explain(err, &name, Step::Inspect))
    }

    /// What this store, with these settings, can do and guarantees.
    pub fn guarantees(&self) -> &Guarantees {
        self.driver.backend.guarantees()
    }

    /// Checks the store and its settings: what weakens the guarantees, and how to cure that.
    ///
    /// # Errors
    /// `Unreachable` and `Denied` from the store.
    pub async fn check(&self) -> Result<Vec<Finding>, Error> {
        let driver = &self.driver;
        let findings = driver.carried(driver.backend.check()).await;
        findings.map_err(|err| {
            err.with_backend(self.driver.backend_name)
                .with_step(Step::Inspect)
        })
    }

    /// Makes what locks need and the store lacks, for example the tables of a database. Returns one line for each
    /// thing made, none when everything exists. On a server nothing else makes the tables; a file of `sqlite:` gets its
    /// tables at the first request.
    ///
    /// # Errors
    /// `Unreachable` and `Denied` from the store.
    pub async fn init(&self) -> Result<Vec<String>, Error> {
        let driver = &self.driver;
        let made = driver.carried(driver.backend.init()).await;
        made.map_err(|err| {
            err.with_backend(self.driver.backend_name)
                .with_step(Step::Inspect)
        })
    }

    /// Ends all waits (with [`Closed`](ErrorKind::Closed)) and the link to the store.
    /// Holds that are left are lost, with the reason [`SessionGone`](crate::LostReason::SessionGone);
    /// release them before.
    /// What is being released in the background, for guards that were dropped, and callbacks of
    /// [`on_lost`](Client::on_lost) are waited for, at most a second: so a program may end right after this.
    pub async fn close(&self) {
        self.driver.close().await;
    }
}

/// A callback that was registered with [`Client::on_lost`]. To drop it changes nothing.
#[derive(Clone, Debug)]
pub struct LossCallback {
    driver: Weak<Driver>,
    id: u64,
}

impl LossCallback {
    /// The callback does not run any more, except for a loss that is being reported at this moment.
    pub fn unregister(&self) {
        if let Some(driver) = self.driver.upgrade() {
            driver.unregister_loss_callback(self.id);
        }
    }
}

/// What the stores of this build declare in their usual configuration, each with the beginning of its URL.
fn declared() -> Vec<(&'static str, Guarantees)> {
    let mut all = Vec::new();
    all.extend([("memory:", memory::guarantees())]);
    #[cfg(all(feature = "file", unix))]
    all.push(("file:", file::guarantees()));
    #[cfg(feature = "redis")]
    {
        let plain = redis::guarantees(redis::Configuration {
            persistence: redis::Persistence::None,
            fails_over: false,
            is_guarded: true,
            is_redisson: false,
        });
        let redlock = redlock::guarantees([&plain; 3]);
        all.extend([("redis:", plain), ("redlock:", redlock)]);
    }
    #[cfg(feature = "etcd")]
    all.push(("etcd:", etcd::guarantees(3)));
    #[cfg(feature = "zookeeper")]
    {
        let plain = zookeeper::Configuration::default();
        all.push(("zookeeper:", zookeeper::guarantees(plain)));
    }
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    let sessions = |is_postgres| {
        session::guarantees(session::Configuration {
            is_postgres,
            is_guarded: true,
        })
    };
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    let table = |database| table::guarantees(table::Configuration::new(database));
    #[cfg(feature = "mysql")]
    all.extend([
        ("mysql:", sessions(false)),
        ("mysql: with mode=table", table(table::Database::MySql)),
    ]);
    #[cfg(feature = "postgres")]
    all.extend([
        ("postgres:", sessions(true)),
        (
            "postgres: with mode=table",
            table(table::Database::Postgres),
        ),
    ]);
    #[cfg(feature = "sqlite")]
    all.push(("sqlite:", table(table::Database::Sqlite)));
    all
}

/// Which stores have it, for a refusal. What is not in this build cannot be asked, so that is said.
fn stores_with(capability: Capability) -> String {
    let all = declared();
    let have = all.iter().filter(|(_, store)| capability.is_in(store));
    let have: Vec<_> = have.map(|(url, _)| format!("`{url}`")).collect();
    let not_here = match NOT_HERE {
        [] => "",
        _ => " (of the stores in this build; others need a cargo feature)",
    };
    format!("stores that have it: {}{not_here}", have.join(", "))
}

/// The directory in a `file:` URL.
#[cfg(all(feature = "file", unix))]
fn directory(rest: &str) -> Result<PathBuf, Error> {
    let (path, query) = rest
        .split_once('?')
        .map_or((rest, None), |(path, query)| (path, Some(query)));
    if let Some(query) = query {
        let key = query.split('=').next().unwrap_or_default();
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "`file:` has no option \"{}\"; it has none at all",
                Escaped(key)
            ),
        ));
    }
    let path = match path.strip_prefix("//") {
        None => path,
        Some(absolute) if absolute.starts_with('/') => absolute,
        Some(_) => {
            return Err(Error::new(
                ErrorKind::Invalid,
                "`file://HOST/..` names another host; write file:/DIR or file:///DIR",
            ));
        }
    };
    if !path.is_empty() {
        return Ok(PathBuf::from(path));
    }
    let absolute = |variable| {
        std::env::var_os(variable)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("tenure/locks"))
        .ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                "neither HOME nor XDG_STATE_HOME is set, so `file:` has no default directory; write file:/DIR",
            )
        })
}
