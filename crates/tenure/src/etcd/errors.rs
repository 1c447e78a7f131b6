//! What an error means: that nothing was applied, that the outcome is unknown, or that the server refused; and what may
//! let the next attempt succeed.

use std::error::Error as StdError;
use std::io;

use rustls::AlertDescription;
use tonic::{Code, ConnectError, Status};

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::name::Escaped;

use crate::tls;

/// The error of a request, and what this client can do about it.
#[derive(Clone, Debug)]
pub(super) struct RequestError {
    pub(super) error: Error,
    pub(super) recovery: Recovery,
}

/// What may let the next attempt succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recovery {
    /// Use another member. Every request may be repeated there.
    AnotherMember,
    /// Log in again, and repeat the request.
    LogIn,
    /// Repeat the request after a pause: the server has too many requests.
    Pause,
    /// The lease is over: get another one.
    NewLease,
    /// The lease exists: an earlier attempt of the request made it.
    UseLease,
    /// The server has compacted the history that the request asks for: read the present state instead.
    ReadPresent,
    /// No other attempt would succeed.
    None,
}

impl From<RequestError> for Error {
    fn from(err: RequestError) -> Self {
        err.error
    }
}

impl RequestError {
    pub(super) fn new(kind: ErrorKind, recovery: Recovery, message: impl Into<String>) -> Self {
        Self {
            error: Error::new(kind, message),
            recovery,
        }
    }

    /// No reply within the time limit.
    pub(super) fn no_reply(host: &impl std::fmt::Display) -> Self {
        let error = Error::new(
            ErrorKind::Indeterminate,
            format!(
                "no answer from {host} in time; whether the request was applied cannot be told"
            ),
        );
        Self {
            error: error.with_timeout(),
            recovery: Recovery::AnotherMember,
        }
    }

    /// Whether the request may have been applied, or may be applied later.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.error.kind() == ErrorKind::Indeterminate
    }

    /// The error of the login before a request, which was not sent.
    pub(super) fn of_unsent_request(self) -> Self {
        Self {
            error: without_effect(self.error),
            ..self
        }
    }
}

/// The error of a request about a lease. Nothing is locked by that, so its outcome does not matter to the caller.
pub(super) fn without_effect(err: Error) -> Error {
    match err.kind() {
        ErrorKind::Indeterminate => Error::new(
            ErrorKind::Unreachable,
            "the store did not answer; nothing was locked, retry",
        )
        .with_quoted_source(err, ""),
        _ => err,
    }
}

pub(super) fn unexpected_reply() -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        "this version does not understand the server's answer; is a proxy or another program between the client and etcd?",
    )
}

/// The meaning of an error while a connection is made: no request was sent.
pub(super) fn explain_connect(
    err: impl StdError + Send + Sync + 'static,
    host: &impl std::fmt::Display,
) -> RequestError {
    let another_member = |error| RequestError {
        error,
        recovery: Recovery::AnotherMember,
    };
    if let Some(found) = find::<rustls::Error>(&err) {
        return another_member(tls::explain(found, host, "etcd://"));
    }
    let io = find::<io::Error>(&err).map(io::Error::kind);
    if io == Some(io::ErrorKind::TimedOut) {
        return another_member(silent_host(host).with_quoted_source(err, ""));
    }
    if let Some(io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) = io {
        let message = format!(
            "{host} closed the connection before it answered; is the port right, and does the server speak TLS (else write etcd://)?"
        );
        let error = Error::new(ErrorKind::Unreachable, message);
        return another_member(error.with_quoted_source(err, ""));
    }
    let quote = innermost(&err);
    another_member(
        Error::new(
            ErrorKind::Unreachable,
            format!("no connection to {host}; is the server running, and the URL right?"),
        )
        .with_quoted_source(err, quote),
    )
}

/// The host did not accept the connection in time, or accepted it and sent nothing.
pub(super) fn silent_host(host: &impl std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "{host} did not answer in time; is it overloaded, stopped, or something else than etcd?"
        ),
    )
    .with_timeout()
}

/// The meaning of an error of a client's first request. The server has not given any answer yet, so it may be no etcd.
pub(super) fn explain_first_request(err: RequestError, hosts: &str, is_tls: bool) -> Error {
    let error = err.error;
    if error.kind() != ErrorKind::Indeterminate {
        return error;
    }
    let other = match is_tls {
        // The server's reason may be lost when it closes the connection.
        true => {
            "does it speak TLS (else write etcd://) and want a certificate of ours (then name it with cert=FILE and key=FILE)"
        }
        false => "does it want TLS (then write etcds://)",
    };
    Error::new(
        ErrorKind::Unreachable,
        format!("no answer as an etcd member gives it from {hosts}; is it up, is the port right, and {other}?"),
    )
    .with_source(error)
}

