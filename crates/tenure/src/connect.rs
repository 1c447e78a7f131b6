//! From a URL to a client. The one file that knows every store.

#[cfg(all(feature = "file", unix))]
use std::path::PathBuf;
use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _, Step};
use tenure_core::name::Escaped;
use tenure_core::store::{BoxFuture, Store};
use tenure_core::{Client, memory};

#[cfg(all(feature = "file", unix))]
use crate::address::directory_address;
use crate::address::store_address;
use crate::capabilities::{NOT_HERE, SCHEMES};
#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::database::{Mode, Server};
#[cfg(feature = "etcd")]
use crate::etcd;
#[cfg(all(feature = "file", unix))]
use crate::file;
use crate::lazy;
#[cfg(feature = "redlock")]
use crate::majority;
#[cfg(feature = "redis")]
use crate::redis;
use crate::scheme::canonical;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::sessions;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
use crate::tables;
#[cfg(feature = "zookeeper")]
use crate::zookeeper;

/// Connects to the store that `url` names; the scheme selects the store.
///
/// | URL | store |
/// | --- | --- |
/// | `memory:` | this client and its clones only |
/// | `memory:NAME` | all clients of this process with that name, for as long as one of them lives |
/// | `file:DIR` | all processes on this host that use the same directory; everything up to a `?` is the path |
/// | `file:` | the same, in `$XDG_STATE_HOME/tenure/locks` or `~/.local/state/tenure/locks` |
/// | `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]` | a Redis or Valkey server; `rediss://` with TLS |
/// | `redis+unix://[USER:PASSWORD@]/PATH[?db=DATABASE]` | the same server by a socket of this machine |
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
/// | `lock=rw`, `lock=fair`, `lock=semaphore` | with `dialect=redisson`: every name is an `RReadWriteLock`, a fair lock or an `RPermitExpirableSemaphore` instead of an `RLock` (`lock=plain`) |
/// | `restart_guard=30s` | for this long after its start a server grants nothing, because it may have forgotten who held what. Set it to the longest ttl that any client uses (default 30 s); `off`: grant at once, for a server that has no locks to lose, for example a fresh container in a test |
/// | `timeout=2s` | limit of each request and each attempt to connect |
/// | `wait_replicas=N` | a grant counts only after N replicas have it |
/// | `tls=on`, `ca=FILE`, `cert=FILE`, `key=FILE` | TLS; the authority to trust instead of the system's; a certificate of our own |
/// | `sentinel_user=NAME`, `sentinel_password=TEXT` | for the sentinels themselves |
/// | `db=DATABASE`, `user=NAME`, `pass=TEXT` | with `redis+unix:` only; user and password may stand before `@` too |
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
/// | `dialect=curator-selector`, `dialect=curator-latch` | elections together with Curator's `LeaderSelector` or `LeaderLatch`: the value of a candidate is the id of the participant; exclusive locks and elections only |
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
/// [`Unsupported`](ErrorKind::Unsupported): no store of this build has that scheme.
/// `Denied`: the store refused the user or password. `Unreachable`: the store did not answer.
pub async fn connect(url: &str) -> Result<Client, Error> {
    let connected = async {
        let url = canonical(url)?;
        let client = Client::from_dyn_store(open(&url).await?)?;
        Ok(addressed(client, &url))
    };
    connected
        .await
        .map_err(|err: Error| err.with_step(Step::Connect))
}

