//! The keys and channels of Redisson's locks, and the keys in which we keep what those lack.

use std::borrow::Cow;

use tenure_core::error::Error;
use tenure_core::fence::OwnerId;
use tenure_core::name::LockName;

use super::super::names::{FourKeys, lock_key, push_side_key};
use super::errors;
use super::lock::RedissonLock;

/// Prefixes of the side keys of Redisson's fair lock.
const FAIR_PREFIXES: [&str; 2] = ["redisson_lock_queue:", "redisson_lock_timeout:"];

/// The keys of one lock: the lock itself, our `hold`, the counter of fencing tokens (of an `RLock`) or our `holders` (of the
/// others), and the channel on which a release is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedissonKeys {
    keys: FourKeys,
    kind: RedissonLock,
}

impl RedissonKeys {
    pub(crate) fn new(kind: RedissonLock, prefix: &str, name: &LockName) -> Self {
        let side_keys: &[&str] = match kind {
            RedissonLock::Fair => &FAIR_PREFIXES,
            _ => &[],
        };
        let lock = lock_key(prefix, name.as_str(), side_keys);
        let channel = match kind {
            RedissonLock::ReadWrite => "redisson_rwlock",
            RedissonLock::Semaphore => "redisson_sc",
            RedissonLock::Plain | RedissonLock::Fair => "redisson_lock__channel",
        };
        let keys = FourKeys::new(
            &lock,
            [
                &|text| push_side_key(text, &lock, "hold"),
                &|text| match kind {
                    RedissonLock::Plain => push_redisson_key(text, &lock, "redisson_lock_token"),
                    _ => push_side_key(text, &lock, "holders"),
                },
                &|text| push_redisson_key(text, &lock, channel),
            ],
        );
        Self { keys, kind }
    }

    pub(crate) fn all(&self) -> [&str; 4] {
        self.keys.all()
    }

    /// The key with what Redisson's own keys lack of the single holders: who they are, and their tokens. `None`: the `hold`
    /// key is enough.
    pub(crate) fn holders(&self) -> Option<&str> {
        let has_holders = matches!(self.kind, RedissonLock::ReadWrite | RedissonLock::Semaphore);
        has_holders.then(|| self.all()[2])
    }

    /// The channel on which a release is published.
    pub(crate) fn channel(&self) -> &str {
        self.all()[3]
    }

    /// The channel on which this waiter is woken. Each waiter of a fair lock has a channel of its own, which ends in the
    /// waiter as the queue has it.
    pub(crate) fn waiter_channel(&self, client: &str, owner: OwnerId) -> Cow<'_, str> {
        match self.kind {
            RedissonLock::Fair => {
                Cow::Owned([self.channel(), ":", client, ":", &owner.to_hex()].concat())
            }
            _ => Cow::Borrowed(self.channel()),
        }
    }

    /// Refuses a name if another lock of Redisson has a side key of the same text. These side keys begin with the name, which
    /// has an opening brace there, so no prefix tells them from lock keys.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let lock = self.all()[0];
        let is_like_one = match self.kind {
            RedissonLock::Semaphore => lock.ends_with(":timeout"),
            RedissonLock::ReadWrite => lock.contains(":rwlock_timeout:"),
            _ => false,
        };
        match is_like_one && lock.contains('{') {
            true => Err(errors::side_key()),
            false => Ok(()),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(kind: RedissonLock, name: &str) -> RedissonKeys {
        RedissonKeys::new(kind, "", &LockName::new(name).unwrap())
    }

    /// As Redisson names them; `a{b}c` is a published vector.
    #[test]
    fn redisson_finds_its_keys() {
        for (kind, channel) in [
            (RedissonLock::Plain, "redisson_lock__channel"),
            (RedissonLock::Fair, "redisson_lock__channel"),
            (RedissonLock::ReadWrite, "redisson_rwlock"),
            (RedissonLock::Semaphore, "redisson_sc"),
        ] {
            let (job, braces) = (keys(kind, "job"), keys(kind, "a{b}c"));
            assert_eq!(job.channel(), format!("{channel}:{{job}}"));
            assert_eq!(braces.channel(), format!("{channel}:a{{b}}c"));
            let (fence, in_braces) = match kind {
                RedissonLock::Plain => ("redisson_lock_token:{job}", "redisson_lock_token:a{b}c"),
                _ => ("tenure:{job}:holders", "tenure:{b}:holders:a{b}c"),
            };
            assert_eq!(job.all()[..3], ["job", "tenure:{job}:hold", fence]);
            assert_eq!(braces.all()[2], in_braces);
        }
    }

    /// The keys that the scripts of this lock derive from its channel.
    fn derived_keys(keys: &RedissonKeys) -> Vec<String> {
        let (_, name) = keys.channel().split_once(':').unwrap();
        match keys.kind {
            RedissonLock::Plain => vec![keys.all()[2].to_owned()],
            RedissonLock::Fair => FAIR_PREFIXES.map(|prefix| prefix.to_owned() + name).into(),
            RedissonLock::Semaphore => vec![format!("{name}:timeout")],
            RedissonLock::ReadWrite => vec![format!("{name}:c:1:rwlock_timeout:1")],
        }
    }

    #[test]
    fn no_lock_lies_where_another_lock_has_a_side_key() {
        use tenure_core::conformance::hostile::written;
        for kind in [
            RedissonLock::Plain,
            RedissonLock::Fair,
            RedissonLock::ReadWrite,
            RedissonLock::Semaphore,
        ] {
            // Redisson has one side key for `x` and `{x}`.
            written::assert_apart(|name| {
                keys(kind, name).all()[..2]
                    .iter()
                    .map(ToString::to_string)
                    .collect()
            });
            let mut names = written::many();
            // Names that are the side keys of others.
            let derived = names
                .iter()
                .flat_map(|name| derived_keys(&keys(kind, name)));
            let derived: Vec<_> = derived.filter(|key| LockName::new(key).is_ok()).collect();
            names.extend(derived);
            names.retain(|name| keys(kind, name).check().is_ok());
            let locks = names
                .iter()
                .map(|name| keys(kind, name).all()[0].to_owned());
            let locks: std::collections::HashSet<_> = locks.collect();
            for name in &names {
                let side_keys = derived_keys(&keys(kind, name));
                let clashes = side_keys.iter().filter(|key| locks.contains(*key));
                assert_eq!(clashes.count(), 0, "{kind:?} {name:?}");
            }
        }
    }
}
