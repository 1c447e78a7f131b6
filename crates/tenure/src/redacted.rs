//! URLs without their secrets.

/// Options of all stores whose values are no secrets. The value of any other option is hidden, because it may be a secret.
const HARMLESS: &[&str] = &[
    "acl",
    "ca",
    "cert",
    "connections",
    "db",
    "dialect",
    "group",
    // The path of a file.
    "key",
    "keys",
    "lease",
    "lock",
    "mode",
    "names",
    "prefix",
    "restart_guard",
    "socket",
    "table",
    "timeout",
    "tls",
    "ttl",
    "validate",
    "wait_replicas",
];

/// A URL as it may be shown to anybody: without user and password, without the values of options that are or may be
/// secrets, and without whatever may be a secret in a URL that is not well-formed.
///
/// ```
/// let url = "redis://me:secret@host/2?timeout=1s&sentinel_password=secret";
/// assert_eq!(tenure::redacted_url(url), "redis://***@host/2?timeout=1s&sentinel_password=***");
/// ```
pub fn redacted_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once(':') else {
        return "***".into();
    };
    // A password may contain any character unescaped, so everything before the last @ is hidden.
    let is_path = matches!(scheme, "file" | "sqlite" | "memory");
    let (has_login, rest) = match rest.rsplit_once('@') {
        Some((_, rest)) if !is_path => (true, rest),
        _ => (false, rest),
    };
    let (base, query) = rest
        .split_once('?')
        .map_or((rest, None), |(base, query)| (base, Some(query)));
    let (mut text, is_sound) = match base.strip_prefix("//") {
        _ if is_path => (format!("{scheme}:{base}"), true),
        _ if has_login => {
            let hosts = without_words(base);
            (format!("{scheme}://***@{hosts}"), hosts == base)
        }
        Some(all) => {
            let hosts = without_words(all);
            (format!("{scheme}://{hosts}"), hosts == all)
        }
        None => (format!("{scheme}:***"), false),
    };
    for (index, option) in query
        .into_iter()
        .flat_map(|query| query.split('&'))
        .enumerate()
    {
        text.push(if index == 0 { '?' } else { '&' });
        match option.split_once('=') {
            // After a password in the wrong place, what looks like an option may be a part of the password.
            Some((key, value)) if is_sound && HARMLESS.contains(&key) => {
                text += &format!("{key}={value}");
            }
            Some((key, _)) => text += &format!("{key}=***"),
            None => text += "***",
        }
    }
    text
}

/// Hosts and a path, or the path alone: what should be a port and is none may be a password whose `@` is missing.
fn without_words(hosts: &str) -> String {
    let (all, path) = hosts.find('/').map_or((hosts, ""), |at| hosts.split_at(at));
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_good = |host: &str| {
        // The brackets of an IPv6 address have colons in them.
        let rest = host.rsplit_once(']').map_or(host, |(_, rest)| rest);
        rest.split_once(':').is_none_or(|(_, port)| is_port(port))
    };
    match all.split(',').all(is_good) {
        true => hosts.to_owned(),
        false => format!("***{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of every option is shown, except for options of Redis with a login.
    #[cfg(all(
        feature = "etcd",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "sqlite",
        feature = "zookeeper"
    ))]
    #[tokio::test]
    async fn every_option_of_a_store_is_known_to_be_harmless_or_secret() {
        let mut shown = std::collections::BTreeSet::new();
        for url in [
            "redis://h?",
            "redis+unix:///s?",
            "redlock://a,b,c?",
            "etcd://h?",
            "zookeeper://h?",
            "mysql://h/d?",
            "mysql://h/d?mode=table&",
            "postgres://h/d?",
            "postgres://h/d?mode=table&",
            "sqlite:/nowhere/x?",
        ] {
            let refused = crate::connect(&format!("{url}colour=red")).await;
            let refused = format!("{:#}", refused.unwrap_err());
            let (_, options) = refused.split_once("; it has ").unwrap();
            for option in options.split(", ") {
                let secrets = ["sentinel_user", "sentinel_password", "user", "pass"];
                let is_secret = secrets.contains(&option);
                let value = if is_secret { "***" } else { "1" };
                let redacted = redacted_url(&format!("redis://h?{option}=1"));
                assert_eq!(redacted, format!("redis://h?{option}={value}"), "{url}");
                shown.extend((!is_secret).then(|| option.to_owned()));
            }
        }
        // Of the crate `tenure-hazelcast`.
        shown.insert("group".to_owned());
        assert!(shown.iter().eq(HARMLESS), "{shown:?}");
    }

    #[test]
    fn secrets_are_left_out() {
        for (url, shown) in [
            ("file:/var/lib/locks", "file:/var/lib/locks"),
            ("file:", "file:"),
            ("redis://host:6379/2", "redis://host:6379/2"),
            (
                "redis://user:pa@ss@host/2?protocol=resp3",
                "redis://***@host/2?protocol=***",
            ),
            ("redis://:pa/ss@host/2", "redis://***@host/2"),
            ("redis://user:pa?ss@host/2", "redis://***@host/2"),
            ("redis://user:pa?s=s&x@[::1]:7/2", "redis://***@[::1]:7/2"),
            ("redis://user:hunter2", "redis://***"),
            ("redis://user:hunter2/2?x=y", "redis://***/2?x=***"),
            (
                "redis://h?restart_guard=off&prefix=a%2F&sentinel_user=x&tls=on",
                "redis://h?restart_guard=off&prefix=a%2F&sentinel_user=***&tls=on",
            ),
            ("redis://user:hunter2?tls=x", "redis://***?tls=***"),
            ("redis:hunter2?tls=x", "redis:***?tls=***"),
            ("redis://me:x@h?tls=on", "redis://***@h?tls=on"),
            (
                "redis+unix://me:x@/run/s?db=1&user=me&pass=x",
                "redis+unix://***@/run/s?db=1&user=***&pass=***",
            ),
            (
                "redis://h?Timeout=1s&timeout=",
                "redis://h?Timeout=***&timeout=",
            ),
            ("redis:hunter2", "redis:***"),
            ("file:/a@b", "file:/a@b"),
            ("hunter2", "***"),
            ("sqlite:/x.db?table=y", "sqlite:/x.db?table=y"),
            ("redis://[::1],h:7/", "redis://[::1],h:7/"),
            ("etcd://a,b,c?password=x&y", "etcd://a,b,c?password=***&***"),
        ] {
            assert_eq!(redacted_url(url), shown);
        }
    }
}