/// As [`connect`], without a connection: for a service that starts while its store is down. The URL is checked at once, and
/// so are the files of certificates that it names. The client connects at its first request, and each later request tries
/// again until one has succeeded; from then on the client is as one of `connect`.
///
/// What `connect` checks in the server, its version and its settings for example, is checked with that first connection, so
/// the errors of `connect` come from the requests: a lock that waits does not wait for a server that cannot be reached, but
/// gets the error `Unreachable`, for which [`is_retryable`](Error::is_retryable) is true. [`Client::ping`] says whether the
/// store answers. `memory:` and `file:` need no connection and are opened at once.
///
/// ```
/// # async fn example() -> Result<(), tenure::Error> {
/// let client = tenure::connect_lazy("memory:")?; // or "redis://..", with or without a server
/// client.ping().await?; // in a readiness probe
/// # Ok(()) }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
/// ```
///
/// Must be called inside a tokio runtime, as `connect`.
///
/// # Errors
/// `Invalid`: the URL is wrong. `Unsupported`: no store of this build has that scheme.
pub fn connect_lazy(url: &str) -> Result<Client, Error> {
    let unconnected = || {
        let url = canonical(url)?;
        let client = match open_here(&url) {
            Some(opened) => Client::from_dyn_store(opened?)?,
            None => {
                let (store, later) = (check_url(&url)?, url.clone());
                let connect = move || {
                    let url = later.clone();
                    Box::pin(async move { open(&url).await }) as BoxFuture<_>
                };
                Client::from_store(lazy::Store::new(store, Box::new(connect))?)?
            }
        };
        Ok(addressed(client, &url))
    };
    unconnected().map_err(|err: Error| err.with_step(Step::Connect))
}

/// Clients of settings. It stands here because settings belong to a store, and no store knows the client.
#[allow(unused_macros, reason = "a build may have no store with settings")]
macro_rules! connects {
    ($settings:ty) => {
        impl $settings {
            /// Connects; see [`tenure::connect`](crate::connect()).
            ///
            /// # Cancel safety
            /// Cancel safe.
            ///
            /// # Errors
            /// The errors of [`tenure::connect`](crate::connect()).
            pub async fn connect(&self) -> Result<Client, Error> {
                connect(&crate::StoreSettings::url_with_secrets(self)?).await
            }

            /// A client that connects at its first request; see [`tenure::connect_lazy`](crate::connect_lazy()).
            ///
            /// # Errors
            /// The errors of [`tenure::connect_lazy`](crate::connect_lazy()).
            pub fn connect_lazy(&self) -> Result<Client, Error> {
                connect_lazy(&crate::StoreSettings::url_with_secrets(self)?)
            }
        }
    };
}

#[cfg(feature = "etcd")]
connects!(etcd::Settings);
#[cfg(feature = "redis")]
connects!(redis::Settings);
#[cfg(any(feature = "mysql", feature = "postgres"))]
connects!(sessions::Settings);
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
connects!(tables::Settings);
#[cfg(feature = "zookeeper")]
connects!(zookeeper::Settings);

fn addressed(client: Client, url: &str) -> Client {
    #[cfg(all(feature = "file", unix))]
    if let Some(Ok(directory)) = url.strip_prefix("file:").map(directory) {
        return client.with_address(directory_address(&directory));
    }
    match store_address(url) {
        Some(address) => client.with_address(address),
        None => client,
    }
}

/// The store of a URL that needs no connection. `None`: the URL names another store.
fn open_here(url: &str) -> Option<Result<Arc<dyn Store>, Error>> {
    let (scheme, rest) = url.split_once(':')?;
    match scheme {
        "memory" => Some(open_memory(rest)),
        #[cfg(all(feature = "file", unix))]
        "file" => {
            let store = directory(rest).and_then(|directory| file::Store::open(&directory));
            Some(store.map(|store| Arc::new(store) as Arc<dyn Store>))
        }
        _ => None,
    }
}

fn open_memory(name: &str) -> Result<Arc<dyn Store>, Error> {
    if name.starts_with('/') || name.contains('?') {
        let message = "`memory:` takes a name and nothing else, as in memory:test";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(Arc::new(match name {
        "" => memory::Store::new(),
        name => memory::Store::named(name),
    }))
}

/// Refuses what is wrong with the URL itself, without a request. Returns the name of the store.
fn check_url(url: &str) -> Result<&'static str, Error> {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    let _ = rest;
    match scheme {
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "redis+cluster" => {
            redis::Store::check_url(url).map(|()| "redis")
        }
        #[cfg(feature = "redlock")]
        "redlock" => redis::Store::check_independent_url(url).map(|()| "redlock"),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => etcd::Store::check_url(url).map(|()| "etcd"),
        #[cfg(feature = "zookeeper")]
        "zookeeper" => zookeeper::Store::check_url(url).map(|()| "zookeeper"),
        #[cfg(feature = "mysql")]
        "mysql" => check_database_url(url).map(|()| "mysql"),
        #[cfg(feature = "postgres")]
        "postgres" => check_database_url(url).map(|()| "postgres"),
        #[cfg(feature = "sqlite")]
        "sqlite" => tables::Store::check_file_url(rest).map(|()| "sqlite"),
        scheme => Err(no_store(scheme)),
    }
}

