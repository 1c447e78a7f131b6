//! The URL of a store: several hosts, credentials, options. No error repeats what may be a password.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::name::Escaped;
use crate::options::Options;
use crate::time::parse_duration;

/// `scheme://user:password@host:port,host:port/path?option=value`
#[derive(Debug)]
pub struct Url {
    /// What stands before the first colon.
    pub scheme: String,
    /// Who logs in, with escapes decoded.
    pub user: Option<String>,
    /// The same for the password.
    pub password: Option<Secret>,
    /// At least one, in the order of the URL.
    pub hosts: Vec<Host>,
    /// Without the slash before it.
    pub path: String,
    options: Vec<(String, String)>,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Name or address, an IPv6 address without its brackets; or the path of a socket of this machine, which begins with
    /// a slash.
    pub name: String,
    /// The port, or the default of the store; 0 for a socket.
    pub port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A host without a port is a name that stands for one.
        if self.is_socket() || self.port == 0 {
            write!(f, "{}", Escaped(&self.name))
        } else if self.name.contains(':') {
            write!(f, "[{}]:{}", Escaped(&self.name), self.port)
        } else {
            write!(f, "{}:{}", Escaped(&self.name), self.port)
        }
    }
}

/// Something that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text, for a login.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// An error about the URL.
pub fn invalid<T>(message: impl Into<String>) -> Result<T, Error> {
    Err(Error::new(ErrorKind::Invalid, message))
}

/// The longest `prefix` in bytes, in a store whose keys may be long: keys stay readable.
pub const MAX_PREFIX: usize = 200;

/// What the option `timeout` may be: from a round trip on this continent to what a user would call an outage.
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

/// The default of the option `timeout`: far above a round trip and an election, far below the default ttl.
const TIMEOUT: Duration = Duration::from_secs(2);

