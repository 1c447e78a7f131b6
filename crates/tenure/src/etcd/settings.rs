//! What an `etcd:` URL says.

use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::name::Escaped;
use tenure_core::url::{Host, Secret, Url};

use crate::tls;

/// Longest prefix, in bytes: keys stay readable.
const MAX_PREFIX: usize = 200;

/// What the options in a URL are called.
const KNOWN: &[&str] = &["prefix", "timeout", "lease", "names", "ca", "cert", "key"];

/// Everything that can be set.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) hosts: Vec<Host>,
    pub(super) login: Option<(String, Secret)>,
    pub(super) tls: Option<tls::Files>,
    pub(super) prefix: String,
    /// Limit of each request and of each attempt to connect.
    pub(super) timeout: Duration,
    /// Every lock has a lease of its own, and the key that etcd's own lock library would make.
    pub(super) is_lease_per_lock: bool,
    /// Names stand in keys as they are.
    pub(super) is_raw: bool,
}

fn invalid<T>(message: impl Into<String>) -> Result<T, Error> {
    Err(Error::new(ErrorKind::Invalid, message))
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
                "`{}:` takes no path after the hosts; what stands before every key is prefix=TEXT",
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
        let prefix = url.take("prefix").unwrap_or_default();
        if prefix.len() > MAX_PREFIX {
            return invalid(format!(
                "`prefix` has {} bytes; it may have {MAX_PREFIX}",
                prefix.len()
            ));
        }
        let is_lease_per_lock = either(&mut url, "lease", "session", "lock")?;
        let is_raw = either(&mut url, "names", "encoded", "raw")?;
        // Two seconds: far above a round trip and an election, far below the default ttl.
        let timeout = url
            .take_duration("timeout")?
            .unwrap_or(Duration::from_secs(2));
        if timeout < Duration::from_millis(10) || timeout > Duration::from_secs(60) {
            return invalid(format!(
                "the option `timeout` is {timeout:?}; it must lie between 10ms and 60s"
            ));
        }
        url.finish(KNOWN)?;
        Ok(Self {
            hosts,
            login,
            tls,
            prefix,
            timeout,
            is_lease_per_lock,
            is_raw,
        })
    }
}

/// Whether the option is the second of its two values; without it, the first.
fn either(url: &mut Url, key: &str, first: &str, second: &str) -> Result<bool, Error> {
    match url.take(key) {
        None => Ok(false),
        Some(value) if value == first => Ok(false),
        Some(value) if value == second => Ok(true),
        Some(value) => invalid(format!(
            "the option `{key}` is \"{}\"; it can be {first} or {second}",
            Escaped(&value)
        )),
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
            let err = Settings::new(url).unwrap_err().to_string();
            assert!(err.contains(says), "{url}: {err}");
        }
    }
}
