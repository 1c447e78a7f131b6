//! Changing the mode of a hold: its node stays, and the node's data say what has changed.
//!
//! Each change names the version of the data that it is based on. So a request that arrives late changes nothing after a
//! later one, and what was applied before a reply was lost is read from the node.

use std::sync::Arc;

use zookeeper_client::Stat;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::options::Mode;
use tenure_core::store::{Answer, BoxFuture, ChangeMode, Grant, Hold, Request};
use tenure_core::support::RetryBudget;

use super::contact::Lease;
use super::errors::{ClientError, RequestError};
use super::mode::{self, HoldMode, HoldState, MZXID, NodeRecord, WrittenToken};
use super::names::Dialect;
use super::queue::Queue;
use super::requests;
use super::session::Session;
use super::store::{HeldEntry, Store};
use super::wait::{self, WakeUp};

impl ChangeMode for Store {
    fn upgrade(
        self: Arc<Self>,
        _: Hold,
        request: Arc<Request>,
    ) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(async move { upgrade(&self, &request).await })
    }

    fn downgrade(self: Arc<Self>, hold: Hold, mode: Mode) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { downgrade(&self, &hold, mode).await })
    }
}

/// How an attempt to upgrade ends.
enum Upgraded {
    /// Exclusive, with this token.
    Granted(u64, Lease),
    /// Other contenders hold, and the hold is upgradable again.
    Busy,
    /// The node is gone.
    NoHold,
    /// Another program has written the data of the node meanwhile.
    Overwritten,
}

/// Makes the upgradable hold of the owner exclusive; waits for the other holders if the request waits.
pub(super) async fn upgrade(store: &Store, request: &Request) -> Result<Answer, Error> {
    let Some(hold) = OwnNode::of(store, request.owner) else {
        return Err(no_hold());
    };
    let (session, clock) = (hold.session.clone(), &store.clock);
    let mut retries = RetryBudget::until(wait::retry_until(request, &session));
    loop {
        let err = match attempt(&hold, request, &mut retries).await {
            Ok(Upgraded::Granted(token, lease)) => {
                let ttl = lease.length().min(request.ttl);
                store.holds.update(request.owner, |held| {
                    held.until = held.until.max(Some(lease.sent.after(ttl)));
                });
                let round_trip = clock.now().since(lease.sent);
                return Ok(Answer::Granted(Grant::new(
                    token,
                    lease.sent,
                    round_trip,
                    Some(ttl),
                )));
            }
            Ok(Upgraded::Busy) => return Ok(Answer::Busy),
            Ok(Upgraded::NoHold) => return Err(no_hold()),
            Ok(Upgraded::Overwritten) => continue,
            Err(err) if err.is_session_over() => return Err(no_hold()),
            Err(err) => err,
        };
        if !err.is_ambiguous() {
            return Err(take_back(store, request, session.explain(err)).await);
        }
        if !request.wait || request.stop.is_raised() || retries.is_spent(clock) {
            return Err(session.explain(err));
        }
        let _ = request.unless_stopped(retries.pause(clock)).await;
    }
}

/// Makes the hold upgradable again after `err`, and returns the error for the user.
async fn take_back(store: &Store, request: &Request, err: Error) -> Error {
    match downgrade(store, &Hold::new(request, 0), Mode::Upgradable).await {
        Ok(true) => err,
        Ok(false) => no_hold(),
        Err(_) => Error::new(
            ErrorKind::Indeterminate,
            "the request to upgrade was refused, and may be announced still",
        )
        .with_source(err),
    }
}

fn no_hold() -> Error {
    let what = "the servers have no such hold; the lock was lost";
    Error::new(ErrorKind::Lost, what)
}

/// The node of a hold of ours.
struct OwnNode {
    session: Arc<Session>,
    dir: Arc<str>,
    path: Arc<str>,
}

impl OwnNode {
    /// `None`: there is no such hold.
    fn of(store: &Store, owner: OwnerId) -> Option<Self> {
        let held = store.holds.get(owner)?;
        let dir = held.dir.clone();
        let (session, path) = HeldEntry::node(held)?;
        Some(Self { session, dir, path })
    }

    fn name(&self) -> &str {
        &self.path[self.dir.len() + 1..]
    }

    /// What the node says, and the version of its data; `None`: the node is gone.
    async fn read(&self, request: &Request) -> Result<Option<Written>, RequestError> {
        let Some((stat, record)) = requests::read_record(&self.session, &self.path).await? else {
            return Ok(None);
        };
        let token = mode::token(&stat, record.as_ref());
        let ttl = self.session.timeout.min(request.ttl);
        let record = record.unwrap_or_else(|| NodeRecord::new(&request.holder, ttl));
        Ok(Some(Written {
            record,
            token,
            stat,
        }))
    }
}

/// The data of a node.
struct Written {
    record: NodeRecord,
    token: u64,
    /// Of the node with these data.
    stat: Stat,
}

impl Written {
    /// Writes this mode, under the same token. `false`: another program has written the data meanwhile.
    async fn set(
        &mut self,
        node: &OwnNode,
        mode: HoldMode,
        last: Option<u32>,
    ) -> Result<bool, RequestError> {
        self.record.hold = Some(HoldState {
            mode: Some(mode),
            last,
            token: Some(WrittenToken::Number(self.token)),
        });
        let (session, path) = (&node.session, &node.path);
        let version = self.stat.version;
        let Some(stat) = requests::set_record(session, path, &self.record, version).await? else {
            return Ok(false);
        };
        self.stat = stat;
        Ok(true)
    }
}