/// The meaning of a status that came after a request was sent.
pub(super) fn explain_status(status: &Status, host: &impl std::fmt::Display) -> RequestError {
    let message = status.message();
    let text = message.strip_prefix("etcdserver: ").unwrap_or(message);
    let is_server = text.len() != message.len();
    if !is_server && let Some(found) = find::<rustls::Error>(status).cloned().or(alert(status)) {
        return RequestError {
            error: tls::explain(&found, host, "etcd://"),
            recovery: Recovery::AnotherMember,
        };
    }
    if !is_server && find::<ConnectError>(status).is_some() {
        let message = format!("no connection to {host}; is the server running?");
        return RequestError::new(ErrorKind::Unreachable, Recovery::AnotherMember, message);
    }
    let known = KNOWN.iter().find(|(start, ..)| text.starts_with(start));
    let (kind, recovery, what) = match (known, status.code()) {
        (Some((_, kind, recovery, what)), _) => (*kind, *recovery, *what),
        (None, Code::Unauthenticated) => (ErrorKind::Denied, Recovery::LogIn, NOT_KNOWN),
        (None, Code::PermissionDenied) => (ErrorKind::Denied, Recovery::None, NOT_ALLOWED),
        (None, Code::Unimplemented) => (
            ErrorKind::Unsupported,
            Recovery::None,
            "the server does not know a request that a lock needs; etcd 3.4 and newer do",
        ),
        (None, _) if is_server && status.code() != Code::Unavailable => (
            ErrorKind::Store,
            Recovery::None,
            "the server refused the request",
        ),
        (None, _) => (
            ErrorKind::Indeterminate,
            Recovery::AnotherMember,
            "the connection broke before the answer; whether the request was applied cannot be told",
        ),
    };
    let error = Error::new(kind, what);
    let quote = match is_server {
        true => Escaped(message).to_string(),
        false => String::new(),
    };
    let error = error.with_quoted_source(status.clone(), quote);
    RequestError { error, recovery }
}

const NOT_KNOWN: &str = "the server wants a user and a password; they stand before `@` in the URL";
const NOT_ALLOWED: &str =
    "the server does not let this user do what a lock needs; docs/stores/etcd.md lists the keys";
const AMBIGUOUS: &str = "the cluster could not say whether the request was applied; retry";

/// How the server's messages begin after `etcdserver: `, and what they mean.
const KNOWN: &[(&str, ErrorKind, Recovery, &str)] = &[
    (
        "no leader",
        ErrorKind::Unreachable,
        Recovery::AnotherMember,
        "the cluster has no leader: half of its members or more are away, or an election is under way; retry",
    ),
    (
        "too many requests",
        ErrorKind::Unreachable,
        Recovery::Pause,
        "the server has too many requests to serve; retry",
    ),
    (
        "request timed out",
        ErrorKind::Indeterminate,
        Recovery::AnotherMember,
        AMBIGUOUS,
    ),
    (
        "leader changed",
        ErrorKind::Indeterminate,
        Recovery::AnotherMember,
        AMBIGUOUS,
    ),
    (
        "server stopped",
        ErrorKind::Indeterminate,
        Recovery::AnotherMember,
        AMBIGUOUS,
    ),
    (
        "rpc not supported for learner",
        ErrorKind::Unreachable,
        Recovery::AnotherMember,
        "the server is a learner, which serves no locks; name a voting member in the URL",
    ),
    (
        "mvcc: database space exceeded",
        ErrorKind::Store,
        Recovery::None,
        "the server's database is full (alarm NOSPACE); compact and defragment it and disarm the alarm, or raise --quota-backend-bytes",
    ),
    (
        "corrupt cluster",
        ErrorKind::Store,
        Recovery::None,
        "the cluster has the alarm CORRUPT and refuses everything; see etcd's page on data corruption",
    ),
    (
        "invalid auth token",
        ErrorKind::Denied,
        Recovery::LogIn,
        NOT_KNOWN,
    ),
    (
        "revision of auth store is old",
        ErrorKind::Denied,
        Recovery::LogIn,
        NOT_KNOWN,
    ),
    (
        "user name is empty",
        ErrorKind::Denied,
        Recovery::LogIn,
        NOT_KNOWN,
    ),
    (
        "authentication failed",
        ErrorKind::Denied,
        Recovery::None,
        "the server refused user or password; they stand before `@` in the URL",
    ),
    (
        "authentication is not enabled",
        ErrorKind::Denied,
        Recovery::None,
        "the server has no users (authentication is off); leave user and password out of the URL",
    ),
    (
        "permission denied",
        ErrorKind::Denied,
        Recovery::None,
        NOT_ALLOWED,
    ),
    (
        "requested lease not found",
        ErrorKind::Lost,
        Recovery::NewLease,
        "the lease is over",
    ),
    (
        "lease already exists",
        ErrorKind::Store,
        Recovery::UseLease,
        "the lease is there already",
    ),
    (
        "mvcc: required revision has been compacted",
        ErrorKind::Store,
        Recovery::ReadPresent,
        "the server has deleted the past that was asked for",
    ),
];

