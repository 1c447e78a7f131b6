//! Errors of several nodes as one.

use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};

/// One error for what several nodes said: unclear if one of them is, else what the first said.
pub(super) fn merged(errors: Vec<Error>, nodes: usize, what: &str) -> Error {
    let count = errors.len();
    let unclear = |err: &Error| err.kind() == ErrorKind::Indeterminate;
    let at = errors.iter().position(unclear).unwrap_or(0);
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

pub(super) fn no_answer(limit: Duration) -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        format!("the node did not answer within {limit:?}"),
    )
}
