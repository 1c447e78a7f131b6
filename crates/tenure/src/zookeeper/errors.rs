//! What errors of the client library mean: whether the request was applied, what is wrong, and how to correct that.

pub(super) use zookeeper_client::Error as ClientError;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};

/// Why a request has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestError {
    /// An error of the server, or of the library.
    Client(ClientError),
    /// No reply within the time limit.
    Timeout,
}

impl RequestError {
    /// Whether the request may have been applied.
    pub(super) fn is_ambiguous(&self) -> bool {
        !matches!(self, Self::Client(err) if is_definite(err))
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

    pub(super) fn is(&self, err: &ClientError) -> bool {
        matches!(self, Self::Client(ours) if ours == err)
    }

    /// The same for the user. `user`: the name under which the client authenticates.
    pub(super) fn explain(self, user: Option<&str>) -> Error {
        let Self::Client(err) = self else {
            return Error::new(
                ErrorKind::Indeterminate,
                "no answer in time; whether the request was applied cannot be told",
            )
            .with_timeout();
        };
        if let Some((kind, what)) = meaning(&err, user) {
            return Error::new(kind, what).with_quoted_source(err, "");
        }
        let (kind, what) = match &err {
            ClientError::Unimplemented => (
                ErrorKind::Unsupported,
                "the server is too old; locks need ZooKeeper 3.5.3 or newer",
            ),
            ClientError::NoChildrenForEphemerals => (
                ErrorKind::Invalid,
                "a part of the name is a node that ends with its session (names=raw); choose another name",
            ),
            ClientError::QuotaExceeded => (
                ErrorKind::Store,
                "the quota of a node above is used up; raise it",
            ),
            err if is_definite(err) => (ErrorKind::Store, "the server refused the request"),
            _ => (ErrorKind::Indeterminate, CONNECTION_LOST),
        };
        Error::new(kind, what).with_source(err)
    }
}

const CONNECTION_LOST: &str =
    "the connection broke before the answer; whether the request was applied cannot be told";

/// The server has seen the request and refused it, or it was never sent.
fn is_definite(err: &ClientError) -> bool {
    matches!(
        err,
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

/// The errors whose text says everything; those of all others have the error of the library as their source.
fn meaning(err: &ClientError, user: Option<&str>) -> Option<(ErrorKind, &'static str)> {
    let (kind, what) = match err {
        ClientError::ConnectionLoss => (ErrorKind::Indeterminate, CONNECTION_LOST),
        ClientError::SessionExpired | ClientError::SessionMoved => (
            ErrorKind::Unreachable,
            "the session with the servers ended; retry",
        ),
        ClientError::ClientClosed => (ErrorKind::Closed, "the client was closed"),
        ClientError::NotReadOnly => (
            ErrorKind::Unreachable,
            "the server is cut off from the others and read-only; retry when a majority of them is there",
        ),
        ClientError::Throttled => (
            ErrorKind::Unreachable,
            "the server is overloaded and took no request; retry",
        ),
        ClientError::NoAuth if user.is_some() => (
            ErrorKind::Denied,
            "this user may not do that here; another user made the node (its access list says which one)",
        ),
        ClientError::NoAuth => (
            ErrorKind::Denied,
            "only a user may do that here; write zookeeper://USER:PASSWORD@HOST",
        ),
        ClientError::AuthFailed => (
            ErrorKind::Denied,
            "the server refused user or password; both stand before `@` in the URL",
        ),
        _ => return None,
    };
    Some((kind, what))
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
            let err = unclear.explain(None);
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
            (ClientError::NodeExists, ErrorKind::Store),
        ] {
            let failed = RequestError::Client(said);
            assert!(!failed.is_ambiguous(), "{failed:?}");
            let err = failed.explain(Some("me"));
            assert_eq!(err.kind(), kind, "{err}");
            assert!(!format!("{err:#}").contains('\n'));
        }
    }
}
