//! One acquisition: the node is made, and the hold is granted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use zookeeper_client::Stat;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::Mode;
use tenure_core::queue::{self, Acquisition, Created, Position, is_temporary};
use tenure_core::store::{Answer, Hold, Request};
use tenure_core::support::RetryBudget;

use super::cache::CacheAnswer;
use super::contact::LeasePeriod;
use super::directory_data;
use super::enqueue;
use super::errors::{ClientError, RequestError};
use super::mode::{ChangedHold, MZXID, NodeRecord};
use super::names::{self, Dialect};
use super::node_data::check_value;
use super::queue::Ahead;
use super::release;
use super::renew;
use super::requests;
use super::semaphore;
use super::session::Session;
use super::store::Store;
use super::wait::{Operation, QueueEntry};

pub(super) async fn acquire(store: &Arc<Store>, request: &Request) -> Result<Answer, Error> {
    let dialect = store.settings.dialect;
    check_mode(dialect, request.mode)?;
    check_value(dialect, &request.holder)?;
    queue::acquire(&Operation::new(store, request, 0)).await
}

/// The modes that other programs with the same node names know.
fn check_mode(dialect: Dialect, mode: Mode) -> Result<(), Error> {
    let what = match (dialect, mode) {
        (Dialect::Curator, _)
        | (Dialect::ReadWrite, Mode::Exclusive | Mode::Shared)
        | (Dialect::Semaphore, Mode::Permits { .. })
        | (Dialect::SessionPrefix | Dialect::Selector | Dialect::Latch, Mode::Exclusive) => {
            return Ok(());
        }
        (Dialect::ReadWrite, _) => {
            "dialect=curator-readwrite has exclusive and shared locks only; leave `dialect` out of the URL"
        }
        (Dialect::Semaphore, _) => {
            "dialect=curator-semaphore has permits only; permits(1) exclude each other"
        }
        (Dialect::SessionPrefix, _) => {
            "dialect=session-prefix has exclusive locks only; leave `dialect` out of the URL"
        }
        (Dialect::Selector | Dialect::Latch, _) => {
            "dialect=curator-selector and dialect=curator-latch have exclusive locks only; leave `dialect` out of the URL"
        }
    };
    Err(Error::new(ErrorKind::Unsupported, what))
}

impl Acquisition for Operation<'_> {
    async fn create(&self) -> Result<Created<QueueEntry, Ahead>, Error> {
        let Self { store, request, .. } = self;
        let mut dir = store.directory(&request.name)?;
        if store.settings.dialect == Dialect::Semaphore {
            dir = names::semaphore_locks(&dir);
        }
        let session = store.sessions.for_lease(request.ttl, Some(&dir)).await?;
        check_lease(&session, request).inspect_err(|_| session.vacate(&dir))?;
        let entry = match enqueue::enqueue(store, request, &session, &dir).await {
            Ok(entry) => entry,
            // The session had ended unnoticed, and its nodes with it: the request is sent once more, in a new session.
            Err(err)
                if is_temporary(&err)
                    && session.is_over()
                    && !self.has_new_session.swap(true, Ordering::Relaxed) =>
            {
                release::remove(store, request.owner);
                return Ok(Created::Again);
            }
            Err(err) => return Err(err),
        };
        let position = first_position(&entry, request.mode).await;
        Ok(Created::Entry(entry, position))
    }

    async fn grant(&self, entry: &QueueEntry, last_token: u64) -> Result<Option<Answer>, Error> {
        let lease = match self.request.wait && !self.is_new(entry) {
            // If less than half of the lease is left and there is time, a new lease begins.
            true => self.confirm_turn(entry).await?,
            false => Some(entry.lease),
        };
        let Some(lease) = lease else { return Ok(None) };
        if self.store.settings.dialect == Dialect::Semaphore {
            // In a box, as below, since every request would have to have room for a future that is rare.
            return Box::pin(semaphore::take_permit(self, entry)).await;
        }
        if last_token <= entry.node.token {
            let answer = renew::granted(self.store, self.request, &entry.node, lease);
            return Ok(Some(answer));
        }
        match self.store.settings.dialect.has_bare_values() {
            true => Box::pin(grant_unless_older(self, entry, lease)).await,
            false => Box::pin(grant_with_new_token(self, entry)).await,
        }
    }

    async fn leave(&self) -> Result<(), Error> {
        let left = release::release(self.store, &Hold::new(self.request, 0)).await;
        left.map(drop)
    }
}

