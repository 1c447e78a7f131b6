//! The commands that a lock on Redis needs at least, through the client library that the store uses.

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, FromRedisValue, IntoConnectionInfo as _,
    ProtocolVersion, PushInfo, PushKind, TlsCertificates, Value,
};
use rustls::crypto::CryptoProvider;
use tenure::{Error, ErrorKind};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::bench::common::{AnyError, RESPONSE_TIMEOUT, TASKS, measurement_error};
use crate::bench::contention::{HoldTimes, contend, pause, wait_for_start};

/// Deletes a key if it has the value that this program wrote.
const RELEASE_SCRIPT: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// As long as the id of an owner.
const OWNER: &str = "00000000000000000000000000000000";

/// The lease in milliseconds, as long as the lease of `tenure`.
const TTL_MILLIS: u64 = 30_000;

/// One connection, and the keys of this measurement.
#[derive(Clone)]
pub(crate) struct RawRedis {
    connection: MultiplexedConnection,
    /// The digest of [`RELEASE_SCRIPT`].
    release_digest: String,
    /// One key for each task.
    keys: Vec<String>,
}

impl RawRedis {
    /// Connects. Returns `None` for a URL with more than one server.
    pub(crate) async fn connect(url: &str, name: &str) -> Result<Option<Self>, Error> {
        let Some(server) = Server::parse(url) else {
            return Ok(None);
        };
        let mut connection = server.connect(None).await.map_err(measurement_error)?;
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(RELEASE_SCRIPT);
        let release_digest = load
            .query_async(&mut connection)
            .await
            .map_err(measurement_error)?;
        let key = |task| format!("{}{name}:raw:{task}", server.prefix);
        Ok(Some(Self {
            connection,
            release_digest,
            keys: (0..TASKS).map(key).collect(),
        }))
    }

    /// Locks and unlocks the key of this task.
    pub(crate) async fn run_round(&self, task: usize) -> Result<(), Error> {
        let key = &self.keys[task];
        let mut set = redis::cmd("SET");
        set.arg(key).arg(OWNER).arg("NX").arg("PX").arg(TTL_MILLIS);
        self.send_and_expect(&set, &Value::Okay).await?;
        let mut release = redis::cmd("EVALSHA");
        release.arg(&self.release_digest).arg(1).arg(key).arg(OWNER);
        self.send_and_expect(&release, &Value::Int(1)).await
    }

    async fn send_and_expect(&self, command: &Cmd, expected: &Value) -> Result<(), Error> {
        let reply: Value = self.send(command).await.map_err(measurement_error)?;
        if reply == *expected {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Store,
            "another program uses the keys of the measurement",
        ))
    }

    async fn send<T: FromRedisValue>(&self, command: &Cmd) -> redis::RedisResult<T> {
        command.query_async(&mut self.connection.clone()).await
    }

    /// Deletes keys that are left after an error.
    pub(crate) async fn clean_up(self) {
        let mut remove = redis::cmd("DEL");
        remove.arg(&self.keys);
        // Without this request, Redis deletes the keys at the end of their lease.
        let _: redis::RedisResult<u64> = self.send(&remove).await;
    }
}

/// The server of a URL, and the prefix of its keys.
struct Server {
    client: Client,
    prefix: String,
}

impl Server {
    /// Reads a URL, which the library has accepted before, with the parser of the client library. Returns `None` for more
    /// than one server, and for a URL that this parser refuses.
    fn parse(url: &str) -> Option<Self> {
        let mut url = redis::parse_redis_url(url)?;
        // In the URL of a socket, the parser finds the login only in the options.
        if url.scheme() == "redis+unix" {
            return None;
        }
        // The parser does not know the options of `tenure`.
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
            // An error means that a provider is installed already.
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

    /// Opens a connection. Messages are sent to `push`.
    async fn connect(
        &self,
        push: Option<mpsc::UnboundedSender<PushInfo>>,
    ) -> redis::RedisResult<MultiplexedConnection> {
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(RESPONSE_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT))
            .set_pipeline_buffer_size(4 * TASKS);
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

/// One of two processes that send one message to each other in turns. A process holds from the arrival of the message until
/// it sends the message back. Process 0 begins.
pub(crate) async fn contend_by_publish(
    url: &str,
    name: &str,
    rounds: u32,
    contender: &str,
) -> Result<Vec<HoldTimes>, AnyError> {
    let server = Server::parse(url).ok_or("not one server of Redis")?;
    let channel = |contender| format!("{}{name}:raw:{contender}", server.prefix);
    let other = channel(if contender == "0" { "1" } else { "0" });
    let (sender, mut messages) = mpsc::unbounded_channel();
    let mut connection = server.connect(Some(sender)).await?;
    connection.subscribe(channel(contender)).await?;
    wait_for_start()?;
    let mut begins = contender == "0";
    let acquire = async || {
        if !std::mem::take(&mut begins) {
            timeout(RESPONSE_TIMEOUT, receive_message(&mut messages)).await??;
        }
        Ok(())
    };
    let release = async |()| {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&other).arg(OWNER);
        let _: u64 = publish.query_async(&mut connection).await?;
        Ok(())
    };
    contend(rounds, acquire, pause, release).await
}

/// Waits for the next message.
async fn receive_message(messages: &mut mpsc::UnboundedReceiver<PushInfo>) -> Result<(), AnyError> {
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

    #[test]
    fn urls_are_read_as_the_library_reads_them() {
        let server =
            Server::parse("redis://me:a%2Fb@host:7000/3?prefix=p%3A&timeout=1s&restart_guard=off");
        let server = server.unwrap();
        assert_eq!(server.prefix, "p:");
        let info = server.client.get_connection_info();
        assert_eq!(info.addr().to_string(), "host:7000");
        let settings = info.redis_settings();
        assert_eq!((settings.db(), settings.username()), (3, Some("me")));
        assert_eq!(settings.password(), Some("a/b"));
        assert_eq!(settings.protocol(), ProtocolVersion::RESP3);
        assert!(info.tcp_settings().nodelay());
    }

    #[test]
    fn several_servers_are_measured_alone() {
        for url in [
            "redis+sentinel://a,b/svc",
            "redis+cluster://a,b",
            "redlock://a,b,c",
            "rediss://a?ca=/no/such/file",
            "redis+unix:///s?db=1",
        ] {
            assert!(Server::parse(url).is_none(), "{url}");
        }
    }
}
