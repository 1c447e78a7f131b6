//! Settings of a store with a method for each option: a URL in parts, in which nothing is percent-encoded.
//!
//! [`connect`](crate::connect()) reads the URL that is written from the parts, so both forms have the same options, the same
//! checks and the same errors.

#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "each store uses a part of this"
)]

use std::fmt::Write as _;
use std::net::Ipv6Addr;
use std::path::Path;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::name::Escaped;
use tenure_core::url::{Secret, Url, invalid};

use crate::redacted_url;
use crate::scheme::canonical;

/// Setters for options of the URL, each with its key and how its value is written.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($value:ident: $type:ty) => $key:literal, $text:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name(mut self, $value: $type) -> Self {
            self.0.set($key, $text);
            self
        }
    )*};
}

/// The other form of settings: a URL.
macro_rules! url_form {
    ($type:ident) => {
        impl $type {
            /// The same settings from a URL, which [`tenure::connect`](crate::connect()) takes as well.
            ///
            /// # Errors
            /// `Invalid`: the text is no URL of this store. Its options are checked when the client connects.
            pub fn from_url(url: &str) -> Result<Self, tenure_core::Error> {
                let url = $crate::store_url::StoreUrl::parse(url, Self::SCHEMES)?;
                Self::accept(url)
            }

            /// The URL, without user and password and without the values of options that may be secrets: for logs.
            pub fn to_url(&self) -> String {
                self.0.redacted()
            }

            /// Any other option, as a URL has it: [`tenure::connect`](crate::connect()) lists them.
            pub fn option(mut self, key: &str, value: impl Into<String>) -> Self {
                self.0.set(key, value);
                self
            }
        }

        impl $crate::StoreSettings for $type {
            fn url_with_secrets(&self) -> Result<String, tenure_core::Error> {
                self.0.checked()
            }
        }

        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_tuple("Settings").field(&self.to_url()).finish()
            }
        }
    };
}

/// Setters of the user and the password.
macro_rules! login_setters {
    () => {
        /// The user.
        pub fn user(mut self, user: impl Into<String>) -> Self {
            self.0.user = Some(user.into());
            self
        }

        /// The password.
        pub fn password(mut self, password: impl Into<String>) -> Self {
            self.0.password = Some(password.into());
            self
        }
    };
}

/// Setters of a list of hosts.
macro_rules! host_setters {
    () => {
        /// Adds a server by its name or address.
        pub fn host(mut self, name: impl AsRef<str>) -> Self {
            self.0.add_host(name.as_ref());
            self
        }

        /// Adds a server that does not listen on the usual port.
        pub fn host_with_port(mut self, name: impl AsRef<str>, port: u16) -> Self {
            self.0.add_host_with_port(name.as_ref(), port);
            self
        }
    };
}

/// Setters of one server that has databases.
macro_rules! database_setters {
    () => {
        /// The server, by its name or address.
        pub fn host(mut self, name: impl AsRef<str>) -> Self {
            self.0.hosts.clear();
            self.0.add_host(name.as_ref());
            self
        }

        /// The server, if it does not listen on the usual port.
        pub fn host_with_port(mut self, name: impl AsRef<str>, port: u16) -> Self {
            self.0.hosts.clear();
            self.0.add_host_with_port(name.as_ref(), port);
            self
        }

        /// A socket of this machine in place of a host.
        pub fn socket(mut self, path: impl AsRef<std::path::Path>) -> Self {
            self.0.hosts = vec!["localhost".to_owned()];
            self.0.set("socket", $crate::store_url::file(path));
            self
        }

        /// The database.
        pub fn database(mut self, name: impl Into<String>) -> Self {
            self.0.path = name.into();
            self
        }

        $crate::store_url::login_setters!();
        $crate::store_url::tls_setters!();
    };
}

/// Setters of TLS, and of the limit of a request.
macro_rules! tls_setters {
    () => {
        $crate::store_url::setters! {
            /// Whether TLS is used. [`tenure::connect`](crate::connect()) has the default.
            tls(is_on: bool) => "tls", $crate::store_url::on(is_on);
        }
        $crate::store_url::certificate_setters!();
    };
}

/// The certificates of TLS, and the limit of a request.
macro_rules! certificate_setters {
    () => {
        $crate::store_url::setters! {
            /// A file with the authority to trust.
            ca(path: impl AsRef<std::path::Path>) => "ca", $crate::store_url::file(path);
            /// A file with a certificate of our own, and with [`key`](Self::key) its key.
            cert(path: impl AsRef<std::path::Path>) => "cert", $crate::store_url::file(path);
            /// The file with the key of our certificate.
            key(path: impl AsRef<std::path::Path>) => "key", $crate::store_url::file(path);
        }
        $crate::store_url::timeout_setter!();
    };
}

/// The limit of a request.
macro_rules! timeout_setter {
    () => {
        $crate::store_url::setters! {
            /// The limit of each request and of each attempt to connect. Default: 2 s.
            timeout(limit: std::time::Duration) => "timeout", $crate::store_url::duration(limit);
        }
    };
}