impl Url {
    /// Takes a URL apart; hosts without a port get `port`.
    pub fn parse(url: &str, port: u16) -> Result<Self, Error> {
        // Anything else before `://` is another part of a URL that is not well-formed, and not to be repeated.
        let is_scheme = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+');
        let split = url.split_once("://").filter(|(it, _)| is_scheme(it));
        let Some((scheme, rest)) = split else {
            return invalid("the URL has no `//HOST` after its scheme, as in redis://127.0.0.1/");
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A password may have an unescaped `@` in it, and a host cannot: the last one counts.
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (Some(login), rest),
            None => (None, rest),
        };
        if query.contains('@') {
            // Nothing of the query is repeated: it may be a part of a password. An `@` before the `?` may be a part of the
            // same password, so a login that seems to be complete changes nothing.
            return invalid(
                "the URL has an `@` after its `?`; in a password `?` is written %3F, and in an option `@` is written %40",
            );
        }
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, password) = match login {
            None => (None, None),
            Some(login) => {
                let (user, password) = match login.split_once(':') {
                    Some((user, password)) => (user, Some(Secret(decode(password)?))),
                    None => (login, None),
                };
                (
                    Some(decode(user)?).filter(|user| !user.is_empty()),
                    password,
                )
            }
        };
        let hosts = hosts
            .split(',')
            .map(|host| Host::parse(host, port))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            scheme: scheme.to_owned(),
            user,
            password,
            hosts,
            path: decode(path)?,
            options: parse_options(query)?,
        })
    }

    /// Takes a URL apart that has the path of a socket in place of hosts: `scheme://user:password@/path?option=value`.
    pub fn parse_socket(url: &str) -> Result<Self, Error> {
        let (base, query) = url.find('?').map_or((url, ""), |at| url.split_at(at));
        let after = |mark: &str| base.rfind(mark).map(|at| at + mark.len());
        let begin = after("@").or_else(|| after("://"));
        let (before, path) = base.split_at(begin.unwrap_or(base.len()));
        if !path.starts_with('/') || path.len() == 1 {
            return invalid(
                "the URL has no path of a socket after `//`; it has three slashes in a row, or `@` and a slash, and in the path `@` is written %40 and `?` %3F",
            );
        }
        let mut url = Self::parse(&format!("{before}localhost{path}{query}"), 0)?;
        url.hosts = vec![Host {
            name: format!("/{}", std::mem::take(&mut url.path)),
            port: 0,
        }];
        Ok(url)
    }

    /// The options that were not taken out, in their order.
    pub fn into_options(self) -> Vec<(String, String)> {
        self.options
    }

    /// Takes an option out.
    pub fn take(&mut self, key: &str) -> Option<String> {
        let at = self.options.iter().position(|(known, _)| known == key)?;
        Some(self.options.swap_remove(at).1)
    }

    /// Takes an option out that is a secret.
    pub fn take_secret(&mut self, key: &str) -> Option<Secret> {
        self.take(key).map(Secret)
    }

    /// Takes a duration out, as [`parse_duration`] reads it.
    pub fn take_duration(&mut self, key: &str) -> Result<Option<Duration>, Error> {
        let Some(text) = self.take(key) else {
            return Ok(None);
        };
        match parse_duration(&text) {
            Ok(duration) => Ok(Some(duration)),
            Err(why) => invalid(format!(
                "the option `{key}` is \"{}\"; {why}",
                Escaped(&text)
            )),
        }
    }

    /// Takes a duration out that lies within `range`.
    pub fn take_duration_in(
        &mut self,
        key: &str,
        range: &RangeInclusive<Duration>,
        default: Duration,
    ) -> Result<Duration, Error> {
        let value = self.take_duration(key)?.unwrap_or(default);
        if range.contains(&value) {
            return Ok(value);
        }
        let (least, most) = (range.start(), range.end());
        invalid(format!(
            "the option `{key}` is {value:?}; it must lie between {least:?} and {most:?}"
        ))
    }

    /// Takes out the limit of each request and of each attempt to connect.
    pub fn take_timeout(&mut self) -> Result<Duration, Error> {
        self.take_duration_in("timeout", &TIMEOUTS, TIMEOUT)
    }

    /// Takes out what is put before every key, of at most `max` bytes.
    pub fn take_prefix(&mut self, max: usize) -> Result<String, Error> {
        let prefix = self.take("prefix").unwrap_or_default();
        if prefix.len() > max {
            let length = prefix.len();
            return invalid(format!("`prefix` has {length} bytes; it may have {max}"));
        }
        Ok(prefix)
    }

    /// Takes out one of a few words, the first of which is the default, and returns what the word stands for.
    pub fn take_word<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> Result<T, Error> {
        let Some(text) = self.take(key) else {
            return Ok(words[0].1);
        };
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, meaning)) => Ok(*meaning),
            None => {
                let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                invalid(format!(
                    "the option `{key}` is \"{}\"; it can be {}",
                    Escaped(&text),
                    known.join(" or ")
                ))
            }
        }
    }

    /// Takes out how long after its start a server grants nothing; `None`: it is `off`.
    pub fn take_restart_guard(&mut self) -> Result<Option<Duration>, Error> {
        let text = self.take("restart_guard");
        match text.as_deref().map(|text| (text, parse_duration(text))) {
            None => Ok(Some(Options::DEFAULT_TTL)),
            Some(("off", _)) => Ok(None),
            Some((_, Ok(guard))) if !guard.is_zero() => Ok(Some(guard)),
            Some((text, _)) => invalid(format!(
                "the option `restart_guard` is \"{}\"; it is the longest ttl in use, as in 30s, or off",
                Escaped(text)
            )),
        }
    }

    /// Takes a whole number out.
    pub fn take_number(&mut self, key: &str) -> Result<Option<u32>, Error> {
        let Some(text) = self.take(key) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => invalid(format!(
                "the option `{key}` is \"{}\"; it must be a whole number",
                Escaped(&text)
            )),
        }
    }

    /// Takes a whole number out that lies within `range`.
    pub fn take_number_in(
        &mut self,
        key: &str,
        range: &RangeInclusive<u32>,
        default: u32,
    ) -> Result<u32, Error> {
        let value = self.take_number(key)?.unwrap_or(default);
        if range.contains(&value) {
            return Ok(value);
        }
        let (least, most) = (range.start(), range.end());
        invalid(format!(
            "the option `{key}` is {value}; it must lie between {least} and {most}"
        ))
    }

    /// Refuses options that were not taken out.
    pub fn finish(&self, known: &[&str]) -> Result<(), Error> {
        match self.options.first() {
            None => Ok(()),
            Some((key, _)) => invalid(format!(
                "`{}:` has no option \"{}\"; {}it has {}",
                self.scheme,
                Escaped(key),
                advice(key, known),
                known.join(", ")
            )),
        }
    }
}

