//! What an error of the client library means: nothing was applied, unknown outcome, or refused; and what to do about it.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind as Kind, RedisError, ServerErrorKind as Server};

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::name::Escaped;

use crate::tls;

/// An error while a connection is opened: no request was sent.
pub(crate) fn connecting(err: RedisError, host: &impl std::fmt::Display, is_tls: bool) -> Error {
    let explained = handshake(&err).map(|found| tls::explain(found, host, "redis://"));
    if let Some(explained) = explained {
        return explained;
    }
    if let Some((kind, what)) = turned_away(&err) {
        let quote = ServerMessage::of(&err).text;
        return Error::new(kind, format!("{host} {what}")).with_quoted_source(err, quote);
    }
    if let Some((error, quote)) = no_login(&err, host, is_tls) {
        return error.with_quoted_source(err, quote);
    }
    refused(err)
}

/// Why there is no connection, and what is quoted of the cause. `None`: the server refused a request.
fn no_login(
    err: &RedisError,
    host: &impl std::fmt::Display,
    is_tls: bool,
) -> Option<(Error, String)> {
    let (kind, what, quote) = match (err.kind(), err.code().unwrap_or_default()) {
        (Kind::AuthenticationFailed, _) | (_, "NOAUTH" | "WRONGPASS") => (
            ErrorKind::Denied,
            "refused user or password; they stand before `@` in the URL",
            String::new(),
        ),
        (Kind::Server(Server::NoPerm), _) => (
            ErrorKind::Denied,
            "does not let this user do what this client needs; docs/stores/redis.md lists the commands and keys",
            ServerMessage::of(err).text,
        ),
        (Kind::RESP3NotSupported, _) => (
            ErrorKind::Unsupported,
            "does not speak version 3 of the protocol; Redis 6 or newer does",
            String::new(),
        ),
        (Kind::Io, _) => return Some(not_reached(err, host, is_tls)),
        (Kind::Parse, _) => (
            ErrorKind::Unreachable,
            "does not answer like a Redis server; is the port right, and does it want TLS (then write rediss://)?",
            String::new(),
        ),
        // A password for a server that has none: the client library passes on what the server said.
        _ if err.to_string().contains("without any password configured") => (
            ErrorKind::Denied,
            "has no password; leave it out of the URL",
            String::new(),
        ),
        _ => return None,
    };
    Some((Error::new(kind, format!("{host} {what}")), quote))
}

/// The same where the network, or what listens there, is the cause.
fn not_reached(err: &RedisError, host: &impl std::fmt::Display, is_tls: bool) -> (Error, String) {
    if err.is_timeout() {
        let or = match is_tls {
            true => "without TLS on that port (then write redis://)",
            false => "something else than Redis",
        };
        let what = format!("{host} did not answer in time; is it overloaded, stopped, or {or}?");
        let error = Error::new(ErrorKind::Unreachable, what);
        return (error.with_timeout(), String::new());
    }
    // So does a server that expects TLS.
    if err.is_connection_dropped() && !err.is_connection_refusal() && !is_tls {
        let what = format!(
            "{host} closed the connection before it answered; is the port right, and does the server expect TLS (then write rediss://)?"
        );
        return (Error::new(ErrorKind::Unreachable, what), String::new());
    }
    let what = format!("no connection to {host}; is the server running, and the URL right?");
    (Error::new(ErrorKind::Unreachable, what), err.to_string())
}

/// What a server says instead of logging the user in, in words of its own: the client library gives these errors another
/// code, or the code `ERR`.
fn turned_away(err: &RedisError) -> Option<(ErrorKind, &'static str)> {
    let text = err.to_string();
    if text.contains("max number of clients") {
        let what = "has no connection left; raise its setting maxclients, or close connections of other programs";
        Some((ErrorKind::Unreachable, what))
    } else if text.contains("protected mode") {
        let what = "is in protected mode and serves its own machine only; give its user a password, or set protected-mode to no where only your own machines can reach the server";
        Some((ErrorKind::Denied, what))
    } else if text.contains("no permissions to run") {
        let what = "does not let this user do what this client needs; docs/stores/redis.md lists the commands and keys";
        Some((ErrorKind::Denied, what))
    } else if text.contains("DB index") || text.contains("refused to switch database") {
        let what = "has no database of that number (setting databases); the number stands after the host in the URL";
        Some((ErrorKind::Invalid, what))
    } else {
        None
    }
}

/// An error after a request was sent.
pub(crate) fn request(err: RedisError) -> Error {
    match err.kind() {
        Kind::Io | Kind::Parse if err.is_timeout() => Error::new(
            ErrorKind::Indeterminate,
            "no answer in time; whether the request was applied cannot be told",
        )
        .with_timeout()
        .with_quoted_source(err, ""),
        Kind::Io | Kind::Parse => Error::new(
            ErrorKind::Indeterminate,
            "the connection broke before the answer; whether the request was applied cannot be told",
        )
        .with_quoted_source(err, ""),
        _ => refused(err),
    }
}

/// Whether the server refused a write because it is a replica: nothing was applied. Before version 7 a script wraps the
/// error of its command.
pub(crate) fn is_readonly(err: &RedisError) -> bool {
    err.code() == Some("READONLY")
        || err
            .detail()
            .is_some_and(|detail| detail.contains("-READONLY "))
}

