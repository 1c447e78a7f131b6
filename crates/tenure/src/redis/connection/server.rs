//! One server and the connection to it, which is opened again when it has broken.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use redis::{Cmd, FromRedisValue, PushInfo, PushKind, RedisError, Value};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::rt::{Flag, lock};
use tenure_core::support::{RetryBudget, SingleFlight};
use tenure_core::time::Time;
use tenure_core::url::Host;

use super::endpoint::{Endpoint, Multiplexed};
use super::environment::Environment;
use super::errors;
use super::replication::Replication;
use super::server_info::ServerInfo;
use super::settings::Topology;

/// Requests that may be on their way to the connection's task before the next request has to wait.
const PIPELINE_BUFFER: usize = 256;

/// Keys that one step of a scan reads: some 0.2 ms of the server's time.
const SCAN_COUNT: usize = 1_000;

/// One server.
pub(crate) struct Server {
    pub(crate) host: Host,
    endpoint: Arc<Endpoint>,
    env: Arc<Environment>,
    is_retired: Arc<AtomicBool>,
    current: Mutex<Option<Arc<Connection>>>,
    connecting: SingleFlight<Error>,
}

/// One connection, until it ends.
pub(crate) struct Connection {
    pub(crate) host: Host,
    multiplexed: Multiplexed,
    replication: Replication,
    pub(crate) server_info: ServerInfo,
    /// When the server had given that information.
    pub(crate) asked: Time,
    /// Raised when the connection is used no more.
    pub(crate) ended: Arc<Flag>,
    is_retired: Arc<AtomicBool>,
}

impl Server {
    pub(crate) fn new(host: Host, env: &Arc<Environment>) -> Result<Self, Error> {
        Ok(Self {
            endpoint: Arc::new(Endpoint::new(&host, &env.settings, &env.settings.login)?),
            host,
            env: env.clone(),
            is_retired: Arc::default(),
            current: Mutex::default(),
            connecting: SingleFlight::default(),
        })
    }

    /// The connection, if there is one that has not ended.
    pub(crate) fn current(&self) -> Option<Arc<Connection>> {
        let current = lock(&self.current);
        let current = current.clone();
        current.filter(|connection| !connection.ended.is_raised())
    }

    /// The connection; one task opens it if there is none.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, Error> {
        // In a box, because this future is large and rarely needed: every request would need space for it.
        let connect = async { Box::pin(self.connect()).await };
        self.connecting
            .run(&self.env.clock, || self.current(), connect)
            .await
    }

    async fn connect(&self) -> Result<Arc<Connection>, Error> {
        let connection = Arc::new(self.open().await?);
        *lock(&self.current) = Some(connection.clone());
        // Read after the connection was published: `retire` sets the flag first, so one of the two ends the
        // connection.
        if connection.is_retired() {
            connection.ended.raise();
            return Err(Error::new(
                ErrorKind::Unreachable,
                format!("{} was replaced while we connected to it; retry", self.host),
            ));
        }
        Ok(connection)
    }

    async fn open(&self) -> Result<Connection, Error> {
        let ended = Arc::new(Flag::new());
        let push = {
            let (listener, ended) = (self.env.listener.clone(), ended.clone());
            move |info: PushInfo| {
                match info.kind {
                    PushKind::Disconnection => {
                        ended.raise();
                        listener.connection_lost();
                    }
                    PushKind::Message | PushKind::SMessage => listener.receive(&info),
                    _ => {}
                }
                Ok::<(), ()>(())
            }
        };
        let Environment {
            settings,
            listener,
            clock,
            ..
        } = &*self.env;
        let config = settings
            .connection_config()
            .set_pipeline_buffer_size(PIPELINE_BUFFER)
            .set_push_sender(push);
        let failed = |err| errors::connecting(err, &self.host, settings.is_tls());
        let multiplexed = self
            .endpoint
            .connect(&self.env, config)
            .await
            .map_err(failed)?;
        let (mut for_info, mut for_channel) = (multiplexed.clone(), multiplexed.clone());
        let (server_info, subscribed) = tokio::join!(
            self.server_info(&mut for_info),
            // Before the first request, so that no message is missed.
            for_channel.subscribe(listener.channel())
        );
        subscribed.map_err(failed)?;
        let server_info = server_info.map_err(failed)?;
        let hint = match settings.topology {
            Topology::One(_) => "name the primary, or use redis+sentinel:// which follows it",
            Topology::Sentinel { .. } | Topology::Cluster(_) => "a failover seems to be under way",
        };
        server_info.refuse(&self.host, hint)?;
        tracing::debug!(host = %self.host, version = server_info.version, "connected");
        Ok(Connection {
            host: self.host.clone(),
            replication: Replication::new(&self.endpoint, &self.env, &self.host, &multiplexed),
            multiplexed,
            server_info,
            asked: clock.now(),
            ended,
            is_retired: self.is_retired.clone(),
        })
    }

    /// What the server says about itself, as soon as it has loaded its data.
    async fn server_info(&self, connection: &mut Multiplexed) -> Result<ServerInfo, RedisError> {
        let clock = &self.env.clock;
        let mut budget = RetryBudget::until(self.env.request_limit());
        loop {
            let server_info = ServerInfo::ask(connection).await?;
            if !server_info.is_loading || budget.is_spent(clock) {
                return Ok(server_info);
            }
            budget.pause(clock).await;
        }
    }

    /// Another server has taken over: requests are sent to that one, and the listener is told.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Ordering::SeqCst);
        self.disconnect();
        self.env.listener.connection_lost();
    }

    /// Drops the connection. Requests that are on their way still get their replies.
    pub(crate) fn disconnect(&self) {
        if let Some(connection) = lock(&self.current).take() {
            connection.ended.raise();
        }
    }
}

