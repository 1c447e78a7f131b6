//! PostgreSQL: calls of the functions for advisory locks, in each mode.

use std::fmt;

use super::key::Key;
use super::mode::KeyMode;
use super::operations::SessionOperation;

/// The prepared statements of a session: for locks that are not shared and have one number as key.
pub(super) enum PreparedStatement {
    TryLock(i64),
    Unlock(i64),
    Many {
        locked: Vec<i64>,
        unlocked: Vec<i64>,
    },
}

impl PreparedStatement {
    pub(super) fn of(operations: &[SessionOperation]) -> Option<Self> {
        let room = || Vec::with_capacity(operations.len());
        let (mut locked, mut unlocked) = (room(), room());
        for operation in operations {
            let (key, mode, keys) = match operation {
                SessionOperation::TryLock { key, mode } => (key, mode, &mut locked),
                SessionOperation::Unlock { key, mode } => (key, mode, &mut unlocked),
                SessionOperation::Reserve { .. } => return None,
                SessionOperation::Ping => continue,
            };
            match key {
                Key::One(key) if *mode == KeyMode::Exclusive => keys.push(*key),
                _ => return None,
            }
        }
        match (&locked[..], &unlocked[..]) {
            ([], []) => None,
            ([key], []) if operations.len() == 1 => Some(Self::TryLock(*key)),
            ([], [key]) if operations.len() == 1 => Some(Self::Unlock(*key)),
            _ => Some(Self::Many { locked, unlocked }),
        }
    }
}

impl fmt::Display for PreparedStatement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = |f: &mut fmt::Formatter<'_>, keys: &[i64]| {
            for (at, key) in keys.iter().enumerate() {
                let comma = if at == 0 { "" } else { "," };
                write!(f, "{comma}{key}")?;
            }
            Ok(())
        };
        match self {
            Self::TryLock(key) => write!(f, "tenure_take({key})"),
            Self::Unlock(key) => write!(f, "tenure_give({key})"),
            Self::Many { locked, unlocked } => {
                f.write_str("tenure_many('{")?;
                set(f, locked)?;
                f.write_str("}', '{")?;
                set(f, unlocked)?;
                f.write_str("}')")
            }
        }
    }
}

/// Calls one of the functions for advisory locks on that key.
pub(super) fn call(function: &str, key: &Key) -> String {
    match key {
        Key::Two(class, object) => format!("{function}({class}, {object})"),
        Key::One(number) => format!("{function}({number})"),
        // Never made for this server.
        Key::Text(_) => format!("{function}(NULL::bigint)"),
    }
}

/// Takes the lock if it is free: true or false.
pub(super) fn try_lock(mode: KeyMode, key: &Key) -> String {
    match mode {
        // A lock is never asked for as `Weakening`.
        KeyMode::Exclusive | KeyMode::Weakening => call("pg_try_advisory_lock", key),
        KeyMode::Shared => call("pg_try_advisory_lock_shared", key),
        KeyMode::Upgradable | KeyMode::Upgraded => {
            let upgradable = key.upgradable();
            format!(
                "CASE WHEN NOT {} THEN false WHEN {} THEN true ELSE NOT {} END",
                call("pg_try_advisory_lock", &upgradable),
                call("pg_try_advisory_lock_shared", key),
                call("pg_advisory_unlock", &upgradable)
            )
        }
    }
}

/// Waits for the lock: not NULL.
pub(super) fn wait_for(mode: KeyMode, key: &Key) -> String {
    match mode {
        KeyMode::Exclusive | KeyMode::Weakening => call("pg_advisory_lock", key),
        KeyMode::Shared => call("pg_advisory_lock_shared", key),
        KeyMode::Upgradable | KeyMode::Upgraded => format!(
            "(CASE WHEN {}::text IS NOT NULL THEN {}::text END)",
            call("pg_advisory_lock", &key.upgradable()),
            call("pg_advisory_lock_shared", key)
        ),
    }
}

/// Releases the lock: 1 or 0.
pub(super) fn unlock(mode: KeyMode, key: &Key) -> String {
    let exclusive = |key: &Key| format!("{}::int", call("pg_advisory_unlock", key));
    let shared = || format!("{}::int", call("pg_advisory_unlock_shared", key));
    match mode {
        KeyMode::Exclusive => exclusive(key),
        KeyMode::Shared => shared(),
        KeyMode::Weakening => format!("{} | {}", shared(), exclusive(key)),
        KeyMode::Upgradable => format!("{} + 0 * {}", shared(), exclusive(&key.upgradable())),
        KeyMode::Upgraded => format!(
            "{} + 0 * {} + 0 * {}",
            shared(),
            exclusive(key),
            exclusive(&key.upgradable())
        ),
    }
}