/// The options behind the `?`, in their order.
fn parse_options(query: &str) -> Result<Vec<(String, String)>, Error> {
    let mut options: Vec<(String, String)> = Vec::new();
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let Some((key, value)) = option.split_once('=') else {
            return invalid(format!(
                "the option \"{}\" has no value; write {}=VALUE",
                Escaped(option),
                Escaped(option)
            ));
        };
        if options.iter().any(|(known, _)| known == key) {
            return invalid(format!("the option `{}` is there twice", Escaped(key)));
        }
        options.push((key.to_owned(), decode(value)?));
    }
    Ok(options)
}

/// What other clients of the same servers call an option that is known here; empty for every other text.
fn advice(key: &str, known: &[&str]) -> &'static str {
    let key = key.to_ascii_lowercase().replace(['_', '-'], "");
    let (option, advice) = match key.as_str() {
        "ssl" | "sslmode" | "usessl" | "requiressl" | "sslcertreqs" => {
            ("tls", "TLS is switched by tls=on and tls=off, and ")
        }
        "sslca" | "sslrootcert" | "sslcacerts" | "cafile" => {
            ("ca", "that is written ca=FILE, and ")
        }
        "sslcert" | "sslcertfile" => ("cert", "that is written cert=FILE, and "),
        "sslkey" | "sslkeyfile" => ("key", "that is written key=FILE, and "),
        _ => return "",
    };
    if known.contains(&option) { advice } else { "" }
}

impl Host {
    /// Whether nothing that is sent there can leave this machine.
    pub fn is_this_machine(&self) -> bool {
        let address = self.name.parse::<std::net::IpAddr>();
        address.map_or(self.name == "localhost", |it| it.is_loopback()) || self.is_socket()
    }

    /// Whether this is the path of a socket.
    pub fn is_socket(&self) -> bool {
        self.name.starts_with('/')
    }

    fn parse(text: &str, default: u16) -> Result<Self, Error> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((name, "")) => (name, None),
                Some((name, port)) if port.starts_with(':') => (name, Some(&port[1..])),
                _ => return invalid("an IPv6 address in the URL is not closed by `]`"),
            },
            None => match text.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (text, None),
            },
        };
        if name.is_empty() {
            return invalid("the URL has no host, or an empty one in its list");
        }
        let port = match port {
            None => default,
            // Not repeated: with a forgotten `@` it may be the beginning of a password.
            Some(port) => match port.parse() {
                Ok(port) if port != 0 => port,
                _ => {
                    return invalid(
                        "what follows `:` after a host in the URL is no port (1 to 65535); a password goes before `@`, and `/`, `?`, `#` and `%` in it are written %2F, %3F, %23 and %25",
                    );
                }
            },
        };
        Ok(Self {
            name: name.to_owned(),
            port,
        })
    }
}

