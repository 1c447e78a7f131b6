//! What a client is notified of in PostgreSQL: its waiters, that it may be their turn, and its observers, that a leader or its
//! value has changed. Without notifications waiters read the queue themselves, and observers the name.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_core::error::Error;
use tenure_core::fence::OwnerId;
use tenure_core::name::LockName;
use tenure_core::rt::Spawner;
use tenure_core::store::Sightings;
use tenure_core::support::WaiterRegistry;

use crate::database::{self, Observers, ReadLeader, Row, Subscribers};
use crate::waiting::{self, WakeUp};

use super::pool::Pool;
use super::sql::{CHANNEL, Statement};
use super::subscribe::Notifications;

/// Receives notifications and passes them on to waiters and observers.
pub(super) type Listener = database::Listener<TableSubscribers>;

/// The waiters and observers of one client.
pub(super) struct TableSubscribers {
    pool: Arc<Pool>,
    waiters: Arc<WaiterRegistry<WakeUp>>,
    /// Whether the notifications for waiters arrive.
    has_push: Arc<AtomicBool>,
    pub(super) observers: Arc<Observers>,
}

impl Listener {
    /// Notifications about the lock with this digest, and for this owner.
    pub(super) fn subscribe(
        self: &Arc<Self>,
        digest: String,
        owner: OwnerId,
    ) -> Option<Notifications> {
        self.subscribe_with(|subscribers| {
            let wake_ups = subscribers.waiters.subscribe(owner, digest);
            Notifications::new(wake_ups, subscribers.has_push.clone())
        })
    }

    /// Who leads, now and after each notification on `channel`.
    pub(super) fn observe(
        self: &Arc<Self>,
        name: LockName,
        channel: String,
        read_leader: ReadLeader,
    ) -> Option<Sightings> {
        self.subscribe_with(|it| it.observers.observe(name, channel, read_leader))
    }
}

impl TableSubscribers {
    pub(super) fn new(pool: Arc<Pool>, spawner: Spawner) -> Self {
        Self {
            pool,
            waiters: Arc::default(),
            has_push: Arc::default(),
            observers: Arc::new(Observers::new(spawner)),
        }
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
}

impl Subscribers for TableSubscribers {
    fn channels(&self) -> BTreeSet<String> {
        let mut channels = self.observers.channels();
        if !self.waiters.is_empty() {
            channels.insert(CHANNEL.to_owned());
        }
        channels
    }

    fn hello_channel(&self) -> Option<&'static str> {
        Some(CHANNEL)
    }

    fn listens_to(&self, channels: &BTreeSet<String>) {
        self.set_push(channels.contains(CHANNEL));
        self.observers.listens_to(channels);
    }

    fn received(&self, channel: &str, payload: &str) {
        if channel != CHANNEL {
            return self.observers.read_channels(|it| it == channel);
        }
        match payload.split_once(' ') {
            Some(("free", digest)) => self
                .waiters
                .notify_matching(|_, topic| (topic == digest).then_some(WakeUp::Freed)),
            Some(("granted", owner)) => self.wake(owner, WakeUp::AskAgain),
            Some(("first", owner)) => self.wake(owner, WakeUp::First),
            _ => {}
        }
    }

    fn has_no_session(&self) {
        self.observers.end();
    }

    async fn ask(&self, sql: String) -> Result<Vec<Row>, Error> {
        Ok(self.pool.ask(Statement::rows(sql)).await?.rows)
    }
}