/// The server refused the request. Nearly always that happens at the first write of a script, so nothing was applied. If
/// the user may do one write of a script and not another, what the script has written stays.
fn refused(err: RedisError) -> Error {
    let message = ServerMessage::of(&err);
    let code = message.code.clone();
    let (kind, what) = match code.as_str() {
        "LOADING" => (
            ErrorKind::Unreachable,
            "the server is still loading its data; retry",
        ),
        "BUSY" => (
            ErrorKind::Unreachable,
            "the server is busy with a script of another program; retry",
        ),
        "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" => (
            ErrorKind::Unreachable,
            "the servers are rearranging themselves; retry",
        ),
        "READONLY" => (
            ErrorKind::Unreachable,
            "the server is a replica and cannot be written; name the primary, or use redis+sentinel:// which follows it",
        ),
        "NOREPLICAS" => (
            ErrorKind::Unreachable,
            "the server has too few replicas to be written (min-replicas-to-write)",
        ),
        "MISCONF" => (
            ErrorKind::Store,
            "the server cannot save its data and refuses writes (stop-writes-on-bgsave-error); free its disk",
        ),
        "OOM" => (
            ErrorKind::Store,
            "the server's memory is full (maxmemory); raise it or free some",
        ),
        "NOAUTH" | "WRONGPASS" => (
            ErrorKind::Denied,
            "the server wants a user and a password; they stand before `@` in the URL",
        ),
        "NOPERM" => (
            ErrorKind::Denied,
            "the server does not let this user do what this client needs; docs/stores/redis.md lists the commands and keys",
        ),
        "MOVED" | "ASK" | "CROSSSLOT" => (
            ErrorKind::Invalid,
            "the server is a node of a cluster; write redis+cluster://",
        ),
        _ => (ErrorKind::Store, "the server refused the request"),
    };
    Error::new(kind, what).with_quoted_source(err, message.text)
}

/// The first sentence of the server's message. What may follow it does not help a user: the digest of a script, and
/// advice about the server's configuration.
struct ServerMessage {
    code: String,
    text: String,
}

impl ServerMessage {
    fn of(err: &RedisError) -> Self {
        let code = err.code().unwrap_or_default();
        let Some(detail) = err.detail().filter(|_| !code.is_empty()) else {
            let text = err.to_string();
            return Self {
                code: code.to_owned(),
                text: Escaped(first_sentence(&text)).to_string(),
            };
        };
        // Before version 7 the error of a command is at the end of the error of its script.
        let inner = detail.rsplit_once(": -").map(|(_, inner)| inner);
        let (code, detail) = inner
            .and_then(|inner| inner.split_once(' '))
            .filter(|(code, _)| code.bytes().all(|byte| byte.is_ascii_uppercase()))
            .unwrap_or((code, detail));
        let mut text = code.to_owned();
        if !detail.is_empty() {
            text.push(' ');
            text += first_sentence(detail);
        }
        // Version 7.0 says this of a script that does what its user may not do.
        let is_denied = code == "ERR" && detail.starts_with("The user executing the script can't");
        let code = if is_denied { "NOPERM" } else { code };
        Self {
            code: code.to_owned(),
            text: Escaped(&text).to_string(),
        }
    }
}

fn first_sentence(text: &str) -> &str {
    let text = text.split(" script: ").next().unwrap_or_default();
    let text = text.split(". ").next().unwrap_or_default();
    text.trim_end_matches(['.', ' '])
}

/// The reply to a request has an unexpected shape.
pub(crate) fn unexpected_reply() -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        "the server's reply has an unexpected shape; is there a proxy between this client and the server?",
    )
}

/// The error of the TLS handshake, inside the errors of the client library.
fn handshake(err: &RedisError) -> Option<&rustls::Error> {
    let inner: &(dyn StdError + 'static) = StdError::source(err)?;
    let shared = inner.downcast_ref::<Arc<dyn StdError + Send + Sync>>()?;
    let inner: &(dyn StdError + Send + Sync + 'static) = &**shared;
    if let Some(found) = inner.downcast_ref::<rustls::Error>() {
        return Some(found);
    }
    inner.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: &str, detail: &str) -> Error {
        refused(redis::make_extension_error(
            code.into(),
            Some(detail.into()),
        ))
    }

    #[test]
    fn the_server_is_quoted_up_to_its_first_full_stop() {
        let sha = "2e2b8b3b6d9b6d2a1f0a6c3d5f3f6f5b5f1d7a9c";
        for (code, detail, kind, quoted) in [
            (
                "MISCONF",
                format!(
                    "Redis is configured to save RDB snapshots, but it cannot. Commands are disabled. script: {sha}, on @user_script:12."
                ),
                ErrorKind::Store,
                "MISCONF Redis is configured to save RDB snapshots, but it cannot",
            ),
            (
                "OOM",
                format!(
                    "command not allowed when used memory > 'maxmemory'. script: {sha}, on @user_script:12."
                ),
                ErrorKind::Store,
                "OOM command not allowed when used memory > 'maxmemory'",
            ),
            (
                "ERR",
                format!(
                    "Error running script (call to f_{sha}): @user_script:5: @user_script: 5: -READONLY You can't write against a read only replica."
                ),
                ErrorKind::Unreachable,
                "READONLY You can't write against a read only replica",
            ),
            (
                "ERR",
                format!(
                    "The user executing the script can't run this command or subcommand script: {sha}, on @user_script:12."
                ),
                ErrorKind::Denied,
                "ERR The user executing the script can't run this command or subcommand",
            ),
            (
                "ERR",
                "Protocol error: two\nlines".into(),
                ErrorKind::Store,
                "ERR Protocol error: two\\nlines",
            ),
        ] {
            let err = refusal(code, &detail);
            let text = format!("{err:#}");
            assert_eq!(err.kind(), kind, "{text}");
            assert!(text.ends_with(&format!(": {quoted}")), "{text}");
        }
    }
}
