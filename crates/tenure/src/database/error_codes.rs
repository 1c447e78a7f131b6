//! What the error codes of the servers mean for any statement and for any attempt to connect: the kind of the error, the
//! cause, and the cure.

use tenure_core::error::ErrorKind::{self, Backend, Denied, Indeterminate, Unreachable};

use super::meaning::{Meaning, find, with_names};
use super::server::{Kind, Server};

const POSTGRES: &[Meaning] = &[
    (
        &["28P01", "28000"],
        Denied,
        "{server} does not let \"{user}\" in; check user and password in the URL, or: ALTER ROLE \"{user}\" LOGIN PASSWORD '..'",
    ),
    (
        &["3D000"],
        Denied,
        "{server} has no database \"{database}\"; CREATE DATABASE \"{database}\", or name another one in the URL",
    ),
    (&["42501"], Denied, "\"{user}\" may not do that in {server}"),
    (
        &["53300"],
        Unreachable,
        "{server} has no connection left; ALTER SYSTEM SET max_connections = .. and restart it, ALTER ROLE \"{user}\" CONNECTION LIMIT -1, or let others use fewer",
    ),
    (
        &["53100", "53200"],
        Backend,
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
        Denied,
        "{server} has no database \"{database}\"; CREATE DATABASE `{database}`, or name another one in the URL",
    ),
    (
        &["1142", "1227", "1370"],
        Denied,
        "\"{user}\" may not do that in {server}",
    ),
    (
        &["1203", "1226"],
        Unreachable,
        "{server} has no connection left for \"{user}\"; ALTER USER .. WITH MAX_USER_CONNECTIONS 0, SET GLOBAL max_user_connections = 0, or let others use fewer",
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
        &["1021", "1041", "1114"],
        Backend,
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
