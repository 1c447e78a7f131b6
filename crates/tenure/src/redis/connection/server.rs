//! One server and the connection to it, which is opened again when it has broken.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Cmd, FromRedisValue, PushInfo, PushKind, RedisError, Value};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::RestartGuard;
use tenure_core::rt::{Flag, lock};
use tenure_core::support::{RetryBudget, ServerStart, SingleFlight};
use tenure_core::time::Time;
use tenure_core::url::Host;

use super::super::context::Context;
use super::super::errors;
use super::super::server_info::{Persistence, ServerInfo};
use super::super::settings::Topology;
use super::endpoint::{Endpoint, Multiplexed};
use super::replication::Replication;

/// Requests that may be on their way to the connection's task before the next request has to wait.
const PIPELINE_BUFFER: usize = 256;

/// One server.
pub(crate) struct Server {
    pub(crate) host: Host,
    endpoint: Arc<Endpoint>,
    context: Arc<Context>,
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
    start: ServerStart,
    /// For how long after its start the server grants nothing. `None`: the server forgets no lock, or the option
    /// `restart_guard` is off.
    restart_guard: Option<Duration>,
    /// Raised when the connection is used no more.
    pub(crate) ended: Arc<Flag>,
    is_retired: Arc<AtomicBool>,
}

impl Server {
    pub(crate) fn new(host: Host, context: &Arc<Context>) -> Result<Self, Error> {
        Ok(Self {
            endpoint: Arc::new(Endpoint::of_server(&host, &context.settings)?),
            host,
            context: context.clone(),
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
            .run(&self.context.clock, || self.current(), connect)
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
            let (context, ended) = (self.context.clone(), ended.clone());
            move |info: PushInfo| {
                match info.kind {
                    PushKind::Disconnection => {
                        ended.raise();
                        context.events.connection_lost();
                    }
                    PushKind::Message | PushKind::SMessage => context.events.receive(&info),
                    _ => {}
                }
                Ok::<(), ()>(())
            }
        };
        let Context {
            settings,
            events,
            clock,
            ..
        } = &*self.context;
        let config = settings
            .connection_config()
            .set_pipeline_buffer_size(PIPELINE_BUFFER)
            .set_push_sender(push);
        let failed = |err| errors::connecting(err, &self.host, settings.is_tls());
        let multiplexed = self
            .endpoint
            .connect(&self.context, config)
            .await
            .map_err(failed)?;
        let (mut for_info, mut for_channel) = (multiplexed.clone(), multiplexed.clone());
        let (server_info, subscribed) = tokio::join!(
            self.server_info(&mut for_info),
            // Before the first request, so that no message is missed.
            for_channel.subscribe(&events.channel)
        );
        subscribed.map_err(failed)?;
        let server_info = server_info.map_err(failed)?;
        let hint = match settings.topology {
            Topology::One(_) => "name the primary, or use redis+sentinel:// which follows it",
            Topology::Sentinel { .. } | Topology::Cluster(_) => "a failover seems to be under way",
        };
        server_info.refuse(&self.host, hint)?;
        let forgets = server_info.persistence != Persistence::Full;
        // The uptime is the difference of two whole seconds.
        let uptime = server_info.uptime.saturating_sub(Duration::from_secs(1));
        tracing::debug!(host = %self.host, version = server_info.version, "connected");
        Ok(Connection {
            host: self.host.clone(),
            replication: Replication::new(&self.endpoint, &self.context, &self.host, &multiplexed),
            multiplexed,
            start: ServerStart::new(clock.now(), uptime),
            restart_guard: settings.restart_guard.filter(|_| forgets),
            server_info,
            ended,
            is_retired: self.is_retired.clone(),
        })
    }

    /// What the server says about itself, as soon as it has loaded its data.
    async fn server_info(&self, connection: &mut Multiplexed) -> Result<ServerInfo, RedisError> {
        let clock = &self.context.clock;
        let mut budget = RetryBudget::until(self.context.request_limit());
        loop {
            let server_info = ServerInfo::ask(connection).await?;
            if !server_info.is_loading || budget.is_spent(clock) {
                return Ok(server_info);
            }
            budget.pause(clock).await;
        }
    }

    /// Another server has taken over: requests are sent to that one, and all holds are verified.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Ordering::SeqCst);
        self.disconnect();
        self.context.events.connection_lost();
    }

    /// Drops the connection. Requests that are on their way still get their replies.
    pub(crate) fn disconnect(&self) {
        if let Some(connection) = lock(&self.current).take() {
            connection.ended.raise();
        }
    }
}

impl Connection {
    /// Until when the server grants nothing with this ttl, because the server started so lately that it may have
    /// forgotten who holds a lock. `None`: the server is trusted.
    pub(crate) fn untrusted_until(&self, now: Time, ttl: Duration) -> Option<Time> {
        let until = self.start.trusted_from(self.restart_guard?, ttl);
        (until > now).then_some(until)
    }

    /// The same for people. `None`: the server forgets no lock, or the option `restart_guard` is off.
    pub(crate) fn restart_guard(&self, now: Time) -> Option<RestartGuard> {
        let mut guard = self.start.report(&self.host, self.restart_guard?, now);
        guard.unknown =
            (self.server_info.is_unknown).then_some("this user may not run INFO (allow +info)");
        Some(guard)
    }

    pub(crate) async fn subscribe(&self, channel: &str) -> Result<(), RedisError> {
        self.multiplexed.clone().subscribe(channel).await
    }

    pub(crate) async fn unsubscribe(&self, channel: &str) -> Result<(), RedisError> {
        self.multiplexed.clone().unsubscribe(channel).await
    }

    /// How many replicas have all that this connection was answered by now; waits for them for half of the time limit of
    /// a request. `key`: a key of ours on this server, which is written.
    pub(crate) async fn acknowledged(&self, key: &str) -> Result<u32, Error> {
        self.replication.acknowledged(key).await
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
