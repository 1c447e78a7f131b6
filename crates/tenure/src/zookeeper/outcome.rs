//! What an error of the client library means: nothing was applied, cannot tell, or refused.

use zookeeper_client::Error as Said;

use tenure_core::error::{Error, ErrorKind};

/// Why a request has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// By the server, or by the library for it.
    Said(Said),
    /// No answer within the time limit.
    Silent,
}

impl Failed {
    /// Whether nobody can tell if the request was applied.
    pub(super) fn is_unclear(&self) -> bool {
        !matches!(self, Self::Said(said) if is_definite(said))
    }

    /// The session is over, and all its nodes with it. The request was not applied.
    pub(super) fn is_session_over(&self) -> bool {
        matches!(
            self,
            Self::Said(Said::SessionExpired | Said::ClientClosed | Said::AuthFailed)
        )
    }

    pub(super) fn is(&self, said: &Said) -> bool {
        matches!(self, Self::Said(ours) if ours == said)
    }
}

/// The server has seen the request and refused it, or it was never sent.
fn is_definite(said: &Said) -> bool {
    matches!(
        said,
        Said::NoNode
            | Said::NoAuth
            | Said::BadVersion
            | Said::NoChildrenForEphemerals
            | Said::NodeExists
            | Said::NotEmpty
            | Said::SessionExpired
            | Said::InvalidAcl
            | Said::AuthFailed
            | Said::SessionMoved
            | Said::NotReadOnly
            | Said::QuotaExceeded
            | Said::Throttled
            | Said::MarshallingError
            | Said::Unimplemented
            | Said::BadArguments(_)
            | Said::ClientClosed
    )
}

/// An error after a request was sent. `user`: who we said we are.
pub(super) fn asking(failed: Failed, user: Option<&str>) -> Error {
    let said = match failed {
        Failed::Silent => {
            return Error::new(
                ErrorKind::Indeterminate,
                "no answer in time; whether the request was applied cannot be told",
            );
        }
        Failed::Said(said) => said,
    };
    let (kind, what) = match &said {
        Said::ConnectionLoss => {
            return Error::new(
                ErrorKind::Indeterminate,
                "the connection broke before the answer; whether the request was applied cannot be told",
            );
        }
        Said::SessionExpired | Said::SessionMoved => {
            return Error::new(
                ErrorKind::Unreachable,
                "the session with the servers ended; retry",
            );
        }
        Said::ClientClosed => return Error::new(ErrorKind::Closed, "the client was closed"),
        Said::NotReadOnly => {
            return Error::new(
                ErrorKind::Unreachable,
                "the server is cut off from the others and read-only; retry when a majority of them is there",
            );
        }
        Said::Throttled => {
            return Error::new(
                ErrorKind::Unreachable,
                "the server is overloaded and took no request; retry",
            );
        }
        Said::NoAuth => {
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
        Said::AuthFailed => {
            return Error::new(
                ErrorKind::Denied,
                "the server refused user or password; they stand before `@` in the URL",
            );
        }
        Said::Unimplemented => (
            ErrorKind::Unsupported,
            "the server is too old; locks need ZooKeeper 3.5.3 or newer",
        ),
        Said::NoChildrenForEphemerals => (
            ErrorKind::Invalid,
            "a part of the name is a node that ends with its session (names=raw); choose another name",
        ),
        Said::QuotaExceeded => (
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
            Failed::Silent,
            Failed::Said(Said::ConnectionLoss),
            Failed::Said(Said::Timeout),
            Failed::Said(Said::UnexpectedError("x".into())),
            Failed::Said(Said::UnexpectedErrorCode(-3)),
        ] {
            assert!(unclear.is_unclear(), "{unclear:?}");
            let err = asking(unclear, None);
            assert_eq!(err.kind(), ErrorKind::Indeterminate, "{err}");
        }
        for (said, kind) in [
            (Said::NoAuth, ErrorKind::Denied),
            (Said::AuthFailed, ErrorKind::Denied),
            (Said::SessionExpired, ErrorKind::Unreachable),
            (Said::NotReadOnly, ErrorKind::Unreachable),
            (Said::Throttled, ErrorKind::Unreachable),
            (Said::Unimplemented, ErrorKind::Unsupported),
            (Said::ClientClosed, ErrorKind::Closed),
            (Said::NodeExists, ErrorKind::Backend),
        ] {
            let failed = Failed::Said(said);
            assert!(!failed.is_unclear(), "{failed:?}");
            let err = asking(failed, Some("me"));
            assert_eq!(err.kind(), kind, "{err}");
            assert!(!err.to_string().contains('\n'));
        }
    }
}
