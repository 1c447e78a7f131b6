//! What every way to write a name down must keep. For the unit tests of a store; panics where a promise is broken.

use std::collections::HashMap;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// The hostile names, and five thousand that are made from them by small changes.
pub fn many() -> Vec<String> {
    let mut names = super::names();
    let first = names.len();
    let letters: Vec<char> =
        "xXaA0129%/\\.:;,{}~-_+ '\"\0\n\u{7f}\u{85}\u{e9}e\u{301}\u{df}\u{1f512}\u{ffff}sp=f2F"
            .chars()
            .collect();
    let mut rng = StdRng::seed_from_u64(17);
    for round in 0..5_000 {
        // Every second one from another one that was made: the changes add up.
        let most = if round % 2 == 0 { first } else { names.len() };
        let mut chars: Vec<_> = names[rng.random_range(0..most)].chars().collect();
        let letter = letters[rng.random_range(0..letters.len())];
        let at = rng.random_range(0..=chars.len());
        match rng.random_range(0..3) {
            0 => chars.insert(at, letter),
            1 if at < chars.len() => chars[at] = letter,
            _ if at < chars.len() => drop(chars.remove(at)),
            _ => chars.push(letter),
        }
        let name: String = chars.into_iter().collect();
        if crate::LockName::new(&name).is_ok() {
            names.push(name);
        }
    }
    names.sort();
    names.dedup();
    names
}

/// No two names have a text in common.
#[track_caller]
pub fn assert_apart(written: impl Fn(&str) -> Vec<String>) {
    let mut seen: HashMap<String, String> = HashMap::new();
    for name in many() {
        for text in written(&name) {
            if let Some(other) = seen.insert(text.clone(), name.clone()) {
                assert_eq!(other, name, "both are written {text:?}");
            }
        }
    }
}

/// Whatever is written is read again.
#[track_caller]
pub fn assert_read_back(write: impl Fn(&str) -> String, read: impl Fn(&str) -> Option<String>) {
    for name in many() {
        let text = write(&name);
        assert_eq!(read(&text).as_ref(), Some(&name), "written {text:?}");
    }
}
