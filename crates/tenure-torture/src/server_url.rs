//! Finds the servers in a URL and replaces them by proxies, or says why that is not possible.

use std::net::SocketAddr;

/// Schemes whose clients go to the hosts of the URL and to no others, with their ports.
const PORTS: [(&str, u16); 7] = [
    ("redis", 6379),
    ("redlock", 6379),
    ("mysql", 3306),
    ("postgres", 5432),
    ("etcd", 2379),
    ("zookeeper", 2181),
    (PLAIN, 5701),
];

/// The scheme whose clients never use TLS.
const PLAIN: &str = "hazelcast";

/// A URL, split before and after its hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    before: String,
    /// Each `host:port`.
    pub servers: Vec<String>,
    after: String,
}

impl ServerUrl {
    /// Finds the servers in `url`.
    ///
    /// # Errors
    /// The reason why no proxy is possible, in words.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err("this store has no network");
        };
        if scheme == "redis+unix" {
            return Err("the store is reached by a local socket");
        }
        let Some((_, port)) = PORTS.iter().find(|(known, _)| *known == scheme) else {
            return Err("its clients connect to the hosts that the servers tell them, or use TLS");
        };
        let (base, options) = rest.find('?').map_or((rest, ""), |at| rest.split_at(at));
        let login = base.rfind('@').map_or(0, |at| at + 1);
        if base[..login].contains('/') {
            return Err("the URL has a login with a slash; write it as %2F");
        }
        let (hosts, path) = base[login..]
            .find('/')
            .map_or((&base[login..], ""), |at| base[login..].split_at(at));
        if hosts.is_empty() {
            return Err("the URL names no host");
        }
        let mut options_in_it = options.trim_start_matches('?').split('&');
        let mut is_plain = scheme == PLAIN;
        for option in options_in_it.by_ref() {
            match option.split_once('=') {
                Some(("tls", "off")) => is_plain = true,
                Some(("tls" | "ca" | "cert" | "key", _)) => {
                    return Err("TLS would notice a proxy; write tls=off if this store has none");
                }
                Some(("socket", _)) => return Err("the store is reached by a local socket"),
                _ => {}
            }
        }
        let servers: Vec<_> = hosts
            .split(',')
            .map(|host| with_port(host, *port))
            .collect();
        // The proxy is on this host, where clients connect without TLS. To another host they use TLS.
        if !is_plain && !servers.iter().all(|server| is_local(server)) {
            return Err("TLS would notice a proxy; write tls=off if this store has none");
        }
        Ok(Self {
            before: format!("{scheme}://{}", &base[..login]),
            servers,
            after: format!("{path}{options}"),
        })
    }

    /// The URL with other servers.
    pub fn with_servers(&self, servers: &[SocketAddr]) -> String {
        let hosts: Vec<_> = servers.iter().map(ToString::to_string).collect();
        format!("{}{}{}", self.before, hosts.join(","), self.after)
    }
}

fn with_port(host: &str, port: u16) -> String {
    match host.rsplit_once(':') {
        Some((_, tail)) if !tail.ends_with(']') => host.to_owned(),
        _ => format!("{host}:{port}"),
    }
}

fn is_local(server: &str) -> bool {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_are_replaced_and_nothing_else() {
        let new = ["127.0.0.1:1", "127.0.0.1:2"].map(|address| address.parse().unwrap());
        for (url, servers, through) in [
            ("redis://localhost", "localhost:6379", "redis://127.0.0.1:1"),
            (
                "redis://me:pa@ss@127.0.0.1:7/2?timeout=1s",
                "127.0.0.1:7",
                "redis://me:pa@ss@127.0.0.1:1/2?timeout=1s",
            ),
            (
                "etcd://a,b:5/x?tls=off",
                "a:2379,b:5",
                "etcd://127.0.0.1:1,127.0.0.1:2/x?tls=off",
            ),
            ("mysql://[::1]/db", "[::1]:3306", "mysql://127.0.0.1:1/db"),
            (
                "hazelcast://far,away:7/prod?group=x",
                "far:5701,away:7",
                "hazelcast://127.0.0.1:1,127.0.0.1:2/prod?group=x",
            ),
        ] {
            let server_url = ServerUrl::parse(url).unwrap();
            assert_eq!(server_url.servers.join(","), servers);
            assert_eq!(
                server_url.with_servers(&new[..server_url.servers.len()]),
                through
            );
        }
    }

    #[test]
    fn where_no_proxy_is_possible_the_error_gives_the_reason() {
        for (url, word) in [
            ("file:/x", "network"),
            ("sqlite:x", "network"),
            ("rediss://localhost", "TLS"),
            ("redis+cluster://localhost", "servers tell"),
            ("redlock://a,b,c/", "tls=off"),
            ("etcd://far-away", "tls=off"),
            ("etcd://localhost?tls=on", "tls=off"),
            ("postgres://localhost/x?ca=/y", "tls=off"),
            ("postgres:///x?socket=/y", "no host"),
            ("redis://a/b@c", "slash"),
        ] {
            assert!(ServerUrl::parse(url).unwrap_err().contains(word), "{url}");
        }
    }
}