async fn open(url: &str) -> Result<Arc<dyn Store>, Error> {
    if let Some(opened) = open_here(url) {
        return opened;
    }
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    let _ = rest;
    match scheme {
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "redis+cluster" => {
            Ok(redis::Store::connect(url).await?)
        }
        #[cfg(feature = "redlock")]
        "redlock" => {
            let nodes = redis::Store::connect_independent(url).await?;
            let settings = majority::Settings::default();
            Ok(majority::Store::new(nodes, settings)?)
        }
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => Ok(etcd::Store::connect(url).await?),
        #[cfg(feature = "zookeeper")]
        "zookeeper" => Ok(zookeeper::Store::connect(url).await?),
        #[cfg(feature = "mysql")]
        "mysql" => open_database(url).await,
        #[cfg(feature = "postgres")]
        "postgres" => open_database(url).await,
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(tables::Store::open(rest).await?),
        scheme => Err(no_store(scheme)),
    }
}

fn no_store(scheme: &str) -> Error {
    /// The store of a crate of its own.
    const ELSEWHERE: &[(&str, &str)] = &[(
        "hazelcast",
        "its store is the crate `tenure-hazelcast`: call `tenure_hazelcast::connect`",
    )];
    let here = || format!("this build has {}", SCHEMES.join(", "));
    let mut known = NOT_HERE.iter().chain(ELSEWHERE);
    let known = known.find(|(known, _)| *known == scheme);
    let remedy = known.map_or_else(here, |(_, remedy)| (*remedy).into());
    // A text that cannot be a scheme may be a part of a password.
    let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    let message = match scheme.bytes().all(is_scheme) {
        true => {
            let scheme: String = scheme.chars().take(40).collect();
            format!("there is no store for \"{}:\"; {remedy}", Escaped(&scheme))
        }
        false => format!("the URL does not begin with a scheme; {remedy}"),
    };
    Error::new(ErrorKind::Unsupported, message)
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
fn check_database_url(url: &str) -> Result<(), Error> {
    let (server, mode, url) = Server::parse(url)?;
    match mode {
        Mode::Session => sessions::Store::check_url(server, url),
        Mode::Table => tables::Store::check_url(server, url),
    }
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
async fn open_database(url: &str) -> Result<Arc<dyn Store>, Error> {
    let (server, mode, url) = Server::parse(url)?;
    Ok(match mode {
        Mode::Session => sessions::Store::connect(server, url).await?,
        Mode::Table => tables::Store::connect(server, url).await?,
    })
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
                "neither HOME nor XDG_STATE_HOME is set, so `file:` has no default directory; give a URL (`-u` or TENURE_URL on the command line), for example file:/DIR",
            )
        })
}

#[cfg(test)]
mod tests {
    use tenure_core::guarantees::{Capability, Guarantees};

