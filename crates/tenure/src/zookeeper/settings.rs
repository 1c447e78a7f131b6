//! What a `zookeeper:` URL says.

use std::ops::RangeInclusive;
use std::time::Duration;

#[cfg(feature = "zookeeper-tls")]
use zookeeper_client::TlsOptions;
use zookeeper_client::{Acls, Client, Connector};

#[cfg(feature = "zookeeper-tls")]
use tenure_core::error::ErrorParts as _;
use tenure_core::error::{Error, ErrorKind};
use tenure_core::name::Escaped;
use tenure_core::options::Options;

use crate::tls;
use tenure_core::url::{Host, Secret, Url, invalid};

use super::names::{self, Dialect, Names};

/// The names of the options.
const OPTION_NAMES: &[&str] = &[
    "ttl", "timeout", "names", "dialect", "acl", "tls", "ca", "cert", "key",
];

/// The longest time after which the library leaves a server that sends nothing: far above a round trip, and twice
/// the time that a dead holder may keep its lock beyond its ttl (see `timeout_for` in `session.rs`).
pub(super) const MAX_CONNECTION_TIMEOUT: Duration = Duration::from_secs(2);

/// Everything that can be set in the URL.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) hosts: Vec<Host>,
    /// The node under which all locks lie: `/a/b`, or empty.
    pub(super) root: String,
    login: Option<(String, Secret)>,
    pub(super) tls: Option<tls::Files>,
    /// Of the session that is always open.
    pub(super) ttl: Duration,
    /// The time limit of each request.
    pub(super) timeout: Duration,
    pub(super) names: Names,
    pub(super) dialect: Dialect,
    pub(super) acl: Access,
    /// The caller's settings of the client library, with its authentication and its TLS.
    pub(super) connector: Option<Connector>,
}

/// The access list (ACL) of the nodes that we make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Every client may do everything.
    Open,
    /// Only the user who made a node may read, change and delete it.
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
        Self::with_connector(url, None)
    }

    /// The same with the caller's settings of the client library, which may say how a client authenticates.
    pub(super) fn with_connector(url: &str, connector: Option<Connector>) -> Result<Self, Error> {
        let mut url = Url::parse(url, 2_181)?;
        let login = take_login(&mut url)?;
        let root = take_root(&mut url)?;
        let tls = take_tls(&mut url)?;
        if connector.is_some() && (login.is_some() || tls.is_some()) {
            return invalid(
                "the connector says how a client authenticates and encrypts; leave out user, password and TLS",
            );
        }
        let ttl = url.take_duration_in("ttl", &TTLS, Options::DEFAULT_TTL)?;
        let timeout = url.take_timeout()?;
        let names = url.take_word("names", &[("encoded", Names::Encoded), ("raw", Names::Raw)])?;
        let dialects = [
            ("curator", Dialect::Curator),
            ("curator-readwrite", Dialect::ReadWrite),
            ("curator-semaphore", Dialect::Semaphore),
            ("session-prefix", Dialect::SessionPrefix),
            ("curator-selector", Dialect::Selector),
            ("curator-latch", Dialect::Latch),
        ];
        let dialect = url.take_word("dialect", &dialects)?;
        let mut access = [("open", Access::Open), ("creator", Access::Creator)];
        if login.is_some() {
            access.reverse();
        }
        let acl = url.take_word("acl", &access)?;
        if acl == Access::Creator && login.is_none() && connector.is_none() {
            return invalid("acl=creator needs a creator; write zookeeper://USER:PASSWORD@HOST");
        }
        url.finish(OPTION_NAMES)?;
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
            connector,
        })
    }

    pub(super) fn user(&self) -> Option<&str> {
        self.login.as_ref().map(|(user, _)| user.as_str())
    }

    /// `user:password`, the form of the scheme `digest`.
    pub(super) fn login(&self) -> Option<String> {
        let (user, password) = self.login.as_ref()?;
        Some(format!("{user}:{}", password.reveal()))
    }

    /// The hosts in the form that the client library takes.
    pub(super) fn cluster(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(ToString::to_string).collect();
        hosts.join(",")
    }

    /// After how long without a message from the server the library ends a connection, in a session with that timeout.
    pub(super) fn connection_timeout(timeout: Duration) -> Duration {
        (timeout * 2 / 5).min(MAX_CONNECTION_TIMEOUT)
    }

    /// A connector for sessions with that timeout.
    pub(super) fn connector(&self, timeout: Duration) -> Result<Connector, Error> {
        let connector = self.connector.clone().unwrap_or_else(Client::connector);
        let connector = connector
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

/// The name and the password under which the client authenticates.
fn take_login(url: &mut Url) -> Result<Option<(String, Secret)>, Error> {
    match (url.user.take(), url.password.take()) {
        (Some(user), Some(_)) if user.contains(':') => {
            invalid("a user of ZooKeeper has no `:` in its name")
        }
        (Some(user), Some(password)) => Ok(Some((user, password))),
        (None, None) => Ok(None),
        _ => invalid(
            "the URL names a user without a password, or the reverse; write zookeeper://USER:PASSWORD@HOST",
        ),
    }
}

/// The node under which all locks lie.
fn take_root(url: &mut Url) -> Result<String, Error> {
    let path = std::mem::take(&mut url.path);
    let root = match path.trim_end_matches('/') {
        "" => return Ok(String::new()),
        path => format!("/{path}"),
    };
    if !names::is_path(&root) {
        return invalid(format!(
            "\"{}\" after the hosts is no path of ZooKeeper",
            Escaped(&root)
        ));
    }
    Ok(root)
}

/// The files of TLS; `None`: connections are plain.
fn take_tls(url: &mut Url) -> Result<Option<tls::Files>, Error> {
    let is_tls = url.take_word("tls", &[("off", false), ("on", true)])?;
    if is_tls && cfg!(not(feature = "zookeeper-tls")) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "this build has no TLS for ZooKeeper; build with the feature `zookeeper-tls`",
        ));
    }
    let tls = tls::Files::take(url, is_tls, "tls=on")?;
    #[cfg(feature = "zookeeper-tls")]
    if tls.as_ref().is_some_and(|files| !files.names_authority()) {
        return invalid(
            "tls=on needs ca=FILE: for ZooKeeper no authority is trusted unless it is named",
        );
    }
    Ok(tls)
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
            (
                "zookeeper://h?dialect=kazoo",
                "curator or curator-readwrite or curator-semaphore or session-prefix or curator-selector or curator-latch",
            ),
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
