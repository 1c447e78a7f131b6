//! Messages of PostgreSQL (`NOTIFY`): one connection that listens while a client has subscribers.
//!
//! Behind a proxy that gives each transaction to any session, listening would do harm: another client of that proxy
//! would receive what it did not ask for. So the connection first checks that its session is its own. And subscribers rely
//! on messages only after the connection has received one that was sent over another connection.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Row as _};
use tokio::sync::Notify;

use tenure_core::error::Error;
use tenure_core::fence::OwnerId;
use tenure_core::rt::{BackgroundTasks, Clock, Flag, Spawner, lock};
use tenure_core::support::RetryBudget;
use tenure_core::time::Time;

use super::connection::Row;

/// How long the connection stays open after the last subscriber has left, in steps of [`IDLE_STEP`].
const IDLE_STEPS: u32 = 5;
const IDLE_STEP: Duration = Duration::from_secs(1);

/// After so many steps the connection itself is asked for an answer: a device on the way may have dropped it silently, and
/// reading alone would never notice.
const PROBE_STEPS: u32 = 30;

/// While no connection listens, subscribers look by themselves this often.
const BLIND_INTERVAL: Duration = Duration::from_secs(1);

/// How often the connection checks that its session is its own: a proxy may open sessions, too.
const SESSION_CHECKS: u32 = 3;

/// The server's clock, in µs since 1970.
const NOW: &str = "(EXTRACT(EPOCH FROM clock_timestamp())*1000000)::bigint";

/// Who receives the messages.
pub(crate) trait Subscribers: Send + Sync + 'static {
    /// The channels that are needed now. Without any the connection is closed after a while.
    fn channels(&self) -> BTreeSet<String>;

    /// The channel on which clients of all versions show themselves that they receive messages. `None`: the connection uses one
    /// of its own, so that no other client is woken.
    fn hello_channel(&self) -> Option<&'static str>;

    /// Messages arrive on these channels from now on, and on no other. Those of before may have got lost.
    fn listens_to(&self, channels: &BTreeSet<String>);

    /// A message has arrived.
    fn received(&self, channel: &str, payload: &str);

    /// The session belongs to a pooler, so no message will ever arrive.
    fn has_no_session(&self);

    /// Sends a statement over another connection of the client.
    fn ask(&self, sql: String) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;
}

/// Receives messages and passes them on to subscribers.
pub(crate) struct Listener<S> {
    pub(crate) subscribers: S,
    options: PgConnectOptions,
    clock: Clock,
    spawner: Spawner,
    /// Limit of each request.
    timeout: Duration,
    state: Mutex<ListenerState>,
    /// There may be a subscriber of another channel.
    changed: Notify,
    /// The task that listens.
    background: Arc<BackgroundTasks>,
    closing: Flag,
}

#[derive(Default)]
struct ListenerState {
    is_running: bool,
    /// A proxy shares sessions among its clients.
    is_shared: bool,
}

/// How an attempt to connect ended.
enum Connected {
    Listening(Listening),
    SharedSession,
    Failed,
}

/// A connection that listens.
struct Listening {
    connection: PgListener,
    pool: PgPool,
    channels: BTreeSet<String>,
    /// The message that the connection has to receive, and its channel.
    hello: (String, String),
}

/// Counts the steps of a connection that listens.
#[derive(Default)]
struct Steps {
    /// Since the last subscriber has left.
    idle: u32,
    since_probe: u32,
}

impl Steps {
    fn count(&mut self, is_idle: bool) {
        self.idle = if is_idle { self.idle + 1 } else { 0 };
        self.since_probe += 1;
    }
}

impl<S: Subscribers> Listener<S> {
    pub(crate) fn new(
        subscribers: S,
        options: PgConnectOptions,
        timeout: Duration,
        clock: Clock,
        spawner: Spawner,
    ) -> Self {
        Self {
            subscribers,
            options,
            clock,
            spawner,
            timeout,
            state: Mutex::default(),
            changed: Notify::new(),
            background: Arc::default(),
            closing: Flag::new(),
        }
    }

    /// Adds a subscriber, and listens for it. `None`: no message will ever arrive.
    pub(crate) fn subscribe_with<T>(self: &Arc<Self>, add: impl FnOnce(&S) -> T) -> Option<T> {
        let (added, was_running) = {
            let mut state = lock(&self.state);
            if state.is_shared {
                return None;
            }
            // Under the lock: the task ends only while there is no subscriber.
            let added = add(&self.subscribers);
            (added, std::mem::replace(&mut state.is_running, true))
        };
        self.changed.notify_one();
        if !was_running {
            let listen = listen(Arc::downgrade(self));
            self.background.spawn(&self.spawner, listen);
        }
        Some(added)
    }

