//! The key of a lock in the server, and how a name becomes a key in PostgreSQL: by our own mappings, or by those of other
//! libraries, whose locks are then ours.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

#[cfg(feature = "postgres")]
use crate::database;

/// What the server calls a lock. Two names with the same key are the same lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    /// MySQL: characters that every server compares alike, so the key is written into a statement as it is.
    Text(Arc<str>),
    /// PostgreSQL: one number.
    One(i64),
    /// PostgreSQL: two numbers. No single number is the same lock.
    Two(i32, i32),
}

impl Key {
    /// A key of two numbers, from the bits of both.
    pub(super) fn halves(bits: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = bits.to_be_bytes();
        Self::Two(
            i32::from_be_bytes([a, b, c, d]),
            i32::from_be_bytes([e, f, g, h]),
        )
    }

    /// PostgreSQL: the key that the one upgradable holder of this key has too. It is made of the key and not of the name,
    /// because two names with the same key are the same lock. No name begins with the byte 255, so the key of no name is
    /// made of the same bytes.
    #[cfg(feature = "postgres")]
    pub(super) fn upgradable(&self) -> Self {
        let mut bytes = vec![0xff];
        bytes.extend_from_slice(format!("upgradable {self}").as_bytes());
        Self::One(database::keys::bigint_of(&bytes))
    }
}

/// As the key is written in the table of holders, and in a name with `keys=raw`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::One(number) => write!(f, "{number}"),
            Self::Two(class, object) => write!(f, "{class},{object}"),
        }
    }
}

/// Whether every server compares and converts these characters alike.
pub(super) fn is_plain(text: &str) -> bool {
    let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"._-/".contains(&c);
    text.bytes().all(is_plain)
}

/// How a name becomes a key of PostgreSQL: the option `keys`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyMapping {
    /// Eight bytes of a digest.
    BigInt,
    /// The same eight bytes, as two numbers.
    Pair,
    /// The name is the number, or two with a comma between.
    Raw,
    /// `hashtext(name)::bigint`, which the server computes.
    HashText,
    /// As `DistributedLock` for .NET does.
    CSharp,
    /// As `with_advisory_lock` for Rails does.
    Ruby,
    /// As sqlx's `PgAdvisoryLock` does.
    Sqlx,
}

impl KeyMapping {
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
        found.map(|(_, mapping)| *mapping)
    }
}

/// `DistributedLock` for .NET, with hashing allowed: short ASCII names are packed, numbers in its own notation are
/// taken as they are, and the rest is hashed.
pub(super) fn csharp(name: &str) -> Key {
    packed(name)
        .or_else(|| hexadecimal(name))
        .unwrap_or_else(|| {
            let digest = sha1_smol::Sha1::from(name).digest().bytes();
            Key::One(i64::from_le_bytes(std::array::from_fn(|at| digest[at])))
        })
}

/// Up to nine characters of ASCII: seven bits each, then a zero, then ones.
fn packed(name: &str) -> Option<Key> {
    if name.len() > 9 || !name.is_ascii() {
        return None;
    }
    let mut bits = 0_u64;
    for byte in name.bytes() {
        bits = bits << 7 | u64::from(byte);
    }
    let rest = 64 - 7 * u32::try_from(name.len()).ok()?;
    let ones = u64::MAX >> (64 - rest) >> 1;
    let bits = bits.checked_shl(rest).unwrap_or(0) | ones;
    Some(Key::halves(bits))
}

/// `0123456789abcdef` is one number, `01234567,89abcdef` are two.
fn hexadecimal(name: &str) -> Option<Key> {
    let number = |digits: &str| {
        let is_number = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        u64::from_str_radix(digits, 16).ok().filter(|_| is_number)
    };
    match (name.len(), name.split_once(',')) {
        (16, None) => number(name).map(|bits| Key::One(bits.cast_signed())),
        (17, Some((class, object))) if class.len() == 8 => {
            Some(Key::halves(number(class)? << 32 | number(object)?))
        }
        _ => None,
    }
}

/// `with_advisory_lock` for Rails: the checksum without its sign, and the prefix's number, which is 0 for none.
pub(super) fn ruby(name: &str) -> Key {
    let checksum = crc32(name.as_bytes()) & 0x7fff_ffff;
    Key::Two(checksum.cast_signed(), 0)
}

/// The checksum of zip and Ethernet.
fn crc32(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            let carry = crc & 1 != 0;
            (crc >> 1) ^ if carry { 0xedb8_8320 } else { 0 }
        })
    });
    !crc
}

/// sqlx's `PgAdvisoryLock::new`: HKDF over SHA-256, without salt, eight bytes of it.
pub(super) fn sqlx(name: &str) -> Key {
    const INFO: &[u8] = b"SQLx (Rust) Postgres advisory lock";
    let extracted = hmac(&[0; 32], &[name.as_bytes()]);
    let expanded = hmac(&extracted, &[INFO, &[1]]);
    Key::One(i64::from_le_bytes(std::array::from_fn(|at| expanded[at])))
}

/// HMAC with a key of the digest's own length (RFC 2104).
fn hmac(key: &[u8; 32], message: &[&[u8]]) -> [u8; 32] {
    let pad = |with: u8| {
        let mut pad = [with; 64];
        for (byte, key) in pad.iter_mut().zip(key) {
            *byte ^= key;
        }
        pad
    };
    let mut inner = Sha256::new();
    inner.update(pad(0x36));
    for part in message {
        inner.update(part);
    }
    let mut outer = Sha256::new();
    outer.update(pad(0x5c));
    outer.update(inner.finalize());
    let digest = outer.finalize();
    std::array::from_fn(|at| digest[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As computed by the other libraries.
    #[test]
    fn the_published_keys() {
        assert_eq!(csharp("job1"), Key::Two(-708_898_025, -1));
        assert_eq!(
            csharp("my-long-lock-name"),
            Key::One(-6_292_990_556_957_758_089)
        );
        assert_eq!(csharp("0123456789abcdef"), Key::One(0x0123_4567_89ab_cdef));
        assert_eq!(
            csharp("01234567,89abcdef"),
            Key::Two(0x0123_4567, 0x89ab_cdef_u32.cast_signed())
        );
        assert_eq!(sqlx("job1"), Key::One(8_446_400_879_160_614_314));
        assert_eq!(ruby("job1"), Key::Two(809_586_041, 0));
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn the_published_keys_of_upgradable_holders() {
        let key = Key::One(-3_720_329_102_846_031_715);
        assert_eq!(key.upgradable(), Key::One(-1_164_177_412_954_310_138));
        assert_eq!(
            Key::Two(7, -9).upgradable(),
            Key::One(-8_554_213_612_459_457_163)
        );
    }

    #[test]
    fn packed_names_fill_all_bits() {
        assert_eq!(packed("abcdefghi").map(|_| ()), Some(()));
        assert_eq!(packed("abcdefghij"), None);
        assert_eq!(packed("é"), None);
        assert_ne!(packed("a"), packed("aa"));
    }
}
