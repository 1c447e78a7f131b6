//! The commands that a lock on Redis needs at least, through the client library that the backend uses.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, FromRedisValue, IntoConnectionInfo as _,
    ProtocolVersion, PushInfo, PushKind, TlsCertificates, Value,
};
use rustls::crypto::CryptoProvider;
use tenure::{Error, ErrorKind};
use tokio::sync::mpsc;

use super::handoff::{HOLD, Note, wait_for_start};
use super::{system, together};
use crate::clock;

type Failure = Box<dyn std::error::Error>;

/// Frees a key that is ours.
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// As long as the owner that the backend writes.
const OWNER: &str = "00000000000000000000000000000000";

/// Lease in ms, that of the other side.
const TTL: u64 = 30_000;

/// How long the other process may be silent before it is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// One connection, and keys of its own.
#[derive(Clone)]
pub(super) struct RawRedis {
    connection: MultiplexedConnection,
    /// The digest of [`RELEASE`].
    release: String,
    /// One for each of those who work side by side.
    keys: Vec<String>,
}

impl RawRedis {
    /// Connects. `None`: what the URL names is more than one server.
    pub(super) async fn new(url: &str, name: &str) -> Result<Option<Self>, Error> {
        let Some(place) = Place::of(url) else {
            return Ok(None);
        };
        let mut connection = place.connect(None).await.map_err(system)?;
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(RELEASE);
        let release = load.query_async(&mut connection).await.map_err(system)?;
        let key = |number| format!("{}{name}:raw:{number}", place.prefix);
        Ok(Some(Self {
            connection,
            release,
            keys: (0..together::WORKERS).map(key).collect(),
        }))
    }

    /// Locks and unlocks the key with that number.
    pub(super) async fn pair(&self, number: usize) -> Result<(), Error> {
        let key = &self.keys[number];
        let mut set = redis::cmd("SET");
        set.arg(key).arg(OWNER).arg("NX").arg("PX").arg(TTL);
        self.expect(&set, &Value::Okay).await?;
        let mut release = redis::cmd("EVALSHA");
        release.arg(&self.release).arg(1).arg(key).arg(OWNER);
        self.expect(&release, &Value::Int(1)).await
    }

    async fn expect(&self, command: &Cmd, expected: &Value) -> Result<(), Error> {
        let answer: Value = self.ask(command).await.map_err(system)?;
        if answer == *expected {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Backend,
            "somebody else uses the keys of the measurement",
        ))
    }

    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> redis::RedisResult<T> {
        command.query_async(&mut self.connection.clone()).await
    }

    /// Removes the keys, should one be left.
    pub(super) async fn end(self) {
        let mut remove = redis::cmd("DEL");
        remove.arg(&self.keys);
        // Else they go when their lease is over.
        let _: redis::RedisResult<u64> = self.ask(&remove).await;
    }
}

/// One server, as the URL of a store names it.
struct Place {
    client: Client,
    prefix: String,
}

impl Place {
    /// The library has taken this URL already; here it is read by the parser of the client library.
    /// `None`: it names more than one server, or that parser does not take it.
    fn of(url: &str) -> Option<Self> {
        let mut url = redis::parse_redis_url(url)?;
        // The options are ours, not that parser's.
        let options: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        url.set_query(None);
        url.set_fragment(None);
        let option = |key: &str| {
            let mut all = options.iter().filter(|(known, _)| known == key);
            all.next().map(|(_, value)| value.as_str())
        };
        if option("tls") == Some("on") {
            url.set_scheme("rediss").ok()?;
        }
        let is_tls = url.scheme() == "rediss";
        let info = url.into_connection_info().ok()?;
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let settings = info.redis_settings().clone();
        let info = info
            .set_tcp_settings(tcp)
            .set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3));
        let client = if is_tls {
            // An error means that it was done before.
            let _ = provider()?.install_default();
            let file = |key| option(key).map(std::fs::read).transpose().ok();
            let client_tls = match (file("cert")?, file("key")?) {
                (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig {
                    client_cert,
                    client_key,
                }),
                _ => None,
            };
            let certificates = TlsCertificates {
                client_tls,
                root_cert: file("ca")?,
            };
            Client::build_with_tls(info, certificates).ok()?
        } else {
            Client::open(info).ok()?
        };
        let prefix = option("prefix").unwrap_or_default().to_owned();
        Some(Self { client, prefix })
    }

    /// The one connection of one side; messages go to `push`.
    async fn connect(
        &self,
        push: Option<mpsc::UnboundedSender<PushInfo>>,
    ) -> redis::RedisResult<MultiplexedConnection> {
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE))
            .set_pipeline_buffer_size(4 * together::WORKERS);
        if let Some(push) = push {
            config = config.set_push_sender(push);
        }
        self.client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }
}