/// Undoes percent-encoding. The text is not repeated in the error: it may be a password.
fn decode(text: &str) -> Result<String, Error> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        match (digit(rest.next()), digit(rest.next())) {
            (Some(high), Some(low)) => bytes.extend(u8::try_from(high * 16 + low)),
            _ => {
                return invalid(
                    "a `%` in the URL is not followed by two hexadecimal digits; write %25 for the sign itself",
                );
            }
        }
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(_) => invalid("the URL is not UTF-8 once its %-sequences are decoded"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_url_is_taken_apart() {
        let text = "redis://me:p%40ss@w:rd@one:1,[::1],two/3?prefix=a%2Fb&timeout=500ms&n=7";
        let mut url = Url::parse(text, 6379).unwrap();
        assert_eq!(url.scheme, "redis");
        assert_eq!(url.user.as_deref(), Some("me"));
        assert_eq!(url.password.as_ref().map(Secret::reveal), Some("p@ss@w:rd"));
        let hosts: Vec<_> = url.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["one:1", "[::1]:6379", "two:6379"]);
        assert_eq!(url.path, "3");
        assert_eq!(url.take("prefix").as_deref(), Some("a/b"));
        let timeout = url.take_duration("timeout").unwrap();
        assert_eq!(timeout, Some(Duration::from_millis(500)));
        assert!(
            url.finish(&["n"])
                .unwrap_err()
                .to_string()
                .contains("\"n\"")
        );
        assert_eq!(url.take_number("n").unwrap(), Some(7));
        url.finish(&[]).unwrap();
        assert!(!format!("{url:?}").contains("ss@w"), "{url:?}");
    }

    #[test]
    fn a_socket_takes_the_place_of_the_hosts() {
        let url = Url::parse_socket("redis+unix://me:p%40ss@/run/a%20b%40c?db=1").unwrap();
        assert_eq!(url.hosts[0].to_string(), "/run/a b@c");
        assert!(url.hosts[0].is_this_machine());
        assert_eq!((url.user.as_deref(), url.path.as_str()), (Some("me"), ""));
        assert_eq!(url.password.as_ref().map(Secret::reveal), Some("p@ss"));
        for wrong in [
            "redis+unix://host/run/hunter2",
            "redis+unix:///",
            "redis+unix:///hunter2@b",
            "redis+unix:/run/hunter2",
        ] {
            let err = Url::parse_socket(wrong).unwrap_err().to_string();
            assert!(err.contains("path of a socket"), "{wrong}: {err}");
            assert!(!err.contains("hunter"), "{wrong}: {err}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_and_no_password_with_it() {
        for (text, says) in [
            ("redis:hunter2", "no `//HOST`"),
            ("redis:me:hunter2@h/://a,b", "no `//HOST`"),
            ("redis://:hunter2@", "no host"),
            ("redis://me:hunter2", "is no port"),
            ("redis://me:hunter2%@host", "two hexadecimal digits"),
            ("redis://me:hunter2%ff@host", "not UTF-8"),
            ("redis://me:12?hunter2@host", "is written %3F"),
            ("redis://me:12?hun=ter2@host", "is written %3F"),
            ("redis://:p@ss?hunter2@host/", "is written %3F"),
            ("redis://me:p@ss?hun=ter2@host/1", "is written %3F"),
            ("redis://host:0", "is no port"),
            ("redis://[::1", "not closed"),
            ("redis://a,,b", "no host"),
            ("redis://a?x", "has no value"),
            ("redis://a?x=1&x=2", "there twice"),
        ] {
            let err = Url::parse(text, 6379).unwrap_err().to_string();
            assert!(err.contains(says), "{text}: {err}");
            assert!(!err.contains("hunter"), "{text}: {err}");
        }
    }

    #[test]
    fn options_of_other_clients_are_answered_with_ours() {
        for (option, says) in [
            ("sslmode=require", "tls=on"),
            ("ssl-mode=REQUIRED", "tls=on"),
            ("ssl=true", "tls=off"),
            ("sslrootcert=x", "ca=FILE"),
            ("color=red", "; it has tls"),
        ] {
            let url = Url::parse(&format!("postgres://h/d?{option}"), 1).unwrap();
            let err = url.finish(&["tls", "ca"]).unwrap_err().to_string();
            assert!(err.contains(says), "{option}: {err}");
        }
    }
}
