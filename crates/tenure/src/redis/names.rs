//! From the name of a lock to its keys in our own format, and back. `docs/stores/redis.md` publishes this format.

use tenure_core::name::LockName;

use super::connection::{hashed, slot, slot_tag};

/// Prefix of the side keys, which have what the lock key itself cannot hold.
const SIDE_PREFIX: &str = "tenure:{";
/// A pattern that all `hold` keys match.
pub(super) const HOLD_KEYS: &str = "tenure:{*";
/// Prefix of a lock key that could be mistaken for a side key without it.
const ESCAPE_PREFIX: &str = "tenure:=";
/// Prefixes of the side keys and channels of Redisson's `RLock`.
const REDISSON_PREFIXES: [&str; 2] = ["redisson_lock_token:", "redisson_lock__channel:"];

/// Four keys in one allocation: the keys of a lock are computed for every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FourKeys {
    text: String,
    /// Where the first three keys end.
    ends: [usize; 3],
}

impl FourKeys {
    /// The key of the lock, and three keys that `push` adds.
    pub(super) fn new(lock: &str, push: [&dyn Fn(&mut String); 3]) -> Self {
        // The lock's key up to four times, a tag up to three times, and less than 40 bytes around each.
        let mut text = String::with_capacity(7 * lock.len() + 160);
        text.push_str(lock);
        let ends = push.map(|push| {
            let end = text.len();
            push(&mut text);
            end
        });
        Self { text, ends }
    }

    pub(super) fn all(&self) -> [&str; 4] {
        let (text, [a, b, c]) = (&self.text, self.ends);
        [&text[..a], &text[a..b], &text[b..c], &text[c..]]
    }
}

/// The keys of one lock in our own format; all of them are in one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenKeys(FourKeys);

impl TokenKeys {
    pub(super) fn new(prefix: &str, name: &LockName) -> Self {
        let lock = lock_key(prefix, name.as_str(), &[]);
        Self(FourKeys::new(
            &lock,
            [
                // The last token and the holder.
                &|text| push_side_key(text, &lock, "hold"),
                // The waiters in order, and until when each place is valid.
                &|text| push_side_key(text, &lock, "queue"),
                &|text| push_side_key(text, &lock, "holders"),
            ],
        ))
    }

    /// The keys of the lock, the hold, the waiters and the shared holders.
    pub(super) fn all(&self) -> [&str; 4] {
        self.0.all()
    }

    /// The shared holders.
    pub(super) fn holders(&self) -> &str {
        self.all()[3]
    }

    /// The owner whose holder is asked to let go.
    pub(super) fn asked(&self) -> String {
        self.side_key("asked")
    }

    /// The channel on which observers of the election of this name are told who leads.
    pub(super) fn leader_channel(&self) -> String {
        self.side_key("leader")
    }

    fn side_key(&self, kind: &str) -> String {
        let mut text = String::new();
        push_side_key(&mut text, self.all()[0], kind);
        text
    }
}

/// A key in the slot of this `hold` key.
pub(super) fn replicated(hold: &str) -> String {
    let tag = hold.strip_prefix(SIDE_PREFIX);
    let tag = tag.and_then(|rest| rest.split_once('}'));
    format!("{SIDE_PREFIX}{}}}:replicated", tag.map_or("", |it| it.0))
}

/// The key of the lock with that name. A key is escaped that begins like the side key of a lock, or like a lock key that is
/// escaped; `others` are further prefixes of side keys.
pub(super) fn lock_key(prefix: &str, name: &str, others: &[&str]) -> String {
    let key = [prefix, name].concat();
    let has_prefix = |prefixes: &[&str]| prefixes.iter().any(|prefix| key.starts_with(prefix));
    let may_be_side_key = has_prefix(&[SIDE_PREFIX, ESCAPE_PREFIX])
        || has_prefix(&REDISSON_PREFIXES)
        || has_prefix(others);
    match may_be_side_key {
        true => [ESCAPE_PREFIX, &key].concat(),
        false => key,
    }
}

/// The name whose lock has that key. `None`: the key lacks this prefix, or is no lock key.
pub(super) fn name_of(prefix: &str, key: &str) -> Option<LockName> {
    let key = key.strip_prefix(ESCAPE_PREFIX).unwrap_or(key);
    LockName::new(key.strip_prefix(prefix)?).ok()
}

