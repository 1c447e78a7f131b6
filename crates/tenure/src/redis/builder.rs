//! Settings of Redis, of its clusters and sentinels, and of Redlock.

use std::path::Path;

use redis::{ConnectionAddr, ConnectionInfo};

use tenure_core::error::{Error, ErrorKind};

use crate::store_url::{self, StoreUrl};

/// Where Redis or Valkey is, and how to use it: what a URL `redis://` says, with a method for each part.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure::Error> {
/// let client = tenure::redis::Settings::new()
///     .host("redis.internal")
///     .user("app")
///     .password("p@ss/w:rd")
///     .database(2)
///     .tls(true)
///     .ca("/etc/ssl/our-authority.pem")
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "there is no client before `connect`"]
pub struct Settings(StoreUrl);

store_url::url_form!(Settings);

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

impl Settings {
    const SCHEMES: &[&str] = &[
        "redis",
        "rediss",
        "redis+unix",
        "redis+sentinel",
        "redis+cluster",
        #[cfg(feature = "redlock")]
        "redlock",
    ];

    /// One server; [`host`](Self::host) says where.
    pub fn new() -> Self {
        Self(StoreUrl::new("redis"))
    }

    /// A server by a socket of this machine.
    pub fn socket(path: impl AsRef<Path>) -> Self {
        let mut url = StoreUrl::new("redis+unix");
        store_url::file(path)
            .trim_start_matches('/')
            .clone_into(&mut url.path);
        Self(url)
    }

    /// The primary of `service`, which sentinels name; each [`host`](Self::host) is a sentinel.
    pub fn sentinel(service: impl Into<String>) -> Self {
        let mut url = StoreUrl::new("redis+sentinel");
        url.path = service.into();
        Self(url)
    }

    /// A Redis Cluster; each [`host`](Self::host) is a node of it.
    pub fn cluster() -> Self {
        Self(StoreUrl::new("redis+cluster"))
    }

    /// A majority of independent servers (Redlock); each [`host`](Self::host) is one of them.
    #[cfg(feature = "redlock")]
    pub fn independent() -> Self {
        Self(StoreUrl::new("redlock"))
    }

    /// The server, the login and the database of a client of the crate `redis` 1. This client opens connections of its own to
    /// that server: those of the other client have time limits and a protocol that do not fit.
    ///
    /// ```no_run
    /// # async fn example(theirs: redis::Client) -> Result<(), tenure::Error> {
    /// let client = tenure::redis::Settings::from_client(&theirs)?.connect().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`with_connection_info`](Self::with_connection_info).
    pub fn from_client(client: &redis::Client) -> Result<Self, Error> {
        Self::new().with_connection_info(client.get_connection_info())
    }

    /// Adds the server of that connection info, and takes its login and its database: for a [`cluster`](Self::cluster) and for
    /// [`sentinels`](Self::sentinel) with the info of each node or sentinel. Of a sentinel only the address is taken, since
    /// [`user`](Self::user), [`password`](Self::password) and [`database`](Self::database) are those of the servers that it names.
    ///
    /// # Errors
    /// `Unsupported`: TLS that does not verify the server. Certificates in the info cannot be read; name their files with
    /// [`ca`](Self::ca), [`cert`](Self::cert) and [`key`](Self::key).
    pub fn with_connection_info(mut self, info: &ConnectionInfo) -> Result<Self, Error> {
        let settings = info.redis_settings();
        let is_sentinel = self.0.scheme == "redis+sentinel";
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => self.0.add_host_with_port(host, *port),
            ConnectionAddr::TcpTls { insecure: true, .. } => {
                let message = "the connection info has TLS that does not verify the server, so any server could grant a lock; verify it, or turn TLS off";
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            ConnectionAddr::TcpTls { host, port, .. } => {
                self.0.add_host_with_port(host, *port);
                self = self.tls(true);
            }
            ConnectionAddr::Unix(path) => self = Self::socket(path),
            _ => {
                let message = "the connection info has an address of an unknown kind";
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        }
        if is_sentinel {
            return Ok(self);
        }
        if let Some(user) = settings.username() {
            self = self.user(user);
        }
        if let Some(password) = settings.password() {
            self = self.password(password);
        }
        match u32::try_from(settings.db()) {
            Ok(0) => Ok(self),
            Ok(number) => Ok(self.database(number)),
            Err(_) => {
                let message = format!("{} is no number of a database", settings.db());
                Err(Error::new(ErrorKind::Invalid, message))
            }
        }
    }

    /// The number of the database. Default: 0. A cluster has no other.
    pub fn database(mut self, number: u32) -> Self {
        match self.0.scheme.as_str() {
            "redis+unix" => self.0.set("db", number.to_string()),
            "redis+sentinel" => {
                let service = self.0.path.split('/').next().unwrap_or_default();
                self.0.path = format!("{service}/{number}");
            }
            _ => self.0.path = number.to_string(),
        }
        self
    }

    store_url::host_setters!();
    store_url::login_setters!();
    store_url::tls_setters!();
    store_url::restart_guard_setters!();
    store_url::setters! {
        /// A text before every key.
        key_prefix(text: impl Into<String>) => "prefix", text;
        /// A grant counts only after that many replicas have it. Default: 0.
        wait_replicas(count: u32) => "wait_replicas", count.to_string();
        /// The user for the sentinels themselves.
        sentinel_user(user: impl Into<String>) => "sentinel_user", user;
        /// The password for the sentinels themselves.
        sentinel_password(password: impl Into<String>) => "sentinel_password", password;
    }

    fn accept(url: StoreUrl) -> Result<Self, Error> {
        Ok(Self(url))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url_of(url: &str) -> Result<String, Error> {
        let client = redis::Client::open(url).unwrap();
        let settings = Settings::from_client(&client)?;
        settings.0.checked()
    }

    #[test]
    fn a_client_of_the_other_crate_says_where_the_server_is() {
        for (theirs, ours) in [
            ("redis://h/", "redis://h:6379"),
            ("redis://me:p%40ss@h:1/3", "redis://me:p%40ss@h:1/3"),
            ("redis://:secret@[::1]/", "redis://:secret@[::1]:6379"),
            (
                "unix:///run/redis.sock?db=2&user=me&pass=x",
                "redis+unix://me:x@/run/redis.sock?db=2",
            ),
        ] {
            assert_eq!(url_of(theirs).unwrap(), ours, "{theirs}");
        }
    }

    #[test]
    fn nodes_of_a_cluster_are_added() {
        let one = redis::Client::open("redis://me:x@a:1").unwrap();
        let two = redis::Client::open("redis://me:x@b:2").unwrap();
        let add = |settings: Settings, client: &redis::Client| {
            settings
                .with_connection_info(client.get_connection_info())
                .unwrap()
        };
        let cluster = add(add(Settings::cluster(), &one), &two);
        assert_eq!(cluster.0.checked().unwrap(), "redis+cluster://me:x@a:1,b:2");
        let sentinel = add(Settings::sentinel("svc"), &one);
        assert_eq!(sentinel.0.checked().unwrap(), "redis+sentinel://a:1/svc");
    }
}
