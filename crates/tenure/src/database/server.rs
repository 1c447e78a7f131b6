//! The server of a database: what a URL says about it.

use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::name::Escaped;
use tenure_core::store::Finding;
use tenure_core::url::{Host, Secret, Url, invalid};

use crate::tls;

/// The options of every database server, for [`Url::finish`].
pub(crate) const KNOWN: [&str; 7] = ["mode", "timeout", "tls", "ca", "cert", "key", "socket"];

/// Where the locks of a database are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The server itself keeps them, for its sessions.
    Session,
    /// They are rows of a table.
    Table,
}

/// The protocol of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    MySql,
    Postgres,
}

/// Whether connections are encrypted.
#[derive(Clone, Debug)]
pub(super) enum Tls {
    Off,
    /// If the server offers TLS. The server does not prove who it is, so this is for servers on this machine only: an
    /// attacker on the network could say that there is no TLS, and ask for the password.
    Prefer,
    /// Always, and the server has to prove who it is.
    On(tls::Files),
}

impl Tls {
    /// Takes the options about TLS. `is_near`: the server is on this machine.
    fn take(url: &mut Url, host: &Host, is_near: bool) -> Result<Self, Error> {
        let choice = url.take("tls");
        let is_on = match choice.as_deref() {
            None => !is_near,
            word => word == Some("on"),
        };
        let files = tls::Files::take(url, is_on, "tls=on")?;
        match (choice.as_deref(), files) {
            (None | Some("on"), Some(files)) => Ok(Self::On(files)),
            (Some("off"), _) => Ok(Self::Off),
            (None | Some("prefer"), _) if is_near => Ok(Self::Prefer),
            (Some("prefer"), _) => invalid(format!(
                "`tls=prefer` is for servers on this machine: a machine between this one and {host} could say that there is no TLS and ask for the password; write tls=on, or tls=off on a network that you trust"
            )),
            (other, _) => invalid(format!(
                "the option `tls` is \"{}\"; it can be on, off or prefer",
                Escaped(other.unwrap_or_default())
            )),
        }
    }
}

/// One server, and our user there.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) kind: Kind,
    pub(crate) host: Host,
    /// A socket on this machine in place of the host.
    pub(super) socket: Option<String>,
    pub(crate) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(crate) database: Option<String>,
    pub(super) tls: Tls,
    /// Limit of each request and of each attempt to connect.
    pub(crate) timeout: Duration,
}

impl Server {
    /// See [`tls::plaintext`].
    pub(crate) fn plaintext(&self) -> Option<Finding> {
        // For a server on another machine only the URL turns TLS off.
        let is_safe = self.socket.is_some() || !matches!(self.tls, Tls::Off);
        tls::plaintext(&self.host, is_safe, "tls=on")
    }

    /// Reads a URL `mysql://` or `postgres://`. The options that are left are those of the store.
    pub(crate) fn parse(url: &str) -> Result<(Self, Mode, Url), Error> {
        let (kind, port) = match url.split_once(':') {
            Some(("mysql", _)) => (Kind::MySql, 3_306),
            Some(("postgres", _)) => (Kind::Postgres, 5_432),
            _ => {
                return invalid("the URL of a database server begins with mysql:// or postgres://");
            }
        };
        let mut url = Url::parse(url, port)?;
        let mut hosts = std::mem::take(&mut url.hosts).into_iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return invalid(format!(
                "`{}:` takes one host: locks lie in one server, and another would not know of them",
                url.scheme
            ));
        };
        let mode = url.take_word(
            "mode",
            &[("session", Mode::Session), ("table", Mode::Table)],
        )?;
        let socket = url.take("socket");
        if let Some(path) = &socket
            && !path.starts_with('/')
        {
            return invalid(format!(
                "the option `socket` is \"{}\"; it must be a path from the root",
                Escaped(path)
            ));
        }
        let is_near = socket.is_some() || host.is_this_machine();
        let tls = Tls::take(&mut url, &host, is_near)?;
        let timeout = url.take_timeout()?;
        let database = std::mem::take(&mut url.path);
        let server = Self {
            kind,
            host,
            socket,
            user: url.user.take(),
            password: url.password.take(),
            database: (!database.is_empty()).then_some(database),
            tls,
            timeout,
        };
        Ok((server, mode, url))
    }
}

impl Server {
    /// What a word in the text of an error stands for: our user, our database, or else the server itself.
    pub(crate) fn name(&self, word: &str) -> String {
        let escaped =
            |name: &Option<String>| Escaped(name.as_deref().unwrap_or_default()).to_string();
        match word {
            "user" => escaped(&self.user),
            "database" => escaped(&self.database),
            _ => self.to_string(),
        }
    }
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.socket {
            Some(path) => write!(f, "{}", Escaped(path)),
            None => self.host.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read() {
        let all = "postgres://me:secret@db:5/jobs?mode=table&timeout=500ms&tls=on&ca=/x&color=red";
        let (server, mode, url) = Server::parse(all).unwrap();
        assert_eq!((server.kind, mode), (Kind::Postgres, Mode::Table));
        assert_eq!(server.to_string(), "db:5");
        assert_eq!(server.user.as_deref(), Some("me"));
        assert_eq!(server.database.as_deref(), Some("jobs"));
        assert_eq!(server.timeout, Duration::from_millis(500));
        assert!(!format!("{server:?}").contains("secret"));
        assert!(
            url.finish(&KNOWN)
                .unwrap_err()
                .to_string()
                .contains("color")
        );
        let (server, mode, _) = Server::parse("mysql://h").unwrap();
        assert_eq!((server.kind, mode), (Kind::MySql, Mode::Session));
        assert_eq!(
            (server.to_string().as_str(), server.database),
            ("h:3306", None)
        );
        let (server, _, _) = Server::parse("mysql://h?socket=/run/mysqld.sock").unwrap();
        assert_eq!(server.to_string(), "/run/mysqld.sock");
    }

    #[test]
    fn beyond_this_machine_tls_is_on_unless_it_is_off() {
        for (url, on) in [
            ("mysql://db", true),
            ("mysql://db?ca=/x", true),
            ("mysql://0.0.0.0", true),
            ("mysql://localhost.example.org", true),
            ("mysql://db?tls=off", false),
            ("mysql://db?socket=/run/mysqld.sock", false),
            ("mysql://localhost", false),
            ("mysql://127.0.0.1", false),
            ("mysql://[::1]", false),
            ("mysql://localhost?tls=on", true),
        ] {
            let (server, ..) = Server::parse(url).unwrap();
            assert_eq!(matches!(server.tls, Tls::On(_)), on, "{url}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (url, says) in [
            ("mysql://a,b", "takes one host"),
            ("mysql://a?mode=row", "session or table"),
            ("postgres://a?tls=maybe", "on, off or prefer"),
            ("postgres://a?tls=prefer", "tls=prefer"),
            ("postgres://a?tls=off&ca=x", "are for TLS"),
            ("postgres://localhost?ca=x", "are for TLS"),
            ("postgres://a?socket=x", "path from the root"),
            ("postgres://a?timeout=2h", "between 10ms and"),
        ] {
            let err = format!("{:#}", Server::parse(url).unwrap_err());
            assert!(err.contains(says), "{url}: {err}");
        }
    }
}
