//! What the URL of a store with a lease table says.

#[cfg(feature = "sqlite")]
use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnectOptions;

use tenure_core::error::Error;
use tenure_core::name::Escaped;
use tenure_core::url::{Url, invalid};

use crate::database::DatabasePool;
#[cfg(feature = "postgres")]
use crate::database::Kind;
#[cfg(feature = "sqlite")]
use crate::database::PoolKind;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::database::{self, Server};

#[cfg(feature = "sqlite")]
use super::file_id::FileId;
use super::names::Format;

/// Longest part of a table's name: what the databases allow, less the length of what we append.
const MAX_IDENTIFIER: usize = 48;

/// A few connections serve any number of locks, because a request takes a fraction of a millisecond.
const CONNECTIONS: u32 = 4;
const MAX_CONNECTIONS: u32 = 100;

/// The options of a lease table.
const KNOWN: [&str; 3] = ["table", "connections", "dialect"];

/// Where the table lies.
#[derive(Clone, Debug)]
pub(super) enum Location {
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    Server(Server),
    #[cfg(feature = "sqlite")]
    File(PathBuf),
}

/// Everything that can be set.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) location: Location,
    pub(super) format: Format,
    /// `None`: the dialect's own name for it.
    table: Option<String>,
    /// How many connections this client has at most.
    pub(super) connections: usize,
    /// Limit of each request and of each attempt to connect.
    pub(super) timeout: Duration,
    /// The caller's pool, from which each request borrows a connection. `None`: this client opens connections of its own.
    pub(super) pool: Option<DatabasePool>,
}

impl Settings {
    /// What is left of a URL `mysql://` or `postgres://` with `mode=table`.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(super) fn of_server(server: Server, mut url: Url) -> Result<Self, Error> {
        if server.database.is_none() {
            return invalid(format!(
                "the URL names no database; write {}://HOST/DATABASE?mode=table",
                url.scheme
            ));
        }
        let timeout = server.timeout;
        let settings = Self::take(&mut url, Location::Server(server), timeout)?;
        url.finish(&[&database::KNOWN[..], &KNOWN[..]].concat())?;
        Ok(settings)
    }

    /// A URL `sqlite:PATH`, without its scheme.
    #[cfg(feature = "sqlite")]
    pub(super) fn of_file(rest: &str) -> Result<Self, Error> {
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = match path.strip_prefix("//") {
            None => path,
            Some(absolute) if absolute.starts_with('/') => absolute,
            Some(_) => {
                return invalid(
                    "`sqlite://HOST/..` names a host; write sqlite:/FILE or sqlite:///FILE",
                );
            }
        };
        if path.is_empty() || path.starts_with(':') {
            return invalid(
                "`sqlite:` takes the path of a file, as in sqlite:/var/lib/myapp/locks.db",
            );
        }
        // The options of a file are written as in any other URL.
        let mut url = Url::parse(&format!("sqlite://file?{query}"), 1)?;
        let timeout = url.take_timeout()?;
        let settings = Self::take(&mut url, Location::File(path.into()), timeout)?;
        if settings.format == Format::ShedLock {
            return invalid("`dialect=shedlock` is for mysql:// and postgres://");
        }
        url.finish(&["timeout", KNOWN[0], KNOWN[1]])?;
        Ok(settings)
    }

    /// The caller's pool, and the options of the table, written as those of a URL.
    pub(super) fn of_pool(pool: DatabasePool, options: &str) -> Result<Self, Error> {
        let mut url = Url::parse(&format!("pool://pool?{options}"), 1)?;
        let timeout = url.take_timeout()?;
        let location = location_of(&pool, timeout)?;
        let mut settings = Self::take(&mut url, location, timeout)?;
        url.finish(&["mode", "timeout", KNOWN[0], KNOWN[1], KNOWN[2]])?;
        let most = pool.max_connections() as usize;
        if most < 2 {
            return invalid(
                "the pool has one connection at most (max_connections), so no lease could be renewed while a transaction uses it; allow two or more",
            );
        }
        // The program needs a connection of its own pool, too.
        settings.connections = settings.connections.min(most - 1);
        settings.pool = Some(pool);
        Ok(settings)
    }

    fn take(url: &mut Url, location: Location, timeout: Duration) -> Result<Self, Error> {
        let formats = [("tenure", Format::Tenure), ("shedlock", Format::ShedLock)];
        let format = url.take_word("dialect", &formats)?;
        let table = url.take("table");
        if let Some(table) = &table {
            check_table(table, &location)?;
        }
        let connections = url.take_number_in("connections", &(1..=MAX_CONNECTIONS), CONNECTIONS)?;
        Ok(Self {
            location,
            format,
            table,
            connections: connections as usize,
            timeout,
            pool: None,
        })
    }

    /// The server that has the table. `None`: the table lies in a file.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(super) fn server(&self) -> Option<&Server> {
        match &self.location {
            Location::Server(server) => Some(server),
            #[cfg(feature = "sqlite")]
            Location::File(_) => None,
        }
    }

    /// How the client library connects to a PostgreSQL server. `None`: the table lies elsewhere.
    #[cfg(feature = "postgres")]
    pub(super) fn postgres_options(&self) -> Option<Result<PgConnectOptions, Error>> {
        let server = self.server().filter(|it| it.kind == Kind::Postgres)?;
        Some(server.postgres_options())
    }

    /// The table of locks, as it is written in the URL.
    pub(super) fn table(&self) -> &str {
        match (&self.table, self.format) {
            (Some(table), _) => table,
            (None, Format::Tenure) => "tenure_locks",
            (None, Format::ShedLock) => "shedlock",
        }
    }
}

