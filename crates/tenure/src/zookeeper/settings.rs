//! What a `zookeeper:` URL says.

use std::ops::RangeInclusive;
use std::time::Duration;

#[cfg(feature = "zookeeper-tls")]
use zookeeper_client::TlsOptions;
use zookeeper_client::{Acls, Client, Connector};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::name::Escaped;
use tenure_core::options::Options;

use crate::tls;
use tenure_core::url::{Host, Secret, Url, invalid};

use super::names::{self, Names};

/// What the options in a URL are called.
const KNOWN: &[&str] = &[
    "ttl", "timeout", "names", "dialect", "acl", "tls", "ca", "cert", "key",
];

/// How long a server may say nothing before the next one is tried, at most: far above a round trip, and twice
/// what a dead holder may cost beyond its ttl (see `Store::asked`).
pub(super) const MAX_CONNECTION_TIMEOUT: Duration = Duration::from_secs(2);

/// Everything that can be set.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) hosts: Vec<Host>,
    /// `/a/b`, or empty.
    pub(super) root: String,
    login: Option<(String, Secret)>,
    pub(super) tls: Option<tls::Files>,
    /// Of the session that is always there.
    pub(super) ttl: Duration,
    /// Limit of each request.
    pub(super) timeout: Duration,
    pub(super) names: Names,
    pub(super) dialect: Dialect,
    pub(super) acl: Access,
}

/// What the nodes of contenders are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Curator, go-zk, zookeeper-client.
    Curator,
    /// The recipes that come with ZooKeeper.
    SessionPrefix,
}

/// Who may do what with the nodes that we make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Open,
    Creator,
}

impl Access {
    pub(super) fn acls(self) -> Acls<'static> {
        match self {
            Self::Open => Acls::anyone_all(),
            Self::Creator => Acls::creator_all(),
        }
    }
}

/// The shortest and the longest ttl of the session that a client opens when it connects.
const TTLS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3_600);

impl Settings {
    pub(super) fn new(url: &str) -> Result<Self, Error> {
        let mut url = Url::parse(url, 2_181)?;
        let login = match (url.user.take(), url.password.take()) {
            (Some(user), Some(password)) => Some((user, password)),
            (None, None) => None,
            _ => {
                return invalid(
                    "the URL names a user without a password, or the reverse; write zookeeper://USER:PASSWORD@HOST",
                );
            }
        };
        if login.as_ref().is_some_and(|(user, _)| user.contains(':')) {
            return invalid("a user of ZooKeeper has no `:` in its name");
        }
        let path = std::mem::take(&mut url.path);
        let path = path.trim_end_matches('/');
        let root = match path {
            "" => String::new(),
            path => format!("/{path}"),
        };
        if !root.is_empty() && !names::is_path(&root) {
            return invalid(format!(
                "\"{}\" after the hosts is no path of ZooKeeper",
                Escaped(&root)
            ));
        }
        let is_tls = url.take_word("tls", &[("off", false), ("on", true)])?;
        if is_tls && cfg!(not(feature = "zookeeper-tls")) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "this build has no TLS for ZooKeeper; build with the feature `zookeeper-tls`",
            ));
        }
        let tls = tls::Files::take(&mut url, is_tls, "tls=on")?;
        let ttl = url.take_duration_in("ttl", &TTLS, Options::DEFAULT_TTL)?;
        let timeout = url.take_timeout()?;
        #[cfg(feature = "zookeeper-tls")]
        if tls.as_ref().is_some_and(|files| !files.names_authority()) {
            return invalid(
                "tls=on needs ca=FILE: for ZooKeeper no authority is trusted unless it is named",
            );
        }
        let names = url.take_word("names", &[("encoded", Names::Encoded), ("raw", Names::Raw)])?;
        let dialects = [
            ("curator", Dialect::Curator),
            ("session-prefix", Dialect::SessionPrefix),
        ];
        let dialect = url.take_word("dialect", &dialects)?;
        let mut access = [("open", Access::Open), ("creator", Access::Creator)];
        if login.is_some() {
            access.reverse();
        }
        let acl = url.take_word("acl", &access)?;
        if acl == Access::Creator && login.is_none() {
            return invalid("acl=creator needs a creator; write zookeeper://USER:PASSWORD@HOST");
        }
        url.finish(KNOWN)?;
        Ok(Self {
            hosts: url.hosts,
            root,
            login,
            tls,
            ttl,
            timeout,
            names,
            dialect,
            acl,
        })
    }

    pub(super) fn user(&self) -> Option<&str> {
        self.login.as_ref().map(|(user, _)| user.as_str())
    }

    /// `user:password`, as the server wants it.
    pub(super) fn login(&self) -> Option<String> {
        let (user, password) = self.login.as_ref()?;
        Some(format!("{user}:{}", password.reveal()))
    }

    /// The hosts as the client library wants them.
    pub(super) fn cluster(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(ToString::to_string).collect();
        hosts.join(",")
    }

    /// How long a server may say nothing in a session of that timeout.
    pub(super) fn connection_timeout(timeout: Duration) -> Duration {
        (timeout * 2 / 5).min(MAX_CONNECTION_TIMEOUT)
    }

    /// What makes a session with that timeout.
    pub(super) fn connector(&self, timeout: Duration) -> Result<Connector, Error> {
        let connector = Client::connector()
            .with_session_timeout(timeout)
            .with_connection_timeout(Self::connection_timeout(timeout))
            .with_fail_eagerly();
        #[cfg(feature = "zookeeper-tls")]
        if let Some(tls) = &self.tls {
            return Ok(connector.with_tls(options(tls)?));
        }
        Ok(connector)
    }
}

