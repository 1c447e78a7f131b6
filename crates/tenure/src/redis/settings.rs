//! What a URL of Redis says, and the client library's settings that follow.

use std::time::Duration;

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _,
    ProtocolVersion, RedisConnectionInfo,
};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::name::Escaped;

use crate::tls;
use tenure_core::url::{Host, MAX_PREFIX, Secret, Url, invalid};

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

/// Options in place of what stands before and after the host of other URLs, as the client library has them.
const SOCKET_OPTIONS: &[&str] = &["db", "user", "pass"];

/// All settings of one store.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) topology: Topology,
    login: Login,
    sentinel_login: Login,
    tls: Option<tls::Files>,
    pub(super) prefix: String,
    pub(super) format: Format,
    /// How long after its start a server is not trusted; `None`: it is trusted at once.
    pub(super) restart_guard: Option<Duration>,
    /// Limit of each request and of each attempt to connect.
    pub(super) timeout: Duration,
    /// How many replicas have to acknowledge a grant.
    pub(super) wait_replicas: u32,
    /// Whether `connect` succeeds although the server cannot be reached: it is one of several independent servers.
    pub(super) may_be_unreachable: bool,
}

/// How many servers there are, and how a client finds them.
#[derive(Clone, Debug)]
pub(super) enum Topology {
    One(Host),
    Sentinel {
        sentinels: Vec<Host>,
        service: String,
    },
    Cluster(Vec<Host>),
}

/// The format of the locks: the options `dialect` and `lock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Token,
    Redisson(RedissonLock),
}

/// Which lock of Redisson a name is: the option `lock`. Redisson has another layout of keys for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedissonLock {
    /// `RLock` and `RFencedLock`.
    Plain,
    /// `RReadWriteLock`.
    ReadWrite,
    /// `RLock` of `getFairLock`.
    Fair,
    /// `RPermitExpirableSemaphore`.
    Semaphore,
}

#[derive(Clone, Debug, Default)]
struct Login {
    user: Option<String>,
    password: Option<Secret>,
    database: i64,
}

impl Settings {
    /// One server, a primary that sentinels name, or a cluster: the scheme decides.
    pub(super) fn new(url: &str) -> Result<Self, Error> {
        let mut url = match url.split_once(':') {
            Some(("redis+sentinel", _)) => Url::parse(url, 26_379)?,
            Some(("redis+unix", _)) => Url::parse_socket(url)?,
            _ => Url::parse(url, 6_379)?,
        };
        let hosts = std::mem::take(&mut url.hosts);
        let topology = match (url.scheme.as_str(), &hosts[..]) {
            ("redis" | "rediss", [host]) => Topology::One(host.clone()),
            ("redis+unix", [host]) => {
                url.path = url.take("db").unwrap_or_default();
                url.user = url.take("user").or(url.user);
                url.password = url.take_secret("pass").or(url.password);
                Topology::One(host.clone())
            }
            ("redis" | "rediss", _) => {
                return invalid(format!(
                    "`{}:` takes one host; several independent servers are redlock://, a cluster is redis+cluster://, sentinels are redis+sentinel://",
                    url.scheme
                ));
            }
            ("redis+sentinel", _) => {
                let (service, database) = url.path.split_once('/').unwrap_or((&url.path, ""));
                if service.is_empty() {
                    return invalid(
                        "the URL names no service; write redis+sentinel://HOST:26379,HOST:26379/SERVICE",
                    );
                }
                let topology = Topology::Sentinel {
                    sentinels: hosts,
                    service: service.to_owned(),
                };
                url.path = database.to_owned();
                topology
            }
            ("redis+cluster", _) => Topology::Cluster(hosts),
            (scheme, _) => {
                return invalid(format!("`{}:` is no scheme of Redis", Escaped(scheme)));
            }
        };
        Self::with_topology(url, topology)
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
        let one = Self::with_topology(url, Topology::Cluster(Vec::new()))?;
        if one.format != Format::Token {
            return invalid(
                "`redlock:` has no `dialect=redisson`; Redisson calls its own RedLock deprecated",
            );
        }
        let node = |host| Self {
            topology: Topology::One(host),
            may_be_unreachable: true,
            ..one.clone()
        };
        Ok(hosts.into_iter().map(node).collect())
    }

