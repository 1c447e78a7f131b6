//! The name under which a lock lies in its CP group.
//!
//! The Java client takes `name@group` apart and trims both parts. So a name of ours in which an `@` stands, or that begins or
//! ends with what Java trims, is written with `%` and two hexadecimal digits in place of these characters, and of each `%`.
//! All other names are written as they are. The encoding is published in `docs/stores/hazelcast.md`.

use tenure_core::name::LockName;

/// The name in the store.
pub(crate) fn encode(name: &LockName) -> String {
    let name = name.as_str();
    let last = name.chars().count() - 1;
    let mut encoded = String::with_capacity(name.len());
    for (at, char) in name.chars().enumerate() {
        let is_trimmed = (at == 0 || at == last) && is_java_space(char);
        match u8::try_from(char) {
            Ok(byte) if is_trimmed || matches!(char, '@' | '%') => {
                encoded.push_str(&format!("%{byte:02X}"));
            }
            _ => encoded.push(char),
        }
    }
    encoded
}

/// What `String.trim` of Java takes away.
fn is_java_space(char: char) -> bool {
    char <= ' '
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;
    use tenure_core::conformance::hostile;

    use super::*;

    /// What `FencedLock` makes of a name: the object, and the group unless it is the default.
    fn in_java(name: &str) -> (String, Option<String>) {
        let trim = |text: &str| text.trim_matches(is_java_space).to_owned();
        let name = trim(name);
        match name.split_once('@') {
            None => (name, None),
            Some((object, group)) => (trim(object), Some(trim(group))),
        }
    }

    #[test]
    fn vectors() {
        for (name, encoded) in [
            ("orders/42", "orders/42"),
            ("Orders 42", "Orders 42"),
            ("a@b", "a%40b"),
            ("100%", "100%25"),
            (" a ", "%20a%20"),
            ("  a", "%20 a"),
            ("\ta\n", "%09a%0A"),
            (" ", "%20"),
            ("\u{a0}a", "\u{a0}a"),
            ("ü🦀", "ü🦀"),
        ] {
            assert_eq!(encode(&LockName::new(name).unwrap()), encoded);
        }
    }

    #[test]
    fn java_names_the_same_lock_by_the_encoded_name() {
        let mut seen = HashSet::new();
        for name in hostile::written::many() {
            let encoded = encode(&LockName::new(&name).unwrap());
            assert_eq!(in_java(&encoded), (encoded.clone(), None), "{name:?}");
            assert!(seen.insert(encoded), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn no_two_names_are_one_lock(one in "[ %@240a\t]{1,6}", two in "[ %@240a\t]{1,6}") {
            let both = [&one, &two].map(|it| encode(&LockName::new(it.as_str()).unwrap()));
            prop_assert_eq!(one == two, both[0] == both[1]);
            prop_assert_eq!(in_java(&both[0]), (both[0].clone(), None));
        }
    }
}
