//! Changing the mode of a hold: its node stays, and the node's data say what has changed.
//!
//! Each change names the version of the data that it is based on. So a request that arrives late changes nothing after a
//! later one, and what was applied before a reply was lost is read from the node.

use std::sync::Arc;

use zookeeper_client::Stat;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::Mode;
use tenure_core::queue::{self as engine, ModeChange, Others, Replaced, lost};
use tenure_core::store::{Answer, BoxFuture, ChangeMode, Grant, Hold, Request};

use super::contact::LeasePeriod;
use super::errors::{ClientError, RequestError};
use super::mode::{self, ChangedHold, HoldMode, MZXID, NodeRecord, WrittenToken};
use super::names::Dialect;
use super::queue::{Ahead, Queue};
use super::renew;
use super::requests::{self, Node};
use super::store::{ContenderNode, Store};
use super::wait::{Goal, Operation, QueueEntry};

impl ChangeMode for Store {
    fn upgrade(
        self: Arc<Self>,
        _: Hold,
        request: Arc<Request>,
    ) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(async move { engine::upgrade(&Operation::new(&self, &request, 0)).await })
    }

    fn downgrade(self: Arc<Self>, hold: Hold, mode: Mode) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { downgrade(&self, &hold, mode).await })
    }
}

/// Makes the hold shared, or upgradable again. `false`: the owner has no hold.
async fn downgrade(store: &Arc<Store>, hold: &Hold, mode: Mode) -> Result<bool, Error> {
    if store.settings.dialect != Dialect::Curator {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the mode of a hold cannot change with this `dialect`: other programs would not see it; leave `dialect` out of the URL",
        ));
    }
    // From now on other contenders may hold at the same time.
    store.holds.update(hold.owner, |held| held.mode = mode);
    let request = Request::new(hold.name.clone(), hold.owner, hold.ttl);
    engine::downgrade(&Operation::new(store, &request, hold.token), mode).await
}

/// The node of a hold of ours, with its data.
pub(super) struct OwnNode {
    held: ContenderNode,
    node: Node,
    record: NodeRecord,
    token: u64,
    /// Of the node with these data.
    stat: Stat,
}

impl OwnNode {
    /// The error of a request about the node, unless it says that the node is gone.
    fn gone<T>(&self, err: RequestError) -> Result<Replaced<T>, Error> {
        match err.is(&ClientError::NoNode) || err.is_session_over() {
            true => Ok(Replaced::Gone),
            false => Err(self.held.session.explain(err)),
        }
    }
}

impl ModeChange for Operation<'_> {
    type Own = OwnNode;

    async fn read_own(&self) -> Result<Option<OwnNode>, Error> {
        let Some(held) = self.store.holds.get(self.request.owner) else {
            return Ok(None);
        };
        let (session, Some(node)) = (&held.session, held.node.clone()) else {
            return Ok(None);
        };
        let (stat, record) = match requests::read_record(session, &node.path).await {
            Ok(Some(read)) => read,
            Ok(None) => return Ok(None),
            Err(err) if err.is_session_over() => return Ok(None),
            Err(err) => return Err(session.explain(err)),
        };
        let token = match self.token {
            0 => mode::token(&stat, record.as_ref()),
            token => token,
        };
        let ttl = session.timeout.min(self.request.ttl);
        let record = record.unwrap_or_else(|| NodeRecord::new(&self.request.holder, ttl));
        Ok(Some(OwnNode {
            held,
            node,
            record,
            token,
            stat,
        }))
    }

    fn is_exclusive(&self, own: &OwnNode) -> bool {
        own.record.mode() == Some(HoldMode::Exclusive)
    }

    async fn replace(
        &self,
        own: &mut OwnNode,
        mode: engine::HoldMode,
    ) -> Result<Replaced<()>, Error> {
        let (mode, last) = match mode {
            engine::HoldMode::Shared => (HoldMode::Shared, None),
            engine::HoldMode::Upgradable => (HoldMode::Upgradable, None),
            engine::HoldMode::Upgrading { last_holder } => (HoldMode::Upgrading, last_holder),
        };
        own.record.hold = Some(ChangedHold {
            mode: Some(mode),
            last: last.and_then(|last| u32::try_from(last).ok()),
            token: Some(WrittenToken::Number(own.token)),
        });
        let (session, version) = (&own.held.session, own.stat.version);
        match requests::set_record(session, &own.node.path, &own.record, version).await {
            Ok(Some(stat)) => {
                own.stat = stat;
                Ok(Replaced::Done(()))
            }
            Ok(None) => Ok(Replaced::Refused),
            Err(err) => own.gone(err),
        }
    }

    async fn others(&self, own: &mut OwnNode) -> Result<Option<Others<QueueEntry, Ahead>>, Error> {
        let ContenderNode { session, dir, .. } = &own.held;
        let last = match last_holder(own).await {
            Ok(Some(last)) => last,
            Ok(None) => return Err(lost()),
            Err(err) if err.is_session_over() => return Err(lost()),
            Err(err) => return Err(session.explain(err)),
        };
        Ok(last.map(|last| Others {
            last_holder: last,
            entry: QueueEntry {
                session: session.clone(),
                dir: dir.clone(),
                node: own.node.clone(),
                lease: session.confirmed(),
                goal: Goal::EndOfOthers { last },
            },
            position: None,
        }))
    }

    async fn become_exclusive(&self, own: &mut OwnNode) -> Result<Replaced<Grant>, Error> {
        if self.is_exclusive(own) {
            let checked = requests::check_nodes(&own.held.session, &[&*own.node.path]).await;
            return match checked {
                Ok(lease) => Ok(Replaced::Done(self.granted(own.token, lease))),
                Err(err) => own.gone(err),
            };
        }
        own.record.hold = Some(ChangedHold {
            mode: Some(HoldMode::Exclusive),
            last: None,
            token: Some(MZXID),
        });
        let ContenderNode { session, dir, .. } = &own.held;
        let version = Some(own.stat.version);
        let granted = requests::grant_token(session, dir, &own.node.path, &own.record, version);
        match granted.await {
            Ok(Some((token, lease))) => Ok(Replaced::Done(self.granted(token, lease))),
            Ok(None) => Ok(Replaced::Refused),
            Err(err) => own.gone(err),
        }
    }
}

impl Operation<'_> {
    fn granted(&self, token: u64, lease: LeasePeriod) -> Grant {
        let (store, request) = (self.store, self.request);
        let ttl = renew::extend(store, request.owner, request.ttl, lease);
        let round_trip = store.clock.now().since(lease.sent);
        Grant::new(token, lease.sent, round_trip, Some(ttl))
    }
}

/// How many numbers behind our own the last contender has that holds, among those with nodes from before the announcement,
/// which was the last write of our node: since then nothing behind the node is granted, whatever the modes are. `None`: our
/// node is gone. `Some(None)`: no other contender holds.
async fn last_holder(own: &OwnNode) -> Result<Option<Option<i64>>, RequestError> {
    let ContenderNode { session, dir, .. } = &own.held;
    let Some((queue, me)) = Queue::read_all(session, dir, &own.node.name).await? else {
        return Ok(None);
    };
    let mut last = queue.last_holder(me);
    while last > me {
        let path = format!("{dir}/{}", queue.children[last].name);
        match requests::stat(session, &path).await? {
            Some(stat) if stat.czxid < own.stat.mzxid => break,
            _ => last -= 1,
        }
    }
    Ok(Some((last > 0).then(|| queue.numbers_behind(me, last))))
}
