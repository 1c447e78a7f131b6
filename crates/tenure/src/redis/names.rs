//! From the name of a lock to its keys, and back. `docs/stores/redis.md` publishes this format.

use tenure_core::name::LockName;

use super::connection::slots::{hashed, slot, slot_tag};
use super::settings::{Format, RedissonLock};

/// Prefix of the side keys, which have what the lock key itself cannot hold.
const SIDE_PREFIX: &str = "tenure:{";
/// Prefixes of the side keys and channels of Redisson's `RLock`.
const REDISSON_PREFIXES: [&str; 2] = ["redisson_lock_token:", "redisson_lock__channel:"];
/// Prefixes of the side keys of Redisson's fair lock.
const FAIR_PREFIXES: [&str; 2] = ["redisson_lock_queue:", "redisson_lock_timeout:"];
/// Prefix of a lock key that could be mistaken for a side key without it.
const ESCAPE_PREFIX: &str = "tenure:=";

/// The keys of one lock; all of them are in one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    /// All keys in one allocation: they are computed for every request.
    text: String,
    /// Where the first three keys end.
    ends: [usize; 3],
    format: Format,
}

impl Keys {
    pub(super) fn new(format: Format, prefix: &str, name: &LockName) -> Self {
        let lock = lock_key(format, prefix, name.as_str());
        let tag = tag(&lock);
        // The lock's key up to four times, a tag up to three times, and less than 40 bytes around each.
        let mut text = String::with_capacity(7 * lock.len() + 160);
        text.push_str(&lock);
        let mut ends = [lock.len(); 3];
        push_side_key(&mut text, &lock, &tag, "hold");
        ends[1] = text.len();
        match format {
            Format::Token => {
                push_side_key(&mut text, &lock, &tag, "queue");
                ends[2] = text.len();
                push_side_key(&mut text, &lock, &tag, "holders");
            }
            Format::Redisson(RedissonLock::Plain) => {
                push_redisson_key(&mut text, &lock, "redisson_lock_token");
                ends[2] = text.len();
                push_redisson_key(&mut text, &lock, "redisson_lock__channel");
            }
            Format::Redisson(kind) => {
                push_side_key(&mut text, &lock, &tag, "holders");
                ends[2] = text.len();
                let channel = match kind {
                    RedissonLock::ReadWrite => "redisson_rwlock",
                    RedissonLock::Semaphore => "redisson_sc",
                    RedissonLock::Plain | RedissonLock::Fair => "redisson_lock__channel",
                };
                push_redisson_key(&mut text, &lock, channel);
            }
        }
        Self { text, ends, format }
    }

    /// The key of the lock itself, which other programs know too.
    pub(super) fn lock(&self) -> &str {
        &self.text[..self.ends[0]]
    }

    /// The last token and the holder.
    pub(super) fn hold(&self) -> &str {
        &self.text[self.ends[0]..self.ends[1]]
    }

    /// In our own format the waiters in order, and until when each place is good; in the format of Redisson's `RLock` the
    /// counter of fencing tokens. Of Redisson's other locks the same as [`holders`](Self::holders).
    pub(super) fn queue(&self) -> &str {
        self.third()
    }

    /// A key in the same slot, which is written to see how many replicas follow. It lives for a moment.
    pub(super) fn replicated(&self) -> String {
        let tag = self.hold().strip_prefix(SIDE_PREFIX);
        let tag = tag.and_then(|rest| rest.split_once('}'));
        format!("{SIDE_PREFIX}{}}}:replicated", tag.map_or("", |it| it.0))
    }

    /// In Redisson's format the channel on which a release is published; in ours empty.
    pub(super) fn channel(&self) -> &str {
        match self.format {
            Format::Token => "",
            Format::Redisson(_) => self.last(),
        }
    }

    /// The shared holders; in the format of Redisson's `RLock` empty. Of Redisson's other locks it is what their
    /// own keys lack: who we are, and our tokens.
    pub(super) fn holders(&self) -> &str {
        match self.format {
            Format::Token => self.last(),
            Format::Redisson(RedissonLock::Plain) => "",
            Format::Redisson(_) => self.third(),
        }
    }

