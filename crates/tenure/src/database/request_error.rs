//! Why a request to a database has no result.

use std::time::Duration;

use sqlx::error::DatabaseError;

use tenure_core::error::Error;

/// Why a request has no result.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// The error says cause and remedy itself, and nothing was done: a setting is wrong, for example.
    Explained(Error),
    /// The server refused the statement, and its transaction did nothing; locks of the session that it took or released
    /// before the error stay so. The connection is as good as before.
    Refused(Box<dyn DatabaseError>),
    /// No answer came within this time: the request may have been done.
    TimedOut(Duration),
    /// The connection broke: the request may have been done.
    Broken(sqlx::Error),
}

impl From<sqlx::Error> for RequestError {
    fn from(err: sqlx::Error) -> Self {
        match err {
            sqlx::Error::Database(said) => Self::Refused(said),
            err => Self::Broken(err),
        }
    }
}

impl RequestError {
    /// The server's code of the error: SQLSTATE in PostgreSQL, the number of the error in MySQL.
    pub(crate) fn code(&self) -> Option<String> {
        let Self::Refused(said) = self else {
            return None;
        };
        #[cfg(feature = "mysql")]
        if let Some(said) = said.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
            return Some(said.number().to_string());
        }
        said.code().map(Into::into)
    }

    /// What the server said; empty if no server said anything.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(super) fn message(&self) -> &str {
        match self {
            Self::Refused(said) => said.message(),
            _ => "",
        }
    }

    /// Whether the connection has ended: the request may have been done, and no further answer comes.
    pub(crate) fn is_fatal(&self) -> bool {
        match self {
            Self::Explained(_) => false,
            Self::TimedOut(_) | Self::Broken(_) => true,
            Self::Refused(_) => matches!(
                self.code().as_deref(),
                // PostgreSQL: terminated by an administrator, crash of another store, starting or stopping, idle
                // for too long, a transaction for too long. Class 08: connection errors, from a pooler for example.
                // 08007 and 40003: the server cannot tell whether the request was done.
                Some(
                    "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "25P04"
                    | "08000" | "08003" | "08006" | "08007" | "08P01" | "40003"
                // MySQL and MariaDB: shutdown, killed, gone while idle (MySQL 8.0.24 says so).
                    | "1053" | "1927" | "4031" | "3169"
                )
            ),
        }
    }

    /// Whether nothing was done: the server was not reached at all, or refused the request.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Explained(_) | Self::Refused(_)) && !self.is_fatal()
    }
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use std::error::Error as StdError;
    use std::fmt;

    use super::*;

    /// An error of PostgreSQL with that code.
    #[derive(Debug)]
    struct FakeError(&'static str);

    impl fmt::Display for FakeError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl StdError for FakeError {}

    impl DatabaseError for FakeError {
        fn message(&self) -> &str {
            self.0
        }

        fn code(&self) -> Option<std::borrow::Cow<'_, str>> {
            Some(self.0.into())
        }

        fn as_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn StdError + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn StdError + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> sqlx::error::ErrorKind {
            sqlx::error::ErrorKind::Other
        }
    }

    #[test]
    fn limits_that_end_the_connection_are_told_from_those_that_end_a_statement() {
        for (code, is_fatal) in [
            ("57P05", true),
            ("25P03", true),
            ("25P04", true),
            ("08007", true),
            ("40003", true),
            ("57014", false),
            ("55P03", false),
        ] {
            let error = RequestError::Refused(Box::new(FakeError(code)));
            assert_eq!(error.is_fatal(), is_fatal, "{code}");
        }
    }
}
