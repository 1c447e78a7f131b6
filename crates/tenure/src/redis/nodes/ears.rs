//! Where a client of a cluster hears that its turn has come.
//!
//! From version 7 on messages stay within the nodes of a slot, so a client has a channel per slot it
//! waits in, and subscribes to it at the node that has the slot. Nobody waits for a subscription: a waiter
//! takes its place in the queue first, and is told to look again once its channel is heard.
//!
//! Subscriptions have connections of their own. A node that gives a slot away ends them unasked, and the
//! client library takes such a message for the answer to whatever request is on its way: here that
//! is another subscription, and what counts is what the node said about the channel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, Value};

use tenure_core::error::Error;
use tenure_core::fence::OwnerId;
use tenure_core::rt::{Flag, lock};
use tenure_core::time::Time;
use tenure_core::url::Host;

use super::super::inbox::News;
use super::super::link::{Link, Session};
use super::super::names;
use super::super::outcome;
use super::cluster::Inner;

/// How long a channel is kept after the last waiter has left: the next one may be near.
const IDLE: Duration = Duration::from_secs(5);

/// What this client wants to hear.
#[derive(Default)]
pub(super) struct Ears(Mutex<BTreeMap<u16, Slot>>);

struct Slot {
    waiting: Vec<OwnerId>,
    /// When the last one left.
    left: Time,
    /// Nothing has been missed since then; `None`: messages get lost.
    heard_since: Option<Time>,
}

/// One connection for subscriptions.
pub(super) struct Ear {
    host: Host,
    connection: MultiplexedConnection,
    /// Slots whose channel it is subscribed to, by the node's word.
    heard: Arc<Mutex<BTreeSet<u16>>>,
    ended: Arc<Flag>,
    /// The connection for requests to the same node: when that is broken, so is this.
    session: Arc<Session>,
}

/// News of a slot reach this client while it lives.
pub(in crate::redis) struct Listening {
    cluster: Arc<Inner>,
    slot: u16,
    owner: OwnerId,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut slots = lock(&self.cluster.ears.0);
        if let Some(slot) = slots.get_mut(&self.slot) {
            slot.waiting.retain(|owner| *owner != self.owner);
            slot.left = self.cluster.clock.now();
        }
    }
}

impl Ears {
    pub(super) fn are_idle(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// `owner` has asked at `sent` and has a place in a queue in this slot.
    pub(super) fn listen(cluster: &Arc<Inner>, slot: u16, owner: OwnerId, sent: Time) -> Listening {
        let heard_since = {
            let mut slots = lock(&cluster.ears.0);
            let entry = slots.entry(slot).or_insert_with(|| Slot {
                waiting: Vec::new(),
                left: sent,
                heard_since: None,
            });
            entry.waiting.push(owner);
            entry.heard_since
        };
        match heard_since {
            Some(since) if since <= sent => {}
            // Its turn may have come before that.
            Some(_) => cluster.inbox.tell(owner, News::Look),
            None => cluster.wake.notify_one(),
        }
        Listening {
            cluster: cluster.clone(),
            slot,
            owner,
        }
    }
}

impl Inner {
    /// Subscribes where it has to be and is not, and ends what nobody needs any more.
    pub(super) async fn tend(&self, ears: &mut Vec<Ear>) {
        let wanted: Vec<u16> = {
            let now = self.clock.now();
            let mut slots = lock(&self.ears.0);
            slots.retain(|_, slot| !slot.waiting.is_empty() || now.since(slot.left) < IDLE);
            slots.keys().copied().collect()
        };
        let mut nodes: Vec<(Arc<Link>, BTreeSet<u16>)> = Vec::new();
        for slot in wanted {
            // Nobody has it: that is found out by whoever waits there.
            let Some(link) = self.owner(slot) else {
                continue;
            };
            match nodes.iter_mut().find(|(known, _)| known.host == link.host) {
                Some((_, slots)) => slots.extend([slot]),
                None => nodes.push((link, BTreeSet::from([slot]))),
            }
        }
        // Dropped, they are closed.
        ears.retain(|ear| {
            let is_alive = !ear.ended.is_raised() && !ear.session.ended.is_raised();
            is_alive && nodes.iter().any(|(link, _)| link.host == ear.host)
        });
        let tended = nodes.into_iter().map(|(link, slots)| {
            let place = ears.iter().position(|ear| ear.host == link.host);
            let ear = place.map(|place| ears.swap_remove(place));
            async move {
                let ear = match ear {
                    Some(ear) => ear,
                    None => self.open_ear(&link).await.ok()?,
                };
                self.adjust(&ear, &slots).await;
                Some(ear)
            }
        });
        let tended: Vec<_> = tended.collect();
        *ears = join_all(tended).await.into_iter().flatten().collect();
        self.spread(ears);
    }