fn check_lease(session: &Session, request: &Request) -> Result<(), Error> {
    let lease = session.whole_lease();
    if lease >= request.min_lease {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!(
            "the servers keep a silent session for {:?} (maxSessionTimeout), which makes leases of {lease:?}, and {:?} was asked for; lower `ttl`",
            session.timeout, request.min_lease
        ),
    ))
}

/// The position of a node that was just made, if it is known without a list.
async fn first_position(entry: &QueueEntry, mode: Mode) -> Option<Position<Ahead>> {
    let known = entry.session.cache.look_up(&entry.dir, entry.node.number);
    if known == CacheAnswer::IsNext && mode == Mode::Exclusive {
        return Some(Position::Held { last_token: 0 });
    }
    if known == CacheAnswer::Unknown
        && let Ok(Some(directory)) = stat_and_watch(entry).await
        // More contenders may come at any time, behind us.
        && directory.num_children == 1
    {
        let last_token = directory.mzxid.unsigned_abs();
        return Some(Position::Held { last_token });
    }
    None
}

/// The state of the directory; `None`: this user may not read it. Sets a watch on the directory. By the watch the next
/// acquisition knows whether the directory is still the same one (see [`cache`](super::cache)).
async fn stat_and_watch(entry: &QueueEntry) -> Result<Option<Stat>, RequestError> {
    match requests::watch_directory(&entry.session, &entry.dir).await {
        Ok(Some((stat, watcher))) => {
            entry.session.cache.insert(&entry.dir, watcher);
            Ok(Some(stat))
        }
        Ok(None) => Ok(None),
        // This user may not read the directory. The request for its children will report whether that is allowed.
        Err(err) if err.is(&ClientError::NoAuth) => Ok(None),
        Err(err) => Err(err),
    }
}

/// Grants what the node has, unless there was a greater token. A bare value has no place for another token, so then the
/// contender queues again, with a new node behind all others.
async fn grant_unless_older(
    operation: &Operation<'_>,
    entry: &QueueEntry,
    lease: LeasePeriod,
) -> Result<Option<Answer>, Error> {
    let Operation { store, request, .. } = operation;
    let (session, node) = (&entry.session, &entry.node);
    match directory_data::last_token_of(session, &entry.dir).await {
        Ok(last) if last <= node.token => {
            let answer = renew::granted(store, request, node, lease);
            Ok(Some(answer))
        }
        Ok(_) => Ok(None),
        Err(err) if err.is(&ClientError::NoNode) => Ok(None),
        Err(err) => Err(session.explain(err)),
    }
}

/// Grants what the node has, under a token that is new: since the node was made, a hold was upgraded.
async fn grant_with_new_token(
    operation: &Operation<'_>,
    entry: &QueueEntry,
) -> Result<Option<Answer>, Error> {
    let Operation { store, request, .. } = operation;
    let (session, clock) = (&entry.session, &store.clock);
    let mut record = NodeRecord::new(&request.holder, session.timeout.min(request.ttl));
    record.hold = Some(ChangedHold {
        mode: None,
        last: None,
        token: Some(MZXID),
    });
    let mut retries = RetryBudget::until(clock.now().after(request.ttl));
    loop {
        let (dir, path) = (&entry.dir, &entry.node.path);
        let written = requests::grant_token(session, dir, path, &record, None).await;
        let err = match written {
            Ok(Some((token, lease))) => {
                let node = entry.node.with_token(token);
                return Ok(Some(renew::granted(store, request, &node, lease)));
            }
            Ok(None) => unreachable!("BUG: any version will do"),
            Err(err) if err.is(&ClientError::NoNode) => return Ok(None),
            Err(err) => err,
        };
        if !err.is_ambiguous() || request.stop.is_raised() || retries.is_spent(clock) {
            return Err(session.explain(err));
        }
        let _ = request.unless_stopped(retries.pause(clock)).await;
    }
}
