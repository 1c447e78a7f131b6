//! Writes that count only while the lock is held: in one transaction with the write the servers check that the
//! nodes of the holds are there.

use std::sync::Arc;

use zookeeper_client::{CreateMode, Error as ClientError, MultiWriteError, MultiWriter};

use tenure_core::backend::Hold;
use tenure_core::error::{Error, ErrorKind};
use tenure_core::name::Escaped;

use super::errors::RequestError;
use super::hold::Store;
use super::session::Session;

/// How often a node may be made and deleted by others while we try to set it.
const MAX_ATTEMPTS: u32 = 8;

/// What a transaction comes to.
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

impl Store {
    /// `key` is the path of a node, as the servers have it; a new one stays until it is deleted.
    pub(super) async fn write(
        self: &Arc<Self>,
        holds: &[Hold],
        key: &str,
        value: Option<&[u8]>,
    ) -> Result<bool, Error> {
        let kept: Option<Vec<_>> = holds
            .iter()
            .map(|hold| self.kept(hold.owner)?.node())
            .collect();
        let Some(((session, _), kept)) = kept.as_ref().and_then(|kept| Some((kept.first()?, kept)))
        else {
            return Ok(false);
        };
        let paths: Vec<_> = kept.iter().map(|(_, path)| &**path).collect();
        let mut change = value.map_or(Change::Delete, Change::Set);
        for _ in 0..MAX_ATTEMPTS {
            let wrong = match self.transact(session, &paths, key, change).await {
                Ok(WriteOutcome::Applied) => return Ok(true),
                Ok(WriteOutcome::NotHeld) => return Ok(false),
                Ok(WriteOutcome::Refused(wrong)) => wrong,
                // All holds of that session are over, and nothing was applied.
                Err(failed) if failed.is_session_over() => return Ok(false),
                Err(failed) => return Err(self.explain(failed)),
            };
            change = match (change, wrong) {
                (Change::Delete, ClientError::NoNode) => return Ok(true),
                (Change::Set(value), ClientError::NoNode) => Change::Create(value),
                (Change::Create(value), ClientError::NodeExists) => Change::Set(value),
                (_, wrong) => return Err(self.unfit(key, wrong)),
            };
        }
        let what = "others make and delete that node all the time; retry";
        Err(Error::new(ErrorKind::Unreachable, what))
    }

    async fn transact(
        &self,
        session: &Session,
        holds: &[&str],
        key: &str,
        change: Change<'_>,
    ) -> Result<WriteOutcome, RequestError> {
        let lease = self.begin_lease(session);
        let mut writer = session.client.new_multi_writer();
        for path in holds {
            writer
                .add_check_version(path, -1)
                .map_err(RequestError::Client)?;
        }
        if let Err(wrong) = self.add(&mut writer, key, change) {
            return Ok(WriteOutcome::Refused(wrong));
        }
        let commit = writer.commit();
        match self.ask(async { Ok(commit.await) }).await? {
            Ok(_) => {
                session.confirm(lease);
                Ok(WriteOutcome::Applied)
            }
            Err(MultiWriteError::OperationFailed { index, .. }) if index < holds.len() => {
                Ok(WriteOutcome::NotHeld)
            }
            Err(MultiWriteError::OperationFailed { source, .. }) => {
                Ok(WriteOutcome::Refused(source))
            }
            Err(MultiWriteError::RequestFailed { source }) => Err(RequestError::Client(source)),
        }
    }

    fn add(
        &self,
        writer: &mut MultiWriter<'_>,
        key: &str,
        change: Change<'_>,
    ) -> Result<(), ClientError> {
        match change {
            Change::Set(value) => writer.add_set_data(key, value, None),
            Change::Create(value) => {
                let stays = CreateMode::Persistent.with_acls(self.settings.acl.acls());
                writer.add_create(key, value, &stays)
            }
            Change::Delete => writer.add_delete(key, None),
        }
    }

    fn unfit(&self, key: &str, wrong: ClientError) -> Error {
        let why = match &wrong {
            ClientError::BadArguments(_) => "is no path of ZooKeeper; write it as /app/total",
            ClientError::NoNode => "has no node above it; make that first",
            ClientError::NotEmpty => "has nodes below it; delete those first",
            ClientError::NoChildrenForEphemerals => "lies under a node that goes with its session",
            _ => return self.explain(RequestError::Client(wrong)),
        };
        Error::new(ErrorKind::Invalid, format!("\"{}\" {why}", Escaped(key)))
    }
}