#[cfg(feature = "zookeeper-tls")]
fn options(files: &tls::Files) -> Result<TlsOptions, Error> {
    let pem = files.read()?;
    let text = |pem: Vec<u8>| String::from_utf8_lossy(&pem).into_owned();
    let wrong = |err: zookeeper_client::Error| {
        Error::new(ErrorKind::Invalid, "the settings of TLS cannot be used").with_source(err)
    };
    let mut options = match pem.ca {
        Some(ca) => TlsOptions::new().with_pem_ca(&text(ca)).map_err(wrong)?,
        None => TlsOptions::new(),
    };
    if let Some((cert, key)) = pem.client {
        let (cert, key) = (text(cert), text(key));
        options = options.with_pem_identity(&cert, &key).map_err(wrong)?;
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        Settings::new(url).unwrap_err().to_string()
    }

    #[test]
    fn a_url_is_read() {
        let all = "zookeeper://me:secret@a,b:2,[::1]/locks/x/?ttl=10s&timeout=500ms&names=raw&dialect=session-prefix&acl=open";
        let all = Settings::new(all).unwrap();
        assert_eq!(all.cluster(), "a:2181,b:2,[::1]:2181");
        assert_eq!((all.root.as_str(), all.ttl.as_secs()), ("/locks/x", 10));
        assert_eq!(all.timeout, Duration::from_millis(500));
        assert_eq!(
            (all.names, all.dialect),
            (Names::Raw, Dialect::SessionPrefix)
        );
        assert_eq!((all.acl, all.user()), (Access::Open, Some("me")));
        assert!(!format!("{all:?}").contains("secret"));
        let plain = Settings::new("zookeeper://h").unwrap();
        assert_eq!((plain.root.as_str(), plain.acl), ("", Access::Open));
        assert_eq!(
            (plain.names, plain.dialect),
            (Names::Encoded, Dialect::Curator)
        );
        assert_eq!(plain.ttl, Options::DEFAULT_TTL);
        let with_user = Settings::new("zookeeper://me:x@h/").unwrap();
        assert_eq!(
            (with_user.acl, with_user.root.as_str()),
            (Access::Creator, "")
        );
        #[cfg(feature = "zookeeper-tls")]
        assert!(
            Settings::new("zookeeper://h?tls=on&ca=x")
                .unwrap()
                .tls
                .is_some()
        );
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (url, says) in [
            ("zookeeper://me@h", "without a password"),
            ("zookeeper://m%3Ae:x@h", "no `:` in its name"),
            ("zookeeper://h//x", "no path of ZooKeeper"),
            ("zookeeper://h/../x", "no path of ZooKeeper"),
            ("zookeeper://h?acl=creator", "needs a creator"),
            ("zookeeper://h?acl=none", "open or creator"),
            ("zookeeper://h?names=x", "encoded or raw"),
            ("zookeeper://h?dialect=kazoo", "curator or session-prefix"),
            ("zookeeper://h?ttl=10ms", "between 100ms and"),
            ("zookeeper://h?timeout=2h", "between 10ms and"),
            ("zookeeper://h?ca=x", "are for TLS"),
            #[cfg(feature = "zookeeper-tls")]
            ("zookeeper://h?tls=on&cert=x", "go together"),
            #[cfg(feature = "zookeeper-tls")]
            ("zookeeper://h?tls=on", "needs ca=FILE"),
            #[cfg(not(feature = "zookeeper-tls"))]
            ("zookeeper://h?tls=on&ca=x", "the feature `zookeeper-tls`"),
            ("zookeeper://h?color=red", "no option \"color\""),
        ] {
            assert!(refused(url).contains(says), "{url}: {}", refused(url));
        }
    }
}
