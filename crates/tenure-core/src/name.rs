//! What a user locks: any UTF-8 text of 1 to 1,000 bytes.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// The name of a lock: UTF-8, 1 to 1,000 bytes, compared byte for byte.
///
/// A cheap clone. Each store maps names to keys of its own by one documented, injective encoding;
/// a [plain](LockName::is_plain) name lies in the store exactly as written.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// Longest name, in bytes.
    pub const MAX_LEN: usize = 1_000;

    /// A name that `validate.rs` has checked.
    pub(crate) fn checked(name: &str) -> Self {
        Self(Arc::from(name))
    }

    /// The name as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the name is written into every store as it is:
    /// at most 60 bytes of lower-case letters, digits, `.`, `_`, `-` and `/`.
    ///
    /// (Where `/` means something, as in a directory, the store encodes it all the same.)
    pub fn is_plain(&self) -> bool {
        self.0.len() <= 60
            && self
                .0
                .bytes()
                .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'/'))
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// In double quotes, with control characters and quotes escaped: safe to print anywhere.
impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", Escaped(&self.0))
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Text from elsewhere, made safe to print: control characters, quotes, backslashes and
/// characters that reorder a line (bidirectional controls) are escaped, everything else is as it was.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            let reorders = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}');
            if c.is_control() || reorders || matches!(c, '"' | '\\') {
                write!(f, "{}", c.escape_default())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_wherever_a_name_is_printed() {
        let name = LockName::new("a\r\n\u{1b}[31m\0\"\u{202e}ü 🦀").unwrap();
        assert_eq!(
            name.to_string(),
            "\"a\\r\\n\\u{1b}[31m\\u{0}\\\"\\u{202e}ü 🦀\""
        );
    }

    #[test]
    fn plain_names() {
        for (name, plain) in [
            ("orders/42", true),
            ("a.b_c-d", true),
            ("Orders", false),
            ("a b", false),
        ] {
            assert_eq!(LockName::new(name).unwrap().is_plain(), plain, "{name}");
        }
        assert!(!LockName::new("a".repeat(61)).unwrap().is_plain());
    }
}
