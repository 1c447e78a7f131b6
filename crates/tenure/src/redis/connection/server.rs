//! The link to one server: one connection at a time, made again when it breaks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, PushInfo, PushKind, RedisError, Value,
};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::RestartGuard;
use tenure_core::logic::pace;
use tenure_core::rt::{Clock, Flag, lock};
use tenure_core::support::{ServerStart, SingleFlight};
use tenure_core::time::Time;
use tenure_core::url::Host;

use super::super::errors;
use super::super::events::ServerEvents;
use super::super::server_info::{Persistence, ServerInfo};
use super::super::settings::{Settings, Topology};

/// Requests that may be on their way to the connection's task at a time before the next one has to wait.
const PIPELINE_BUFFER: usize = 256;

/// One server, and the connection to it.
pub(in crate::redis) struct Server {
    pub(in crate::redis) host: Host,
    client: Client,
    settings: Arc<Settings>,
    inbox: Arc<ServerEvents>,
    clock: Clock,
    retired: Arc<AtomicBool>,
    current: Mutex<Option<Arc<Connection>>>,
    connecting: SingleFlight<Error>,
}

/// One connection, from its making to its end.
pub(in crate::redis) struct Connection {
    pub(in crate::redis) host: Host,
    connection: MultiplexedConnection,
    pub(in crate::redis) facts: ServerInfo,
    start: ServerStart,
    /// For how long after its start the server grants nothing. `None`: the server forgets no lock, or the option
    /// `restart_guard` is off.
    restart_guard: Option<Duration>,
    /// Raised when it is over.
    pub(in crate::redis) ended: Arc<Flag>,
    retired: Arc<AtomicBool>,
}

impl Server {
    pub(in crate::redis) fn new(
        host: Host,
        settings: &Arc<Settings>,
        inbox: Arc<ServerEvents>,
        clock: Clock,
    ) -> Result<Self, Error> {
        Ok(Self {
            client: settings.client(&host)?,
            host,
            settings: settings.clone(),
            inbox,
            clock,
            retired: Arc::default(),
            current: Mutex::default(),
            connecting: SingleFlight::default(),
        })
    }

    /// The connection, if there is one that is not known to be broken.
    pub(in crate::redis) fn live(&self) -> Option<Arc<Connection>> {
        let current = lock(&self.current);
        current.clone().filter(|session| !session.ended.is_raised())
    }

    /// The connection; one task opens it if there is none.
    pub(in crate::redis) async fn session(&self) -> Result<Arc<Connection>, Error> {
        // In a box, since it is large and rarely done: every request would have to have room for it.
        let connect = async { Box::pin(self.connect()).await };
        self.connecting
            .run(&self.clock, || self.live(), connect)
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
            let (inbox, ended) = (self.inbox.clone(), ended.clone());
            move |info: PushInfo| {
                match info.kind {
                    PushKind::Disconnection => {
                        ended.raise();
                        inbox.connection_lost();
                    }
                    PushKind::Message | PushKind::SMessage => inbox.deliver(&info),
                    _ => {}
                }
                Ok::<(), ()>(())
            }
        };
        let timeout = Some(self.settings.timeout);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(timeout)
            .set_response_timeout(timeout)
            .set_pipeline_buffer_size(PIPELINE_BUFFER)
            .set_push_sender(push);
        let failed = |err| errors::connecting(err, &self.host, self.settings.is_tls());
        let connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(failed)?;
        let (mut asking, mut listening) = (connection.clone(), connection.clone());
        let (facts, subscribed) = tokio::join!(
            self.facts(&mut asking),
            // Before the first request, so that no message is missed.
            listening.subscribe(&self.inbox.channel)
        );
        subscribed.map_err(failed)?;
        let facts = facts.map_err(failed)?;
        let hint = match self.settings.shape {
            Topology::One(_) => "name the primary, or use redis+sentinel:// which follows it",
            Topology::Sentinel { .. } | Topology::Cluster(_) => "a failover seems to be under way",
        };
        facts.refuse(&self.host, hint)?;
        let forgets = facts.persistence != Persistence::Full;
        // The uptime is the difference of two whole seconds.
        let uptime = facts.uptime.saturating_sub(Duration::from_secs(1));
        tracing::debug!(host = %self.host, version = facts.version, "connected");
        Ok(Connection {
            host: self.host.clone(),
            connection,
            start: ServerStart::new(self.clock.now(), uptime),
            restart_guard: self.settings.restart_guard.filter(|_| forgets),
            facts,
            ended,
            retired: self.retired.clone(),
        })
    }

    /// What the server says about itself, once it has loaded its data.
    async fn facts(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<ServerInfo, RedisError> {
        let limit = self.clock.now().after(self.settings.timeout);
        let mut attempt = 0;
        loop {
            let facts = ServerInfo::ask(connection).await?;
            if !facts.is_loading || self.clock.now() >= limit {
                return Ok(facts);
            }
            let pause = pace::next(attempt, rand::random(), None, None).unwrap_or(pace::CAP);
            self.clock.sleep_until(self.clock.now().after(pause)).await;
            attempt += 1;
        }
    }

    /// Another server has taken over. Whoever waits here asks there, and all holds are looked at.
    pub(in crate::redis) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
        self.disconnect();
        self.inbox.connection_lost();
    }

    /// Drops the connection; requests that are on their way still get their answers.
    pub(in crate::redis) fn disconnect(&self) {
        if let Some(session) = lock(&self.current).take() {
            session.ended.raise();
        }
    }
}