    /// Whether another lock of Redisson has a side key of the same text. These side keys begin with the name, which has an
    /// opening brace there, so no prefix tells them from lock keys.
    pub(super) fn is_side_key(&self) -> bool {
        let lock = self.lock();
        let is_like_one = match self.format {
            Format::Redisson(RedissonLock::Semaphore) => lock.ends_with(":timeout"),
            Format::Redisson(RedissonLock::ReadWrite) => lock.contains(":rwlock_timeout:"),
            _ => false,
        };
        is_like_one && lock.contains('{')
    }

    fn third(&self) -> &str {
        &self.text[self.ends[1]..self.ends[2]]
    }

    fn last(&self) -> &str {
        &self.text[self.ends[2]..]
    }

    /// The keys that the scripts about one lock take.
    pub(super) fn all(&self) -> [&str; 4] {
        [self.lock(), self.hold(), self.queue(), self.last()]
    }
}

/// Redisson puts braces around a name without an opening brace.
fn push_redisson_key(text: &mut String, lock: &str, kind: &str) {
    let (open, close) = if lock.contains('{') {
        ("", "")
    } else {
        ("{", "}")
    };
    text.extend([kind, ":", open, lock, close]);
}

/// The key of the lock with that name.
pub(super) fn lock_key(format: Format, prefix: &str, name: &str) -> String {
    let key = [prefix, name].concat();
    match may_be_side_key(format, &key) {
        true => [ESCAPE_PREFIX, &key].concat(),
        false => key,
    }
}

/// Whether this text begins like the side key of a lock, or like a lock key that is escaped.
fn may_be_side_key(format: Format, key: &str) -> bool {
    let has_prefix = |prefixes: &[&str]| prefixes.iter().any(|prefix| key.starts_with(prefix));
    let is_fair = format == Format::Redisson(RedissonLock::Fair);
    has_prefix(&[SIDE_PREFIX, ESCAPE_PREFIX])
        || has_prefix(&REDISSON_PREFIXES)
        || is_fair && has_prefix(&FAIR_PREFIXES)
}

/// The name whose lock has that key. `None`: the key lacks this prefix, or is no lock key.
pub(super) fn name_of(prefix: &str, key: &str) -> Option<LockName> {
    let key = key.strip_prefix(ESCAPE_PREFIX).unwrap_or(key);
    LockName::new(key.strip_prefix(prefix)?).ok()
}

