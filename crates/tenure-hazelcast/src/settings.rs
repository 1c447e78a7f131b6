//! What a `hazelcast:` URL says.

use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::name::Escaped;
use tenure_core::url::{Host, Secret, Url, invalid};

/// The options of a URL.
const KNOWN: &[&str] = &["group", "timeout"];

/// What other clients call TLS, and what comes with it.
const TLS: &[&str] = &["tls", "ca", "cert", "key"];

/// The group of locks whose name says none.
pub(crate) const DEFAULT_GROUP: &str = "default";

/// The group with which the members agree on all others. It has no locks.
const METADATA_GROUP: &str = "metadata";

/// The name of a cluster whose members do not set one.
const DEFAULT_CLUSTER: &str = "dev";

/// The URL, parsed.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) hosts: Vec<Host>,
    pub(crate) cluster: String,
    pub(crate) login: Option<(String, Secret)>,
    /// The CP group of all locks.
    pub(crate) group: String,
    /// The limit of each attempt of a request, and of each round of attempts to connect.
    pub(crate) timeout: Duration,
}

impl Settings {
    pub(crate) fn new(url: &str) -> Result<Self, Error> {
        let mut url = Url::parse(url, 5_701)?;
        if url.scheme == "hazelcasts" || TLS.iter().any(|option| url.take(option).is_some()) {
            let message = "TLS is a feature of Hazelcast Enterprise, which this store does not support; encrypt the network between client and members, and write hazelcast://";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if url.scheme != "hazelcast" {
            let scheme = Escaped(&url.scheme);
            return invalid(format!("`{scheme}:` is no scheme of Hazelcast"));
        }
        let cluster = match std::mem::take(&mut url.path) {
            path if path.is_empty() => DEFAULT_CLUSTER.to_owned(),
            path => path,
        };
        let login = match (url.user.take(), url.password.take()) {
            (None, None) => None,
            (Some(user), Some(password)) => Some((user, password)),
            _ => {
                return invalid(
                    "the URL names a user without a password, or the reverse; write hazelcast://USER:PASSWORD@HOST",
                );
            }
        };
        let group = take_group(&mut url)?;
        let timeout = url.take_timeout()?;
        url.finish(KNOWN)?;
        Ok(Self {
            hosts: url.hosts,
            cluster,
            login,
            group,
            timeout,
        })
    }
}

/// The name of the group. The members compare names of groups without regard to case only for these two names.
fn take_group(url: &mut Url) -> Result<String, Error> {
    let Some(group) = url.take("group") else {
        return Ok(DEFAULT_GROUP.to_owned());
    };
    if group.eq_ignore_ascii_case(DEFAULT_GROUP) {
        return Ok(DEFAULT_GROUP.to_owned());
    }
    if group.eq_ignore_ascii_case(METADATA_GROUP) {
        return invalid(
            "the group METADATA belongs to the members and has no locks; name another group",
        );
    }
    if group.is_empty() || group.contains('@') || group.trim() != group {
        let group = Escaped(&group);
        return invalid(format!(
            "the option `group` is \"{group}\"; a name of a group is not empty, contains no `@`, and has no spaces around it"
        ));
    }
    Ok(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_url() {
        let all =
            Settings::new("hazelcast://me:sec%40ret@a,b:1,[::1]/prod?group=jobs&timeout=500ms");
        let all = all.unwrap();
        let hosts: Vec<_> = all.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["a:5701", "b:1", "[::1]:5701"]);
        assert_eq!((all.cluster.as_str(), all.group.as_str()), ("prod", "jobs"));
        assert_eq!(all.timeout, Duration::from_millis(500));
        assert_eq!(
            all.login.as_ref().map(|(_, it)| it.reveal()),
            Some("sec@ret")
        );
        assert!(!format!("{all:?}").contains("sec@ret"));
        let least = Settings::new("hazelcast://h?group=Default").unwrap();
        assert_eq!(
            (least.cluster.as_str(), least.group.as_str()),
            ("dev", "default")
        );
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (url, says) in [
            ("hazelcast://me@h", "without a password"),
            ("hazelcast://:pw@h", "without a password"),
            ("hazelcast://h?group=METADATA", "belongs to the members"),
            ("hazelcast://h?group=a@b", "after its `?`"),
            ("hazelcast://h?group=a%40b", "contains no `@`"),
            ("hazelcast://h?group=%20a", "no spaces"),
            ("hazelcast://h?timeout=1h", "between 10ms and 60s"),
            ("hazelcast://h?color=red", "no option \"color\""),
            ("hazelcast://h?tls=on", "Enterprise"),
            ("hazelcasts://h", "Enterprise"),
            ("hazel://h", "no scheme"),
        ] {
            let err = format!("{:#}", Settings::new(url).unwrap_err());
            assert!(err.contains(says), "{url}: {err}");
        }
    }
}