/// Setters of how long after its start a server grants nothing.
macro_rules! restart_guard_setters {
    () => {
        $crate::store_url::setters! {
            /// For this long after its start a server grants nothing, because it may have forgotten who held what.
            /// Default: 30 s. Set it to the longest ttl that any client uses.
            restart_guard(length: std::time::Duration) => "restart_guard", $crate::store_url::duration(length);
        }

        /// A server grants at once after its start: for one that has no locks to lose, a fresh container in a test for example.
        pub fn without_restart_guard(mut self) -> Self {
            self.0.set("restart_guard", "off");
            self
        }
    };
}

pub(crate) use {
    certificate_setters, database_setters, host_setters, login_setters, restart_guard_setters,
    setters, timeout_setter, tls_setters, url_form,
};

/// Settings of a store: `tenure::redis::Settings` and its like.
pub trait StoreSettings {
    /// The URL from which a client connects. It may have a password in it, so it must not be printed.
    ///
    /// # Errors
    /// `Invalid`: no URL can be written, because no host is given, or one that is none.
    fn url_with_secrets(&self) -> Result<String, Error>;
}

/// What a URL consists of. Nothing is percent-encoded.
#[derive(Clone)]
pub(crate) struct StoreUrl {
    pub(crate) scheme: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// As they stand in the URL: with a port or without.
    pub(crate) hosts: Vec<String>,
    /// Without the slash before it.
    pub(crate) path: String,
    options: Vec<(String, String)>,
}

impl StoreUrl {
    pub(crate) fn new(scheme: &str) -> Self {
        Self {
            scheme: scheme.to_owned(),
            user: None,
            password: None,
            hosts: Vec::new(),
            path: String::new(),
            options: Vec::new(),
        }
    }

    /// The parts of a URL with one of these schemes.
    pub(crate) fn parse(url: &str, schemes: &[&str]) -> Result<Self, Error> {
        let url = canonical(url)?;
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        if !schemes.contains(&scheme) {
            return invalid(format!(
                "\"{}:\" is another store; these settings have {}:",
                Escaped(scheme),
                schemes.join(":, ")
            ));
        }
        if scheme == "sqlite" {
            return Ok(Self::of_file(&url));
        }
        let mut url = match scheme {
            "redis+unix" => Url::parse_socket(&url)?,
            // No store has that port: it stands for the default.
            _ => Url::parse(&url, 0)?,
        };
        let hosts = std::mem::take(&mut url.hosts);
        let mut parts = Self::new(&url.scheme);
        for host in hosts {
            match host.port {
                _ if host.is_socket() => parts.path = host.name[1..].to_owned(),
                0 => parts.add_host(&host.name),
                port => parts.add_host_with_port(&host.name, port),
            }
        }
        if !url.path.is_empty() {
            parts.path = std::mem::take(&mut url.path);
        }
        parts.user = url.user.take();
        let password = url.password.as_ref().map(Secret::reveal);
        parts.password = password.map(str::to_owned);
        parts.options = url.into_options();
        Ok(parts)
    }

