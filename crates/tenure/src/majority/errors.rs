//! One error for the errors of several nodes.

use std::time::Duration;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::logic::quorum::majority;

/// The error of a request that found no majority. `what` says what the nodes did.
///
/// Its kind is `Indeterminate` if that of one node is, because a part may have been done. Nodes that refuse for good are
/// tolerated while the others are a majority: then an error that retrying ends decides. Else the first error does.
pub(super) fn no_majority(errors: Vec<Error>, nodes: usize, what: &str) -> Error {
    let count = errors.len();
    let lasting = errors.iter().filter(|err| !err.is_retryable()).count();
    let is_enough_without_them = lasting + majority(nodes) <= nodes;
    let is_ambiguous = |err: &Error| err.kind() == ErrorKind::Indeterminate;
    let passes = |err: &Error| is_enough_without_them && err.is_retryable();
    let ambiguous = errors.iter().position(is_ambiguous);
    let deciding = ambiguous.or_else(|| errors.iter().position(passes));
    match errors.into_iter().nth(deciding.unwrap_or(0)) {
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
    silent(ErrorKind::Indeterminate, timeout)
}

/// The same for a request that changes nothing.
pub(super) fn no_answer_to_read(timeout: Duration) -> Error {
    silent(ErrorKind::Unreachable, timeout)
}

fn silent(kind: ErrorKind, timeout: Duration) -> Error {
    Error::new(kind, format!("the node did not answer within {timeout:?}")).with_timeout()
}

/// The answer of a node that has granted, to an acquisition that was given up.
pub(super) fn still_granted() -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        "the acquisition was given up while the node was to raise the token",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_refuse_decide_only_if_the_others_are_no_majority() {
        use ErrorKind::{Denied, Indeterminate, Unreachable};
        let kind = |kinds: &[ErrorKind], nodes| {
            let errors = kinds.iter().map(|kind| Error::new(*kind, "no"));
            no_majority(errors.collect(), nodes, "failed").kind()
        };
        assert_eq!(kind(&[Denied, Unreachable], 3), Unreachable);
        assert_eq!(kind(&[Denied, Denied], 3), Denied);
        assert_eq!(kind(&[Denied, Denied, Unreachable], 3), Denied);
        assert_eq!(kind(&[Denied, Denied, Unreachable], 5), Unreachable);
        assert_eq!(
            kind(&[Denied, Unreachable, Indeterminate], 3),
            Indeterminate
        );
        assert_eq!(kind(&[], 3), Unreachable);
    }
}