/// Adds a side key of the lock with this key.
pub(super) fn push_side_key(text: &mut String, lock: &str, kind: &str) {
    match tag(lock) {
        Tag::Whole => text.extend([SIDE_PREFIX, lock, "}:", kind]),
        Tag::Part(tag) => text.extend([SIDE_PREFIX, tag, "}:", kind, ":", lock]),
        Tag::Number(tag) => text.extend([SIDE_PREFIX, &tag.to_string(), "}:", kind, ":", lock]),
    }
}

/// The lock key that a `hold` key belongs to; `None` for any other key.
pub(super) fn lock_of_hold_key(key: &str) -> Option<&str> {
    let (tag, rest) = key.strip_prefix(SIDE_PREFIX)?.split_once('}')?;
    match rest.strip_prefix(":hold")? {
        "" => Some(tag),
        rest => rest.strip_prefix(':'),
    }
}

enum Tag<'a> {
    Whole,
    Part(&'a str),
    Number(u32),
}

/// A text for the braces of a side key, with the slot of `key`.
fn tag(key: &str) -> Tag<'_> {
    match hashed(key) {
        part if part.contains('}') => Tag::Number(slot_tag(slot(key))),
        part if part.len() == key.len() => Tag::Whole,
        part => Tag::Part(part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(prefix: &str, name: &str) -> TokenKeys {
        TokenKeys::new(prefix, &LockName::new(name).unwrap())
    }

    /// The published vectors.
    #[test]
    fn keys_are_as_published() {
        for (prefix, name, lock, hold) in [
            ("", "orders/42", "orders/42", "tenure:{orders/42}:hold"),
            (
                "",
                "user:{7}:cart",
                "user:{7}:cart",
                "tenure:{7}:hold:user:{7}:cart",
            ),
            (
                "",
                "tenure:{x}:hold",
                "tenure:=tenure:{x}:hold",
                "tenure:{x}:hold:tenure:=tenure:{x}:hold",
            ),
            ("app:", "x", "app:x", "tenure:{app:x}:hold"),
            ("", "a{}b", "a{}b", "tenure:{3991}:hold:a{}b"),
            ("", "}", "}", "tenure:{5305}:hold:}"),
        ] {
            let keys = keys(prefix, name);
            assert_eq!(keys.all()[..2], [lock, hold]);
            assert_eq!(lock_of_hold_key(hold), Some(lock));
            assert_eq!(name_of(prefix, lock).unwrap().as_str(), name);
        }
        assert_eq!(lock_of_hold_key("tenure:{x}:queue"), None);
        assert_eq!(name_of("app:", "other:x"), None);
    }

    #[test]
    fn all_keys_of_a_lock_share_a_slot_and_no_two_names_share_a_key() {
        let names = [
            "a",
            "A",
            "a{b}",
            "a{b}c",
            "{a}",
            "{}",
            "{}a",
            "a}b",
            "}{",
            "{{a}}",
            "a{}{b}",
            "tenure:{a}:hold",
            "tenure:{a}:queue",
            "tenure:=a",
            "tenure:=tenure:{a}:hold",
            "tenure:",
            "a b",
            "\u{1f512}",
            "{\u{1f512}}",
            "a\nb",
            "a:hold",
            "5305",
            "b",
            "tenure:{5305}:hold:}",
        ];
        let mut all = std::collections::HashSet::new();
        for name in names {
            let keys = keys("", name);
            let wanted = slot(keys.all()[0]);
            let (asked, leader) = (keys.asked(), keys.leader_channel());
            // As `lua/sighting.lua` makes one of the other.
            assert_eq!(asked.replacen("}:asked", "}:leader", 1), leader);
            for key in keys.all().into_iter().chain([&*asked, &*leader]) {
                assert_eq!(slot(key), wanted, "{key}");
                assert!(all.insert(key.to_owned()), "{key} twice");
            }
        }
    }

    #[test]
    fn hostile_names_share_no_key_and_each_stays_in_a_slot() {
        use tenure_core::conformance::hostile::written;
        for prefix in ["", "jobs:", "tenure:{"] {
            written::assert_apart(|name| {
                let keys = keys(prefix, name);
                let wanted = slot(keys.all()[0]);
                assert!(keys.all().iter().all(|key| slot(key) == wanted), "{name:?}");
                keys.all().map(ToOwned::to_owned).to_vec()
            });
            let read = |key: &str| name_of(prefix, key).map(|name| name.as_str().to_owned());
            written::assert_read_back(|name| lock_key(prefix, name, &[]), read);
        }
    }
}
