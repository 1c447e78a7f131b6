//! What a URL of Redis says about locks. The folder `connection` reads what the URL says about servers.

use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::url::{MAX_PREFIX, Url, invalid};

use super::connection::{ServerSettings, Topology};
use super::redisson::RedissonLock;

/// The options that a URL may have.
const OPTIONS: &[&str] = &[
    "prefix",
    "dialect",
    "lock",
    "restart_guard",
    "timeout",
    "wait_replicas",
    "tls",
    "ca",
    "cert",
    "key",
    "sentinel_user",
    "sentinel_password",
];

/// Options for the login and the database. In other URLs these are before and after the host.
const SOCKET_OPTIONS: &[&str] = &["db", "user", "pass"];

/// All settings of one store.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) servers: ServerSettings,
    pub(super) prefix: String,
    /// The options `dialect` and `lock`: which lock of Redisson a name is. `None`: locks have our own format.
    pub(super) redisson: Option<RedissonLock>,
    /// How long after its start a server is not trusted; `None`: it is trusted at once.
    pub(super) restart_guard: Option<Duration>,
    /// How many replicas have to acknowledge a grant.
    pub(super) wait_replicas: u32,
}

impl Settings {
    pub(super) fn new(url: &str) -> Result<Self, Error> {
        let (servers, url) = ServerSettings::parse(url)?;
        Self::of_locks(url, servers)
    }

    /// The servers of `redlock://a,b,c`, each with settings of its own.
    pub(super) fn independent_servers(url: &str) -> Result<Vec<Self>, Error> {
        let mut url = Url::parse(url, 6_379)?;
        let hosts = std::mem::take(&mut url.hosts);
        if hosts.len() < 3 || hosts.len() % 2 == 0 {
            return invalid(format!(
                "`redlock:` names {} servers; it needs 3, 5 or 7 independent ones: an even number survives no more failures than one less",
                hosts.len()
            ));
        }
        for (i, host) in hosts.iter().enumerate() {
            if hosts[..i].contains(host) {
                return invalid(format!(
                    "`redlock:` names {host} twice; every server has one vote"
                ));
            }
        }
        let servers = ServerSettings::with_topology(&mut url, Topology::Cluster(Vec::new()))?;
        let one = Self::of_locks(url, servers)?;
        if one.redisson.is_some() {
            return invalid(
                "`redlock:` has no `dialect=redisson`; Redisson calls its own RedLock deprecated",
            );
        }
        let node = |host| {
            let mut node = one.clone();
            node.servers.topology = Topology::One(host);
            node.servers.may_be_unreachable = true;
            node
        };
        Ok(hosts.into_iter().map(node).collect())
    }

    /// With the options of the URL that are about locks.
    fn of_locks(mut url: Url, servers: ServerSettings) -> Result<Self, Error> {
        let prefix = url.take_prefix(MAX_PREFIX)?;
        let redisson = take_format(&mut url)?;
        let restart_guard = url.take_restart_guard()?;
        let wait_replicas = url.take_number("wait_replicas")?.unwrap_or(0);
        match url.scheme.as_str() {
            "redis+unix" => url.finish(&[OPTIONS, SOCKET_OPTIONS].concat())?,
            _ => url.finish(OPTIONS)?,
        }
        Ok(Self {
            servers,
            prefix,
            redisson,
            restart_guard,
            wait_replicas,
        })
    }
}

fn take_format(url: &mut Url) -> Result<Option<RedissonLock>, Error> {
    let plain = RedissonLock::Plain;
    let dialects = [("token", None), ("redisson", Some(plain))];
    let locks = [
        ("plain", plain),
        ("rw", RedissonLock::ReadWrite),
        ("fair", RedissonLock::Fair),
        ("semaphore", RedissonLock::Semaphore),
    ];
    let dialect = url.take_word("dialect", &dialects)?;
    let lock = url.take_word("lock", &locks)?;
    match dialect {
        None if lock != plain => invalid(
            "the option `lock` chooses one of Redisson's locks; add dialect=redisson, or leave `lock` out",
        ),
        dialect => Ok(dialect.map(|_| lock)),
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::url::Secret;

    use super::*;

    fn refused(url: &str) -> String {
        Settings::new(url).unwrap_err().to_string()
    }

    #[test]
    fn urls_of_all_shapes() {
        let one = Settings::new("redis://me:secret@h:1/3?prefix=p:&restart_guard=5s").unwrap();
        assert!(matches!(&one.servers.topology, Topology::One(host) if host.to_string() == "h:1"));
        assert_eq!((one.servers.login.database, one.prefix.as_str()), (3, "p:"));
        assert_eq!(one.restart_guard, Some(Duration::from_secs(5)));
        assert!(!format!("{one:?}").contains("secret"));
        let sentinel = Settings::new("redis+sentinel://a,b:2/svc/4?restart_guard=off").unwrap();
        let Topology::Sentinel { sentinels, service } = &sentinel.servers.topology else {
            panic!("{sentinel:?}");
        };
        assert_eq!((sentinels[0].port, service.as_str()), (26_379, "svc"));
        assert_eq!(
            (sentinel.servers.login.database, sentinel.restart_guard),
            (4, None)
        );
        assert!(Settings::new("redis+cluster://a,b").is_ok());
        for url in [
            "redis+unix://me:secret@/s?db=2",
            "redis+unix:///s?user=me&pass=secret&db=2",
        ] {
            let socket = Settings::new(url).unwrap();
            assert!(matches!(&socket.servers.topology, Topology::One(host) if host.name == "/s"));
            assert_eq!(
                (
                    socket.servers.login.database,
                    socket.servers.login.user.as_deref()
                ),
                (2, Some("me"))
            );
            let password = socket.servers.login.password.as_ref().map(Secret::reveal);
            assert_eq!(password, Some("secret"));
        }
        assert!(Settings::new("rediss://h").unwrap().servers.is_tls());
        assert_eq!(
            Settings::independent_servers("redlock://a,b,c")
                .unwrap()
                .len(),
            3
        );
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (url, says) in [
            ("redis://a,b", "takes one host"),
            ("redis+sentinel://a", "names no service"),
            ("redis+cluster://a/1", "no databases"),
            ("redis://a/x", "no number of a database"),
            ("redis://me@a", "a user without a password"),
            ("redis://a?sentinel_user=me", "a user without a password"),
            ("redis://a?dialect=curator", "token or redisson"),
            (
                "redis://a?dialect=redisson&lock=spin",
                "plain or rw or fair or semaphore",
            ),
            ("redis://a?lock=rw", "add dialect=redisson"),
            ("redis://a?restart_guard=0", "longest ttl"),
            ("redis://a?timeout=1h", "between 10ms and 60s"),
            ("redis://a?wait_replicas=x", "whole number"),
            ("redis://a?ca=x", "are for TLS"),
            ("rediss://a?cert=x", "go together"),
            ("redis://a?color=red", "no option \"color\""),
            ("redis://a?db=1", "no option \"db\""),
            ("redis+unix:///a?db=x", "no number of a database"),
            ("redis+unix:///a?tls=on", "has no TLS"),
            ("redis+unix://a/b", "no path of a socket"),
        ] {
            assert!(refused(url).contains(says), "{url}: {}", refused(url));
        }
        for (url, says) in [
            ("redlock://a", "1 servers"),
            ("redlock://a,b,c,d", "4 servers"),
            ("redlock://a,b,a", "twice"),
            ("redlock://a,b,c?dialect=redisson", "deprecated"),
        ] {
            let err = format!("{:#}", Settings::independent_servers(url).unwrap_err());
            assert!(err.contains(says), "{url}: {err}");
        }
    }
}
