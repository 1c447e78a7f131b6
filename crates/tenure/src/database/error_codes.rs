//! What the error codes of the servers mean for any statement and for any attempt to connect: the kind of the error, the
//! cause, and the remedy.

use tenure_core::error::ErrorKind::{self, Denied, Indeterminate, Invalid, Store, Unreachable};

use super::meaning::{Meaning, find, with_names};
use super::server::{Kind, Server};

/// Codes that are not the server's own: its code, and what its message says beside it. See [`specific`].
const FUNCTION: &str = "42501 function";
const ROLE_LIMIT: &str = "53300 role";
const DATABASE_LIMIT: &str = "53300 database";
const USER_CONNECTIONS: &str = "1226 max_user_connections";
const CONNECTIONS_PER_HOUR: &str = "1226 max_connections_per_hour";
const QUERIES_PER_HOUR: &str = "1226 max_queries_per_hour";
const UPDATES_PER_HOUR: &str = "1226 max_updates_per_hour";

/// A code of a server that has several causes, and how the server's message names each of them. MySQL and MariaDB have
/// different names for two of these.
const SPECIFIC: &[(&str, &str, &str)] = &[
    ("42501", "denied for function", FUNCTION),
    ("53300", "connections for role", ROLE_LIMIT),
    ("53300", "connections for database", DATABASE_LIMIT),
    ("1226", "'max_user_connections'", USER_CONNECTIONS),
    ("1226", "'max_connections_per_hour'", CONNECTIONS_PER_HOUR),
    ("1226", "'max_queries_per_hour'", QUERIES_PER_HOUR),
    ("1226", "'max_questions'", QUERIES_PER_HOUR),
    ("1226", "'max_updates_per_hour'", UPDATES_PER_HOUR),
    ("1226", "'max_updates'", UPDATES_PER_HOUR),
];

/// The code under which the tables of this file have an error. A server in another language than English says nothing more
/// than its code.
pub(super) fn specific(code: String, message: &str) -> String {
    let is_it = |(of, words, _): &&(&str, &str, &str)| *of == code && message.contains(words);
    match SPECIFIC.iter().find(is_it) {
        Some((_, _, specific)) => (*specific).to_owned(),
        None => code,
    }
}

const POSTGRES: &[Meaning] = &[
    (
        &["28P01", "28000"],
        Denied,
        "{server} does not let \"{user}\" in; check user and password in the URL, or: ALTER ROLE \"{user}\" LOGIN PASSWORD '..'",
    ),
    (
        &["3D000"],
        Invalid,
        "{server} has no database \"{database}\"; CREATE DATABASE \"{database}\", or name another one in the URL",
    ),
    (
        &[FUNCTION],
        Denied,
        "\"{user}\" may not call a function of {server} that locks need; GRANT EXECUTE ON FUNCTION .. TO \"{user}\"",
    ),
    (&["42501"], Denied, "\"{user}\" may not do that in {server}"),
    (
        &[ROLE_LIMIT],
        Unreachable,
        "{server} has no connection left for \"{user}\"; ALTER ROLE \"{user}\" CONNECTION LIMIT -1, or let others use fewer",
    ),
    (
        &[DATABASE_LIMIT],
        Unreachable,
        "{server} has no connection left for this database; ALTER DATABASE .. CONNECTION LIMIT -1, or let others use fewer",
    ),
    (
        &["53300"],
        Unreachable,
        "{server} has no connection left; ALTER SYSTEM SET max_connections = .. and restart it, or let others use fewer",
    ),
    (
        &["53100", "53200"],
        Store,
        "{server} has run out of disk or memory",
    ),
    (
        &["25006"],
        Denied,
        "{server} is read-only: a standby, or ALTER DATABASE .. SET default_transaction_read_only = off",
    ),
    (&["57P03"], Unreachable, "{server} is starting or stopping"),
    (
        &[
            "57P01", "57P02", "57P05", "25P03", "25P04", "08000", "08003", "08006", "08P01",
        ],
        Indeterminate,
        "{server} ended the connection",
    ),
    (
        &["08007", "40003"],
        Indeterminate,
        "{server} cannot tell whether the request was done",
    ),
];

