//! How a connection to one server is opened, with TLS or without it.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError};
use tokio::io::AsyncReadExt as _;

use tenure_core::error::Error;
use tenure_core::rt::Task;
use tenure_core::url::Host;

use crate::tls;

use super::environment::Environment;
use super::settings::{Login, ServerSettings};

/// How long a server may take to say why it closes a connection, and how many bytes that may be.
const MAX_REFUSAL_WAIT: Duration = Duration::from_secs(1);
const MAX_REFUSAL: u64 = 4_096;

/// One server, with all that a connection to it needs.
pub(super) struct Endpoint {
    host: Host,
    client: Client,
    /// `None`: connections are plain.
    tls: Option<tls::Connector>,
}

/// A connection of the client library. It ends when all its clones are dropped.
#[derive(Clone)]
pub(super) struct Multiplexed {
    connection: MultiplexedConnection,
    /// `None`: the client library has it.
    _task: Option<Arc<ConnectionTask>>,
}

/// The task that sends requests and receives replies. Without an end from outside it waits for the replies to all
/// requests, also from a server that has died.
struct ConnectionTask(Task);

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Endpoint {
    pub(super) fn new(
        host: &Host,
        settings: &ServerSettings,
        login: &Login,
    ) -> Result<Self, Error> {
        Ok(Self {
            host: host.clone(),
            client: ServerSettings::client(host, login)?,
            tls: settings.tls_connector(host)?,
        })
    }

    /// Connects and logs in, within the time limit of a request.
    pub(super) async fn connect(
        &self,
        env: &Environment,
        config: AsyncConnectionConfig,
    ) -> Result<Multiplexed, RedisError> {
        let Some(tls) = &self.tls else {
            let connecting = self
                .client
                .get_multiplexed_async_connection_with_config(&config);
            return match connecting.await {
                Ok(connection) => Ok(Multiplexed {
                    connection,
                    _task: None,
                }),
                Err(err) if err.is_connection_dropped() && !err.is_connection_refusal() => {
                    Err(self.refusal(env).await.unwrap_or(err))
                }
                Err(err) => Err(err),
            };
        };
        // With TLS of its own the client library takes the provider of cryptography of the process, or sets one
        // (`create_rustls_config` in its `connection.rs`).
        let connecting = async {
            let stream = tls.connect().await?;
            let info = self.client.get_connection_info().redis_settings();
            MultiplexedConnection::new_with_config(info, stream, config).await
        };
        let (connection, driver) = tokio::select! {
            biased;
            connected = connecting => connected?,
            () = env.clock.sleep_until(env.request_limit()) => {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
        };
        let task = ConnectionTask(env.spawner.spawn(driver));
        Ok(Multiplexed {
            connection,
            _task: Some(Arc::new(task)),
        })
    }

    /// What the server says before it closes a connection, when it has too many of them or is in protected mode. Such a
    /// text can be lost if the client has sent something, so this connection sends nothing.
    async fn refusal(&self, env: &Environment) -> Option<RedisError> {
        let limit = env.now().after(MAX_REFUSAL_WAIT);
        let mut text = Vec::new();
        let reading = async {
            let name = self.host.name.as_str();
            #[cfg(unix)]
            if self.host.is_socket() {
                let stream = tokio::net::UnixStream::connect(name).await?;
                return stream.take(MAX_REFUSAL).read_to_end(&mut text).await;
            }
            let stream = tokio::net::TcpStream::connect((name, self.host.port)).await?;
            stream.take(MAX_REFUSAL).read_to_end(&mut text).await
        };
        tokio::select! {
            biased;
            // What came before an error counts too.
            _ = reading => {}
            () = env.clock.sleep_until(limit) => {}
        }
        let text = String::from_utf8(text).ok()?;
        let (code, detail) = text.lines().next()?.strip_prefix('-')?.split_once(' ')?;
        let detail = detail.to_owned();
        Some(redis::make_extension_error(code.to_owned(), Some(detail)))
    }
}

impl Deref for Multiplexed {
    type Target = MultiplexedConnection;

    fn deref(&self) -> &MultiplexedConnection {
        &self.connection
    }
}

impl DerefMut for Multiplexed {
    fn deref_mut(&mut self) -> &mut MultiplexedConnection {
        &mut self.connection
    }
}
