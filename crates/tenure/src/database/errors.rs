//! What the errors of a server mean: whether something may have been done, and the remedy.

use sqlx::error::DatabaseError;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};

use crate::tls;

use super::error_codes;
use super::meaning::Meaning;
use super::request_error::RequestError;
use super::server::Server;

/// The error of a request that `server` did not fulfil. `rows` and `name` say what only the store can know (its table,
/// its privileges): see [`error_codes::meaning`].
pub(crate) fn explain(
    error: RequestError,
    server: &Server,
    rows: &[Meaning],
    name: &dyn Fn(&str) -> Option<String>,
) -> Error {
    let known = error.code().and_then(|code| {
        let code = error_codes::specific(code, error.message());
        error_codes::meaning(&code, server, rows, name)
    });
    let is_refusal = error.is_refusal();
    match error {
        RequestError::Explained(err) => err,
        RequestError::TimedOut(limit) => Error::new(
            ErrorKind::Indeterminate,
            format!("{server} did not answer within {limit:?}"),
        )
        .with_timeout(),
        RequestError::Refused(said) => {
            let (kind, what) = known.unwrap_or_else(|| {
                let kind = if is_refusal {
                    ErrorKind::Store
                } else {
                    ErrorKind::Indeterminate
                };
                (kind, format!("{server} refused the request"))
            });
            let quote = quote(&*said);
            let error = sqlx::Error::Database(said);
            Error::new(kind, what).with_quoted_source(error, quote)
        }
        RequestError::Broken(sqlx::Error::Tls(why)) => match why.downcast::<rustls::Error>() {
            Ok(why) => tls::explain(&why, server, "tls=off"),
            Err(why) => Error::new(
                ErrorKind::Unreachable,
                format!("{server} and we found no common TLS; write tls=off if it has none"),
            )
            .with_source(why),
        },
        RequestError::Broken(err) => {
            // A failed handshake is reported as an error of the connection.
            if let sqlx::Error::Io(io) = &err
                && let Some(why) = handshake(io)
            {
                return tls::explain(why, server, "tls=off");
            }
            let what = format!("the connection to {server} broke");
            Error::new(ErrorKind::Indeterminate, what).with_source(err)
        }
    }
}

/// What a server said when it refused a request. For PostgreSQL the client library adds a line of the source of the server,
/// which helps no user.
fn quote(said: &dyn DatabaseError) -> String {
    #[cfg(feature = "postgres")]
    if let Some(said) = said.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
        return format!("{}: {}", said.code(), said.message());
    }
    said.to_string()
}

/// The error of TLS in an error of a connection.
fn handshake(err: &std::io::Error) -> Option<&rustls::Error> {
    err.get_ref()?.downcast_ref()
}

fn is_about_tls(err: &sqlx::Error) -> bool {
    match err {
        sqlx::Error::Tls(_) => true,
        sqlx::Error::Io(err) => handshake(err).is_some(),
        _ => false,
    }
}

/// The error of an attempt to connect. Nothing was done, whatever the cause is.
pub(crate) fn no_connection(error: RequestError, server: &Server) -> Error {
    match error {
        RequestError::TimedOut(limit) => Error::new(
            ErrorKind::Unreachable,
            format!("{server} did not answer within {limit:?}"),
        )
        .with_timeout(),
        RequestError::Broken(err) if !is_about_tls(&err) => Error::new(
            ErrorKind::Unreachable,
            format!("{server} cannot be reached"),
        )
        .with_source(err),
        error => {
            let err = explain(error, server, &[], &|_| None);
            match err.kind() {
                ErrorKind::Indeterminate => Error::new(
                    ErrorKind::Unreachable,
                    format!("{server} refused the connection"),
                )
                .with_source(err),
                _ => err,
            }
        }
    }
}