    /// `sqlite:` has a path in place of hosts, which is not percent-encoded.
    fn of_file(url: &str) -> Self {
        let rest = url.strip_prefix("sqlite:").unwrap_or(url);
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut parts = Self::new("sqlite");
        path.clone_into(&mut parts.path);
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            parts.set(key, value);
        }
        parts
    }

    /// Whether the path is that of a file or a socket, so that there are no hosts.
    fn is_path(&self) -> bool {
        matches!(self.scheme.as_str(), "sqlite" | "redis+unix")
    }

    pub(crate) fn option(&self, key: &str) -> Option<&str> {
        let mut options = self.options.iter();
        options.find_map(|(known, value)| (known == key).then_some(value.as_str()))
    }

    pub(crate) fn add_host(&mut self, name: &str) {
        // An address of version 6 has colons of its own.
        let host = match name.parse::<Ipv6Addr>() {
            Ok(_) => format!("[{name}]"),
            Err(_) => name.to_owned(),
        };
        self.hosts.push(host);
    }

    pub(crate) fn add_host_with_port(&mut self, name: &str, port: u16) {
        self.add_host(name);
        if let Some(host) = self.hosts.last_mut() {
            let _ = write!(host, ":{port}");
        }
    }

    pub(crate) fn set(&mut self, key: &str, value: impl Into<String>) {
        self.options.retain(|(known, _)| known != key);
        self.options.push((key.to_owned(), value.into()));
    }

    /// The options as they stand in a URL. `None`: there is more than options.
    pub(crate) fn options_only(&self) -> Option<String> {
        let has_login = self.user.is_some() || self.password.is_some();
        if has_login || !self.hosts.is_empty() || !self.path.is_empty() {
            return None;
        }
        let options = self.options.iter();
        let options = options.map(|(key, value)| format!("{key}={}", encoded(value)));
        Some(options.collect::<Vec<_>>().join("&"))
    }

    /// The URL, with its secrets.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}:", self.scheme);
        if self.scheme == "sqlite" {
            text += &self.path;
        } else {
            text += "//";
            text += &self.login();
            text += &self.hosts.join(",");
            if !self.path.is_empty() {
                let _ = write!(text, "/{}", encoded(&self.path));
            }
        }
        for (at, (key, value)) in self.options.iter().enumerate() {
            let sign = if at == 0 { '?' } else { '&' };
            let _ = write!(text, "{sign}{key}={}", encoded(value));
        }
        text
    }

    fn login(&self) -> String {
        let user = encoded(self.user.as_deref().unwrap_or_default());
        match &self.password {
            Some(password) => format!("{user}:{}@", encoded(password)),
            None if user.is_empty() => String::new(),
            None => format!("{user}@"),
        }
    }

    /// The URL as it may be shown to anybody.
    pub(crate) fn redacted(&self) -> String {
        redacted_url(&self.text())
    }

    /// [`text`](Self::text), unless a host would be read as another part of the URL.
    ///
    /// # Errors
    /// `Invalid`: that host.
    pub(crate) fn checked(&self) -> Result<String, Error> {
        let is_other = |sign: char| "@/?#,".contains(sign) || sign.is_whitespace();
        if let Some(host) = self.hosts.iter().find(|host| host.contains(is_other)) {
            return invalid(format!(
                "\"{}\" is no name of a host; a host is added with `host`, its port with `port`",
                Escaped(host)
            ));
        }
        if self.scheme == "sqlite" && self.path.contains('?') {
            return invalid("the path of a file of `sqlite:` has no `?` in it");
        }
        if self.hosts.is_empty() && (self.path.is_empty() || !self.is_path()) {
            let message = "the settings name no server; add one with `host`";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(self.text())
    }
}

/// As a URL has it: everything but letters, digits and a few signs is written as `%` and two digits.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'-' | b'.' | b'_' | b'~' | b'/' => encoded.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => encoded.push(char::from(byte)),
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

/// A duration as an option has it.
pub(crate) fn duration(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

/// A path as an option has it.
pub(crate) fn file(path: impl AsRef<Path>) -> String {
    path.as_ref().display().to_string()
}

/// How an option that is on or off is written.
pub(crate) fn on(is_on: bool) -> &'static str {
    match is_on {
        true => "on",
        false => "off",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let mut url = StoreUrl::new("redis");
        url.add_host("::1");
        url.add_host_with_port("two.internal", 7_000);
        url.user = Some("me: and you".to_owned());
        url.password = Some("p@ss/w:rd?#%é".to_owned());
        url.path = "3".to_owned();
        url.set("prefix", "a&b=c /");
        url.set("timeout", duration(Duration::from_millis(1_500)));
        let text = url.checked().unwrap();
        let read = StoreUrl::parse(&text, &["redis"]).unwrap();
        assert_eq!(read.text(), text);
        assert_eq!((read.user, read.password), (url.user, url.password));
        assert_eq!(read.hosts, ["[::1]", "two.internal:7000"]);
        assert_eq!(read.path, "3");
        assert_eq!(read.options, url.options);
    }

    #[test]
    fn a_path_stands_in_place_of_hosts() {
        for text in [
            "redis+unix:///run/redis/redis.sock?db=1",
            "redis+unix://me:secret@/run/redis.sock",
            "sqlite:/var/lib/a b.db?table=locks",
            "sqlite:locks.db",
        ] {
            let url = StoreUrl::parse(text, &["redis+unix", "sqlite"]).unwrap();
            assert_eq!(url.checked().unwrap(), text);
        }
    }

    #[test]
    fn other_names_of_a_scheme_are_known_and_other_stores_are_refused() {
        let url = StoreUrl::parse("VALKEY://host", &["redis"]).unwrap();
        assert_eq!(url.text(), "redis://host");
        let err = StoreUrl::parse("etcd://host", &["redis"]).map(drop);
        assert!(err.unwrap_err().to_string().contains("another store"));
    }

    #[test]
    fn a_host_cannot_be_another_part_of_the_url() {
        for host in ["me@host", "host/2", "host?tls=off", "a,b", "a b"] {
            let mut url = StoreUrl::new("redis");
            url.add_host(host);
            assert_eq!(url.checked().unwrap_err().kind(), ErrorKind::Invalid);
        }
        let nowhere = StoreUrl::new("redis").checked();
        assert!(nowhere.unwrap_err().to_string().contains("no server"));
        let mut file = StoreUrl::new("sqlite");
        file.path = "what?.db".to_owned();
        assert_eq!(file.checked().unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn secrets_are_not_shown() {
        let mut url = StoreUrl::new("redis+sentinel");
        url.add_host("one");
        url.password = Some("hunter2".to_owned());
        url.set("sentinel_password", "hunter3");
        assert!(!url.redacted().contains("hunter"));
    }
}