impl Connection {
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<(), Error> {
        let subscribed = self.multiplexed.clone().subscribe(channel).await;
        subscribed.map_err(errors::request)
    }

    pub(crate) async fn unsubscribe(&self, channel: &str) -> Result<(), RedisError> {
        self.multiplexed.clone().unsubscribe(channel).await
    }

    /// How many replicas have all that this connection was answered by now; waits for `wanted` replicas for half of the
    /// time limit of a request. `key`: a key on this server, which is written and ends by itself.
    pub(crate) async fn acknowledged(&self, key: &str, wanted: u32) -> Result<u32, Error> {
        self.replication.acknowledged(key, wanted).await
    }

    /// Sends one command. The connection ends with a failure after which the next reply may belong to another request.
    pub(crate) async fn send<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T, RedisError> {
        let mut multiplexed = self.multiplexed.clone();
        let reply = cmd.query_async(&mut *multiplexed).await;
        self.end_if_unusable(&reply);
        reply
    }

    /// The same for a node of a cluster to which the slot is being moved.
    pub(crate) async fn send_asking<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T, RedisError> {
        let mut multiplexed = self.multiplexed.clone();
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(cmd.clone());
        // The reply to ASKING is left out: if that is an error, the other reply is an error too.
        let replies = multiplexed.send_packed_commands(&both, 1, 1).await;
        let reply = replies.and_then(|mut replies| {
            let reply = replies.pop().unwrap_or(Value::Nil).extract_error()?;
            Ok(T::from_redis_value(reply)?)
        });
        self.end_if_unusable(&reply);
        reply
    }

    /// The keys of this server that match the pattern.
    pub(crate) async fn scan(&self, pattern: &str) -> Result<Vec<Vec<u8>>, Error> {
        let (mut found, mut cursor) = (Vec::new(), 0_u64);
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(pattern);
            scan.arg("COUNT").arg(SCAN_COUNT);
            let reply = self.send(&scan).await.map_err(errors::request)?;
            let (next, keys): (u64, Vec<Vec<u8>>) = reply;
            found.extend(keys);
            cursor = next;
            if cursor == 0 {
                return Ok(found);
            }
        }
    }

    fn end_if_unusable<T>(&self, reply: &Result<T, RedisError>) {
        if let Err(err) = reply
            && (err.is_io_error() || err.is_unrecoverable_error() || errors::is_readonly(err))
        {
            self.ended.raise();
        }
    }

    /// Whether another server has taken over: then a reply of this one does not count.
    pub(crate) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::SeqCst)
    }
}