impl Connection {
    /// Until when the server grants nothing with this ttl, because the server started so lately that it may have
    /// forgotten who holds a lock. `None`: the server is trusted.
    pub(in crate::redis) fn untrusted_until(&self, now: Time, ttl: Duration) -> Option<Time> {
        let until = self.start.trusted_from(self.restart_guard?, ttl);
        (until > now).then_some(until)
    }

    /// The same for people. `None`: the server forgets no lock, or the option `restart_guard` is off.
    pub(in crate::redis) fn restart_guard(&self, now: Time) -> Option<RestartGuard> {
        Some(self.start.report(&self.host, self.restart_guard?, now))
    }

    /// Listens to one more channel, that of a cluster's shard too.
    pub(in crate::redis) async fn subscribe(&self, channel: &str) -> Result<(), RedisError> {
        self.connection.clone().subscribe(channel).await
    }

    pub(in crate::redis) async fn unsubscribe(&self, channel: &str) -> Result<(), RedisError> {
        self.connection.clone().unsubscribe(channel).await
    }

    /// Sends one command. After a failure that leaves the connection in doubt it is used no more.
    pub(in crate::redis) async fn send<T: FromRedisValue>(
        &self,
        cmd: &Cmd,
    ) -> Result<T, RedisError> {
        let mut connection = self.connection.clone();
        let answer = cmd.query_async(&mut connection).await;
        self.look_at(answer)
    }

    /// The same to a node of a cluster that is just taking over the slot.
    pub(in crate::redis) async fn send_asking<T: FromRedisValue>(
        &self,
        cmd: &Cmd,
    ) -> Result<T, RedisError> {
        let mut connection = self.connection.clone();
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(cmd.clone());
        // The first answer is left out: were it an error, the second would be one too.
        let answer = connection.send_packed_commands(&both, 1, 1).await;
        let answer = answer.and_then(|mut answers| {
            let answer = answers.pop().unwrap_or(Value::Nil).extract_error()?;
            Ok(T::from_redis_value(answer)?)
        });
        self.look_at(answer)
    }

    fn look_at<T>(&self, answer: Result<T, RedisError>) -> Result<T, RedisError> {
        if let Err(err) = &answer
            && (err.is_io_error() || err.is_unrecoverable_error() || errors::is_readonly(err))
        {
            self.ended.raise();
        }
        answer
    }

    /// Whether another server has taken over: then what this one says counts no more.
    pub(in crate::redis) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }
}
