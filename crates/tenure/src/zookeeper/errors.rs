//! What an error of the client library means: nothing was applied, cannot tell, or refused.

use zookeeper_client::Error as ClientError;

use tenure_core::error::{Error, ErrorKind};

/// Why a request has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestError {
    /// By the server, or by the library for it.
    Client(ClientError),
    /// No answer within the time limit.
    Timeout,
}

impl RequestError {
    /// Whether nobody can tell if the request was applied.
    pub(super) fn is_ambiguous(&self) -> bool {
        !matches!(self, Self::Client(said) if is_definite(said))
    }

    /// The session is over, and all its nodes with it. The request was not applied.
    pub(super) fn is_session_over(&self) -> bool {
        matches!(
            self,
            Self::Client(
                ClientError::SessionExpired | ClientError::ClientClosed | ClientError::AuthFailed
            )
        )
    }

    pub(super) fn is(&self, said: &ClientError) -> bool {
        matches!(self, Self::Client(ours) if ours == said)
    }
}

/// The server has seen the request and refused it, or it was never sent.
fn is_definite(said: &ClientError) -> bool {
    matches!(
        said,
        ClientError::NoNode
            | ClientError::NoAuth
            | ClientError::BadVersion
            | ClientError::NoChildrenForEphemerals
            | ClientError::NodeExists
            | ClientError::NotEmpty
            | ClientError::SessionExpired
            | ClientError::InvalidAcl
            | ClientError::AuthFailed
            | ClientError::SessionMoved
            | ClientError::NotReadOnly
            | ClientError::QuotaExceeded
            | ClientError::Throttled
            | ClientError::MarshallingError
            | ClientError::Unimplemented
            | ClientError::BadArguments(_)
            | ClientError::ClientClosed
    )
}

/// An error after a request was sent. `user`: who we said we are.
pub(super) fn asking(failed: RequestError, user: Option<&str>) -> Error {
    let said = match failed {
        RequestError::Timeout => {
            return Error::new(
                ErrorKind::Indeterminate,
                "no answer in time; whether the request was applied cannot be told",
            );
        }
        RequestError::Client(said) => said,
    };
    let (kind, what) = match &said {
        ClientError::ConnectionLoss => {
            return Error::new(
                ErrorKind::Indeterminate,
                "the connection broke before the answer; whether the request was applied cannot be told",
            );
        }
        ClientError::SessionExpired | ClientError::SessionMoved => {
            return Error::new(
                ErrorKind::Unreachable,
                "the session with the servers ended; retry",
            );
        }
        ClientError::ClientClosed => return Error::new(ErrorKind::Closed, "the client was closed"),
        ClientError::NotReadOnly => {
            return Error::new(
                ErrorKind::Unreachable,
                "the server is cut off from the others and read-only; retry when a majority of them is there",
            );
        }
        ClientError::Throttled => {
            return Error::new(
                ErrorKind::Unreachable,
                "the server is overloaded and took no request; retry",
            );
        }
        ClientError::NoAuth => {
            let whom = match user {
                Some(_) => {
                    "this user may not do that here; the node was made by somebody else (its access list says by whom)"
                }
                None => {
                    "nobody may do that here without a user; write zookeeper://USER:PASSWORD@HOST"
                }
            };
            return Error::new(ErrorKind::Denied, whom);
        }
        ClientError::AuthFailed => {
            return Error::new(
                ErrorKind::Denied,
                "the server refused user or password; they stand before `@` in the URL",
            );
        }
        ClientError::Unimplemented => (
            ErrorKind::Unsupported,
            "the server is too old; locks need ZooKeeper 3.5.3 or newer",
        ),
        ClientError::NoChildrenForEphemerals => (
            ErrorKind::Invalid,
            "a part of the name is a node that ends with its session (names=raw); choose another name",
        ),
        ClientError::QuotaExceeded => (
            ErrorKind::Backend,
            "the quota of a node above is used up; raise it",
        ),
        said if is_definite(said) => (ErrorKind::Backend, "the server refused the request"),
        _ => (
            ErrorKind::Indeterminate,
            "the connection broke before the answer; whether the request was applied cannot be told",
        ),
    };
    Error::new(kind, what).with_source(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_can_tell_is_indeterminate() {
        for unclear in [
            RequestError::Timeout,
            RequestError::Client(ClientError::ConnectionLoss),
            RequestError::Client(ClientError::Timeout),
            RequestError::Client(ClientError::UnexpectedError("x".into())),
            RequestError::Client(ClientError::UnexpectedErrorCode(-3)),
        ] {
            assert!(unclear.is_ambiguous(), "{unclear:?}");
            let err = asking(unclear, None);
            assert_eq!(err.kind(), ErrorKind::Indeterminate, "{err}");
        }
        for (said, kind) in [
            (ClientError::NoAuth, ErrorKind::Denied),
            (ClientError::AuthFailed, ErrorKind::Denied),
            (ClientError::SessionExpired, ErrorKind::Unreachable),
            (ClientError::NotReadOnly, ErrorKind::Unreachable),
            (ClientError::Throttled, ErrorKind::Unreachable),
            (ClientError::Unimplemented, ErrorKind::Unsupported),
            (ClientError::ClientClosed, ErrorKind::Closed),
            (ClientError::NodeExists, ErrorKind::Backend),
        ] {
            let failed = RequestError::Client(said);
            assert!(!failed.is_ambiguous(), "{failed:?}");
            let err = asking(failed, Some("me"));
            assert_eq!(err.kind(), kind, "{err}");
            assert!(!err.to_string().contains('\n'));
        }
    }
}
