//! Clients over connections that the caller made: the servers are those of the other harnesses.

use std::time::Duration;

use tenure::store::BoxFuture;
use tenure::{Client, Error};

/// How a client is made for the URL of a harness.
pub(crate) type Connect = fn(String) -> BoxFuture<Result<Client, Error>>;

/// Requests are checked one by one, and connections of a pool are not asked before each.
#[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
macro_rules! pool {
    ($options:ident, $connections:expr) => {
        sqlx::pool::PoolOptions::<sqlx::$options>::new()
            .max_connections($connections)
            .acquire_timeout(Duration::from_secs(20))
            .test_before_acquire(false)
    };
}

/// A URL of ours without its options: the client library of the databases reads it.
#[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
fn base(url: &str) -> &str {
    url.split_once('?').map_or(url, |(base, _)| base)
}

#[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
fn pool_of(url: &str, connections: u32) -> tenure::tables::DatabasePool {
    use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
    use sqlx::postgres::{PgConnectOptions, PgSslMode};
    use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
    let base = base(url);
    match base.split(':').next().unwrap_or_default() {
        "mysql" => {
            let options: MySqlConnectOptions = base.parse().expect("a URL");
            let options = options.ssl_mode(MySqlSslMode::Disabled);
            pool!(MySql, connections).connect_lazy_with(options).into()
        }
        "postgres" => {
            let options: PgConnectOptions = base.parse().expect("a URL");
            let options = options.ssl_mode(PgSslMode::Disable);
            pool!(Postgres, connections)
                .connect_lazy_with(options)
                .into()
        }
        _ => {
            let path = base.strip_prefix("sqlite:").expect("a file");
            let options = SqliteConnectOptions::new()
                .filename(path)
                .create_if_missing(true)
                .journal_mode(SqliteJournalMode::Wal)
                .busy_timeout(Duration::ZERO);
            // The file has to be there.
            pool!(Sqlite, connections).connect_lazy_with(options).into()
        }
    }
}

/// A table, over a pool.
#[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub(crate) fn table_over_pool(url: String) -> BoxFuture<Result<Client, Error>> {
    Box::pin(async move {
        let settings = tenure::tables::Settings::for_pool().timeout(Duration::from_secs(3));
        Client::builder(settings.store_with(pool_of(&url, 5)).await?).build()
    })
}

/// Locks of sessions, over a pool.
#[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub(crate) fn sessions_over_pool(url: String) -> BoxFuture<Result<Client, Error>> {
    Box::pin(async move {
        let settings = tenure::sessions::Settings::for_pool()
            .timeout(Duration::from_secs(3))
            .without_restart_guard();
        Client::builder(settings.store_with(pool_of(&url, 36)).await?).build()
    })
}

/// etcd, over a channel that adds a header to each request.
#[cfg(feature = "etcd")]
pub(crate) fn etcd_over_channel(url: String) -> BoxFuture<Result<Client, Error>> {
    Box::pin(async move {
        let (_, host) = url.split_once("://").expect("a URL");
        let host = host.split('?').next().expect("a host");
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{host}"));
        let endpoint = endpoint
            .expect("an address")
            .connect_timeout(Duration::from_secs(3))
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(3));
        let settings = tenure::etcd::Settings::new().timeout(Duration::from_secs(3));
        let store = settings.store_with_interceptor(endpoint.connect_lazy(), |mut request| {
            let value = tonic::metadata::MetadataValue::from_static("tests");
            request.metadata_mut().insert("x-program", value);
            Ok(request)
        });
        Client::builder(store.await?).build()
    })
}

/// ZooKeeper, with a connector that authenticates.
#[cfg(feature = "zookeeper")]
pub(crate) fn zookeeper_by_connector(url: String) -> BoxFuture<Result<Client, Error>> {
    Box::pin(async move {
        let (login, rest) = url.split_once('@').expect("a user");
        let login = login.strip_prefix("zookeeper://").expect("a URL");
        let settings = tenure::zookeeper::Settings::from_url(&format!("zookeeper://{rest}"))?;
        let connector = zookeeper_client::Client::connector().with_auth("digest", login.as_bytes());
        let store = settings.option("acl", "creator").store_with(connector);
        Client::builder(store.await?).build()
    })
}

/// Redis, with what a client of another crate knows about the server.
#[cfg(feature = "redis")]
pub(crate) fn redis_of_client(url: String) -> BoxFuture<Result<Client, Error>> {
    Box::pin(async move {
        let base = url.split('?').next().expect("a URL");
        let theirs = redis::Client::open(base).expect("a URL");
        tenure::redis::Settings::from_client(&theirs)?
            .timeout(Duration::from_secs(3))
            .connect()
            .await
    })
}
