//! Writes that count only while the lock is held: in one transaction with the write the servers check that the
//! nodes of the holds are there.

use std::sync::Arc;

use zookeeper_client::{CreateMode, Error as Said, MultiWriteError, MultiWriter};

use tenure_core::backend::Hold;
use tenure_core::error::{Error, ErrorKind};
use tenure_core::name::Escaped;

use super::hold::Store;
use super::outcome::Failed;
use super::session::Session;

/// How often a node may be made and deleted by others while we try to set it.
const TRIES: u32 = 8;

/// What a transaction comes to.
enum Written {
    Yes,
    /// A hold is over.
    NotHeld,
    /// The node that was to be written does not fit.
    Other(Said),
}

/// The change that is to be made.
#[derive(Clone, Copy)]
enum Change<'a> {
    Set(&'a [u8]),
    Make(&'a [u8]),
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
        for _ in 0..TRIES {
            let wrong = match self.transact(session, &paths, key, change).await {
                Ok(Written::Yes) => return Ok(true),
                Ok(Written::NotHeld) => return Ok(false),
                Ok(Written::Other(wrong)) => wrong,
                // All holds of that session are over, and nothing was applied.
                Err(failed) if failed.is_session_over() => return Ok(false),
                Err(failed) => return Err(self.explain(failed)),
            };
            change = match (change, wrong) {
                (Change::Delete, Said::NoNode) => return Ok(true),
                (Change::Set(value), Said::NoNode) => Change::Make(value),
                (Change::Make(value), Said::NodeExists) => Change::Set(value),
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
    ) -> Result<Written, Failed> {
        let lease = self.begin_lease(session);
        let mut writer = session.client.new_multi_writer();
        for path in holds {
            writer.add_check_version(path, -1).map_err(Failed::Said)?;
        }
        if let Err(wrong) = self.add(&mut writer, key, change) {
            return Ok(Written::Other(wrong));
        }
        let commit = writer.commit();
        match self.ask(async { Ok(commit.await) }).await? {
            Ok(_) => {
                session.confirm(lease);
                Ok(Written::Yes)
            }
            Err(MultiWriteError::OperationFailed { index, .. }) if index < holds.len() => {
                Ok(Written::NotHeld)
            }
            Err(MultiWriteError::OperationFailed { source, .. }) => Ok(Written::Other(source)),
            Err(MultiWriteError::RequestFailed { source }) => Err(Failed::Said(source)),
        }
    }

    fn add(&self, writer: &mut MultiWriter<'_>, key: &str, change: Change<'_>) -> Result<(), Said> {
        match change {
            Change::Set(value) => writer.add_set_data(key, value, None),
            Change::Make(value) => {
                let stays = CreateMode::Persistent.with_acls(self.settings.acl.acls());
                writer.add_create(key, value, &stays)
            }
            Change::Delete => writer.add_delete(key, None),
        }
    }

    fn unfit(&self, key: &str, wrong: Said) -> Error {
        let why = match &wrong {
            Said::BadArguments(_) => "is no path of ZooKeeper; write it as /app/total",
            Said::NoNode => "has no node above it; make that first",
            Said::NotEmpty => "has nodes below it; delete those first",
            Said::NoChildrenForEphemerals => "lies under a node that goes with its session",
            _ => return self.explain(Failed::Said(wrong)),
        };
        Error::new(ErrorKind::Invalid, format!("\"{}\" {why}", Escaped(key)))
    }
}
