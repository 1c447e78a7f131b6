//! Errors that several stores have.

use crate::error::{Error, ErrorKind, ErrorParts as _};

/// The error of a request that comes after [`Client::close`](crate::Client::close).
pub fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client was closed")
}

/// What became of the request to leave the queue that ended with `err`. What the waiter has there may be left over, so
/// the outcome is unknown.
pub fn not_left(err: Error) -> Error {
    let what = match err.kind() {
        ErrorKind::Indeterminate | ErrorKind::Unreachable | ErrorKind::Closed => {
            "no answer to the request to leave the queue"
        }
        _ => "the server refused the request to leave the queue; the place there ends by itself",
    };
    Error::new(ErrorKind::Indeterminate, what).with_source(err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_an_answer() {
        for (kind, word) in [
            (ErrorKind::Indeterminate, "no answer"),
            (ErrorKind::Unreachable, "no answer"),
            (ErrorKind::Denied, "refused"),
            (ErrorKind::Store, "refused"),
        ] {
            let err = not_left(Error::new(kind, "the reply"));
            assert_eq!(err.kind(), ErrorKind::Indeterminate);
            assert!(format!("{err:#}").contains(word), "{err}");
        }
    }
}
