//! Requests to let go that other clients have stored for holds of this client.
//!
//! A request is a key that is named after the lease in the key of the hold and after the create revision of that key, so it can
//! reach no other hold. Once a guard waits to be asked, the client watches all such keys of that lease.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use tenure_core::fence::OwnerId;
use tenure_core::rt::{Flag, lock};
use tenure_core::store::Losses;
use tenure_core::support::RetryBudget;
use tenure_core::time::Time;

use super::connection::Connections;
use super::context::Context;
use super::errors::RequestError;
use super::names::{after_prefix, asked_key, asked_revision, asked_start, lease_in};
use super::requests;
use super::subscribe::{Reports, Watch};
use super::wire;

/// The holds of one client whose guards wait to be asked.
pub(super) struct ReleaseRequests {
    context: Arc<Context>,
    connections: Arc<Connections>,
    losses: Arc<Losses>,
    /// By the lease that their keys are named after.
    listeners: Mutex<HashMap<i64, Listener>>,
}

struct Listener {
    /// By the create revision of the key of the hold.
    owners: HashMap<i64, OwnerId>,
    signals: Arc<Signals>,
}

#[derive(Default)]
struct Signals {
    /// A hold was added. The requests for it may be in the store already.
    added: Notify,
    /// The last hold has ended.
    is_unused: Flag,
}

impl ReleaseRequests {
    pub(super) fn new(
        context: &Arc<Context>,
        connections: &Arc<Connections>,
        losses: &Arc<Losses>,
    ) -> Self {
        Self {
            context: context.clone(),
            connections: connections.clone(),
            losses: losses.clone(),
            listeners: Mutex::default(),
        }
    }

    /// From now on the client listens to requests for the hold whose key was created at this revision.
    pub(super) fn listen(self: &Arc<Self>, key: &[u8], created: i64, owner: OwnerId) {
        let Some(lease) = lease_in(key) else { return };
        let mut listeners = lock(&self.listeners);
        let is_new = !listeners.contains_key(&lease);
        let listener = listeners.entry(lease).or_insert_with(|| Listener {
            owners: HashMap::new(),
            signals: Arc::default(),
        });
        listener.owners.insert(created, owner);
        let signals = listener.signals.clone();
        drop(listeners);
        signals.added.notify_one();
        if is_new {
            let requests = self.clone();
            let listening = async move { requests.run(lease, &signals).await };
            self.context.spawner.spawn(listening);
        }
    }

    /// The hold has ended. A request for a candidate was deleted together with its keys; that for another hold is deleted now,
    /// in the background.
    pub(super) fn forget(&self, key: &[u8], created: i64, is_candidate: bool) {
        let has_listened = lease_in(key).is_some_and(|lease| self.remove(lease, created));
        if !has_listened || is_candidate {
            return;
        }
        let context = &self.context;
        let Some(key) = asked_key(&context.settings, key, created) else {
            return;
        };
        let connections = self.connections.clone();
        context.background.spawn(&context.spawner, async move {
            // A request that cannot be deleted ends with its lease.
            let _ = requests::try_operation(&connections, wire::Delete { key }.into()).await;
        });
    }

    /// Returns whether the client has listened to requests for that hold.
    fn remove(&self, lease: i64, created: i64) -> bool {
        let mut listeners = lock(&self.listeners);
        let Some(listener) = listeners.get_mut(&lease) else {
            return false;
        };
        let has_listened = listener.owners.remove(&created).is_some();
        if listener.owners.is_empty() {
            listener.signals.is_unused.raise();
            listeners.remove(&lease);
        }
        has_listened
    }

    fn owner(&self, lease: i64, created: i64) -> Option<OwnerId> {
        let listeners = lock(&self.listeners);
        listeners.get(&lease)?.owners.get(&created).copied()
    }

    /// Listens until no hold is left, or the client closes.
    async fn run(&self, lease: i64, signals: &Signals) {
        let clock = &self.context.clock;
        let work = async {
            let mut retries = RetryBudget::without_limit();
            loop {
                if let Err(err) = self.follow(lease, signals, &mut retries).await {
                    tracing::debug!(
                        store = "etcd",
                        err = format_args!("{:#}", err.error),
                        "the watch of requests to let go has ended"
                    );
                }
                retries.pause(clock).await;
            }
        };
        tokio::select! {
            biased;
            () = self.context.closing.raised() => {}
            () = signals.is_unused.raised() => {}
            () = work => {}
        }
    }

    /// Passes on the requests that are there and those that come, until the watch ends.
    async fn follow(
        &self,
        lease: i64,
        signals: &Signals,
        retries: &mut RetryBudget,
    ) -> Result<(), RequestError> {
        let start = asked_start(&self.context.settings, lease);
        let end = after_prefix(&start);
        let (key, range_end) = (start.clone(), end.clone());
        let opening = Watch::open(&self.connections, key, range_end, Reports::Changes);
        let mut source = opening.await?;
        let connection = source.connection.clone();
        loop {
            let there = requests::read_range(&self.connections, &start, &end).await?;
            for kv in there {
                self.pass_on(lease, &start, &kv.key);
            }
            retries.restart(Time::MAX);
            loop {
                tokio::select! {
                    biased;
                    event = source.next_event() => {
                        let event = event?;
                        if let Some(kv) = event.kv.filter(|_| event.kind != 1) {
                            self.pass_on(lease, &start, &kv.key);
                        }
                    }
                    () = connection.left.raised() => return Ok(()),
                    () = signals.added.notified() => break,
                }
            }
        }
    }

    fn pass_on(&self, lease: i64, start: &[u8], asked: &[u8]) {
        let created = asked_revision(start, asked);
        // A guard that does not wait yet hears of the request when it begins to wait.
        if let Some(owner) = created.and_then(|created| self.owner(lease, created)) {
            self.losses.asked_to_release(owner);
        }
    }
}
