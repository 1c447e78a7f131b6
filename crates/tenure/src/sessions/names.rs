//! From the name of a lock to its key in the server. Published in `docs/stores/mysql.md` and `docs/stores/postgres.md`.

use std::borrow::Cow;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::name::LockName;

use crate::database::{self, Kind, hex};

use super::key::{self, Key, KeyMapping, is_plain};
use super::settings::Settings;

/// A lock of MySQL has 64 characters at most. Those of a digest are 64, so no plain name has that many.
const MAX_PLAIN_LENGTH: usize = 63;

/// A key, or what the server has to be asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeySource {
    Computed(Key),
    /// The name's bytes, of which the server's `hashtext` is the key.
    AskServer(Vec<u8>),
}

/// The key of a name.
pub(super) fn key(settings: &Settings, name: &LockName) -> Result<KeySource, Error> {
    let full = match settings.prefix.as_str() {
        "" => Cow::Borrowed(name.as_str()),
        prefix => Cow::Owned(format!("{prefix}{name}", name = name.as_str())),
    };
    if settings.server.kind == Kind::MySql {
        return Ok(KeySource::Computed(Key::Text(text_key(&full))));
    }
    let key = match settings.key_mapping {
        KeyMapping::BigInt => Key::One(database::keys::bigint(&full)),
        KeyMapping::Pair => Key::halves(database::keys::bigint(&full).cast_unsigned()),
        KeyMapping::Raw => raw(&full)?,
        KeyMapping::HashText if full.contains('\0') => {
            return Err(Error::new(
                ErrorKind::Invalid,
                "PostgreSQL has no text with a zero byte in it, so `keys=hashtext` has no such names",
            ));
        }
        KeyMapping::HashText => return Ok(KeySource::AskServer(full.into_owned().into_bytes())),
        KeyMapping::CSharp => key::csharp(&full),
        KeyMapping::Ruby => key::ruby(&full),
        KeyMapping::Sqlx => key::sqlx(&full),
    };
    Ok(KeySource::Computed(key))
}

/// A short plain name itself; the digest of any other, in lower-case hexadecimal digits.
fn text_key(full: &str) -> Arc<str> {
    if full.len() <= MAX_PLAIN_LENGTH && is_plain(full) {
        return full.into();
    }
    hex(&Sha256::digest(full.as_bytes())).into()
}

/// `-5` or `7,9`: the name is the key.
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
            KeySource::Computed(key) => key,
            KeySource::AskServer(_) => panic!("the server has to be asked"),
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
        assert_eq!(asked, KeySource::AskServer(b"it's".to_vec()));
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
                let Ok(KeySource::Computed(key)) = key(&settings, &name) else {
                    panic!("{name} has no key");
                };
                let text = key.to_string().to_lowercase();
                assert!(text.len() <= 64, "{text}");
                vec![text]
            });
        }
    }
}
