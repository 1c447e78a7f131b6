//! What an `etcd:` URL says.

use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::name::Escaped;
use tenure_core::url::{Host, MAX_PREFIX, Secret, Url, invalid};

use crate::tls;

use super::callers_channel::CallersChannel;

/// The options of a URL.
const KNOWN: &[&str] = &["prefix", "timeout", "lease", "names", "ca", "cert", "key"];

/// The URL, parsed.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) hosts: Vec<Host>,
    pub(super) login: Option<(String, Secret)>,
    pub(super) tls: Option<tls::Files>,
    pub(super) prefix: String,
    /// The time limit of each request and of each attempt to connect.
    pub(super) timeout: Duration,
    /// Whether each lock has a lease of its own, and the key that etcd's own lock library would make.
    pub(super) is_lease_per_lock: bool,
    /// Whether names are written in keys as they are.
    pub(super) is_raw: bool,
    /// A channel of the caller in place of hosts.
    pub(super) channel: Option<CallersChannel>,
}

impl Settings {
    pub(super) fn new(url: &str) -> Result<Self, Error> {
        let mut url = Url::parse(url, 2_379)?;
        let is_tls = match url.scheme.as_str() {
            "etcd" => false,
            "etcds" => true,
            scheme => return invalid(format!("`{}:` is no scheme of etcd", Escaped(scheme))),
        };
        if !url.path.is_empty() {
            return invalid(format!(
                "`{}:` takes no path after the hosts; text before every key is prefix=TEXT",
                url.scheme
            ));
        }
        let hosts = std::mem::take(&mut url.hosts);
        let login = match (url.user.take(), url.password.take()) {
            (None, None) => None,
            (Some(user), Some(password)) => Some((user, password)),
            (Some(_), None) => {
                return invalid(
                    "the URL has a user and no password; write USER:PASSWORD@HOST, or use a certificate",
                );
            }
            (None, Some(_)) => {
                return invalid("the URL has a password and no user; write USER:PASSWORD@HOST");
            }
        };
        let tls = tls::Files::take(&mut url, is_tls, "etcds://")?;
        let prefix = url.take_prefix(MAX_PREFIX)?;
        let is_lease_per_lock = url.take_word("lease", &[("session", false), ("lock", true)])?;
        let is_raw = url.take_word("names", &[("encoded", false), ("raw", true)])?;
        let timeout = url.take_timeout()?;
        url.finish(KNOWN)?;
        Ok(Self {
            hosts,
            login,
            tls,
            prefix,
            timeout,
            is_lease_per_lock,
            is_raw,
            channel: None,
        })
    }

    /// The caller's channel, and options, written as those of a URL.
    pub(super) fn of_channel(channel: CallersChannel, options: &str) -> Result<Self, Error> {
        // The options are read with the URL of a host, which is not used.
        let mut settings = Self::new(&format!("etcd://channel?{options}"))?;
        settings.hosts.clear();
        settings.channel = Some(channel);
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_url() {
        let all = Settings::new(
            "etcd://me:sec%40ret@a,b:1,[::1]/?prefix=p/&timeout=500ms&lease=lock&names=raw",
        );
        let all = all.unwrap();
        let hosts: Vec<_> = all.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["a:2379", "b:1", "[::1]:2379"]);
        assert_eq!(all.prefix, "p/");
        assert_eq!(all.timeout, Duration::from_millis(500));
        assert!(all.is_lease_per_lock && all.is_raw && all.tls.is_none());
        assert!(!format!("{all:?}").contains("sec@ret"));
        let least = Settings::new("etcds://h").unwrap();
        assert!(least.tls.is_some() && least.login.is_none());
        assert!(!least.is_lease_per_lock && !least.is_raw);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (url, says) in [
            ("etcd://h/x", "no path"),
            ("etcd://me@h", "a user and no password"),
            ("etcd://:pw@h", "a password and no user"),
            ("etcd://h?lease=client", "session or lock"),
            ("etcd://h?names=x", "encoded or raw"),
            ("etcd://h?timeout=1h", "between 10ms and 60s"),
            ("etcd://h?ca=x", "are for TLS"),
            ("etcds://h?cert=x", "go together"),
            ("etcd://h?color=red", "no option \"color\""),
        ] {
            let err = format!("{:#}", Settings::new(url).unwrap_err());
            assert!(err.contains(says), "{url}: {err}");
        }
    }
}
