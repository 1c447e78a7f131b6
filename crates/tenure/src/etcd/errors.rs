//! What an error means: nothing was applied, cannot tell, or refused; and what helps.

use std::error::Error as StdError;
use std::io;

use rustls::AlertDescription;
use tonic::{Code, ConnectError, Status};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::name::Escaped;

use crate::tls;

/// An error, and what can be done about it before anybody is told.
#[derive(Debug)]
pub(super) struct RequestError {
    pub(super) error: Error,
    pub(super) cure: Recovery,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recovery {
    /// Another member may do better; whatever this request was, it may be repeated there.
    AnotherMember,
    /// Log in again, and repeat.
    LogIn,
    /// Repeat after a pause: the server has too much to do.
    Pause,
    /// That lease is over.
    NewLease,
    /// That lease is there already: it was granted by an earlier try.
    UseLease,
    /// Nothing helps.
    None,
}

impl From<RequestError> for Error {
    fn from(trouble: RequestError) -> Self {
        trouble.error
    }
}

impl RequestError {
    pub(super) fn new(kind: ErrorKind, cure: Recovery, message: impl Into<String>) -> Self {
        Self {
            error: Error::new(kind, message),
            cure,
        }
    }

    /// No answer within the time limit.
    pub(super) fn silence(host: &impl std::fmt::Display) -> Self {
        Self::new(
            ErrorKind::Indeterminate,
            Recovery::AnotherMember,
            format!(
                "no answer from {host} in time; whether the request was applied cannot be told"
            ),
        )
    }

    pub(super) fn is_indeterminate(&self) -> bool {
        self.error.kind() == ErrorKind::Indeterminate
    }
}

/// A copy, for each of many that one request was for.
pub(super) fn copy(err: &Error) -> Error {
    Error::new(err.kind(), err.to_string())
}

/// A request that leaves nothing behind that anybody would miss: what became of it does not matter.
pub(super) fn harmless(err: Error) -> Error {
    match err.kind() {
        ErrorKind::Indeterminate => Error::new(
            ErrorKind::Unreachable,
            "the store did not answer; nothing was locked, retry",
        ),
        _ => err,
    }
}

pub(super) fn nonsense() -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        "the server's answer makes no sense to this version; is something between us and it?",
    )
}

/// An error while a connection is being made: nothing of ours was sent.
pub(super) fn connecting(
    err: impl StdError + Send + Sync + 'static,
    host: &impl std::fmt::Display,
) -> RequestError {
    let elsewhere = |error| RequestError {
        error,
        cure: Recovery::AnotherMember,
    };
    if let Some(found) = find::<rustls::Error>(&err) {
        return elsewhere(tls::explain(found, host, "etcd://"));
    }
    let io = find::<io::Error>(&err).map(io::Error::kind);
    if io == Some(io::ErrorKind::TimedOut) {
        return elsewhere(silent(host));
    }
    if let Some(io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) = io {
        let message = format!(
            "{host} hung up at the first word; is the port right, and does it speak TLS (else write etcd://)?"
        );
        return elsewhere(Error::new(ErrorKind::Unreachable, message));
    }
    elsewhere(
        Error::new(
            ErrorKind::Unreachable,
            format!("no connection to {host}; is the server running, and the URL right?"),
        )
        .with_source(ServerText::by(&err)),
    )
}

/// It accepted a connection and says nothing, or nothing was accepted.
pub(super) fn silent(host: &impl std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "{host} did not answer in time; is it overloaded, stopped, or something else than etcd?"
        ),
    )
}

