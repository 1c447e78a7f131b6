//! Lock name to file name, and back.
//!
//! | bytes of the name | in the file name |
//! | --- | --- |
//! | `a`–`z`, `0`–`9`, `_`, `-`, and `.` except at the start | as they are |
//! | every other byte of its UTF-8 form | `%` and two lower-case hexadecimal digits |
//!
//! Capital letters are escaped too, so that names differing in case stay apart on a file system that folds case;
//! a leading `.` is escaped because file names that start with one belong to the store itself.
//! When that gives more than 180 bytes, the file name is its first 100 bytes (less when they would cut
//! an escape in two), `%~`, and the SHA-256 of the whole name as 64 hexadecimal digits.
//! `%~` is no escape, so a hashed name never equals a spelled-out one; two hashed names are equal only if their
//! digests are.
//!
//! So a plain name without `/` is a file of that very name, and `flock DIR/nightly-report COMMAND` and we
//! exclude each other.
//!
//! | name | file |
//! | --- | --- |
//! | `nightly-report` | `nightly-report` |
//! | `v1.2_x` | `v1.2_x` |
//! | `orders/42` | `orders%2f42` |
//! | `a%2fb` | `a%252fb` |
//! | `Nightly` | `%4eightly` |
//! | `.` | `%2e` |
//! | `..` | `%2e.` |
//! | `.mutex` | `%2emutex` |
//! | `../x` | `%2e.%2fx` |
//! | `ü 🦀` | `%c3%bc%20%f0%9f%a6%80` |
//! | `a`, NUL, `b` | `a%00b` |
//! | 180 times `x` | the same |
//! | 181 times `x` | 100 times `x`, `%~dc31ed5afb940294fdd687c69bbba2aecc51b6093425c0047f6fa6c687303924` |
//!
//! A name may have side files, each with a number: `<file>%s0`, `<file>%s1`, … The letter says what the file is for, see
//! [`SideKind`].

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use tenure_core::name::LockName;

/// Longest file name that is spelled out. With the longest suffix it stays below 255 bytes, the limit of
/// the usual file systems, and leaves room below the 143 of eCryptfs only for short names, as everything does.
const MAX_SPELLED: usize = 180;
/// How much of a long name stays readable.
const READABLE: usize = 100;
/// Between the readable start and the digest.
const HASHED: &str = "%~";

/// What a file in the directory is, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DirectoryEntry {
    /// The lock file of this name.
    Name(LockName),
    /// The lock file of a long name, which the file itself knows.
    Hashed,
    /// A side file of a name.
    Side,
    /// The pipe of a permit.
    Pipe,
    /// One of our own, such as the directory's mutex.
    Own,
    /// Nothing that we made.
    Foreign,
}

/// What a side file of a name is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SideKind {
    /// `%s`: one shared holder.
    Shared,
    /// `%p`: one permit.
    Permit,
    /// `%u0`: the upgradable holder, which may have become exclusive.
    Upgradable,
    /// `%t0`: locked while an upgradable holder is becoming exclusive.
    Turnstile,
    /// `%q0`: locked by the first of those that wait for a permit.
    PermitQueue,
    /// `%w`: a pipe that the holder of the permit with that number has open for writing.
    PermitPipe,
    /// `%l0`: a pipe that is opened and closed when a detached hold is released.
    LeasePipe,
    /// `%v`: what the leader with that token has published, if the record has no room for it.
    Value,
    /// `%r`: somebody asks the holder with that token to let go. The file is empty.
    ReleaseRequest,
}

impl SideKind {
    const ALL: [Self; 9] = [
        Self::Shared,
        Self::Permit,
        Self::Upgradable,
        Self::Turnstile,
        Self::PermitQueue,
        Self::PermitPipe,
        Self::LeasePipe,
        Self::Value,
        Self::ReleaseRequest,
    ];

    /// No hexadecimal digit, so that no escape of a name looks like the suffix of a side file.
    fn letter(self) -> char {
        match self {
            Self::Shared => 's',
            Self::Permit => 'p',
            Self::Upgradable => 'u',
            Self::Turnstile => 't',
            Self::PermitQueue => 'q',
            Self::PermitPipe => 'w',
            Self::LeasePipe => 'l',
            Self::Value => 'v',
            Self::ReleaseRequest => 'r',
        }
    }

    /// Whether such a file is a pipe.
    fn is_pipe(self) -> bool {
        matches!(self, Self::PermitPipe | Self::LeasePipe)
    }

    /// Whether the number of such a file is the token of a hold.
    fn is_of_token(self) -> bool {
        matches!(self, Self::Value | Self::ReleaseRequest)
    }

    /// The greatest number of such a file.
    const fn max_index(self) -> u64 {
        match self {
            Self::Value | Self::ReleaseRequest => u64::MAX,
            _ => u32::MAX as u64,
        }
    }

    /// Whether such a file has the record of a holder.
    pub(super) fn has_record(self) -> bool {
        matches!(self, Self::Shared | Self::Permit | Self::Upgradable)
    }
}

