//! Requests to let go that other clients have stored for holds of this client.
//!
//! A request is a key that is named after the lease in the key of the hold, the create revision of that key, and the key itself,
//! so it can reach no other hold. Once a guard waits to be asked, the client watches all such keys of that lease.

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
use super::names::{after_prefix, asked_key, asked_start, lease_in};
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
    /// By the key of the request.
    owners: HashMap<Vec<u8>, OwnerId>,
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
        let asked = asked_key(&self.context.settings, key, created);
        let Some((lease, asked)) = lease_in(key).zip(asked) else {
            return;
        };
        let mut listeners = lock(&self.listeners);
        let is_new = !listeners.contains_key(&lease);
        let listener = listeners.entry(lease).or_insert_with(|| Listener {
            owners: HashMap::new(),
            signals: Arc::default(),
        });
        listener.owners.insert(asked, owner);
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
        let context = &self.context;
        let asked = asked_key(&context.settings, key, created);
        let Some((lease, key)) = lease_in(key).zip(asked) else {
            return;
        };
        let has_listened = self.remove(lease, &key);
        if !has_listened || is_candidate {
            return;
        }
        let connections = self.connections.clone();
        context.background.spawn(&context.spawner, async move {
            // A request that cannot be deleted ends with its lease.
            let _ = requests::try_operation(&connections, wire::Delete { key }.into()).await;
        });
    }

    /// The client has no part in that hold any more. A request for it stays in the store.
    pub(super) fn stop_listening(&self, key: &[u8], created: i64) {
        let asked = asked_key(&self.context.settings, key, created);
        if let Some((lease, asked)) = lease_in(key).zip(asked) {
            self.remove(lease, &asked);
        }
    }

    /// Returns whether the client has listened to requests for that hold.
    fn remove(&self, lease: i64, asked: &[u8]) -> bool {
        let mut listeners = lock(&self.listeners);
        let Some(listener) = listeners.get_mut(&lease) else {
            return false;
        };
        let has_listened = listener.owners.remove(asked).is_some();
        if listener.owners.is_empty() {
            listener.signals.is_unused.raise();
            listeners.remove(&lease);
        }
        has_listened
    }

    fn owner(&self, lease: i64, asked: &[u8]) -> Option<OwnerId> {
        let listeners = lock(&self.listeners);
        listeners.get(&lease)?.owners.get(asked).copied()
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
                self.pass_on(lease, &kv.key);
            }
            retries.restart(Time::MAX);
            loop {
                tokio::select! {
                    biased;
                    event = source.next_event() => {
                        let event = event?;
                        if let Some(kv) = event.kv.filter(|_| event.kind != 1) {
                            self.pass_on(lease, &kv.key);
                        }
                    }
                    () = connection.left.raised() => return Ok(()),
                    () = signals.added.notified() => break,
                }
            }
        }
    }

    fn pass_on(&self, lease: i64, asked: &[u8]) {
        // A guard that does not wait yet hears of the request when it begins to wait.
        if let Some(owner) = self.owner(lease, asked) {
            self.losses.asked_to_release(owner);
        }
    }
}
