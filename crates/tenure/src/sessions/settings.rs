//! What a `mysql:` or `postgres:` URL says about session locks.

use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::name::Escaped;
use tenure_core::url::{Url, invalid};

use crate::database::{DatabasePool, KNOWN as SERVER_OPTIONS, Kind, Server};

use super::key::{KeyMapping, is_plain};

/// Longest prefix, in bytes: 63 bytes are a plain key, and the rest has to be enough for a name.
const MAX_PREFIX: usize = 40;

/// The smallest pool of a caller: the control connection, two for locks, and one for the program itself.
const MIN_POOL: u32 = 4;

/// The options of a URL, besides those of every database server.
const OPTIONS: [&str; 5] = ["prefix", "keys", "connections", "validate", "restart_guard"];

/// The settings of a client.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) server: Server,
    pub(super) prefix: String,
    /// How a name becomes a key of PostgreSQL.
    pub(super) key_mapping: KeyMapping,
    /// How many connections for locks a client has at most. A request whose ttl no session has opens one more.
    pub(super) connections: usize,
    /// The longest time until the end of a session is noticed.
    pub(super) validate: Duration,
    /// How long after its start a server is not trusted. `None`: it is trusted at once.
    pub(super) restart_guard: Option<Duration>,
    /// The caller's pool, whose connections this client keeps while it needs them. `None`: this client opens its own.
    pub(super) pool: Option<DatabasePool>,
}

impl Settings {
    /// `url` is what [`Server::parse`] has left.
    pub(super) fn new(server: Server, mut url: Url) -> Result<Self, Error> {
        let prefix = url.take_prefix(MAX_PREFIX)?;
        if !is_plain(&prefix) {
            return invalid(format!(
                "`prefix` is \"{}\"; it can have lower-case letters, digits, `.`, `_`, `-` and `/`",
                Escaped(&prefix)
            ));
        }
        let key_mapping = match (url.take("keys").as_deref(), server.kind) {
            (None, _) => KeyMapping::BigInt,
            (Some(_), Kind::MySql) => {
                return invalid("`keys` is an option of PostgreSQL; in MySQL a name is the key");
            }
            (Some(keys), Kind::Postgres) => match KeyMapping::parse(keys) {
                Some(mapping) => mapping,
                None => {
                    return invalid(format!(
                        "the option `keys` is \"{}\"; it can be {}",
                        Escaped(keys),
                        KeyMapping::ALL.map(|(name, _)| name).join(", ")
                    ));
                }
            },
        };
        if !prefix.is_empty() && key_mapping == KeyMapping::Raw {
            return invalid("`keys=raw` means that names are numbers, so there can be no `prefix`");
        }
        let connections = url.take_number_in("connections", &(2..=10_000), 16)?;
        let validate = url
            .take_duration("validate")?
            .unwrap_or(Duration::from_secs(1));
        if validate < Duration::from_millis(10) {
            return invalid(format!(
                "the option `validate` is {validate:?}; it must be 10ms or more"
            ));
        }
        let restart_guard = url.take_restart_guard()?;
        let known: Vec<_> = SERVER_OPTIONS.iter().chain(&OPTIONS).copied().collect();
        url.finish(&known)?;
        Ok(Self {
            server,
            prefix,
            key_mapping,
            connections: usize::try_from(connections).unwrap_or(usize::MAX),
            validate,
            restart_guard,
            pool: None,
        })
    }

    /// The caller's pool, and options, written as those of a URL.
    pub(super) fn of_pool(pool: DatabasePool, options: &str) -> Result<Self, Error> {
        let mut url = Url::parse(&format!("pool://pool?{options}"), 1)?;
        let timeout = url.take_timeout()?;
        let Some(server) = pool.server(timeout) else {
            return invalid(
                "SQLite has no locks of sessions; use its tables (tenure::tables::Store::from_pool)",
            );
        };
        let most = pool.max_connections();
        if most < MIN_POOL {
            return invalid(format!(
                "the pool has {most} connections at most (max_connections); locks of sessions keep up to half of them, and three at least: allow {MIN_POOL} or more, or use a table (tenure::tables::Store::from_pool), which keeps none"
            ));
        }
        let mut settings = Self::new(server, url)?;
        // One more is the control connection.
        let share = (most / 2).saturating_sub(1).max(2);
        settings.connections = settings.connections.min(share as usize);
        settings.pool = Some(pool);
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> Result<Settings, Error> {
        let (server, _, url) = Server::parse(url)?;
        Settings::new(server, url)
    }

    #[test]
    fn a_full_url() {
        let all = "postgres://h/db?prefix=app/&keys=ruby&connections=4&validate=200ms&restart_guard=off&timeout=1s";
        let all = settings(all).unwrap();
        assert_eq!(
            (all.prefix.as_str(), all.key_mapping),
            ("app/", KeyMapping::Ruby)
        );
        assert_eq!((all.connections, all.restart_guard), (4, None));
        assert_eq!(all.validate, Duration::from_millis(200));
        let least = settings("mysql://h").unwrap();
        assert_eq!(
            (least.connections, least.key_mapping),
            (16, KeyMapping::BigInt)
        );
        assert_eq!(least.validate, Duration::from_secs(1));
        assert_eq!(least.restart_guard, Some(Duration::from_secs(30)));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (url, says) in [
            ("mysql://h?prefix=A", "lower-case"),
            (
                "mysql://h?prefix=0123456789012345678901234567890123456789x",
                "it may have 40",
            ),
            ("mysql://h?keys=raw", "option of PostgreSQL"),
            (
                "postgres://h?keys=md5",
                "bigint, pair, raw, hashtext, csharp, ruby, sqlx",
            ),
            ("postgres://h?keys=raw&prefix=x", "no `prefix`"),
            ("mysql://h?connections=1", "between 2 and"),
            ("mysql://h?connections=many", "whole number"),
            ("mysql://h?validate=1ms", "10ms or more"),
            ("mysql://h?restart_guard=no", "or off"),
            ("mysql://h?color=red", "no option \"color\""),
        ] {
            let err = format!("{:#}", settings(url).unwrap_err());
            assert!(err.contains(says), "{url}: {err}");
        }
    }
}
