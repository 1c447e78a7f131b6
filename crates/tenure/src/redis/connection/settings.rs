//! Which servers a client connects to and how: hosts, logins, TLS and time limits, as a URL says them, and the client
//! library's settings that follow.

use std::time::Duration;

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _,
    ProtocolVersion, RedisConnectionInfo,
};

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::name::Escaped;
use tenure_core::url::{Host, Secret, Url, invalid};

use crate::tls;

/// Where the servers are, and how to connect to them.
#[derive(Clone, Debug)]
pub(crate) struct ServerSettings {
    pub(crate) topology: Topology,
    pub(crate) login: Login,
    pub(super) sentinel_login: Login,
    tls: Option<tls::Files>,
    /// Limit of each request and of each attempt to connect.
    pub(crate) timeout: Duration,
    /// Whether a client can begin although the server cannot be reached: it is one of several independent servers.
    pub(crate) may_be_unreachable: bool,
}

/// How many servers there are, and how a client finds them.
#[derive(Clone, Debug)]
pub(crate) enum Topology {
    One(Host),
    Sentinel {
        sentinels: Vec<Host>,
        service: String,
    },
    Cluster(Vec<Host>),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) database: i64,
}

impl Login {
    /// The client library would leave out a user without a password.
    fn check(&self, cure: &str) -> Result<(), Error> {
        match (&self.user, &self.password) {
            // A password whose colon is missing looks like a user, so the text is not shown.
            (Some(_), None) => invalid(format!("there is a user without a password; write {cure}")),
            _ => Ok(()),
        }
    }
}

impl ServerSettings {
    /// What a URL says about servers, and the rest of the URL. One server, a primary that sentinels name, or a cluster: the
    /// scheme decides.
    pub(crate) fn parse(url: &str) -> Result<(Self, Url), Error> {
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
        let settings = Self::with_topology(&mut url, topology)?;
        Ok((settings, url))
    }

    /// The same for servers that are known already.
    pub(crate) fn with_topology(url: &mut Url, topology: Topology) -> Result<Self, Error> {
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
        login.check("USER:PASSWORD@HOST, or :PASSWORD@HOST for the user `default`")?;
        sentinel_login.check("`sentinel_password` beside `sentinel_user`")?;
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
        let tls = tls::Files::take(url, is_tls, "rediss://, or tls=on")?;
        let timeout = url.take_timeout()?;
        Ok(Self {
            topology,
            login,
            sentinel_login,
            tls,
            timeout,
            may_be_unreachable: false,
        })
    }

    /// For a connection with the time limits of this client.
    pub(super) fn connection_config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout))
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// `None`: connections are plain.
    pub(super) fn tls_connector(&self, host: &Host) -> Result<Option<tls::Connector>, Error> {
        let Some(files) = &self.tls else {
            return Ok(None);
        };
        tls::Connector::new(files.client_config(&[])?, host).map(Some)
    }

    /// A client of the client library for one server. Its connections are plain.
    pub(super) fn client(host: &Host, login: &Login) -> Result<Client, Error> {
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
