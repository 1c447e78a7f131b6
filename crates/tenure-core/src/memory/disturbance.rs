//! What a test can do to requests, and the errors that come of it.

use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// What a test can do to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Disturbance {
    /// The request does not reach the store: `Unreachable`.
    RequestLost,
    /// The request is applied, and the reply does not come back: `Indeterminate`.
    ReplyLost,
    /// The request is applied, and no reply comes until the request is stopped or the store is
    /// [resumed](super::Store::resume): then `Indeterminate`.
    ReplyNever,
    /// The request reaches the store this much later.
    Late(Duration),
}

/// The store was restarted, and may have forgotten a holder.
pub(super) fn restarted_lately(left: Duration) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "the store was restarted and may have forgotten holds; it grants nothing for another {left:.0?}"
        ),
    )
}

pub(super) fn reply_lost() -> Error {
    Error::new(ErrorKind::Indeterminate, "the reply was lost, as scripted")
}