/// The file name for `name`.
pub(super) fn encode(name: &LockName) -> String {
    let bytes = name.as_str().as_bytes();
    let mut file = String::with_capacity(bytes.len() + 16);
    for (at, &byte) in bytes.iter().enumerate() {
        let kept =
            matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-') || (byte == b'.' && at > 0);
        if kept {
            file.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(file, "%{byte:02x}");
        }
    }
    if file.len() > MAX_SPELLED {
        // An escape that begins in the last two bytes would be cut.
        let escape = file[READABLE - 2..READABLE]
            .find('%')
            .map(|at| READABLE - 2 + at);
        file.truncate(escape.unwrap_or(READABLE));
        file.push_str(HASHED);
        for byte in Sha256::digest(bytes) {
            let _ = write!(file, "{byte:02x}");
        }
    }
    file
}

/// The side file of that kind with the number `index`.
pub(super) fn side(file: &str, kind: SideKind, index: impl Into<u64>) -> String {
    let index: u64 = index.into();
    format!("{file}%{}{index}", kind.letter())
}

/// Kind and number of `entry` if it is a side file of `file`.
pub(super) fn side_of(entry: &str, file: &str) -> Option<(SideKind, u64)> {
    let (base, suffix) = entry.rsplit_once('%')?;
    (base == file).then(|| kind_and_index(suffix)).flatten()
}

/// The pipe that belongs to `entry`, the file of a name or a side file of one.
pub(super) fn pipe_of(entry: &str) -> Option<String> {
    let side_file = entry
        .rsplit_once('%')
        .and_then(|(file, suffix)| Some((file, kind_and_index(suffix)?)));
    match side_file {
        None => Some(lease_pipe(entry)),
        Some((file, (SideKind::Permit, index))) => Some(side(file, SideKind::PermitPipe, index)),
        Some(_) => None,
    }
}

/// The pipe by which a waiter learns that a detached hold of the name was released.
pub(super) fn lease_pipe(file: &str) -> String {
    side(file, SideKind::LeasePipe, 0_u32)
}

/// The file of the name and the token, if `entry` is a side file of the hold with this token.
pub(super) fn token_of(entry: &str) -> Option<(&str, u64)> {
    let (file, suffix) = entry.rsplit_once('%')?;
    let (kind, token) = kind_and_index(suffix)?;
    kind.is_of_token().then_some((file, token))
}

fn kind_and_index(suffix: &str) -> Option<(SideKind, u64)> {
    let kind = SideKind::ALL
        .into_iter()
        .find(|kind| suffix.starts_with(kind.letter()))?;
    let index = index_of(&suffix[1..])?;
    (index <= kind.max_index()).then_some((kind, index))
}

/// Whether the name cannot be read off its file.
pub(super) fn is_hashed(file: &str) -> bool {
    file.contains(HASHED)
}

fn index_of(text: &str) -> Option<u64> {
    let is_canonical =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    is_canonical.then(|| text.parse().ok())?
}

/// What `file` is. A name that [`encode`] cannot have made is foreign.
pub(super) fn decode(file: &str) -> DirectoryEntry {
    if file.starts_with('.') {
        return DirectoryEntry::Own;
    }
    if let Some((base, suffix)) = file.rsplit_once('%')
        && let Some((kind, _)) = kind_and_index(suffix)
    {
        return match (decode(base), kind) {
            (DirectoryEntry::Name(_) | DirectoryEntry::Hashed, kind) if kind.is_pipe() => {
                DirectoryEntry::Pipe
            }
            (DirectoryEntry::Name(_) | DirectoryEntry::Hashed, _) => DirectoryEntry::Side,
            _ => DirectoryEntry::Foreign,
        };
    }
    if let Some((start, digest)) = file.split_once(HASHED) {
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let ours = (READABLE - 2..=READABLE).contains(&start.len())
            && digest.len() == 64
            && digest.bytes().all(is_hex);
        return if ours {
            DirectoryEntry::Hashed
        } else {
            DirectoryEntry::Foreign
        };
    }
    let name = unescape(file).and_then(|bytes| String::from_utf8(bytes).ok());
    match name.and_then(|name| LockName::new(name).ok()) {
        // `%61` would decode to `a`, whose file is `a`.
        Some(name) if encode(&name) == file => DirectoryEntry::Name(name),
        _ => DirectoryEntry::Foreign,
    }
}

fn unescape(file: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(file.len());
    let mut rest = file.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    Some(bytes)
}