/// The first request of a client failed: what an error after a request means when the server has never said
/// anything sensible.
pub(super) fn first_word(trouble: RequestError, hosts: &str, is_tls: bool) -> Error {
    let error = trouble.error;
    if error.kind() != ErrorKind::Indeterminate {
        return error;
    }
    let other = match is_tls {
        // What a server says of that may be lost when it hangs up.
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

/// An error after a request was sent.
pub(super) fn asking(status: &Status, host: &impl std::fmt::Display) -> RequestError {
    let said = status.message();
    let text = said.strip_prefix("etcdserver: ").unwrap_or(said);
    let is_server = text.len() != said.len();
    if !is_server && let Some(found) = find::<rustls::Error>(status).cloned().or(alert(status)) {
        return RequestError {
            error: tls::explain(&found, host, "etcd://"),
            cure: Recovery::AnotherMember,
        };
    }
    if !is_server && find::<ConnectError>(status).is_some() {
        let message = format!("no connection to {host}; is the server running?");
        return RequestError::new(ErrorKind::Unreachable, Recovery::AnotherMember, message);
    }
    let known = KNOWN.iter().find(|(start, ..)| text.starts_with(start));
    let (kind, cure, what) = match (known, status.code()) {
        (Some((_, kind, cure, what)), _) => (*kind, *cure, *what),
        (None, Code::Unauthenticated) => (ErrorKind::Denied, Recovery::LogIn, NOT_KNOWN),
        (None, Code::PermissionDenied) => (ErrorKind::Denied, Recovery::None, NOT_ALLOWED),
        (None, Code::Unimplemented) => (
            ErrorKind::Unsupported,
            Recovery::None,
            "the server does not know a request that a lock needs; etcd 3.4 and newer do",
        ),
        (None, _) if is_server && status.code() != Code::Unavailable => (
            ErrorKind::Backend,
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
    let error = match is_server {
        true => error.with_source(ServerText(Escaped(said).to_string())),
        false => error,
    };
    RequestError { error, cure }
}

const NOT_KNOWN: &str = "the server wants a user and a password; they stand before `@` in the URL";
const NOT_ALLOWED: &str =
    "the server does not let this user do what a lock needs; docs/stores/etcd.md lists the keys";
const AMBIGUOUS: &str = "the cluster could not say whether the request was applied; retry";

/// How the server's own words begin, after `etcdserver: `.
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
        ErrorKind::Backend,
        Recovery::None,
        "the server's database is full (alarm NOSPACE); compact and defragment it and disarm the alarm, or raise --quota-backend-bytes",
    ),
    (
        "corrupt cluster",
        ErrorKind::Backend,
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
        ErrorKind::Backend,
        Recovery::UseLease,
        "the lease is there already",
    ),
];

/// The first error of that type in a chain, also where it is wrapped in one of `io`.
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

/// What the server refused our certificate with, or the lack of one. It comes after the handshake, and then the
/// client library passes on nothing but the text.
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

/// Somebody else's words, in one line.
#[derive(Debug)]
struct ServerText(String);

impl ServerText {
    /// The innermost error: those around it only say that there was one.
    fn by(err: &dyn StdError) -> Self {
        let mut text = err.to_string();
        let mut next = err.source();
        while let Some(inner) = next {
            text = inner.to_string();
            next = inner.source();
        }
        Self(Escaped(&text).to_string())
    }
}

impl std::fmt::Display for ServerText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for ServerText {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_says_is_sorted() {
        for (code, said, kind, cure) in [
            (
                Code::Unavailable,
                "etcdserver: no leader",
                ErrorKind::Unreachable,
                Recovery::AnotherMember,
            ),
            (
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to previous leader failure",
                ErrorKind::Indeterminate,
                Recovery::AnotherMember,
            ),
            (
                Code::Unavailable,
                "etcdserver: something new",
                ErrorKind::Indeterminate,
                Recovery::AnotherMember,
            ),
            (
                Code::Unavailable,
                "transport error",
                ErrorKind::Indeterminate,
                Recovery::AnotherMember,
            ),
            (
                Code::Unknown,
                "h2 protocol error",
                ErrorKind::Indeterminate,
                Recovery::AnotherMember,
            ),
            (
                Code::ResourceExhausted,
                "etcdserver: too many requests",
                ErrorKind::Unreachable,
                Recovery::Pause,
            ),
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
                ErrorKind::Backend,
                Recovery::None,
            ),
            (
                Code::Unauthenticated,
                "etcdserver: invalid auth token",
                ErrorKind::Denied,
                Recovery::LogIn,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: revision of auth store is old",
                ErrorKind::Denied,
                Recovery::LogIn,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                ErrorKind::Denied,
                Recovery::None,
            ),
            (
                Code::PermissionDenied,
                "etcdserver: permission denied",
                ErrorKind::Denied,
                Recovery::None,
            ),
            (
                Code::NotFound,
                "etcdserver: requested lease not found",
                ErrorKind::Lost,
                Recovery::NewLease,
            ),
            (
                Code::FailedPrecondition,
                "etcdserver: lease already exists",
                ErrorKind::Backend,
                Recovery::UseLease,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: duplicate key given in txn request",
                ErrorKind::Backend,
                Recovery::None,
            ),
        ] {
            let trouble = asking(&Status::new(code, said), &"host:1");
            assert_eq!((trouble.error.kind(), trouble.cure), (kind, cure), "{said}");
            let text = trouble.error.to_string();
            assert!(!text.contains('\n') && text.len() < 300, "{text}");
        }
        let new = Status::new(Code::Unknown, "etcdserver: two\nlines");
        let new = asking(&new, &"host:1").error.to_string();
        assert!(new.ends_with("two\\nlines"), "{new}");
    }
}
