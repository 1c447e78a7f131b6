//! From the name of a lock to its text in a table, and back.

use sha2::{Digest as _, Sha256};

use tenure_core::name::LockName;

use crate::database::hex;

/// Whose table it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Ours.
    Tenure,
    /// The one of ShedLock, to share it with Java.
    ShedLock,
}

/// The longest name that fits into ShedLock's table, in characters.
const SHEDLOCK_NAME: usize = 64;

/// The beginning of names that had to be hashed for ShedLock's table.
const HASHED: &str = "tenure:";

/// The name as it is written in the table.
pub(super) fn encoded(format: Format, name: &str) -> String {
    match format {
        Format::Tenure => escaped(name),
        Format::ShedLock if is_plain_for_shedlock(name) => name.to_owned(),
        Format::ShedLock => {
            let digits = hex(&Sha256::digest(name.as_bytes()));
            [HASHED, &digits[..SHEDLOCK_NAME - HASHED.len()]].concat()
        }
    }
}

/// Undoes [`encoded`], as far as that is possible. `None`: no name of ours is written like that.
pub(super) fn decoded(format: Format, text: &str) -> Option<LockName> {
    match format {
        Format::ShedLock => LockName::new(text).ok(),
        Format::Tenure => {
            let mut name = String::with_capacity(text.len());
            let mut chars = text.chars();
            while let Some(c) = chars.next() {
                match (c, (c == '\\').then(|| chars.next())) {
                    (_, Some(Some('0'))) => name.push('\0'),
                    (_, Some(Some('\\'))) => name.push('\\'),
                    (_, Some(_)) | ('\0', None) => return None,
                    (c, None) => name.push(c),
                }
            }
            LockName::new(name).ok()
        }
    }
}

/// PostgreSQL has no NUL in a text, and programs that read other databases may end a text at a NUL.
pub(super) fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('\0', "\\0")
}

fn is_plain_for_shedlock(name: &str) -> bool {
    name.chars().count() <= SHEDLOCK_NAME && !name.contains('\0') && !name.starts_with(HASHED)
}

/// A name in notifications, which every session of the database may read: 16 hexadecimal digits.
pub(super) fn digest(table: &str, name: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(table.as_bytes());
    hash.update([0]);
    hash.update(name.as_bytes());
    let mut digits = hex(&hash.finalize());
    digits.truncate(16);
    digits
}

/// For [`crate::fuzzing`]: text as a name, and as the content of a table.
#[cfg(feature = "_fuzzing")]
pub(crate) fn fuzz(text: &str) {
    if let Ok(name) = LockName::new(text) {
        let row = encoded(Format::Tenure, text);
        assert!(!row.contains('\0'));
        assert_eq!(decoded(Format::Tenure, &row), Some(name));
        assert!(encoded(Format::ShedLock, text).chars().count() <= SHEDLOCK_NAME);
    }
    if let Some(name) = decoded(Format::Tenure, text) {
        assert_eq!(encoded(Format::Tenure, name.as_str()), text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of docs/stores/table.md.
    #[test]
    fn the_published_vectors() {
        let page = include_str!("../../../../docs/stores/table.md");
        for (name, ours, theirs) in [
            ("job1", "job1", "job1"),
            ("orders/42", "orders/42", "orders/42"),
            ("Größe 🔒", "Größe 🔒", "Größe 🔒"),
            (r"a\b", r"a\\b", r"a\b"),
            (
                "a\0b",
                r"a\0b",
                "tenure:59b271ae1bbcb1d31d41929817f4b16fb439eb4f31520b5ad1d5ce989",
            ),
            (
                "tenure:x",
                "tenure:x",
                "tenure:2de05e7c62af4c13a18650d14e31498b42c31a05b1adceb1b37b767f1",
            ),
        ] {
            assert_eq!(encoded(Format::Tenure, name), ours, "{name:?}");
            assert_eq!(encoded(Format::ShedLock, name), theirs, "{name:?}");
            let lock = LockName::new(name).unwrap();
            assert_eq!(decoded(Format::Tenure, ours), Some(lock), "{name:?}");
            let shown = name.replace('\0', "NUL");
            let line = format!("| `{shown}` | `{ours}` | `{theirs}` |");
            assert!(page.contains(&line), "not on the page: {line}");
        }
    }

    #[test]
    fn no_two_names_are_written_alike() {
        let names = ["a\0", "a\\0", "a\\\\0", "a\\", "a", "A", "a "];
        let all: std::collections::BTreeSet<_> = names.iter().map(|name| escaped(name)).collect();
        assert_eq!(all.len(), names.len());
        assert_eq!(decoded(Format::Tenure, "a\\x"), None);
        assert_eq!(decoded(Format::Tenure, "a\\"), None);
        let long = "x".repeat(65);
        assert_eq!(encoded(Format::ShedLock, &long).len(), SHEDLOCK_NAME);
    }

    #[test]
    fn messages_name_locks_by_their_digest() {
        assert_eq!(digest("t", "n").len(), 16);
        assert_ne!(digest("t", "n"), digest("tn", ""));
    }

    #[test]
    fn hostile_names_stay_apart() {
        use tenure_core::conformance::hostile::written;
        for format in [Format::Tenure, Format::ShedLock] {
            written::assert_apart(|name| vec![encoded(format, name)]);
        }
        let read = |text: &str| {
            let name = decoded(Format::Tenure, text);
            name.map(|name| name.as_str().to_owned())
        };
        written::assert_read_back(|name| encoded(Format::Tenure, name), read);
        written::assert_apart(|name| vec![digest("tenure_locks", name)]);
    }
}
