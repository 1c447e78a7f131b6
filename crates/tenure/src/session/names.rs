//! What a name is called in the server. Published in `docs/stores/mysql.md` and `docs/stores/postgres.md`.

use std::borrow::Cow;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::name::LockName;

use crate::database::Kind;

use super::mappings;
use super::settings::Settings;

/// A lock of MySQL has 64 characters at most; those of a digest are 64, so no plain name has that many.
const LONGEST_PLAIN: usize = 63;

/// What the server knows a lock by. Two names with the same key are the same lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    /// MySQL: letters that all servers agree on, so it can stand in a statement as it is.
    Text(Arc<str>),
    /// PostgreSQL: one number.
    One(i64),
    /// PostgreSQL: two numbers, which no single number is the same as.
    Two(i32, i32),
}

/// In what way a name is a key of PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    /// Eight bytes of a digest.
    BigInt,
    /// The same eight bytes, as two numbers.
    Pair,
    /// The name is the number, or two with a comma between.
    Raw,
    /// `hashtext(name)::bigint`, which the server works out.
    HashText,
    /// As `DistributedLock` for .NET does.
    CSharp,
    /// As `with_advisory_lock` for Rails does.
    Ruby,
    /// As sqlx's `PgAdvisoryLock` does.
    Sqlx,
}

impl Keys {
    pub(super) const ALL: [(&'static str, Self); 7] = [
        ("bigint", Self::BigInt),
        ("pair", Self::Pair),
        ("raw", Self::Raw),
        ("hashtext", Self::HashText),
        ("csharp", Self::CSharp),
        ("ruby", Self::Ruby),
        ("sqlx", Self::Sqlx),
    ];

    pub(super) fn parse(text: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, keys)| *keys)
    }
}

/// A key, or the expression that the server works it out from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Here(Key),
    /// The name's bytes, which `hashtext` is to be asked for.
    Asked(Vec<u8>),
}

/// Whether every server compares and converts these characters alike.
pub(super) fn is_plain(text: &str) -> bool {
    let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"._-/".contains(&c);
    text.bytes().all(is_plain)
}

/// The key of a name.
pub(super) fn key(settings: &Settings, name: &LockName) -> Result<Found, Error> {
    let full = match settings.prefix.as_str() {
        "" => Cow::Borrowed(name.as_str()),
        prefix => Cow::Owned(format!("{prefix}{name}", name = name.as_str())),
    };
    if settings.server.kind == Kind::MySql {
        return Ok(Found::Here(Key::Text(text(&full))));
    }
    let key = match settings.keys {
        Keys::BigInt => Key::One(i64::from_be_bytes(digest(&full))),
        Keys::Pair => {
            let [a, b, c, d, e, f, g, h] = digest(&full);
            Key::Two(
                i32::from_be_bytes([a, b, c, d]),
                i32::from_be_bytes([e, f, g, h]),
            )
        }
        Keys::Raw => raw(&full)?,
        Keys::HashText if full.contains('\0') => {
            return Err(Error::new(
                ErrorKind::Invalid,
                "PostgreSQL has no text with a zero byte in it, so `keys=hashtext` has no such names",
            ));
        }
        Keys::HashText => return Ok(Found::Asked(full.into_owned().into_bytes())),
        Keys::CSharp => mappings::csharp(&full),
        Keys::Ruby => mappings::ruby(&full),
        Keys::Sqlx => mappings::sqlx(&full),
    };
    Ok(Found::Here(key))
}

/// A plain name as it is; of any other, and of a long one, the digest in lower-case hexadecimal digits.
fn text(full: &str) -> Arc<str> {
    if full.len() <= LONGEST_PLAIN && is_plain(full) {
        return full.into();
    }
    let digest = Sha256::digest(full.as_bytes());
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.into()
}

/// The first eight bytes of the SHA-256 of a name.
fn digest(full: &str) -> [u8; 8] {
    let digest = Sha256::digest(full.as_bytes());
    std::array::from_fn(|at| digest[at])
}