    fn with_topology(mut url: Url, topology: Topology) -> Result<Self, Error> {
        let database = match url.path.as_str() {
            "" => 0,
            path => match path.parse() {
                Ok(database) if matches!(topology, Topology::Cluster(_)) && database != 0 => {
                    return invalid("a cluster has no databases but 0");
                }
                Ok(database) => database,
                Err(_) => {
                    return invalid(format!(
                        "\"{}\" in the URL is no number of a database",
                        Escaped(path)
                    ));
                }
            },
        };
        let login = Login {
            user: url.user.take(),
            password: url.password.take(),
            database,
        };
        let sentinel_login = Login {
            user: url.take("sentinel_user"),
            password: url.take_secret("sentinel_password"),
            database: 0,
        };
        let is_tls = match url.take("tls").as_deref() {
            None => url.scheme == "rediss",
            Some("on") if url.scheme == "redis+unix" => {
                return invalid("a socket of this machine has no TLS; leave tls=on out");
            }
            Some("on") => true,
            Some("off") if url.scheme != "rediss" => false,
            Some(_) => {
                return invalid("the option `tls` is `on` or `off`, and `rediss:` is always `on`");
            }
        };
        let tls = tls::Files::take(&mut url, is_tls, "rediss://, or tls=on")?;
        let prefix = url.take_prefix(MAX_PREFIX)?;
        let format = take_format(&mut url)?;
        let restart_guard = url.take_restart_guard()?;
        let timeout = url.take_timeout()?;
        let wait_replicas = url.take_number("wait_replicas")?.unwrap_or(0);
        match url.scheme.as_str() {
            "redis+unix" => url.finish(&[OPTIONS, SOCKET_OPTIONS].concat())?,
            _ => url.finish(OPTIONS)?,
        }
        Ok(Self {
            topology,
            login,
            sentinel_login,
            tls,
            prefix,
            format,
            restart_guard,
            timeout,
            wait_replicas,
            may_be_unreachable: false,
        })
    }

    /// For a connection with the time limits of this client.
    pub(super) fn connection_config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout))
    }

    pub(super) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// A client of the client library for one server. Its connections are plain.
    pub(super) fn client(&self, host: &Host) -> Result<Client, Error> {
        self.client_for(host, &self.login)
    }

    /// The same for a sentinel.
    pub(super) fn sentinel_client(&self, host: &Host) -> Result<Client, Error> {
        self.client_for(host, &self.sentinel_login)
    }

    /// `None`: connections are plain.
    pub(super) fn tls_connector(&self, host: &Host) -> Result<Option<tls::Connector>, Error> {
        let Some(files) = &self.tls else {
            return Ok(None);
        };
        tls::Connector::new(files.client_config(&[])?, host).map(Some)
    }

    fn client_for(&self, host: &Host, login: &Login) -> Result<Client, Error> {
        let mut settings = RedisConnectionInfo::default()
            .set_db(login.database)
            // Version 3 of the protocol: messages come over the same connection as replies, in order.
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("tenure", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &login.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &login.password {
            settings = settings.set_password(password.reveal());
        }
        let wrong = |err: redis::RedisError| {
            let what = format!("{host} cannot be connected to with these settings");
            Error::new(ErrorKind::Invalid, what).with_source(err)
        };
        let addr = match host.is_socket() {
            true => ConnectionAddr::Unix(host.name.clone().into()),
            false => ConnectionAddr::Tcp(host.name.clone(), host.port),
        };
        let info: ConnectionInfo = addr.into_connection_info().map_err(wrong)?;
        // Without this option the operating system delays a small request until the one before is acknowledged.
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_tcp_settings(tcp).set_redis_settings(settings);
        Client::open(info).map_err(wrong)
    }
}

fn take_format(url: &mut Url) -> Result<Format, Error> {
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
        None => Ok(Format::Token),
        Some(_) => Ok(Format::Redisson(lock)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        Settings::new(url).unwrap_err().to_string()
    }

    #[test]
    fn urls_of_all_shapes() {
        let one = Settings::new("redis://me:secret@h:1/3?prefix=p:&restart_guard=5s").unwrap();
        assert!(matches!(&one.topology, Topology::One(host) if host.to_string() == "h:1"));
        assert_eq!((one.login.database, one.prefix.as_str()), (3, "p:"));
        assert_eq!(one.restart_guard, Some(Duration::from_secs(5)));
        assert!(!format!("{one:?}").contains("secret"));
        let sentinel = Settings::new("redis+sentinel://a,b:2/svc/4?restart_guard=off").unwrap();
        let Topology::Sentinel { sentinels, service } = &sentinel.topology else {
            panic!("{sentinel:?}");
        };
        assert_eq!((sentinels[0].port, service.as_str()), (26_379, "svc"));
        assert_eq!((sentinel.login.database, sentinel.restart_guard), (4, None));
        assert!(Settings::new("redis+cluster://a,b").is_ok());
        for url in [
            "redis+unix://me:secret@/s?db=2",
            "redis+unix:///s?user=me&pass=secret&db=2",
        ] {
            let socket = Settings::new(url).unwrap();
            assert!(matches!(&socket.topology, Topology::One(host) if host.name == "/s"));
            assert_eq!(
                (socket.login.database, socket.login.user.as_deref()),
                (2, Some("me"))
            );
            let password = socket.login.password.as_ref().map(Secret::reveal);
            assert_eq!(password, Some("secret"));
        }
        assert!(Settings::new("rediss://h").unwrap().tls.is_some());
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
            let err = Settings::independent_servers(url).unwrap_err().to_string();
            assert!(err.contains(says), "{url}: {err}");
        }
    }
}
