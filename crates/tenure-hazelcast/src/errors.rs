//! What an error means: that nothing was applied, that the outcome is unknown, or that the server refused.

use std::fmt::Display;
use std::io;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::name::Escaped;

use crate::messages::ServerError;

/// Why a request has no result.
#[derive(Clone, Debug)]
pub(crate) enum RequestError {
    /// The server has refused the request, and has done nothing.
    Refused(Refusal),
    /// Nothing was sent.
    NotSent(Error),
    /// The request may have been applied, or may be applied later.
    Unknown(Error),
}

/// Why the server has refused a request.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// The session is over, and so is what it held.
    SessionOver,
    /// The wait was cancelled.
    WaitCancelled,
    /// The endpoint does not have the lock.
    NotOwner,
    /// The lock was destroyed by `FencedLock.destroy`: that name can never be taken again in this group.
    LockDestroyed,
    /// The CP group was destroyed, or the CP subsystem was reset, and all locks with it.
    GroupDestroyed,
    /// Any other reason.
    Other(Error),
}

impl From<RequestError> for Error {
    fn from(err: RequestError) -> Self {
        match err {
            RequestError::NotSent(err) | RequestError::Unknown(err) => err,
            RequestError::Refused(refusal) => refusal.into(),
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let message = match refusal {
            Refusal::SessionOver => "the session in Hazelcast has expired or was closed",
            Refusal::WaitCancelled => "the wait was cancelled in Hazelcast",
            Refusal::NotOwner => "Hazelcast says that the lock is not held",
            Refusal::LockDestroyed => {
                "the lock was destroyed by `FencedLock.destroy` of a Java program; that name cannot be locked in this group any more: use another name or group"
            }
            Refusal::GroupDestroyed => {
                "the CP group was destroyed, or the CP subsystem was reset; connect again"
            }
            Refusal::Other(err) => return err,
        };
        Error::new(ErrorKind::Store, message)
    }
}

impl RequestError {
    /// The error of a request that locks nothing by itself: without a reply, nothing was locked.
    pub(crate) fn without_effect(self) -> Error {
        match self {
            Self::Unknown(err) => Error::new(
                ErrorKind::Unreachable,
                "the members did not answer; nothing was locked, retry",
            )
            .with_quoted_source(err, ""),
            err => err.into(),
        }
    }
}

/// What the code of an error means. The request may be sent again under the same identifier when its outcome is unknown.
pub(crate) fn explain(err: &ServerError) -> RequestError {
    let unknown = || {
        let what = format!(
            "{} could not finish the request; whether it was applied cannot be told",
            "the cluster"
        );
        RequestError::Unknown(quoted(ErrorKind::Indeterminate, what, err))
    };
    let refused = |kind, what: &str| {
        RequestError::Refused(Refusal::Other(quoted(kind, what.to_owned(), err)))
    };
    match err.code {
        85 => RequestError::Refused(Refusal::SessionOver),
        86 => RequestError::Refused(Refusal::WaitCancelled),
        26 => RequestError::Refused(Refusal::NotOwner),
        14 => RequestError::Refused(Refusal::LockDestroyed),
        89 => RequestError::Refused(Refusal::GroupDestroyed),
        3 => refused(
            ErrorKind::Denied,
            "the cluster wants a login; is the user right?",
        ),
        // Security of Hazelcast Enterprise.
        49 => refused(ErrorKind::Denied, "the user may not do this in Hazelcast"),
        23 => refused(
            ErrorKind::Store,
            "Hazelcast says that the request cannot be",
        ),
        61 => refused(
            ErrorKind::Unsupported,
            "Hazelcast refuses locks; from version 5.5 on, the CP subsystem needs a licence",
        ),
        _ => unknown(),
    }
}

fn quoted(kind: ErrorKind, what: String, err: &ServerError) -> Error {
    let class = err.class.rsplit('.').next().unwrap_or_default();
    let text = match err.message.as_str() {
        "" => format!("{} ({})", Escaped(class), err.code),
        message => format!("{} ({}): {}", Escaped(class), err.code, Escaped(message)),
    };
    Error::new(kind, what).with_source(text)
}

/// The connection ended, or the limit was over, before the reply came.
pub(crate) fn no_reply(host: &impl Display, is_timeout: bool) -> Error {
    let how = match is_timeout {
        true => "no answer from",
        false => "lost the connection to",
    };
    let message = format!(
        "{how} {host} before the request was answered; whether the request was applied cannot be told"
    );
    let err = Error::new(ErrorKind::Indeterminate, message);
    if is_timeout { err.with_timeout() } else { err }
}

/// The reply is none.
pub(crate) fn malformed(host: &impl Display) -> Error {
    let message = format!(
        "this version does not understand the answer of {host}; is the server Hazelcast 5.3 or later?"
    );
    Error::new(ErrorKind::Indeterminate, message)
}

/// No connection to a member.
pub(crate) fn no_connection(host: &impl Display, err: io::Error) -> Error {
    let message = format!("no connection to {host}; is the member running, and the URL right?");
    Error::new(ErrorKind::Unreachable, message).with_source(err)
}

/// A member that accepts a connection and says nothing, or something else than an answer.
pub(crate) fn silent(host: &impl Display) -> Error {
    let message = format!(
        "{host} did not answer in time; is it overloaded, stopped, or something else than Hazelcast?"
    );
    Error::new(ErrorKind::Unreachable, message).with_timeout()
}

/// The member closed the connection, or sent something that is no answer, while the client logged in.
pub(crate) fn no_member(host: &impl Display) -> Error {
    let message = format!(
        "{host} does not answer as a member of Hazelcast; is the port right, and does the server speak TLS (which this store does not)?"
    );
    Error::new(ErrorKind::Unreachable, message)
}

/// The member refused the login.
pub(crate) fn refused_login(host: &impl Display, cluster: &str, status: u8) -> Error {
    let message = match status {
        2 => format!("{host} wants another version of the serialization; it is not Hazelcast 5"),
        3 => format!("{host} does not allow clients in the cluster at present"),
        _ => format!(
            "{host} refused the login: the name of its cluster is not \"{}\", or user and password are wrong; write hazelcast://USER:PASSWORD@HOST/CLUSTER",
            Escaped(cluster)
        ),
    };
    Error::new(ErrorKind::Denied, message)
}

/// A cluster whose locks are copied without agreement.
pub(crate) fn unsafe_mode() -> Error {
    let message = "the cluster runs without the CP subsystem (unsafe mode), where a lock can be lost with the member that has it; set cp-member-count to 3 or more, or use another store";
    Error::new(ErrorKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: i32, message: &str) -> ServerError {
        ServerError {
            code,
            class: "com.hazelcast.SomeException".into(),
            message: message.into(),
        }
    }

    #[test]
    fn an_unknown_code_is_no_refusal() {
        for code in [0, 19, 33, 38, 46, 80, 93, 1_000, -1] {
            let RequestError::Unknown(err) = explain(&error(code, "a\nb")) else {
                panic!("{code}");
            };
            assert_eq!(err.kind(), ErrorKind::Indeterminate);
            let text = format!("{err:#}");
            assert!(
                text.contains("SomeException") && text.contains("a\\nb"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_refusal_is_definite() {
        for code in [3, 14, 23, 26, 49, 61, 85, 86, 89] {
            let explained = explain(&error(code, ""));
            assert!(matches!(explained, RequestError::Refused(_)), "{code}");
            assert_ne!(Error::from(explained).kind(), ErrorKind::Indeterminate);
        }
    }
}