/// The first error of type `E` in a chain of sources, also if an [`io::Error`] contains it.
fn find<'a, E: StdError + 'static>(err: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut next = Some(err);
    while let Some(err) = next {
        if let Some(found) = err.downcast_ref::<E>() {
            return Some(found);
        }
        let inner = err.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(inner) = inner
            && let Some(found) = inner.downcast_ref::<E>()
        {
            return Some(found);
        }
        next = match inner {
            Some(inner) => Some(inner as &(dyn StdError + 'static)),
            None => err.source(),
        };
    }
    None
}

/// The alert with which the server refused our certificate, or asked for one. The alert comes after the handshake, and
/// then the client library passes on only its text.
fn alert(err: &(dyn StdError + 'static)) -> Option<rustls::Error> {
    let mut next = Some(err);
    while let Some(err) = next {
        let text = err.to_string();
        if let Some((_, alert)) = text.split_once("received fatal alert: ") {
            let known = ALERTS
                .iter()
                .find(|known| alert.starts_with(&format!("{known:?}")));
            return known.map(|known| rustls::Error::AlertReceived(*known));
        }
        next = err.source();
    }
    None
}

const ALERTS: &[AlertDescription] = &[
    AlertDescription::CertificateRequired,
    AlertDescription::NoCertificate,
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
];

/// The text of the innermost error, in one line: those around it only say that there was an error.
fn innermost(err: &dyn StdError) -> String {
    let mut text = err.to_string();
    let mut next = err.source();
    while let Some(inner) = next {
        text = inner.to_string();
        next = inner.source();
    }
    Escaped(&text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the server says, and what it means.
    type ServerMessage = (ErrorKind, Recovery, &'static [(Code, &'static str)]);
    const MESSAGES: &[ServerMessage] = &[
        (
            ErrorKind::Unreachable,
            Recovery::AnotherMember,
            &[(Code::Unavailable, "etcdserver: no leader")],
        ),
        (
            ErrorKind::Indeterminate,
            Recovery::AnotherMember,
            &[
                (
                    Code::Unavailable,
                    "etcdserver: request timed out, possibly due to previous leader failure",
                ),
                (Code::Unavailable, "etcdserver: something new"),
                (Code::Unavailable, "transport error"),
                (Code::Unknown, "h2 protocol error"),
            ],
        ),
        (
            ErrorKind::Unreachable,
            Recovery::Pause,
            &[(Code::ResourceExhausted, "etcdserver: too many requests")],
        ),
        (
            ErrorKind::Store,
            Recovery::None,
            &[
                (
                    Code::ResourceExhausted,
                    "etcdserver: mvcc: database space exceeded",
                ),
                (
                    Code::InvalidArgument,
                    "etcdserver: duplicate key given in txn request",
                ),
            ],
        ),
        (
            ErrorKind::Denied,
            Recovery::LogIn,
            &[
                (Code::Unauthenticated, "etcdserver: invalid auth token"),
                (
                    Code::InvalidArgument,
                    "etcdserver: revision of auth store is old",
                ),
            ],
        ),
        (
            ErrorKind::Denied,
            Recovery::None,
            &[
                (
                    Code::InvalidArgument,
                    "etcdserver: authentication failed, invalid user ID or password",
                ),
                (Code::PermissionDenied, "etcdserver: permission denied"),
            ],
        ),
        (
            ErrorKind::Lost,
            Recovery::NewLease,
            &[(Code::NotFound, "etcdserver: requested lease not found")],
        ),
        (
            ErrorKind::Store,
            Recovery::UseLease,
            &[(Code::FailedPrecondition, "etcdserver: lease already exists")],
        ),
        (
            ErrorKind::Store,
            Recovery::ReadPresent,
            &[(
                Code::OutOfRange,
                "etcdserver: mvcc: required revision has been compacted",
            )],
        ),
    ];

    #[test]
    fn each_message_of_the_server_has_a_kind_and_a_recovery() {
        for (kind, recovery, statuses) in MESSAGES {
            for (code, said) in *statuses {
                let err = explain_status(&Status::new(*code, *said), &"host:1");
                assert_eq!(
                    (err.error.kind(), err.recovery),
                    (*kind, *recovery),
                    "{said}"
                );
                let text = format!("{:#}", err.error);
                assert!(!text.contains('\n') && text.len() < 300, "{text}");
            }
        }
        let new = Status::new(Code::Unknown, "etcdserver: two\nlines");
        let new = format!("{:#}", explain_status(&new, &"host:1").error);
        assert!(new.ends_with("two\\nlines"), "{new}");
    }
}
