//! Writes that count only while the lock is held.

use std::sync::Arc;

use zookeeper_client::{CheckWriter, CreateMode, Error as Said};

use crate::error::{Error, ErrorKind, Step};

use super::hold::Store;
use super::outcome::Failed;
use super::session::Session;

/// Makes writes in ZooKeeper conditional on a hold: in one transaction with the write the servers check that
/// the node of the hold is there. It goes with the hold, so a late write of a former holder is refused.
///
/// From [`Guard::zookeeper`](crate::Guard::zookeeper). A cheap clone; usable after the guard is gone, and then
/// refused.
///
/// The writes here are one change each. For more in one transaction, put [`check`](Fence::check) in front
/// of your own `multi` with a client of your own:
///
/// ```text
/// let (path, version) = fence.check();
/// let mut multi = client.new_multi_writer();
/// multi.add_check_version(&path, version)?;
/// multi.add_set_data("/app/state", b"..", None)?;
/// multi.commit().await?;
/// ```
///
/// Paths are the server's own: what the URL has after the hosts is not put before them.
#[derive(Clone)]
pub struct Fence {
    pub(super) store: Arc<Store>,
    pub(super) session: Arc<Session>,
    pub(super) path: Arc<str>,
}

/// Why a fenced write has no result.
enum Refused {
    Hold,
    Failed(Failed),
}

impl Fence {
    /// Path and version to be checked in a transaction. The check fails with `NoNode` when the hold is over.
    pub fn check(&self) -> (String, i32) {
        (self.path.to_string(), -1)
    }

    /// Replaces the data of `path`, whatever its version.
    ///
    /// # Cancel safety
    /// The write may be applied when the future was dropped.
    ///
    /// # Errors
    /// `Lost`: the hold is over and nothing was written. `Invalid`: there is no such node. `Denied`, `Unreachable`,
    /// `Indeterminate`, `Backend` as for all requests.
    pub async fn set(&self, path: &str, data: &[u8]) -> Result<(), Error> {
        self.write(path, |writer| writer.add_set_data(path, data, None))
            .await
    }

    /// Makes the node `path`, which stays until it is deleted, with the access list of our own nodes.
    ///
    /// # Cancel safety
    /// The write may be applied when the future was dropped.
    ///
    /// # Errors
    /// As [`set`](Fence::set); `Invalid` when there is such a node, or none above it.
    pub async fn create(&self, path: &str, data: &[u8]) -> Result<(), Error> {
        let options = CreateMode::Persistent.with_acls(self.store.settings.acl.acls());
        self.write(path, |writer| writer.add_create(path, data, &options))
            .await
    }

    /// Deletes the node `path`, whatever its version.
    ///
    /// # Cancel safety
    /// The write may be applied when the future was dropped.
    ///
    /// # Errors
    /// As [`set`](Fence::set); `Invalid` when there is no such node, or others below it.
    pub async fn delete(&self, path: &str) -> Result<(), Error> {
        self.write(path, |writer| writer.add_delete(path, None))
            .await
    }

    async fn write(
        &self,
        path: &str,
        add: impl FnOnce(&mut CheckWriter<'_>) -> Result<(), Said>,
    ) -> Result<(), Error> {
        let client = &self.session.client;
        let sent = self.store.clock.now();
        let written = async {
            let mut writer = client
                .new_check_writer(&self.path, None)
                .map_err(|err| Refused::Failed(Failed::Said(err)))?;
            add(&mut writer).map_err(|err| Refused::Failed(Failed::Said(err)))?;
            let commit = async { Ok(writer.commit().await) };
            match self.store.ask(commit).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(err)) => Err(refused(err)),
                Err(failed) => Err(Refused::Failed(failed)),
            }
        };
        let err = match written.await {
            Ok(()) => {
                self.session.confirm(sent);
                return Ok(());
            }
            Err(Refused::Hold) => {
                let what = "the hold is over, so the write was refused";
                Error::new(ErrorKind::Lost, what)
            }
            Err(Refused::Failed(failed)) if failed.is_session_over() => {
                let what = "the hold is over with its session, so the write was refused";
                Error::new(ErrorKind::Lost, what)
            }
            Err(Refused::Failed(failed)) => match of_the_path(&failed) {
                Some(why) => {
                    let path = crate::name::Escaped(path);
                    Error::new(ErrorKind::Invalid, format!("the node \"{path}\" {why}"))
                }
                None => self.store.explain(failed),
            },
        };
        Err(err.with_backend("zookeeper").with_step(Step::Inspect))
    }
}

/// What is wrong with the path that was to be written.
fn of_the_path(failed: &Failed) -> Option<&'static str> {
    let Failed::Said(said) = failed else {
        return None;
    };
    match said {
        Said::NoNode => Some("is not there, or none above it"),
        Said::NodeExists => Some("is there already"),
        Said::NotEmpty => Some("has others below it"),
        Said::BadArguments(_) => Some("has a path that cannot be"),
        Said::NoChildrenForEphemerals => Some("lies under one that ends with its session"),
        _ => None,
    }
}

fn refused(err: zookeeper_client::CheckWriteError) -> Refused {
    use zookeeper_client::CheckWriteError as Check;
    match err {
        Check::CheckFailed { .. } => Refused::Hold,
        Check::RequestFailed { source } | Check::OperationFailed { source, .. } => {
            Refused::Failed(Failed::Said(source))
        }
    }
}

impl std::fmt::Debug for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Fence").field(&self.path).finish()
    }
}
