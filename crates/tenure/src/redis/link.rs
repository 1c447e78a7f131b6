//! The link to one server: one connection at a time, made again when it breaks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, PushInfo, PushKind, RedisError, Value,
};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::pace;
use tenure_core::rt::{Clock, Flag, lock};
use tenure_core::time::Time;
use tenure_core::url::Host;

use super::facts::Facts;
use super::inbox::Inbox;
use super::outcome;
use super::settings::{Settings, Shape};

/// Requests that may be on their way to the connection's task at a time before the next one has to wait.
const BUFFER: usize = 256;

/// One server, and the connection to it.
pub(super) struct Link {
    pub(super) host: Host,
    client: Client,
    timeout: Duration,
    is_tls: bool,
    inbox: Arc<Inbox>,
    clock: Clock,
    /// What a user can do when this server turns out to be a replica.
    hint: &'static str,
    retired: Arc<AtomicBool>,
    current: Mutex<Option<Arc<Session>>>,
    /// Held by the one who connects; has the last failure, for those who waited for that attempt.
    connecting: tokio::sync::Mutex<Option<(Time, ErrorKind, String)>>,
}

/// One connection, from its making to its end.
pub(super) struct Session {
    pub(super) host: Host,
    connection: MultiplexedConnection,
    pub(super) facts: Facts,
    connected: Time,
    /// How long the server ran by then, at least.
    uptime: Duration,
    /// Raised when it is over.
    pub(super) ended: Arc<Flag>,
    retired: Arc<AtomicBool>,
}

impl Link {
    pub(super) fn new(
        host: Host,
        settings: &Settings,
        inbox: Arc<Inbox>,
        clock: Clock,
    ) -> Result<Self, Error> {
        Ok(Self {
            client: settings.client(&host)?,
            host,
            timeout: settings.timeout,
            is_tls: settings.is_tls(),
            inbox,
            clock,
            hint: match settings.shape {
                Shape::One(_) => "name the primary, or use redis+sentinel:// which follows it",
                Shape::Sentinel { .. } | Shape::Cluster(_) => "a failover seems to be under way",
            },
            retired: Arc::default(),
            current: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        })
    }

    /// The connection, if there is one that is not known to be broken.
    pub(super) fn live(&self) -> Option<Arc<Session>> {
        let current = lock(&self.current);
        current.clone().filter(|session| !session.ended.is_raised())
    }

    /// The connection; makes one if need be. Everybody who asks meanwhile shares the attempt.
    pub(super) async fn session(&self) -> Result<Arc<Session>, Error> {
        if let Some(session) = self.live() {
            return Ok(session);
        }
        let asked = self.clock.now();
        let mut failure = self.connecting.lock().await;
        if let Some(session) = self.live() {
            return Ok(session);
        }
        if let Some((at, kind, message)) = &*failure
            && *at >= asked
        {
            return Err(Error::new(*kind, message.clone()));
        }
        // In a box, since it is large and rarely done: every request would have to have room for it.
        match Box::pin(self.connect()).await {
            Ok(session) => {
                let session = Arc::new(session);
                *lock(&self.current) = Some(session.clone());
                // Looked at after it was put there, so that either side sees the other.
                if session.is_retired() {
                    session.ended.raise();
                    return Err(Error::new(
                        ErrorKind::Unreachable,
                        format!("{} was replaced while we connected to it; retry", self.host),
                    ));
                }
                Ok(session)
            }
            Err(err) => {
                *failure = Some((self.clock.now(), err.kind(), err.to_string()));
                Err(err)
            }
        }
    }

    async fn connect(&self) -> Result<Session, Error> {
        let ended = Arc::new(Flag::new());
        let push = {
            let (inbox, ended) = (self.inbox.clone(), ended.clone());
            move |info: PushInfo| {
                match info.kind {
                    PushKind::Disconnection => {
                        ended.raise();
                        inbox.broken.notify_one();
                    }
                    PushKind::Message | PushKind::SMessage => inbox.deliver(&info),
                    _ => {}
                }
                Ok::<(), ()>(())
            }
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout))
            .set_pipeline_buffer_size(BUFFER)
            .set_push_sender(push);
        let failed = |err| outcome::connecting(err, &self.host, self.is_tls);
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
        facts.refuse(&self.host, self.hint)?;
        // The uptime is the difference of two whole seconds.
        let uptime = facts.uptime.saturating_sub(Duration::from_secs(1));
        tracing::debug!(host = %self.host, version = facts.version, "connected");
        Ok(Session {
            host: self.host.clone(),
            connection,
            connected: self.clock.now(),
            uptime,
            facts,
            ended,
            retired: self.retired.clone(),
        })
    }

    /// What the server says about itself, once it has loaded its data.
    async fn facts(&self, connection: &mut MultiplexedConnection) -> Result<Facts, RedisError> {
        let limit = self.clock.now().after(self.timeout);
        let mut attempt = 0;
        loop {
            let facts = Facts::ask(connection).await?;
            if !facts.is_loading || self.clock.now() >= limit {
                return Ok(facts);
            }
            let pause = pace::next(attempt, rand::random(), None, None).unwrap_or(pace::CAP);
            self.clock.sleep_until(self.clock.now().after(pause)).await;
            attempt += 1;
        }
    }

    /// Another server has taken over. Whoever waits here asks there, and all holds are looked at.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
        self.disconnect();
        self.inbox.broken.notify_one();
    }

    /// Drops the connection; requests that are on their way still get their answers.
    pub(super) fn disconnect(&self) {
        if let Some(session) = lock(&self.current).take() {
            session.ended.raise();
        }
    }
}

impl Session {
    /// When the server will have run for that long; in the past if it has.
    pub(super) fn trusted_from(&self, guard: Duration) -> Time {
        self.connected.after(guard.saturating_sub(self.uptime))
    }

    /// How long the server has run, at least.
    pub(super) fn uptime(&self, now: Time) -> Duration {
        self.uptime + now.since(self.connected)
    }

    /// Listens to one more channel, that of a cluster's shard too.
    pub(super) async fn subscribe(&self, channel: &str) -> Result<(), RedisError> {
        self.connection.clone().subscribe(channel).await
    }

    pub(super) async fn unsubscribe(&self, channel: &str) -> Result<(), RedisError> {
        self.connection.clone().unsubscribe(channel).await
    }

    /// Sends one command. After a failure that leaves the connection in doubt it is used no more.
    pub(super) async fn send<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T, RedisError> {
        let mut connection = self.connection.clone();
        let answer = cmd.query_async(&mut connection).await;
        self.look_at(answer)
    }

    /// The same to a node of a cluster that is just taking over the slot.
    pub(super) async fn send_asking<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T, RedisError> {
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
            && (err.is_io_error() || err.is_unrecoverable_error() || outcome::is_readonly(err))
        {
            self.ended.raise();
        }
        answer
    }

    /// Whether another server has taken over: then what this one says counts no more.
    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }
}