/// For [`crate::fuzzing`]: text as a name, and as a file name in the directory.
#[cfg(feature = "_fuzzing")]
pub(crate) fn fuzz(text: &str) {
    if let Ok(name) = LockName::new(text) {
        let file = encode(&name);
        let found = decode(&file);
        assert!(matches!(found, DirectoryEntry::Hashed) || found == DirectoryEntry::Name(name));
        assert!(!file.contains('/') && !file.starts_with('.') && file.len() < 250);
    }
    if let DirectoryEntry::Name(name) = decode(text) {
        assert_eq!(encode(&name), text);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    /// The table in the module's docs. Foreign programs rely on it.
    #[test]
    fn golden_vectors() {
        let long = "x".repeat(181);
        let escaped = format!("{}é{}", "y".repeat(98), "z".repeat(100));
        let vectors = [
            ("nightly-report", "nightly-report"),
            ("v1.2_x", "v1.2_x"),
            ("orders/42", "orders%2f42"),
            ("a%2fb", "a%252fb"),
            ("Nightly", "%4eightly"),
            (".", "%2e"),
            ("..", "%2e."),
            (".mutex", "%2emutex"),
            ("../x", "%2e.%2fx"),
            ("ü 🦀", "%c3%bc%20%f0%9f%a6%80"),
            ("a\0b", "a%00b"),
            (&long[..180], &long[..180]),
            (
                &long,
                &format!(
                    "{}%~dc31ed5afb940294fdd687c69bbba2aecc51b6093425c0047f6fa6c687303924",
                    &long[..100]
                ),
            ),
            (
                &escaped,
                &format!(
                    "{}%~25e393efa6100df90c3d02818c0224104ed2d2285a6a2c123ad2eda08e67cf0d",
                    "y".repeat(98)
                ),
            ),
        ];
        for (text, file) in vectors {
            assert_eq!(encode(&name(text)), file, "{text:?}");
        }
    }

    #[test]
    fn every_file_name_decodes_to_its_name_and_fits() {
        let hostile = [
            "../x", "a\0b", ".", "..", ".mutex", "a%2fb", "a/b", "A", "a", "🦀", "a\u{301}", "á",
            "con", "x%p0", "x%s0", "x%~", " ", "\n", "a\\b", "-", "~", "%", "%%", "a.", "ſ", "K",
            "\u{7f}",
        ];
        for text in hostile {
            let file = encode(&name(text));
            assert_eq!(decode(&file), DirectoryEntry::Name(name(text)), "{file}");
            assert!(
                !file.contains('/') && !file.starts_with('.') && file.is_ascii(),
                "{file}"
            );
        }
        for text in [
            "\0".repeat(1_000),
            "é".repeat(500),
            "x".repeat(1_000),
            "/".repeat(61),
        ] {
            let file = encode(&name(&text));
            assert_eq!(decode(&file), DirectoryEntry::Hashed, "{file}");
            for kind in SideKind::ALL {
                let longest = side(&file, kind, kind.max_index());
                assert!(longest.len() <= 255, "{longest}");
                let entry = if kind.is_pipe() {
                    DirectoryEntry::Pipe
                } else {
                    DirectoryEntry::Side
                };
                assert_eq!(decode(&longest), entry);
                assert_eq!(side_of(&longest, &file), Some((kind, kind.max_index())));
                let token = kind.is_of_token().then_some((&*file, u64::MAX));
                assert_eq!(token_of(&longest), token);
            }
        }
    }

    #[test]
    fn what_we_did_not_make_is_foreign() {
        for file in [
            "%61",
            "%4E",
            "a%",
            "a%2",
            "a%zz",
            "A",
            "ä",
            "a b",
            "%ff",
            "a%s",
            "a%s01",
            "a%px",
            "a%s0%s0",
            "a%x0",
            "x%~00",
            "",
            "a%s4294967296",
            "a%v18446744073709551616",
        ] {
            assert_eq!(decode(file), DirectoryEntry::Foreign, "{file}");
        }
        assert_eq!(decode(".mutex"), DirectoryEntry::Own);
    }

    /// Random pairs that differ little, from few and nasty characters: no two share a file,
    /// not even on a file system that folds case.
    #[test]
    fn the_encoding_is_injective() {
        use rand::{RngExt as _, SeedableRng as _};
        let alphabet = [
            'a', 'A', '%', '2', 'f', '.', '/', '~', 's', 'p', '0', 'é', '\0', 'ß',
        ];
        let mut rng = rand::rngs::StdRng::seed_from_u64(7);
        let mut seen: HashMap<String, String> = HashMap::new();
        for round in 0..200_000 {
            let len = if round % 50 == 0 {
                rng.random_range(100..400)
            } else {
                rng.random_range(1..7)
            };
            let mut text: String = (0..len)
                .map(|_| alphabet[rng.random_range(0..alphabet.len())])
                .collect();
            // Long names that share their readable start.
            if round % 100 == 0 {
                text.insert_str(0, &"q".repeat(150));
            }
            let file = encode(&name(&text)).to_lowercase();
            if let Some(other) = seen.insert(file.clone(), text.clone()) {
                assert_eq!(other, text, "both are {file}");
            }
        }
    }

    #[test]
    fn hostile_names_stay_apart_though_the_file_system_folds_case() {
        use tenure_core::conformance::hostile::written;
        written::assert_apart(|text| vec![encode(&name(text)).to_lowercase()]);
        for text in written::many() {
            let file = encode(&name(&text));
            let is_safe = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b'\\';
            assert!(file.bytes().all(is_safe) && file.len() < 250, "{file}");
            match decode(&file) {
                DirectoryEntry::Name(back) => assert_eq!(back.as_str(), text),
                DirectoryEntry::Hashed => assert!(is_hashed(&file) && text.len() > 60),
                other => panic!("{text:?} is {file}, {other:?}"),
            }
        }
    }
}