/// `-5` or `7,9`
fn raw(name: &str) -> Result<Key, Error> {
    let key = match name.split_once(',') {
        None => name.parse().ok().map(Key::One),
        Some((class, object)) => match (class.parse(), object.parse()) {
            (Ok(class), Ok(object)) => Some(Key::Two(class, object)),
            _ => None,
        },
    };
    // One way to write each number, or two names would be one lock.
    key.filter(|key| key.to_string() == name).ok_or_else(|| {
        Error::new(
            ErrorKind::Invalid,
            "with `keys=raw` a name is a number of 64 bits, or two of 32 as in 7,9; no plus sign, no zeros before it, no spaces",
        )
    })
}

/// As it is written in a table and in a name.
impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::One(number) => write!(f, "{number}"),
            Self::Two(class, object) => write!(f, "{class},{object}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::Server;

    fn settings(url: &str) -> Settings {
        let (server, _, url) = Server::parse(url).unwrap();
        Settings::new(server, url).unwrap()
    }

    fn of(url: &str, name: &str) -> Key {
        let name = LockName::new(name).unwrap();
        match key(&settings(url), &name).unwrap() {
            Found::Here(key) => key,
            Found::Asked(_) => panic!("the server has to be asked"),
        }
    }

    /// The published vectors.
    #[test]
    fn names_in_mysql() {
        let long = "x".repeat(64);
        for (prefix, name, key) in [
            ("", "orders/42", "orders/42"),
            ("app/", "orders/42", "app/orders/42"),
            ("", &long[..63], &long[..63]),
            (
                "",
                &long,
                "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c",
            ),
            (
                "",
                "Orders/42",
                "290affee6f174f12d324ec515106d1a811ef355715d4c8b3815888c37146869a",
            ),
        ] {
            let of = of(&format!("mysql://h?prefix={prefix}"), name);
            assert_eq!(of, Key::Text(key.into()), "{prefix}{name}");
        }
    }

    #[test]
    fn names_in_postgres() {
        assert_eq!(
            of("postgres://h", "job1"),
            Key::One(-3_720_329_102_846_031_715)
        );
        assert_eq!(
            of("postgres://h?keys=pair", "job1"),
            Key::Two(-866_206_620, 1_632_667_805)
        );
        assert_eq!(
            of("postgres://h?prefix=jo", "b1"),
            of("postgres://h", "job1")
        );
        assert_eq!(of("postgres://h?keys=raw", "-5"), Key::One(-5));
        assert_eq!(of("postgres://h?keys=raw", "7,-9"), Key::Two(7, -9));
        let name = LockName::new("it's").unwrap();
        let asked = key(&settings("postgres://h?keys=hashtext"), &name).unwrap();
        assert_eq!(asked, Found::Asked(b"it's".to_vec()));
    }

    #[test]
    fn a_raw_key_is_written_in_one_way() {
        let settings = settings("postgres://h?keys=raw");
        for name in [
            "+1",
            "01",
            "1 ",
            " 1",
            "1,",
            ",1",
            "1,2,3",
            "x",
            "1.0",
            "9223372036854775808",
            "2147483648,0",
            "1, 2",
            "-0",
        ] {
            let name = LockName::new(name).unwrap();
            let err = key(&settings, &name).unwrap_err();
            assert_eq!(err.kind(), ErrorKind::Invalid, "{name:?}");
        }
    }

    /// MySQL compares names without regard to case.
    #[test]
    fn hostile_names_stay_apart() {
        use tenure_core::conformance::hostile::written;
        let mysql = settings("mysql://h");
        let postgres = settings("postgres://h");
        let pair = settings("postgres://h?keys=pair");
        for settings in [mysql, postgres, pair] {
            written::assert_apart(|name| {
                let name = LockName::new(name).unwrap();
                let Ok(Found::Here(key)) = key(&settings, &name) else {
                    panic!("{name} has no key");
                };
                let text = key.to_string().to_lowercase();
                assert!(text.len() <= 64, "{text}");
                vec![text]
            });
        }
    }
}
