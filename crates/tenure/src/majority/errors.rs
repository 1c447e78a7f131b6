//! One error for the errors of several nodes.

use std::time::Duration;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};

/// The error of a request that found no majority: `Indeterminate` if that of one node is, else the kind of the first
/// error. `what` says what the nodes did.
pub(super) fn no_majority(errors: Vec<Error>, nodes: usize, what: &str) -> Error {
    let count = errors.len();
    let is_ambiguous = |err: &Error| err.kind() == ErrorKind::Indeterminate;
    let at = errors.iter().position(is_ambiguous).unwrap_or(0);
    match errors.into_iter().nth(at) {
        Some(err) => Error::new(
            err.kind(),
            format!("{count} of {nodes} nodes {what}, so there is no majority"),
        )
        .with_restart_guard(err.restart_guard().cloned())
        .with_source(err),
        None => Error::new(
            ErrorKind::Unreachable,
            format!("too few of {nodes} nodes {what}"),
        ),
    }
}

/// The error of one node that was silent for `timeout`.
pub(super) fn no_answer(timeout: Duration) -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        format!("the node did not answer within {timeout:?}"),
    )
    .with_timeout()
}

/// The answer of a node that has granted, to an acquisition that was given up.
pub(super) fn still_granted() -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        "the acquisition was given up while the node was to raise the token",
    )
}
