//! Notifications of PostgreSQL: one connection that listens while a client has waiters.
//!
//! Behind a proxy that gives each transaction to any session, listening would do harm: another client of that proxy
//! would receive what it did not ask for. So the connection first checks that its session is its own. And waiters rely
//! on notifications only after the connection has received one that was sent over another connection.
//! Without notifications waiters read the queue themselves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Row as _};

use tenure_core::fence::OwnerId;
use tenure_core::rt::{BackgroundTasks, Clock, Flag, Spawner, lock};
use tenure_core::support::{RetryBudget, WaiterRegistry};
use tenure_core::time::Time;

use crate::waiting::{self, WakeUp};

use super::cells::number;
use super::pool::Pool;
use super::sql::{CHANNEL, Dialect, Statement};
use super::subscribe::Notifications;

/// How long the connection stays open after the last waiter has left, in steps of [`IDLE_STEP`].
const IDLE_STEPS: u32 = 5;
const IDLE_STEP: Duration = Duration::from_secs(1);

/// How often the connection checks that its session is its own: a proxy may open sessions, too.
const SESSION_CHECKS: u32 = 3;

/// Receives notifications and passes them on to waiters.
pub(super) struct Listener {
    options: PgConnectOptions,
    pool: Arc<Pool>,
    clock: Clock,
    spawner: Spawner,
    waiters: Arc<WaiterRegistry<WakeUp>>,
    has_push: Arc<AtomicBool>,
    state: Mutex<ListenerState>,
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
    Listening(PgListener, PgPool),
    SharedSession,
    Failed,
}

impl Listener {
    pub(super) fn new(
        options: PgConnectOptions,
        pool: Arc<Pool>,
        clock: Clock,
        spawner: Spawner,
    ) -> Self {
        Self {
            options,
            pool,
            clock,
            spawner,
            waiters: Arc::default(),
            has_push: Arc::default(),
            state: Mutex::default(),
            background: Arc::default(),
            closing: Flag::new(),
        }
    }

    /// Notifications about the lock with this digest, and for this owner.
    pub(super) fn subscribe(
        self: &Arc<Self>,
        digest: String,
        owner: OwnerId,
    ) -> Option<Notifications> {
        let (wake_ups, was_running) = {
            let mut state = lock(&self.state);
            if state.is_shared {
                return None;
            }
            // Under the lock: the task ends only while there is no waiter.
            let wake_ups = self.waiters.subscribe(owner, digest);
            (wake_ups, std::mem::replace(&mut state.is_running, true))
        };
        if !was_running {
            let listen = listen(Arc::downgrade(self));
            self.background.spawn(&self.spawner, listen);
        }
        Some(Notifications::new(wake_ups, self.has_push.clone()))
    }

    /// Tells the task to end; [`ended`](Self::ended) waits until the task has ended.
    pub(super) fn stop(&self) {
        self.closing.raise();
    }

    /// Resolves when the connection that listens is closed.
    pub(super) async fn ended(&self) {
        self.background.all_done().await;
    }

    /// Tells all waiters whether notifications arrive.
    fn set_push(&self, has_push: bool) {
        if self.has_push.swap(has_push, Ordering::SeqCst) == has_push {
            return;
        }
        match has_push {
            // What was notified before did not arrive.
            true => waiting::wake_all(&self.waiters),
            false => self
                .waiters
                .notify_matching(|_, _| Some(WakeUp::PushStopped)),
        }
    }

    /// Passes on what was received. `nonce` is in the notification that this client sent to itself.
    fn pass_on(&self, payload: &str, nonce: &str) {
        match payload.split_once(' ') {
            Some(("hello", said)) if said == nonce => self.set_push(true),
            Some(("free", digest)) => self
                .waiters
                .notify_matching(|_, topic| (topic == digest).then_some(WakeUp::Freed)),
            Some(("granted", owner)) => self.wake(owner, WakeUp::AskAgain),
            Some(("first", owner)) => self.wake(owner, WakeUp::First),
            _ => {}
        }
    }

    /// Wakes the waiters whose owner id, in hexadecimal digits, begins with `digits`.
    fn wake(&self, digits: &str, wake_up: WakeUp) {
        let Ok(number) = u128::from_str_radix(digits, 16) else {
            return;
        };
        let Some(missing) = 32_usize.checked_sub(digits.len()) else {
            return;
        };
        self.waiters.notify_matching(|id, _| {
            let begin = u128::from_be_bytes(*id.as_bytes()) >> (4 * missing);
            (begin == number).then_some(wake_up)
        });
    }

