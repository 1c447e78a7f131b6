//! The keys and scripts of a client's locks, in our own format or in that of one of Redisson's locks.

use tenure_core::error::Error;
use tenure_core::name::LockName;

use super::names::{self, TokenKeys};
use super::redisson::{self, RedissonKeys, RedissonLock};
use super::scripts::{self, DetachScripts, ElectionScripts, Scripts};

/// The keys of one lock; all of them are in one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    Token(TokenKeys),
    Redisson(RedissonKeys),
}

impl Keys {
    /// `redisson`: which lock of Redisson the name is; `None`: the lock has our own format.
    pub(super) fn new(redisson: Option<RedissonLock>, prefix: &str, name: &LockName) -> Self {
        match redisson {
            None => Self::Token(TokenKeys::new(prefix, name)),
            Some(lock) => Self::Redisson(RedissonKeys::new(lock, prefix, name)),
        }
    }

    /// The keys that the scripts about one lock take, in their order.
    pub(super) fn all(&self) -> [&str; 4] {
        match self {
            Self::Token(keys) => keys.all(),
            Self::Redisson(keys) => keys.all(),
        }
    }

    /// The same, and `asked` for the scripts of elections.
    pub(super) fn with<'a>(&'a self, asked: Option<&'a str>) -> ([&'a str; 5], usize) {
        let [lock, hold, third, fourth] = self.all();
        let fifth = asked.unwrap_or_default();
        let count = 4 + usize::from(asked.is_some());
        ([lock, hold, third, fourth, fifth], count)
    }

    /// The key of the lock itself, which other programs know too.
    pub(super) fn lock(&self) -> &str {
        self.all()[0]
    }

    /// The last token and the holder.
    pub(super) fn hold(&self) -> &str {
        self.all()[1]
    }

    /// The key with an entry for each holder, if the scripts that renew such a hold or write under it take that key.
    pub(super) fn holders(&self, is_shared_hold: bool) -> Option<&str> {
        match self {
            Self::Token(keys) => is_shared_hold.then(|| keys.holders()),
            Self::Redisson(keys) => keys.holders(),
        }
    }

    /// A key in the same slot, which is written to see how many replicas have the writes before it. It expires soon.
    pub(super) fn replicated(&self) -> String {
        names::replicated(self.hold())
    }

    /// The key with the owner whose holder is asked to let go. `None`: the format has no elections.
    pub(super) fn asked(&self) -> Option<String> {
        match self {
            Self::Token(keys) => Some(keys.asked()),
            Self::Redisson(_) => None,
        }
    }

    /// The channel on which observers are told who leads. `None`: the format has no elections.
    pub(super) fn leader_channel(&self) -> Option<String> {
        match self {
            Self::Token(keys) => Some(keys.leader_channel()),
            Self::Redisson(_) => None,
        }
    }

    /// Whether a lock can have this name.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self {
            Self::Token(_) => Ok(()),
            Self::Redisson(keys) => keys.check(),
        }
    }
}

/// The scripts of this format. `is_in_slots`: in a cluster where messages can stay within the nodes of a slot.
pub(super) fn scripts(redisson: Option<RedissonLock>, is_in_slots: bool) -> &'static Scripts {
    match redisson {
        None => scripts::scripts(is_in_slots),
        Some(lock) => redisson::scripts(lock, is_in_slots),
    }
}

/// The scripts of elections, if the format has them.
pub(super) fn election_scripts(
    redisson: Option<RedissonLock>,
    is_in_slots: bool,
) -> Option<&'static ElectionScripts> {
    redisson
        .is_none()
        .then(|| scripts::election_scripts(is_in_slots))
}

/// The scripts of detached holds, if the format has them.
pub(super) fn detach_scripts(redisson: Option<RedissonLock>) -> Option<&'static DetachScripts> {
    redisson.is_none().then(scripts::detach_scripts)
}

/// For [`crate::fuzzing`]: text as a name, and as a key of the server.
#[cfg(feature = "_fuzzing")]
pub(crate) fn fuzz(text: &str) {
    use super::connection::slot;

    if let Ok(name) = LockName::new(text) {
        for redisson in [None, Some(RedissonLock::Plain)] {
            let keys = Keys::new(redisson, "", &name);
            let wanted = slot(keys.lock());
            assert!(keys.all()[1..].iter().all(|key| *key != keys.lock()));
            // If the braces of a name are no pair, Redisson's keys are in two slots, and so are ours for its locks.
            let is_one = redisson.is_none() || !text.contains(['{', '}']);
            assert!(!is_one || keys.all().iter().all(|key| slot(key) == wanted));
            assert_eq!(names::lock_of_hold_key(keys.hold()), Some(keys.lock()));
        }
        let lock = names::lock_key("", text, &[]);
        assert_eq!(names::name_of("", &lock), Some(name));
    }
    let _ = names::lock_of_hold_key(text);
}