    /// Tells the task to end; [`ended`](Self::ended) waits until the task has ended.
    pub(crate) fn stop(&self) {
        self.closing.raise();
    }

    /// Resolves when the connection that listens is closed.
    pub(crate) async fn ended(&self) {
        self.background.all_done().await;
    }

    /// Marks the task as ended if no subscriber is left. `true`: the task has to end.
    fn end_if_unused(&self) -> bool {
        let mut state = lock(&self.state);
        let is_unused = self.closing.is_raised() || self.subscribers.channels().is_empty();
        if is_unused {
            state.is_running = false;
        }
        is_unused
    }

    /// The server's clock, in µs.
    async fn server_time(&self) -> Option<i64> {
        let now = format!("/*tenure:look*/ SELECT {NOW}");
        let rows = self.subscribers.ask(now).await.ok()?;
        rows.first()?.first()?.as_deref()?.parse().ok()
    }

    /// A message that no other connection sends, and its channel.
    fn hello(&self, channels: &BTreeSet<String>) -> (String, String) {
        let nonce = OwnerId::random().to_hex();
        let common = self.subscribers.hello_channel();
        let channel = match common.filter(|common| channels.contains(*common)) {
            Some(common) => common.to_owned(),
            None => format!("tenure_{nonce}"),
        };
        (channel, format!("hello {nonce}"))
    }

    /// Opens the connection that listens, in a session that began after `before`.
    async fn connect(&self, before: i64) -> Connected {
        // A pool of this one connection, because PgListener takes one.
        let pool = PgPoolOptions::new().max_connections(1);
        let pool = pool.idle_timeout(None).max_lifetime(None);
        let pool = pool.connect_lazy_with(self.options.clone());
        let mut channels = self.subscribers.channels();
        let hello = self.hello(&channels);
        channels.insert(hello.0.clone());
        let connect = async {
            let mut connection = PgListener::connect_with(&pool).await?;
            connection.ignore_pool_close_event(true);
            connection.eager_reconnect(false);
            if !began_after(&mut connection, before).await? {
                return Ok(Connected::SharedSession);
            }
            for channel in &channels {
                connection.listen(channel).await?;
            }
            Ok::<_, sqlx::Error>(Connected::Listening(Listening {
                connection,
                pool: pool.clone(),
                channels: channels.clone(),
                hello: hello.clone(),
            }))
        };
        let limit = self.clock.now().after(self.timeout);
        tokio::select! {
            biased;
            () = self.closing.raised() => Connected::Failed,
            connected = connect => connected.unwrap_or(Connected::Failed),
            () = self.clock.sleep_until(limit) => Connected::Failed,
        }
    }

    /// Passes messages on until the connection breaks or there was no subscriber for a while. Returns whether a message that was
    /// sent over another connection arrived.
    async fn forward(&self, listening: &mut Listening) -> bool {
        let (channel, message) = &listening.hello;
        let hello = format!("/*tenure:hello*/ SELECT pg_notify('{channel}','{message}')");
        if self.subscribers.ask(hello).await.is_err() {
            return false;
        }
        let mut steps = Steps::default();
        let mut is_heard = false;
        // Longer than one round: messages that arrive all the time must not put off a step.
        let mut next_step = self.clock.now().after(IDLE_STEP);
        while steps.idle < IDLE_STEPS {
            tokio::select! {
                biased;
                () = self.closing.raised() => return is_heard,
                () = self.clock.sleep_until(next_step) => {
                    next_step = self.clock.now().after(IDLE_STEP);
                    steps.count(self.subscribers.channels().is_empty());
                    if !is_heard {
                        self.subscribers.listens_to(&BTreeSet::new());
                    } else if !self.step(listening, &mut steps).await {
                        return is_heard;
                    }
                }
                received = listening.connection.try_recv() => match received {
                    Ok(Some(received)) if received.payload() == listening.hello.1 => {
                        is_heard = true;
                        self.subscribers.listens_to(&listening.channels);
                    }
                    Ok(Some(received)) => {
                        self.subscribers.received(received.channel(), received.payload());
                    }
                    _ => return is_heard,
                },
                () = self.changed.notified(), if is_heard => {
                    if !self.listen_to_more(listening).await {
                        return is_heard;
                    }
                }
            }
        }
        is_heard
    }