/// The provider of cryptography for the client library, which takes the one of the process. `None`: this build has none.
fn provider() -> Option<CryptoProvider> {
    #[cfg(feature = "tls-ring")]
    return Some(rustls::crypto::ring::default_provider());
    #[cfg(all(feature = "tls-aws-lc", not(feature = "tls-ring")))]
    return Some(rustls::crypto::aws_lc_rs::default_provider());
    #[cfg(not(any(feature = "tls-ring", feature = "tls-aws-lc")))]
    None
}

/// One of two processes that pass a message to and fro: whoever has it holds, and passes it on. Number 0 begins.
pub(super) async fn contend_by_publish(
    url: &str,
    name: &str,
    rounds: u32,
    which: &str,
) -> Result<Vec<Note>, Failure> {
    let place = Place::of(url).ok_or("not one server of Redis")?;
    let channel = |which| format!("{}{name}:raw:{which}", place.prefix);
    let other = channel(if which == "0" { "1" } else { "0" });
    let (sender, mut messages) = mpsc::unbounded_channel();
    let mut connection = place.connect(Some(sender)).await?;
    connection.subscribe(channel(which)).await?;
    wait_for_start()?;
    let mut notes: Vec<Note> = Vec::new();
    for round in 0..rounds {
        let asked = clock::now();
        if round > 0 || which != "0" {
            tokio::time::timeout(PATIENCE, message(&mut messages)).await??;
        }
        let granted = clock::now();
        std::thread::sleep(HOLD);
        notes.push(Note {
            asked,
            granted,
            released: clock::now(),
        });
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&other).arg(OWNER);
        let _: u64 = publish.query_async(&mut connection).await?;
    }
    Ok(notes)
}

/// Returns when one has come.
async fn message(messages: &mut mpsc::UnboundedReceiver<PushInfo>) -> Result<(), Failure> {
    while let Some(push) = messages.recv().await {
        match push.kind {
            PushKind::Message => return Ok(()),
            PushKind::Disconnection => break,
            _ => {}
        }
    }
    Err("the connection broke".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(url: &str) -> Option<Place> {
        Place::of(url)
    }

    #[test]
    fn urls_are_read_as_the_library_reads_them() {
        let place = place("redis://me:a%2Fb@host:7000/3?prefix=p%3A&timeout=1s&restart_guard=off");
        let place = place.unwrap();
        assert_eq!(place.prefix, "p:");
        let info = place.client.get_connection_info();
        assert_eq!(info.addr().to_string(), "host:7000");
        let settings = info.redis_settings();
        assert_eq!((settings.db(), settings.username()), (3, Some("me")));
        assert_eq!(settings.password(), Some("a/b"));
        assert_eq!(settings.protocol(), ProtocolVersion::RESP3);
        assert!(info.tcp_settings().nodelay());
    }

    #[test]
    fn several_servers_have_no_raw_side() {
        for url in [
            "redis+sentinel://a,b/svc",
            "redis+cluster://a,b",
            "redlock://a,b,c",
            "rediss://a?ca=/no/such/file",
        ] {
            assert!(place(url).is_none(), "{url}");
        }
    }
}
