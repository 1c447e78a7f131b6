//! The key of a lock in the server.

use std::fmt;
use std::sync::Arc;

/// What the server calls a lock. Two names with the same key are the same lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    /// MySQL: characters that every server compares alike, so the key stands in a statement as it is.
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
}

/// As the key stands in the table of holders, and in a name with `keys=raw`.
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