    /// What is done in each step of a connection that receives messages. `false`: the connection is broken.
    async fn step(&self, listening: &mut Listening, steps: &mut Steps) -> bool {
        if steps.idle == 0 && !self.leave_unused(listening).await {
            return false;
        }
        if steps.since_probe < PROBE_STEPS {
            return true;
        }
        steps.since_probe = 0;
        let probe = sqlx::raw_sql("/*tenure:hello*/ SELECT 1").execute(&mut listening.connection);
        self.in_time(async { probe.await.map(drop) }).await
    }

    /// Listens to the channels of new subscribers too. `false`: the connection is broken.
    async fn listen_to_more(&self, listening: &mut Listening) -> bool {
        let needed = self.subscribers.channels();
        let missing = &needed - &listening.channels;
        for channel in &missing {
            let listen = listening.connection.listen(channel);
            if !self.in_time(listen).await {
                return false;
            }
        }
        if !missing.is_empty() {
            listening.channels.extend(missing);
            self.subscribers.listens_to(&listening.channels);
        }
        true
    }

    /// Leaves the channels that no subscriber needs. `false`: the connection is broken.
    async fn leave_unused(&self, listening: &mut Listening) -> bool {
        let needed = self.subscribers.channels();
        let unused = &listening.channels - &needed;
        if unused.is_empty() {
            return true;
        }
        listening
            .channels
            .retain(|channel| needed.contains(channel));
        // Before the request: a subscriber that comes now must not rely on a channel that is about to be left.
        self.subscribers.listens_to(&listening.channels);
        for channel in &unused {
            let unlisten = listening.connection.unlisten(channel);
            if !self.in_time(unlisten).await {
                return false;
            }
        }
        // A subscriber may have come meanwhile.
        self.listen_to_more(listening).await
    }

    /// Whether the server has done it in time.
    async fn in_time(&self, work: impl Future<Output = Result<(), sqlx::Error>>) -> bool {
        let limit = self.clock.now().after(self.timeout);
        tokio::select! {
            biased;
            () = self.closing.raised() => false,
            done = work => done.is_ok(),
            () = self.clock.sleep_until(limit) => false,
        }
    }

    /// No connection listens: subscribers look by themselves, unless they did so a moment ago.
    fn look(&self, next_look: &mut Time) {
        let now = self.clock.now();
        if *next_look <= now {
            *next_look = now.after(BLIND_INTERVAL);
            self.subscribers.listens_to(&BTreeSet::new());
        }
    }

    /// Closes the connection that listened, unless the server does not answer.
    async fn disconnect(&self, listening: Listening) {
        let Listening {
            connection, pool, ..
        } = listening;
        drop(connection);
        let limit = self.clock.now().after(self.timeout);
        tokio::select! {
            () = pool.close() => {}
            () = self.clock.sleep_until(limit) => {}
        }
    }
}

/// Connects again and again while there are subscribers. Keeps the listener alive only while it works.
async fn listen<S: Subscribers>(listener: Weak<Listener<S>>) {
    let mut budget = RetryBudget::without_limit();
    let mut next_look = Time::ZERO;
    loop {
        let Some(listener) = listener.upgrade() else {
            return;
        };
        if listener.end_if_unused() {
            return;
        }
        if let Some(before) = listener.server_time().await {
            match listener.connect(before).await {
                Connected::Listening(mut listening) => {
                    match listener.forward(&mut listening).await {
                        // Messages of the time without a connection get lost.
                        true => {
                            listener.subscribers.listens_to(&BTreeSet::new());
                            budget.restart(Time::MAX);
                        }
                        false => listener.look(&mut next_look),
                    }
                    listener.disconnect(listening).await;
                }
                Connected::SharedSession => {
                    tracing::debug!(
                        "a proxy shares sessions among its clients, so there are no notifications"
                    );
                    lock(&listener.state).is_shared = true;
                    listener.subscribers.has_no_session();
                    return;
                }
                Connected::Failed => listener.look(&mut next_look),
            }
        }
        tokio::select! {
            biased;
            () = listener.closing.raised() => {}
            () = budget.pause(&listener.clock) => {}
        }
    }
}

/// Whether our session is younger than `before`: else the session was there already, and a proxy gives it to other
/// clients between our statements.
async fn began_after(connection: &mut PgListener, before: i64) -> Result<bool, sqlx::Error> {
    for _ in 0..SESSION_CHECKS {
        let sql = format!(
            "/*tenure:look*/ SELECT (EXTRACT(EPOCH FROM backend_start)*1000000)::bigint>{before} FROM pg_stat_activity WHERE pid=pg_backend_pid()"
        );
        let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(&mut *connection);
        if !row.await?.try_get::<bool, _>(0)? {
            return Ok(false);
        }
    }
    Ok(true)
}
