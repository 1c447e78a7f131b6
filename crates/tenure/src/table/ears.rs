//! What PostgreSQL pushes: one connection that listens, for as long as somebody waits.
//!
//! Behind a proxy that gives each transaction to any session it must not listen: it would be another client of that
//! proxy who hears, and who did not ask. So it looks first whether its session is its own. And it counts only once it
//! has heard a word that was sent over another connection. Where nothing is heard waiters look for themselves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, Row as _};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use tenure_core::fence::{OwnerId, RandomAlready};
use tenure_core::logic::pace;
use tenure_core::rt::{Clock, Flag, Spawner, lock};

use super::hold::number;
use super::link::Pool;
use super::statements::{CHANNEL, Flavor, Packet};

/// How long the connection stays after the last waiter has gone, in steps of [`STEP`].
const LINGER: u32 = 5;
const STEP: Duration = Duration::from_secs(1);

/// How often it is looked whose session ours is.
const LOOKS: u32 = 3;

/// What a waiter may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The name is free, or will be soon.
    Free,
    /// You are the first in the queue.
    First,
    /// From now on you will be told.
    Heard,
    /// From now on nobody tells you.
    Deaf,
}

pub(super) struct Ears {
    /// `None`: there is no connection to spare.
    options: Option<PgConnectOptions>,
    pool: Arc<Pool>,
    clock: Clock,
    spawner: Spawner,
    closing: Flag,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_running: bool,
    is_heard: bool,
    /// Sessions are not ours alone here.
    is_shared: bool,
    waiting: HashMap<OwnerId, (String, UnboundedSender<News>), RandomAlready>,
}

/// One waiter's place among those that are told, until it is dropped.
pub(super) struct Listening {
    ears: Arc<Ears>,
    owner: OwnerId,
    news: UnboundedReceiver<News>,
}

impl Listening {
    pub(super) fn is_heard(&self) -> bool {
        lock(&self.ears.state).is_heard
    }

