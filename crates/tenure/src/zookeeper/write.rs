//! Writes that count only while the lock is held: in one transaction with the write the servers check that the
//! nodes of the holds are there.

use std::sync::Arc;

use zookeeper_client::{CreateMode, MultiWriteError};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::{Condition, ZooKeeperCheck};
use tenure_core::name::Escaped;
use tenure_core::store::{BoxFuture, GuardedWrite, Hold};

use super::errors::{ClientError, RequestError};
use super::requests;
use super::session::Session;
use super::store::{ContenderNode, Store};

impl GuardedWrite for Store {
    fn write(
        self: Arc<Self>,
        holds: Vec<Hold>,
        key: String,
        value: Option<Vec<u8>>,
    ) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { write(&self, &holds, &key, value.as_deref()).await })
    }

    fn condition(&self, hold: &Hold) -> Option<Condition> {
        let (_, path) = self.holds.get(hold.owner)?.node()?;
        // Any version, as in `requests::checks`.
        Some(Condition::ZooKeeper(ZooKeeperCheck::new(&*path, -1)))
    }
}

/// How often other programs may make and delete a node while we try to set it.
const MAX_ATTEMPTS: u32 = 8;

/// The outcome of a transaction.
enum WriteOutcome {
    Applied,
    /// A hold is over.
    NotHeld,
    /// The node that was to be written does not fit.
    Refused(ClientError),
}

/// The change that is to be made.
#[derive(Clone, Copy)]
enum Change<'a> {
    Set(&'a [u8]),
    Create(&'a [u8]),
    Delete,
}

/// `key` is the path of a node, as the servers have it; a new node stays until it is deleted.
pub(super) async fn write(
    store: &Store,
    holds: &[Hold],
    key: &str,
    value: Option<&[u8]>,
) -> Result<bool, Error> {
    let nodes: Option<Vec<_>> = holds
        .iter()
        .map(|hold| store.holds.get(hold.owner).and_then(ContenderNode::node))
        .collect();
    let nodes = nodes.unwrap_or_default();
    let Some((session, _)) = nodes.first() else {
        return Ok(false);
    };
    let paths: Vec<_> = nodes.iter().map(|(_, path)| &**path).collect();
    let mut change = value.map_or(Change::Delete, Change::Set);
    for _ in 0..MAX_ATTEMPTS {
        let refusal = match transact(session, &paths, key, change).await {
            Ok(WriteOutcome::Applied) => return Ok(true),
            Ok(WriteOutcome::NotHeld) => return Ok(false),
            Ok(WriteOutcome::Refused(refusal)) => refusal,
            // All holds of that session are over, and nothing was applied.
            Err(err) if err.is_session_over() => return Ok(false),
            Err(err) => return Err(session.explain(err)),
        };
        change = match (change, refusal) {
            (Change::Delete, ClientError::NoNode) => return Ok(true),
            (Change::Set(value), ClientError::NoNode) => Change::Create(value),
            (Change::Create(value), ClientError::NodeExists) => Change::Set(value),
            (_, refusal) => return Err(explain(session, key, refusal)),
        };
    }
    let what = "other programs make and delete that node again and again; retry";
    Err(Error::new(ErrorKind::Unreachable, what))
}

async fn transact(
    session: &Session,
    holds: &[&str],
    key: &str,
    change: Change<'_>,
) -> Result<WriteOutcome, RequestError> {
    let lease = session.begin_lease();
    let mut writer = requests::checks(session, holds)?;
    let added = match change {
        Change::Set(value) => writer.add_set_data(key, value, None),
        Change::Create(value) => {
            let options = CreateMode::Persistent.with_acls(session.settings().acl.acls());
            writer.add_create(key, value, &options)
        }
        Change::Delete => writer.add_delete(key, None),
    };
    if let Err(refusal) = added {
        return Ok(WriteOutcome::Refused(refusal));
    }
    let commit = writer.commit();
    match session.reply_to(async { Ok(commit.await) }).await? {
        Ok(_) => {
            session.confirm(lease);
            Ok(WriteOutcome::Applied)
        }
        Err(MultiWriteError::OperationFailed { index, .. }) if index < holds.len() => {
            Ok(WriteOutcome::NotHeld)
        }
        Err(MultiWriteError::OperationFailed { source, .. }) => Ok(WriteOutcome::Refused(source)),
        Err(MultiWriteError::RequestFailed { source }) => Err(RequestError::Client(source)),
    }
}

fn explain(session: &Session, key: &str, refusal: ClientError) -> Error {
    let why = match &refusal {
        ClientError::BadArguments(_) => "is no path of ZooKeeper; write it as /app/total",
        ClientError::NoNode => "has no parent node; make the parent first",
        ClientError::NotEmpty => "has children; delete the children first",
        ClientError::NoChildrenForEphemerals => "lies under a node that goes with its session",
        _ => return session.explain(RequestError::Client(refusal)),
    };
    Error::new(ErrorKind::Invalid, format!("\"{}\" {why}", Escaped(key)))
}
