//! What a URL says about TLS.

use std::path::PathBuf;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::store::Finding;
use tenure_core::url::{Host, Url};

/// What a URL says about TLS.
#[derive(Clone, Debug, Default)]
#[cfg_attr(
    not(feature = "_tls"),
    expect(dead_code, reason = "only a build with TLS reads the files")
)]
pub(crate) struct Files {
    /// The authority that signed the servers' certificates, in place of those that the system trusts.
    pub(super) ca: Option<PathBuf>,
    /// Our own certificate, for servers that ask for one, and its key.
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

/// Warns that others can read the messages of a server without TLS, unless the server is on this machine. `how` asks for
/// TLS.
pub(crate) fn plaintext(host: &Host, is_tls: bool, how: &str) -> Option<Finding> {
    let text = || {
        format!(
            "{host}: no TLS, so each machine on the way can read names and passwords, and end, take and forge locks; write {how}"
        )
    };
    (!is_tls && !host.is_this_machine()).then(|| Finding::warning(text()))
}

impl Files {
    /// Takes `ca`, `cert` and `key` out of the URL. `how` says how to ask for TLS, for an error.
    pub(crate) fn take(url: &mut Url, is_tls: bool, how: &str) -> Result<Option<Self>, Error> {
        let invalid = |message: &str| Err(Error::new(ErrorKind::Invalid, message));
        let mut file = |key| url.take(key).map(PathBuf::from);
        let (ca, cert, key) = (file("ca"), file("cert"), file("key"));
        if !is_tls && (ca.is_some() || cert.is_some() || key.is_some()) {
            return invalid(&format!("`ca`, `cert` and `key` are for TLS; write {how}"));
        }
        if cert.is_some() != key.is_some() {
            return invalid("`cert` and `key` go together");
        }
        if is_tls && cfg!(not(any(feature = "tls-ring", feature = "tls-aws-lc"))) {
            return Err(no_provider());
        }
        Ok(is_tls.then_some(Self { ca, cert, key }))
    }

    /// Whether the URL says whom to trust.
    #[cfg(feature = "zookeeper-tls")]
    pub(crate) fn names_authority(&self) -> bool {
        self.ca.is_some()
    }
}

/// A URL asks for TLS, and this build has no cryptography for it.
pub(super) fn no_provider() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "this build of tenure has no TLS; build with the feature `tls-ring` or `tls-aws-lc`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_can_listen_is_said_unless_nobody_can() {
        let found = |hosts: &str, is_tls| -> Vec<String> {
            let url = Url::parse(&format!("redis://{hosts}/"), 6_379).unwrap();
            let found = url.hosts.iter();
            let found = found.filter_map(|host| plaintext(host, is_tls, "rediss://"));
            found.map(|found| found.text).collect()
        };
        let far = found(
            "db.example,127.0.0.1,localhost,[::1],10.0.0.7:1,[2001:db8::1]",
            false,
        );
        let names: Vec<_> = far
            .iter()
            .map(|text| text.split_once(": no TLS").unwrap().0)
            .collect();
        assert_eq!(
            names,
            ["db.example:6379", "10.0.0.7:1", "[2001:db8::1]:6379"]
        );
        assert!(far[0].ends_with("write rediss://"), "{}", far[0]);
        assert!(found("db.example", true).is_empty());
    }
}