fn push_side_key(text: &mut String, lock: &str, tag: &Tag<'_>, kind: &str) {
    match tag {
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

/// For [`crate::fuzzing`]: text as a name, and as a key of the server.
#[cfg(feature = "_fuzzing")]
pub(crate) fn fuzz(text: &str) {
    if let Ok(name) = LockName::new(text) {
        for format in [Format::Token, Format::Redisson(RedissonLock::Plain)] {
            let keys = Keys::new(format, "", &name);
            let wanted = slot(keys.lock());
            assert!(keys.all()[1..].iter().all(|key| *key != keys.lock()));
            // For braces that are no pair Redisson's keys are in two slots; ours too, because we share its locks.
            let is_one = format == Format::Token || !text.contains(['{', '}']);
            assert!(!is_one || keys.all().iter().all(|key| slot(key) == wanted));
            assert_eq!(lock_of_hold_key(keys.hold()), Some(keys.lock()));
        }
        assert_eq!(name_of("", &lock_key(Format::Token, "", text)), Some(name));
    }
    let _ = lock_of_hold_key(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(prefix: &str, name: &str) -> Keys {
        Keys::new(Format::Token, prefix, &LockName::new(name).unwrap())
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
            assert_eq!(keys.lock(), lock);
            assert_eq!(keys.hold(), hold);
            assert_eq!(lock_of_hold_key(keys.hold()), Some(lock));
            assert_eq!(name_of(prefix, lock).unwrap().as_str(), name);
        }
        assert_eq!(lock_of_hold_key("tenure:{x}:queue"), None);
        assert_eq!(name_of("app:", "other:x"), None);
    }

    /// As Redisson names them; `a{b}c` is a published vector.
    #[test]
    fn redisson_finds_its_keys() {
        let of = |kind, name| Keys::new(Format::Redisson(kind), "", &LockName::new(name).unwrap());
        let keys = |name| of(RedissonLock::Plain, name);
        assert_eq!(keys("job").channel(), "redisson_lock__channel:{job}");
        assert_eq!(keys("job").queue(), "redisson_lock_token:{job}");
        assert_eq!(keys("a{b}c").channel(), "redisson_lock__channel:a{b}c");
        assert_eq!(keys("a{b}c").queue(), "redisson_lock_token:a{b}c");
        for (kind, channel) in [
            (RedissonLock::Fair, "redisson_lock__channel"),
            (RedissonLock::ReadWrite, "redisson_rwlock"),
            (RedissonLock::Semaphore, "redisson_sc"),
        ] {
            assert_eq!(of(kind, "job").channel(), format!("{channel}:{{job}}"));
            assert_eq!(of(kind, "a{b}c").channel(), format!("{channel}:a{{b}}c"));
            assert_eq!(of(kind, "job").holders(), "tenure:{job}:holders");
            assert_eq!(of(kind, "job").lock(), "job");
        }
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
            let wanted = slot(keys.lock());
            for key in keys.all() {
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
                let wanted = slot(keys.lock());
                assert!(keys.all().iter().all(|key| slot(key) == wanted), "{name:?}");
                keys.all().map(ToOwned::to_owned).to_vec()
            });
            let read = |key: &str| name_of(prefix, key).map(|name| name.as_str().to_owned());
            written::assert_read_back(|name| lock_key(Format::Token, prefix, name), read);
        }
    }

    /// The keys that the scripts of this format derive from the channel of the lock.
    fn derived_keys(kind: RedissonLock, keys: &Keys) -> Vec<String> {
        let (_, name) = keys.channel().split_once(':').unwrap();
        match kind {
            RedissonLock::Plain => vec![keys.queue().to_owned()],
            RedissonLock::Fair => FAIR_PREFIXES.map(|prefix| prefix.to_owned() + name).into(),
            RedissonLock::Semaphore => vec![format!("{name}:timeout")],
            RedissonLock::ReadWrite => vec![format!("{name}:c:1:rwlock_timeout:1")],
        }
    }

    #[test]
    fn in_the_formats_of_redisson_no_lock_lies_where_another_lock_has_a_side_key() {
        use tenure_core::conformance::hostile::written;
        for kind in [
            RedissonLock::Plain,
            RedissonLock::Fair,
            RedissonLock::ReadWrite,
            RedissonLock::Semaphore,
        ] {
            let of = |name: &LockName| Keys::new(Format::Redisson(kind), "", name);
            // Redisson has one side key for `x` and `{x}`.
            written::assert_apart(|name| {
                let keys = of(&LockName::new(name).unwrap());
                vec![keys.lock().to_owned(), keys.hold().to_owned()]
            });
            let names = written::many();
            let names = names.iter().map(|name| LockName::new(name).unwrap());
            let mut names: Vec<_> = names.collect();
            // Names that are the side keys of others.
            let derived = names.iter().flat_map(|name| derived_keys(kind, &of(name)));
            let derived: Vec<_> = derived.filter_map(|key| LockName::new(key).ok()).collect();
            names.extend(derived);
            names.retain(|name| !of(name).is_side_key());
            let locks = names.iter().map(|name| of(name).lock().to_owned());
            let locks: std::collections::HashSet<_> = locks.collect();
            for name in &names {
                let side_keys = derived_keys(kind, &of(name));
                let clashes = side_keys.iter().filter(|key| locks.contains(*key));
                assert_eq!(clashes.count(), 0, "{kind:?} {name:?}");
            }
        }
    }
}
