//! One watch: what was deleted in a directory, or the end of one key, from now on.

use futures_util::{StreamExt as _, stream};
use tokio::sync::oneshot;
use tonic::Streaming;

use tenure_core::time::Time;

use super::connection::Connection;
use super::errors::{self, Recovery, RequestError};
use super::names::Directory;
use super::store::Store;
use super::wire::{self, WatchResponse, path};

/// Dropped, it ends, here and in the server.
pub(super) struct Watch {
    pub(super) line: Connection,
    answers: Streaming<WatchResponse>,
    /// Dropped, it ends our side of the stream, and the server ends its side.
    _open: oneshot::Sender<()>,
    /// It tells whatever happens after this revision.
    pub(super) after: i64,
}

/// What a watch says.
pub(super) struct Deletions {
    /// Keys that were deleted, in the order of their end, each with the revision of that.
    pub(super) deleted: Vec<(Vec<u8>, i64)>,
}

impl Store {
    /// Watches from now on: a watch that starts in the past is served with a delay.
    pub(super) async fn watch(
        &self,
        directory: &Directory,
        only: Option<&[u8]>,
    ) -> Result<Watch, RequestError> {
        let (key, range_end) = match only {
            Some(key) => (key.to_vec(), Vec::new()),
            None => (directory.start().to_vec(), directory.end()),
        };
        let create = wire::Watch {
            create: Some(wire::WatchCreate {
                key,
                range_end,
                // Whoever comes now stands behind us.
                filters: vec![0],
            }),
        };
        let (open, closed) = oneshot::channel();
        let messages = stream::iter([create]).chain(stream::pending());
        let messages = messages.take_until(closed);
        let (line, mut answers) = self.link.stream(path::WATCH, messages).await?;
        let limit = self.clock.now().after(self.settings.timeout);
        let answer: WatchResponse = self.link.next(&line, &mut answers, limit).await?;
        if answer.canceled {
            return Err(refused(&answer));
        }
        let after = answer.header.map_or(0, |header| header.revision);
        if !answer.created || after == 0 {
            return Err(RequestError {
                error: errors::nonsense(),
                cure: Recovery::None,
            });
        }
        Ok(Watch {
            line,
            answers,
            _open: open,
            after,
        })
    }

    /// What the watch says next. Cancel safe.
    pub(super) async fn told(&self, watch: &mut Watch) -> Result<Deletions, RequestError> {
        let next = self.link.next(&watch.line, &mut watch.answers, Time::MAX);
        let answer = next.await?;
        if answer.canceled {
            return Err(refused(&answer));
        }
        let deleted = answer.events.into_iter().filter(|event| event.kind == 1);
        let deleted = deleted.filter_map(|event| event.kv);
        Ok(Deletions {
            deleted: deleted.map(|kv| (kv.key, kv.mod_revision)).collect(),
        })
    }
}

/// The server ended the watch: what it would have said was compacted away, or it would not have us.
fn refused(answer: &WatchResponse) -> RequestError {
    let kind = match answer.cancel_reason.contains("permission denied") {
        true => tenure_core::error::ErrorKind::Denied,
        false => tenure_core::error::ErrorKind::Unreachable,
    };
    let reason = tenure_core::name::Escaped(&answer.cancel_reason);
    RequestError::new(
        kind,
        Recovery::None,
        format!("the server ended the watch: {reason}"),
    )
}
