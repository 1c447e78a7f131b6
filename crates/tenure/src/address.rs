//! The address of a store: what of its URL says which locks a client shares with others.

/// Options that choose the locks; all others say how a client reaches them.
const CHOOSE_LOCKS: &[&str] = &[
    "db", "dialect", "keys", "mode", "names", "prefix", "socket", "table",
];

/// The same text for all URLs of one store, as far as a URL can say that: without user, password and options that do not
/// choose the locks, the hosts sorted. `None`: each client of this URL has a store of its own. A URL of `file:` may leave out its
/// directory, so it has the address of its [directory](directory_address) instead.
///
/// Two hosts may be one server, and a URL may leave out the port. So equal addresses mean equal stores, and different
/// addresses mean nothing.
pub(crate) fn store_address(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once(':')?;
    let scheme = match scheme {
        "memory" if rest.is_empty() => return None,
        "rediss" => "redis",
        "etcds" => "etcd",
        other => other,
    };
    if matches!(scheme, "file" | "memory") {
        return Some(url.to_owned());
    }
    // A password may contain any character unescaped, so everything before the last @ is left out.
    let rest = match rest.rsplit_once('@') {
        Some((_, rest)) if scheme != "sqlite" => rest,
        _ => rest.strip_prefix("//").unwrap_or(rest),
    };
    let (base, query) = rest.split_once('?').unwrap_or((rest, ""));
    // The same path means another file in another working directory.
    let file = match scheme {
        "sqlite" => std::path::absolute(base).ok(),
        _ => None,
    };
    let base = file.as_ref().and_then(|it| it.to_str()).unwrap_or(base);
    let (hosts, path) = match scheme {
        "sqlite" => ("", base),
        _ => base.find('/').map_or((base, ""), |at| base.split_at(at)),
    };
    let mut hosts: Vec<_> = hosts.split(',').map(str::to_ascii_lowercase).collect();
    hosts.sort_unstable();
    let path = path.strip_suffix('/').unwrap_or(path);
    let chooses = |option: &&str| {
        let (key, _) = option.split_once('=').unwrap_or((option, ""));
        CHOOSE_LOCKS.contains(&key)
    };
    let mut options: Vec<_> = query.split('&').filter(chooses).collect();
    options.sort_unstable();
    Some(format!(
        "{scheme}://{}{path}?{}",
        hosts.join(","),
        options.join("&")
    ))
}

/// The address of the locks in a directory that exists: the same for each path that leads there, from any working directory.
#[cfg(all(feature = "file", unix))]
pub(crate) fn directory_address(directory: &std::path::Path) -> String {
    // Without rights on a parent directory, the path as it was given.
    let real = std::fs::canonicalize(directory).or_else(|_| std::path::absolute(directory));
    let real = real.unwrap_or_else(|_| directory.to_owned());
    match real.to_str() {
        Some(path) => format!("file:{path}"),
        // Two such paths have two addresses.
        None => format!(
            "file:{}",
            real.as_os_str().as_encoded_bytes().escape_ascii()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_one_store_have_one_address() {
        for (one, other) in [
            ("redis://me:secret@Host/2?timeout=1s", "rediss://host/2"),
            ("etcd://b,a,c", "etcds://x:y@a,b,c?ca=file"),
            (
                "postgres://h/d?table=t&mode=table&timeout=1s",
                "postgres://u:p@h/d?mode=table&connections=2&table=t",
            ),
            ("redis://h/", "redis://h"),
            (
                "redis+unix://me:secret@/s?db=1",
                "redis+unix:///s?db=1&timeout=1s",
            ),
            ("sqlite:/a@b.db?timeout=1s", "sqlite:/a@b.db"),
            ("sqlite:///a.db", "sqlite:/a.db"),
        ] {
            assert_eq!(store_address(one), store_address(other), "{one}");
        }
        assert_eq!(store_address("memory:"), None);
        let here = std::env::current_dir().unwrap().join("a.db");
        let here = format!("sqlite:{}", here.display());
        assert_eq!(store_address("sqlite:a.db"), store_address(&here));
    }

    #[test]
    fn urls_of_different_stores_have_different_addresses() {
        for (one, other) in [
            ("redis://h/1", "redis://h/2"),
            ("redis+unix:///s?db=1", "redis+unix:///s?db=2"),
            ("redis://h?prefix=a", "redis://h?prefix=b"),
            ("mysql://h/d", "mysql://h/d?mode=table"),
            (
                "postgres://localhost/d?socket=/a",
                "postgres://localhost/d?socket=/b",
            ),
            ("redis://h", "etcd://h"),
            ("file:/a", "file:/b"),
            ("sqlite:/a", "sqlite:/b"),
        ] {
            assert_ne!(store_address(one), store_address(other), "{one}");
        }
    }

    #[cfg(all(feature = "file", unix))]
    #[test]
    fn a_directory_has_one_address_by_each_path() {
        let scratch = tenure_testkit::process::Directory::new("address");
        let real = std::fs::canonicalize(scratch.path()).unwrap();
        let locks = real.join("locks @ü");
        std::fs::create_dir(&locks).unwrap();
        std::os::unix::fs::symlink(&locks, real.join("link")).unwrap();
        let address = format!("file:{}", locks.display());
        for path in ["locks @ü", "locks @ü/", "./locks @ü/../link", "link"] {
            assert_eq!(directory_address(&real.join(path)), address, "{path}");
        }
        assert_ne!(directory_address(&real), address);
    }

    #[test]
    fn no_address_has_a_password() {
        for url in [
            "redis://u:se@cret@h",
            "mysql://:secret@h/d",
            "etcd://secret@a,b",
        ] {
            let address = store_address(url).unwrap();
            assert!(!address.contains("cret"), "{address}");
        }
    }
}