    /// Never, where nobody listens.
    pub(super) async fn next(listening: Option<&mut Self>) -> News {
        match listening {
            Some(listening) => match listening.news.recv().await {
                Some(news) => news,
                None => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        lock(&self.ears.state).waiting.remove(&self.owner);
    }
}

impl Ears {
    pub(super) fn new(
        options: Option<PgConnectOptions>,
        pool: Arc<Pool>,
        clock: Clock,
        spawner: Spawner,
    ) -> Self {
        Self {
            options,
            pool,
            clock,
            spawner,
            closing: Flag::new(),
            state: Mutex::default(),
        }
    }

    /// Hears of the lock with this digest, for this owner.
    pub(super) fn listen(self: &Arc<Self>, digest: String, owner: OwnerId) -> Option<Listening> {
        self.options.as_ref()?;
        let (sender, news) = unbounded_channel();
        let starts = {
            let mut state = lock(&self.state);
            if state.is_shared {
                return None;
            }
            state.waiting.insert(owner, (digest, sender));
            !std::mem::replace(&mut state.is_running, true)
        };
        if starts {
            self.spawner.spawn(keep_listening(Arc::downgrade(self)));
        }
        Some(Listening {
            ears: self.clone(),
            owner,
            news,
        })
    }

    pub(super) fn close(&self) {
        self.closing.raise();
    }

    fn tell_all(&self, is_heard: bool) {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.is_heard, is_heard) == is_heard {
            return;
        }
        let news = if is_heard { News::Heard } else { News::Deaf };
        for (_, sender) in state.waiting.values() {
            // A waiter that is on its way out does not listen.
            let _ = sender.send(news);
        }
    }

    fn pass_on(&self, payload: &str, nonce: &str) {
        match payload.split_once(' ') {
            Some(("hello", said)) if said == nonce => self.tell_all(true),
            Some(("free", digest)) => {
                let state = lock(&self.state);
                for (known, sender) in state.waiting.values() {
                    if known == digest {
                        let _ = sender.send(News::Free);
                    }
                }
            }
            Some(("first", owner)) => {
                let state = lock(&self.state);
                for (known, (_, sender)) in &state.waiting {
                    if !owner.is_empty() && known.to_hex().starts_with(owner) {
                        let _ = sender.send(News::First);
                    }
                }
            }
            _ => {}
        }
    }

    async fn pause(&self, attempt: u32) {
        let pause = pace::next(attempt, rand::random(), None, None).unwrap_or(pace::CAP);
        let at = self.clock.now().after(pause);
        tokio::select! {
            biased;
            () = self.closing.raised() => {}
            () = self.clock.sleep_until(at) => {}
        }
    }

    /// Whether nobody waits; then the task has ended.
    fn ends(&self) -> bool {
        let mut state = lock(&self.state);
        let ends = state.waiting.is_empty() || self.closing.is_raised();
        if ends {
            state.is_running = false;
            state.is_heard = false;
        }
        ends
    }

    /// The server's clock, in µs.
    async fn now(&self) -> Option<i64> {
        let now = format!("/*tenure:look*/ SELECT {}", Flavor::Postgres.now());
        let reply = self.pool.ask(Packet::rows(now)).await.ok()?;
        number(reply.rows.first()?, 0).ok()
    }

    /// Listens until the connection breaks or nobody has waited for a while.
    async fn hear(&self, listener: &mut PgListener) {
        let nonce = OwnerId::random().to_hex();
        let hello = format!("/*tenure:hello*/ SELECT pg_notify('{CHANNEL}','hello {nonce}')");
        if self.pool.ask(Packet::rows(hello)).await.is_err() {
            return;
        }
        let mut idle = 0;
        while idle < LINGER {
            let step = self.clock.now().after(STEP);
            tokio::select! {
                biased;
                () = self.closing.raised() => return,
                heard = listener.try_recv() => match heard {
                    Ok(Some(heard)) => self.pass_on(heard.payload(), &nonce),
                    _ => return,
                },
                () = self.clock.sleep_until(step) => {
                    let is_idle = lock(&self.state).waiting.is_empty();
                    idle = if is_idle { idle + 1 } else { 0 };
                }
            }
        }
    }
}

/// Connects, again and again, while somebody waits. Ends with its client too.
async fn keep_listening(ears: Weak<Ears>) {
    for attempt in 0_u32.. {
        let Some(ears) = ears.upgrade() else {
            return;
        };
        if ears.ends() {
            return;
        }
        let Some(options) = ears.options.clone() else {
            return;
        };
        let Some(before) = ears.now().await else {
            ears.pause(attempt).await;
            continue;
        };
        // A pool of the one connection, because the listener wants one.
        let pool = PgPoolOptions::new().max_connections(1);
        let pool = pool.idle_timeout(None).max_lifetime(None);
        let pool = pool.connect_lazy_with(options);
        let connect = async {
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.ignore_pool_close_event(true);
            listener.eager_reconnect(false);
            if !began_after(&mut listener, before).await? {
                return Ok(None);
            }
            listener.listen(CHANNEL).await?;
            Ok::<_, sqlx::Error>(Some(listener))
        };
        let limit = ears.clock.now().after(ears.pool.timeout());
        let connected = tokio::select! {
            biased;
            () = ears.closing.raised() => None,
            connected = connect => connected.ok(),
            () = ears.clock.sleep_until(limit) => None,
        };
        match connected {
            Some(Some(mut listener)) => {
                ears.hear(&mut listener).await;
                ears.tell_all(false);
            }
            Some(None) => {
                tracing::debug!(
                    "something between us and the server shares its sessions out, so nobody listens"
                );
                lock(&ears.state).is_shared = true;
                return;
            }
            None => {}
        }
        ears.pause(attempt).await;
    }
}

/// Whether our session is younger than that: else it was there before us, and is somebody else's between our words.
/// Asked some times, since a proxy may open sessions, too.
async fn began_after(listener: &mut PgListener, before: i64) -> Result<bool, sqlx::Error> {
    for _ in 0..LOOKS {
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
