//! The server that a URL names, for baselines whose client library reads no such URL.

/// The address of the first server in a URL of the library, and the path after the servers. Returns `None` for a URL with
/// a password or TLS, which the bare requests do not use.
pub(crate) fn plain_server<'a>(url: &'a str, scheme: &str) -> Option<(&'a str, &'a str)> {
    let rest = url.strip_prefix(scheme)?.strip_prefix("://")?;
    let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let is_plain = !hosts.contains('@') && !options.split('&').any(|option| option == "tls=on");
    let first = hosts.split(',').next().filter(|host| !host.is_empty())?;
    is_plain.then_some((first, path))
}

/// The host with `port`, if the host has no port yet.
pub(crate) fn with_port(host: &str, port: u16) -> String {
    let has_port = host
        .rsplit_once(':')
        .is_some_and(|(_, tail)| !tail.ends_with(']'));
    match has_port {
        true => host.to_owned(),
        false => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_url_without_password_and_tls_has_a_plain_server() {
        let etcd = |url| plain_server(url, "etcd");
        assert_eq!(etcd("etcd://h"), Some(("h", "")));
        assert_eq!(etcd("etcd://a:1,b:2/x/y?prefix=p"), Some(("a:1", "x/y")));
        for url in [
            "etcds://h",
            "etcd://me:secret@h",
            "etcd://h?tls=on&ca=x",
            "etcd:///",
        ] {
            assert_eq!(etcd(url), None, "{url}");
        }
        assert_eq!(with_port("h", 7), "h:7");
        assert_eq!(with_port("h:1", 7), "h:1");
        assert_eq!(with_port("[::1]", 7), "[::1]:7");
        assert_eq!(with_port("[::1]:1", 7), "[::1]:1");
    }
}