const MYSQL: &[Meaning] = &[
    (
        &["1045", "1698"],
        Denied,
        "{server} does not let \"{user}\" in; check user and password in the URL, or: ALTER USER '{user}'@'%' IDENTIFIED BY '..'",
    ),
    (
        &["1044"],
        Denied,
        "\"{user}\" may not use the database \"{database}\" of {server}; GRANT ALL ON `{database}`.* TO '{user}'@'%'",
    ),
    (
        &["1049"],
        Invalid,
        "{server} has no database \"{database}\"; CREATE DATABASE `{database}`, or name another one in the URL",
    ),
    (
        &["1142", "1227", "1370"],
        Denied,
        "\"{user}\" may not do that in {server}",
    ),
    (
        &["1820", "1862", "3118", "4151"],
        Denied,
        "{server} does not let \"{user}\" in: the account is locked, or its password has expired; ALTER USER '{user}'@'%' ACCOUNT UNLOCK, or IDENTIFIED BY '..'",
    ),
    (
        &["1130"],
        Denied,
        "{server} lets no user in from this host; CREATE USER '{user}'@'%' .., or connect from another host",
    ),
    (
        &["1129"],
        Unreachable,
        "{server} blocks this host after many failed attempts to connect; FLUSH HOSTS",
    ),
    (
        &["1203", USER_CONNECTIONS],
        Unreachable,
        "{server} has no connection left for \"{user}\"; ALTER USER .. WITH MAX_USER_CONNECTIONS 0, SET GLOBAL max_user_connections = 0, or let others use fewer",
    ),
    (
        &[CONNECTIONS_PER_HOUR],
        Unreachable,
        "{server} accepts no further connection of \"{user}\" for up to an hour; ALTER USER .. WITH MAX_CONNECTIONS_PER_HOUR 0, or FLUSH USER_RESOURCES",
    ),
    (
        &[QUERIES_PER_HOUR],
        Unreachable,
        "{server} accepts no further statement of \"{user}\" for up to an hour; ALTER USER .. WITH MAX_QUERIES_PER_HOUR 0, or FLUSH USER_RESOURCES",
    ),
    (
        &[UPDATES_PER_HOUR],
        Unreachable,
        "{server} accepts no further change by \"{user}\" for up to an hour; ALTER USER .. WITH MAX_UPDATES_PER_HOUR 0, or FLUSH USER_RESOURCES",
    ),
    (
        &["1226"],
        Unreachable,
        "{server} has a limit for \"{user}\" that is used up; ALTER USER .. WITH ..",
    ),
    (
        &["1040"],
        Unreachable,
        "{server} has no connection left; SET GLOBAL max_connections = .., or let others use fewer",
    ),
    (
        &["1290", "1836"],
        Denied,
        "{server} is read-only: a replica, or SET GLOBAL read_only = 0",
    ),
    (
        &["1047", "3032", "9001"],
        Unreachable,
        "{server} is not ready; another node may be",
    ),
    (
        &["1021", "1041", "1114"],
        Store,
        "{server} has run out of disk or memory",
    ),
    (
        &["1053", "1927", "4031"],
        Indeterminate,
        "{server} ended the connection",
    ),
];

/// What a code of that server means: by the rows of the caller, or else by those of this file. `None`: no row has it.
///
/// `name` returns the name for a word of the caller's rows. `{server}`, `{user}` and `{database}` are known here.
pub(super) fn meaning(
    code: &str,
    server: &Server,
    rows: &[Meaning],
    name: &dyn Fn(&str) -> Option<String>,
) -> Option<(ErrorKind, String)> {
    let common = match server.kind {
        Kind::Postgres => POSTGRES,
        Kind::MySql => MYSQL,
    };
    let (kind, text) = find(rows, code).or_else(|| find(common, code))?;
    let name = |word: &str| name(word).unwrap_or_else(|| server.name(word));
    Some((kind, with_names(text, name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_where_the_table_says_and_are_not_read_again() {
        let (server, ..) = Server::parse("mysql://{server}:x@h/jobs").unwrap();
        let meaning = |code, server| meaning(code, server, &[], &|_| None);
        let (kind, text) = meaning("1044", &server).unwrap();
        assert_eq!(kind, Denied);
        assert_eq!(
            text,
            "\"{server}\" may not use the database \"jobs\" of h:3306; GRANT ALL ON `jobs`.* TO '{server}'@'%'"
        );
        assert_eq!(meaning("28P01", &server), None);
        let (server, ..) = Server::parse("postgres://h").unwrap();
        let (_, text) = meaning("57P02", &server).unwrap();
        assert_eq!(text, "h:5432 ended the connection");
    }

    /// The names of both servers; waiting for a connection helps with the first one only.
    #[test]
    fn a_limit_of_a_user_is_explained_by_its_resource() {
        let (mysql, ..) = Server::parse("mysql://lim@h/jobs").unwrap();
        for (resource, says) in [
            ("max_user_connections", "no connection left for \"lim\""),
            ("max_connections_per_hour", "MAX_CONNECTIONS_PER_HOUR 0"),
            ("max_queries_per_hour", "MAX_QUERIES_PER_HOUR 0"),
            ("max_questions", "MAX_QUERIES_PER_HOUR 0"),
            ("max_updates_per_hour", "MAX_UPDATES_PER_HOUR 0"),
            ("max_updates", "MAX_UPDATES_PER_HOUR 0"),
            ("max_of_tomorrow", "a limit for \"lim\""),
        ] {
            let said =
                format!("User 'lim' has exceeded the '{resource}' resource (current value: 3)");
            let code = specific("1226".into(), &said);
            let (kind, text) = meaning(&code, &mysql, &[], &|_| None).unwrap();
            assert_eq!(kind, Unreachable);
            assert!(text.contains(says), "{resource}: {text}");
        }
        let (postgres, ..) = Server::parse("postgres://lim@h/jobs").unwrap();
        for (said, says) in [
            ("sorry, too many clients already", "max_connections"),
            (
                "too many connections for role \"lim\"",
                "ALTER ROLE \"lim\"",
            ),
            (
                "too many connections for database \"jobs\"",
                "ALTER DATABASE",
            ),
        ] {
            let code = specific("53300".into(), said);
            let (_, text) = meaning(&code, &postgres, &[], &|_| None).unwrap();
            assert!(text.contains(says), "{said}: {text}");
        }
    }

    #[test]
    fn all_words_in_braces_are_known() {
        for (_, _, text) in POSTGRES.iter().chain(MYSQL) {
            with_names(text, |word| {
                assert!(matches!(word, "server" | "user" | "database"), "{text}");
                String::new()
            });
        }
    }
}
