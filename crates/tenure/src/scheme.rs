//! The scheme of a URL: its other names, and texts that have none.

use tenure_core::error::{Error, ErrorKind};

use crate::capabilities::SCHEMES;

/// Other names of the schemes: those of the programs that speak the same protocol.
const ALIASES: &[(&str, &str)] = &[
    ("postgresql", "postgres"),
    ("mariadb", "mysql"),
    ("valkey", "redis"),
    ("valkeys", "rediss"),
    ("valkey+unix", "redis+unix"),
    ("valkey+sentinel", "redis+sentinel"),
    ("valkey+cluster", "redis+cluster"),
];

/// The URL with the name of its scheme that the stores know, in lower case.
pub(crate) fn canonical(url: &str) -> Result<String, Error> {
    let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
    if url.is_empty() {
        return invalid(
            "the URL is empty; is the variable set that it comes from? For locks of this machine write file:".into(),
        );
    }
    let Some((scheme, rest)) = url.split_once(':') else {
        // Not echoed beyond its length: it may be a password that was put in the wrong place.
        return invalid(format!(
            "the URL has no scheme; it begins with one of {}, for example file:/var/lib/myapp/locks",
            SCHEMES.join(", ")
        ));
    };
    let scheme = scheme.to_ascii_lowercase();
    if let Some((usual, port)) = usual_scheme(&scheme, rest) {
        return invalid(format!(
            "the URL has no scheme; write {usual}://{scheme}:{port}"
        ));
    }
    let known = ALIASES.iter().find(|(alias, _)| *alias == scheme);
    let scheme = known.map_or(&*scheme, |(_, scheme)| scheme);
    Ok(format!("{scheme}:{rest}"))
}

/// The ports on which servers listen as a rule, with their schemes.
const USUAL_PORTS: &[(&str, &str)] = &[
    ("6379", "redis"),
    ("26379", "redis+sentinel"),
    ("5432", "postgres"),
    ("3306", "mysql"),
    ("2379", "etcd"),
    ("2181", "zookeeper"),
];

/// For `HOST:PORT` without a scheme: the scheme that fits the port, and the port. Other texts are not repeated.
fn usual_scheme(host: &str, rest: &str) -> Option<(&'static str, &'static str)> {
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let port = rest.split(['/', '?']).next()?;
    let (port, scheme) = USUAL_PORTS.iter().find(|(usual, _)| *usual == port)?;
    host.bytes().all(is_host).then_some((*scheme, *port))
}