    use super::*;
    use crate::capabilities::CAPABILITIES;

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
                redisson: None,
            });
            #[cfg(feature = "redlock")]
            let redlock = majority::guarantees([&plain; 3]);
            all.push(("redis:", plain));
            #[cfg(feature = "redlock")]
            all.push(("redlock:", redlock));
        }
        #[cfg(feature = "etcd")]
        all.push(("etcd:", etcd::guarantees(3)));
        #[cfg(feature = "zookeeper")]
        {
            let plain = zookeeper::Configuration::default();
            all.push(("zookeeper:", zookeeper::guarantees(plain)));
        }
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        let of_sessions = |is_postgres| {
            sessions::guarantees(sessions::Configuration {
                is_postgres,
                is_guarded: true,
                is_pooled: false,
            })
        };
        #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
        let table = |database| tables::guarantees(tables::Configuration::new(database));
        #[cfg(feature = "mysql")]
        all.extend([
            ("mysql:", of_sessions(false)),
            ("mysql: with mode=table", table(tables::Database::MySql)),
        ]);
        #[cfg(feature = "postgres")]
        all.extend([
            ("postgres:", of_sessions(true)),
            (
                "postgres: with mode=table",
                table(tables::Database::Postgres),
            ),
        ]);
        #[cfg(feature = "sqlite")]
        all.push(("sqlite:", table(tables::Database::Sqlite)));
        all
    }

    /// Refusals name the stores of the table, and the table says what the stores say.
    #[test]
    fn the_table_of_capabilities_is_what_the_stores_declare() {
        let declared = declared().into_iter().map(|(url, guarantees)| {
            let have = |it: &Capability| it.is_in(&guarantees);
            (url, Capability::ALL.into_iter().filter(have).collect())
        });
        let table = CAPABILITIES.iter().map(|(url, have)| (*url, have.to_vec()));
        let declared: Vec<(_, Vec<_>)> = declared.collect();
        assert_eq!(table.collect::<Vec<_>>(), declared);
    }

    /// Whether `E` is the error or one of its causes.
    fn has<E: std::error::Error + 'static>(err: &Error) -> bool {
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(err);
        while let Some(err) = next {
            if err.is::<E>() {
                return true;
            }
            next = err.source();
        }
        false
    }

    /// What each store says about a server that is not there, or about a file that is none of its own.
    #[tokio::test]
    async fn an_error_leads_to_that_of_the_client_library() {
        let nowhere = tenure_testkit::process::Directory::new("errors");
        let file = nowhere.path().join("file");
        std::fs::write(&file, "no database".repeat(50)).unwrap();
        let file = file.display();
        type Has = fn(&Error) -> bool;
        let stores: &[(String, Has)] = &[
            #[cfg(all(feature = "file", unix))]
            (
                format!("file:{}/{}", nowhere.path().display(), "long".repeat(100)),
                has::<std::io::Error>,
            ),
            #[cfg(feature = "redis")]
            ("redis://127.0.0.1:1".to_owned(), has::<::redis::RedisError>),
            #[cfg(feature = "redlock")]
            (
                "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3".to_owned(),
                has::<::redis::RedisError>,
            ),
            #[cfg(feature = "etcd")]
            (
                "etcd://127.0.0.1:1".to_owned(),
                has::<tonic::transport::Error>,
            ),
            #[cfg(feature = "zookeeper")]
            ("zookeeper://127.0.0.1:1".to_owned(), has::<std::io::Error>),
            #[cfg(feature = "mysql")]
            ("mysql://root@127.0.0.1:1/db".to_owned(), has::<sqlx::Error>),
            #[cfg(feature = "mysql")]
            (
                "mysql://root@127.0.0.1:1/db?mode=table".to_owned(),
                has::<sqlx::Error>,
            ),
            #[cfg(feature = "postgres")]
            (
                "postgres://root@127.0.0.1:1/db".to_owned(),
                has::<sqlx::Error>,
            ),
            #[cfg(feature = "postgres")]
            (
                "postgres://root@127.0.0.1:1/db?mode=table".to_owned(),
                has::<sqlx::Error>,
            ),
            #[cfg(feature = "sqlite")]
            (format!("sqlite:{file}"), has::<sqlx::Error>),
        ];
        for (url, has) in stores {
            let acquire = async { connect(url).await?.lock("a").try_acquire().await };
            let outcome = acquire.await.map(drop);
            let err = outcome.unwrap_err();
            let source = std::error::Error::source(&err).map(ToString::to_string);
            assert!(has(&err), "{url}: {err:?}, source {source:?}");
            let (short, long) = (err.to_string(), format!("{err:#}"));
            assert!(
                long.starts_with(&short),
                "{short} is not the beginning of {long}"
            );
        }
    }
}