    /// Marks the task as ended if no waiter is left. `true`: the task has to end.
    fn end_if_unused(&self) -> bool {
        let mut state = lock(&self.state);
        let is_unused = self.waiters.is_empty() || self.closing.is_raised();
        if is_unused {
            state.is_running = false;
            self.has_push.store(false, Ordering::SeqCst);
        }
        is_unused
    }

    /// The server's clock, in µs.
    async fn server_time(&self) -> Option<i64> {
        let now = format!("/*tenure:look*/ SELECT {}", Dialect::Postgres.now());
        let reply = self.pool.ask(Statement::rows(now)).await.ok()?;
        number(reply.rows.first()?, 0).ok()
    }

    /// Opens the connection that listens, in a session that began after `before`.
    async fn connect(&self, before: i64) -> Connected {
        // A pool of this one connection, because PgListener takes one.
        let pool = PgPoolOptions::new().max_connections(1);
        let pool = pool.idle_timeout(None).max_lifetime(None);
        let pool = pool.connect_lazy_with(self.options.clone());
        let connect = async {
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.ignore_pool_close_event(true);
            listener.eager_reconnect(false);
            if !began_after(&mut listener, before).await? {
                return Ok(Connected::SharedSession);
            }
            listener.listen(CHANNEL).await?;
            Ok::<_, sqlx::Error>(Connected::Listening(listener, pool.clone()))
        };
        let limit = self.clock.now().after(self.pool.timeout());
        tokio::select! {
            biased;
            () = self.closing.raised() => Connected::Failed,
            connected = connect => connected.unwrap_or(Connected::Failed),
            () = self.clock.sleep_until(limit) => Connected::Failed,
        }
    }

    /// Passes notifications on until the connection breaks or there was no waiter for a while.
    async fn forward(&self, listener: &mut PgListener) {
        let nonce = OwnerId::random().to_hex();
        let hello = format!("/*tenure:hello*/ SELECT pg_notify('{CHANNEL}','hello {nonce}')");
        if self.pool.ask(Statement::rows(hello)).await.is_err() {
            return;
        }
        let mut idle = 0;
        while idle < IDLE_STEPS {
            let step = self.clock.now().after(IDLE_STEP);
            tokio::select! {
                biased;
                () = self.closing.raised() => return,
                received = listener.try_recv() => match received {
                    Ok(Some(received)) => self.pass_on(received.payload(), &nonce),
                    _ => return,
                },
                () = self.clock.sleep_until(step) => {
                    idle = if self.waiters.is_empty() { idle + 1 } else { 0 };
                }
            }
        }
    }

    /// Closes the connection that listened, unless the server does not answer.
    async fn disconnect(&self, pool: &PgPool) {
        let limit = self.clock.now().after(self.pool.timeout());
        tokio::select! {
            () = pool.close() => {}
            () = self.clock.sleep_until(limit) => {}
        }
    }
}

/// Connects again and again while there are waiters. Keeps the listener alive only while it works.
async fn listen(listener: Weak<Listener>) {
    let mut budget = RetryBudget::without_limit();
    loop {
        let Some(listener) = listener.upgrade() else {
            return;
        };
        if listener.end_if_unused() {
            return;
        }
        if let Some(before) = listener.server_time().await {
            match listener.connect(before).await {
                Connected::Listening(mut connection, pool) => {
                    listener.forward(&mut connection).await;
                    listener.set_push(false);
                    drop(connection);
                    listener.disconnect(&pool).await;
                    budget.restart(Time::MAX);
                }
                Connected::SharedSession => {
                    tracing::debug!(
                        "a proxy shares sessions among its clients, so there are no notifications"
                    );
                    lock(&listener.state).is_shared = true;
                    return;
                }
                Connected::Failed => {}
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
async fn began_after(listener: &mut PgListener, before: i64) -> Result<bool, sqlx::Error> {
    for _ in 0..SESSION_CHECKS {
        let sql = format!(
            "/*tenure:look*/ SELECT (EXTRACT(EPOCH FROM backend_start)*1000000)::bigint>{before} FROM pg_stat_activity WHERE pid=pg_backend_pid()"
        );
        let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(&mut *listener);
        if !row.await?.try_get::<bool, _>(0)? {
            return Ok(false);
        }
    }
    Ok(true)
}