    /// Writes down which slots are heard, and tells those who may have missed something to look.
    fn spread(&self, ears: &[Ear]) {
        let mut heard = BTreeSet::new();
        for ear in ears {
            heard.extend(
                lock(&ear.heard)
                    .iter()
                    .copied()
                    .filter(|slot| self.owner(*slot).is_some_and(|link| link.host == ear.host)),
            );
        }
        let mut nudged = Vec::new();
        let mut slots = lock(&self.ears.0);
        for (number, slot) in slots.iter_mut() {
            match (heard.contains(number), slot.heard_since) {
                (true, None) => {
                    slot.heard_since = Some(self.clock.now());
                    nudged.extend(slot.waiting.iter().copied());
                }
                (false, _) => slot.heard_since = None,
                (true, Some(_)) => {}
            }
        }
        drop(slots);
        for owner in nudged {
            self.inbox.tell(owner, News::Look);
        }
    }

    async fn open_ear(&self, link: &Link) -> Result<Ear, Error> {
        let session = link.session().await?;
        let (heard, ended): (Arc<Mutex<BTreeSet<u16>>>, Arc<Flag>) = Default::default();
        let push = {
            let (heard, ended) = (heard.clone(), ended.clone());
            let (inbox, wake) = (self.inbox.clone(), self.wake.clone());
            move |info: PushInfo| {
                match info.kind {
                    PushKind::SMessage => inbox.deliver(&info),
                    PushKind::SSubscribe => {
                        lock(&heard).extend(slot_of(&info));
                    }
                    PushKind::SUnsubscribe => {
                        if let Some(slot) = slot_of(&info) {
                            lock(&heard).remove(&slot);
                        }
                        wake.notify_one();
                    }
                    PushKind::Disconnection => {
                        ended.raise();
                        wake.notify_one();
                    }
                    _ => {}
                }
                Ok::<(), ()>(())
            }
        };
        let timeout = Some(self.settings.timeout);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(timeout)
            .set_response_timeout(timeout)
            .set_push_sender(push);
        let client = self.settings.client(&link.host)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let failed = |err| outcome::connecting(err, &link.host, self.settings.is_tls());
        Ok(Ear {
            host: link.host.clone(),
            connection: connection.await.map_err(failed)?,
            heard,
            ended,
            session,
        })
    }

    /// Subscribes to the channels of these slots and to no others.
    async fn adjust(&self, ear: &Ear, slots: &BTreeSet<u16>) {
        let heard = lock(&ear.heard).clone();
        let say = |command: &'static str, slot: u16| {
            let mut connection = ear.connection.clone();
            let mut cmd = redis::cmd(command);
            cmd.arg(self.shard_channel(slot));
            async move { cmd.query_async::<Value>(&mut connection).await }
        };
        let more = slots
            .difference(&heard)
            .map(|slot| say("SSUBSCRIBE", *slot));
        let less = heard
            .difference(slots)
            .map(|slot| say("SUNSUBSCRIBE", *slot));
        let (more, _) = tokio::join!(join_all(more), join_all(less));
        for err in more.into_iter().filter_map(Result::err) {
            if err.is_io_error() {
                // Stopped, or gone without a word.
                ear.ended.raise();
            } else if err.is_cluster_error() {
                self.distrust_map();
            } else {
                tracing::debug!(host = %ear.host, %err, "no subscription; waiters ask again and again");
            }
        }
    }
}

/// The slot of the channel that this is about.
fn slot_of(info: &PushInfo) -> Option<u16> {
    match info.data.first()? {
        Value::BulkString(channel) => std::str::from_utf8(channel).ok().map(names::slot),
        _ => None,
    }
}