/// From what the node says by now to an exclusive hold, or back to an upgradable one if the request gives up. `retries`
/// begins anew while the servers answer.
async fn attempt(
    node: &OwnNode,
    request: &Request,
    retries: &mut RetryBudget,
) -> Result<Upgraded, RequestError> {
    let Some(mut written) = node.read(request).await? else {
        return Ok(Upgraded::NoHold);
    };
    if written.record.mode() == Some(HoldMode::Exclusive) {
        // An earlier request was applied, and its reply lost.
        let lease = requests::check_nodes(&node.session, &[&*node.path]).await?;
        return Ok(Upgraded::Granted(written.token, lease));
    }
    if written.record.mode() != Some(HoldMode::Upgrading)
        && !written.set(node, HoldMode::Upgrading, None).await?
    {
        return Ok(Upgraded::Overwritten);
    }
    loop {
        let queue = Queue::read_all(&node.session, &node.dir, node.name()).await?;
        let Some((queue, me)) = queue else {
            return Ok(Upgraded::NoHold);
        };
        let is_said = queue.upgrading.is_some_and(|it| it.last_holder.is_some());
        let last = match is_said {
            true => queue.last_holder(me),
            // Nothing was written after the announcement.
            false => last_holder_before(&queue, me, node, written.stat.mzxid).await?,
        };
        if last == 0 {
            return become_exclusive(node, written).await;
        }
        if !request.wait || request.stop.is_raised() {
            return give_up(node, written).await;
        }
        let behind = queue.children[last].number;
        let behind = behind.wrapping_sub(queue.children[me].number);
        if !is_said
            && !written
                .set(node, HoldMode::Upgrading, Some(behind.unsigned_abs()))
                .await?
        {
            return Ok(Upgraded::Overwritten);
        }
        let other = if last == me { me - 1 } else { last };
        let others = [queue.blocker(&node.dir, other)];
        let watchers = requests::watch_nodes(&node.session, &others).await?;
        *retries = RetryBudget::until(wait::retry_until(request, &node.session));
        if let Some(watchers) = watchers
            && let WakeUp::Stopped = wait::next_wake_up(request, &node.session, watchers).await
        {
            return give_up(node, written).await;
        }
    }
}

/// The last contender that holds, among those with nodes from before the transaction `announced`: since then nothing
/// behind the node is granted, whatever the modes are.
async fn last_holder_before(
    queue: &Queue,
    me: usize,
    node: &OwnNode,
    announced: i64,
) -> Result<usize, RequestError> {
    let mut last = queue.last_holder(me);
    while last > me {
        let path = format!("{}/{}", node.dir, queue.children[last].name);
        match requests::stat(&node.session, &path).await? {
            Some(stat) if stat.czxid < announced => break,
            _ => last -= 1,
        }
    }
    Ok(last)
}

async fn become_exclusive(node: &OwnNode, mut written: Written) -> Result<Upgraded, RequestError> {
    written.record.hold = Some(HoldState {
        mode: Some(HoldMode::Exclusive),
        last: None,
        token: Some(MZXID),
    });
    let OwnNode { session, dir, path } = node;
    let version = Some(written.stat.version);
    let granted = requests::grant_token(session, dir, path, &written.record, version).await;
    match granted {
        Ok(Some((token, lease))) => Ok(Upgraded::Granted(token, lease)),
        Ok(None) => Ok(Upgraded::Overwritten),
        Err(err) if err.is(&ClientError::NoNode) => Ok(Upgraded::NoHold),
        Err(err) => Err(err),
    }
}

async fn give_up(node: &OwnNode, mut written: Written) -> Result<Upgraded, RequestError> {
    match written.set(node, HoldMode::Upgradable, None).await {
        Ok(true) => Ok(Upgraded::Busy),
        Ok(false) => Ok(Upgraded::Overwritten),
        Err(err) if err.is(&ClientError::NoNode) => Ok(Upgraded::NoHold),
        Err(err) => Err(err),
    }
}

/// Makes the hold shared, or upgradable again. `false`: the owner has no hold.
pub(super) async fn downgrade(store: &Store, hold: &Hold, mode: Mode) -> Result<bool, Error> {
    if store.settings.dialect != Dialect::Curator {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the mode of a hold cannot change with this `dialect`: other programs would not see it; leave `dialect` out of the URL",
        ));
    }
    // Other contenders may hold beside this one from now on.
    store.holds.update(hold.owner, |held| held.mode = mode);
    let Some(node) = OwnNode::of(store, hold.owner) else {
        return Ok(false);
    };
    match change(&node, hold, mode).await {
        Err(err) if err.is(&ClientError::NoNode) || err.is_session_over() => Ok(false),
        changed => changed.map_err(|err| node.session.explain(err)),
    }
}

async fn change(node: &OwnNode, hold: &Hold, mode: Mode) -> Result<bool, RequestError> {
    let request = Request::new(hold.name.clone(), hold.owner, hold.ttl);
    let mode = match mode {
        Mode::Upgradable => HoldMode::Upgradable,
        _ => HoldMode::Shared,
    };
    loop {
        let Some(mut written) = node.read(&request).await? else {
            return Ok(false);
        };
        // The token stays that of the guard.
        if hold.token != 0 {
            written.token = hold.token;
        }
        if written.set(node, mode, None).await? {
            return Ok(true);
        }
    }
}