/// To which database a pool leads.
fn location_of(pool: &DatabasePool, timeout: Duration) -> Result<Location, Error> {
    let _ = timeout;
    match &pool.0 {
        #[cfg(feature = "sqlite")]
        PoolKind::Sqlite(pool) => {
            let path = pool.connect_options().get_filename().to_owned();
            match FileId::at(&path)? {
                Some(_) => Ok(Location::File(path)),
                None => invalid(format!(
                    "the pool leads to no file (\"{}\"); locks of several processes need a database that is a file, opened with create_if_missing if it is new",
                    Escaped(&path.display().to_string())
                )),
            }
        }
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        _ => match pool.server(timeout) {
            Some(server) if server.database.is_some() => Ok(Location::Server(server)),
            _ => invalid("the pool names no database; the table has to lie in one"),
        },
    }
}

/// Table names are written into statements, so only plain ones are allowed.
fn check_table(table: &str, location: &Location) -> Result<(), Error> {
    let is_plain = |part: &str| {
        let mut chars = part.chars();
        chars
            .next()
            .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
            && part.len() <= MAX_IDENTIFIER
    };
    // A file has no schemas.
    let most = match location {
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        Location::Server(_) => 2,
        #[cfg(feature = "sqlite")]
        Location::File(_) => 1,
    };
    if table.split('.').all(is_plain) && table.split('.').count() <= most {
        return Ok(());
    }
    invalid(format!(
        "the option `table` is \"{}\"; it can be letters, digits and `_`, up to {MAX_IDENTIFIER}, behind SCHEMA. on a server",
        Escaped(table)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "postgres")]
    #[test]
    fn a_url_of_a_server_is_read() {
        let read = |url: &str| {
            let (server, _, url) = Server::parse(url)?;
            Settings::of_server(server, url)
        };
        let all = "postgres://me@h/d?mode=table&table=ops.locks&connections=2&timeout=1s";
        let all = read(all).unwrap();
        assert_eq!((all.table(), all.connections), ("ops.locks", 2));
        assert_eq!(all.timeout, Duration::from_secs(1));
        let least = read("postgres://h/d?mode=table").unwrap();
        assert_eq!((least.table(), least.connections), ("tenure_locks", 4));
        assert_eq!(least.format, Format::Tenure);
        let theirs = read("postgres://h/d?mode=table&dialect=shedlock").unwrap();
        assert_eq!(theirs.table(), "shedlock");
        for (url, says) in [
            ("postgres://h?mode=table", "names no database"),
            ("postgres://h/d?mode=table&table=a-b", "letters, digits"),
            ("postgres://h/d?mode=table&table=a.b.c", "letters, digits"),
            ("postgres://h/d?mode=table&table=", "letters, digits"),
            (
                "postgres://h/d?mode=table&connections=0",
                "between 1 and 100",
            ),
            ("postgres://h/d?mode=table&dialect=x", "tenure or shedlock"),
            ("postgres://h/d?mode=table&color=red", "no option \"color\""),
        ] {
            let err = format!("{:#}", read(url).unwrap_err());
            assert!(err.contains(says), "{url}: {err}");
        }
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn a_url_of_a_file_is_read() {
        let path = |url: &str| {
            #[allow(
                irrefutable_let_patterns,
                reason = "with one feature there is one kind of location"
            )]
            let Location::File(path) = Settings::of_file(url).unwrap().location else {
                panic!("{url} is a file");
            };
            path.display().to_string()
        };
        assert_eq!(path("/var/lib/x.db"), "/var/lib/x.db");
        assert_eq!(path("///var/lib/x.db?connections=1"), "/var/lib/x.db");
        assert_eq!(path("x.db"), "x.db");
        for (rest, says) in [
            ("", "path of a file"),
            (":memory:", "path of a file"),
            ("//host/x", "names a host"),
            ("x?table=a.b", "letters, digits"),
            ("x?dialect=shedlock", "for mysql:// and"),
            ("x?mode=table", "no option \"mode\""),
            ("x?timeout=1ms", "between 10ms"),
        ] {
            let err = format!("{:#}", Settings::of_file(rest).unwrap_err());
            assert!(err.contains(says), "{rest}: {err}");
        }
    }
}
