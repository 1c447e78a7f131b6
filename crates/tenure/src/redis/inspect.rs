//! Who holds and who waits, for operators. Nothing here decides about a lock.

use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::holder::{HoldInfo, Holder, LockStatus};
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::store::Listed;
use tenure_core::support::{HolderRecord, parse_mode, wall_time};

use super::names::{HOLD_KEYS, lock_of_hold_key, name_of};
use super::redisson::RedissonLock;
use super::sighting::another_program;
use super::store::Store;

pub(super) async fn inspect(store: &Store, name: LockName) -> Result<LockStatus, Error> {
    let keys = store.requests.keys(&name);
    let state = store.requests.inspect(&keys).await?;
    let redisson = store.context.settings.redisson;
    let mut status = LockStatus::free(name);
    match state.value.as_str() {
        // The server grants nothing before it can be trusted to know who holds a lock.
        "" => {
            let connection = store.connections.connection(keys.lock()).await.ok();
            let context = &store.context;
            status.set_restart_guard(connection.and_then(|it| context.restart_guard(&it)));
        }
        "-" => status.reserved = state.expires_in,
        "*" => {
            for entry in &state.waiters {
                read_holder(&mut status, redisson, entry);
            }
            status.holds.sort_by_key(|hold| hold.token);
            if status.holds.is_empty() && redisson.is_some() {
                // The leases of all readers are over, and the lock is free when the time of the key is over.
                status.reserved = status.reserved.or(state.expires_in);
            }
        }
        owner => {
            let (token, holder, delay) = match parse_hold(&state.hold) {
                Some((token, known, holder, delay)) if known == owner => {
                    (Some(token), holder, delay)
                }
                _ => (None, foreign_holder(redisson, owner), Duration::ZERO),
            };
            let lease = state.expires_in.map(|left| left.saturating_sub(delay));
            if lease.is_some_and(|lease| lease.is_zero()) && !delay.is_zero() {
                status.reserved = state.expires_in;
            } else {
                status.holds = vec![HoldInfo::new(holder, Mode::Exclusive, token, lease)];
            }
        }
    }
    // The waiters of Redisson's other locks are stored nowhere.
    let has_queue = redisson.is_none_or(RedissonLock::has_queue);
    status.queue = has_queue.then(|| {
        let waiters = state.waiters.iter().filter(|it| !it.starts_with('*'));
        let waiter = |entry: &String| match entry.strip_prefix('?') {
            Some(owner) => foreign_holder(redisson, owner),
            None => parse_waiter(entry).0,
        };
        waiters.map(waiter).collect()
    });
    Ok(status)
}

/// Adds one of several holders to the status: `*OWNER LEFT MODE TOKEN SINCE MIN_HOLD DELAY CHANNEL HOLDER`. The owner of a
/// place that stays reserved begins with `-`. `TOKEN` of a foreign holder is `-`, and a negative `LEFT` has no end. Anything
/// else is a waiter.
fn read_holder(status: &mut LockStatus, redisson: Option<RedissonLock>, entry: &str) -> Option<()> {
    let mut words = entry.strip_prefix('*')?.splitn(4, ' ');
    let owner = words.next()?;
    let left: i64 = words.next()?.parse().ok()?;
    let left = u64::try_from(left).ok().map(Duration::from_millis);
    let mode = match words.next()? {
        "x" => Mode::Exclusive,
        mode => parse_mode(mode)?.0,
    };
    let (token, rest) = words.next()?.split_once(' ')?;
    if token == "-" {
        let holder = foreign_holder(redisson, owner);
        status.holds.push(HoldInfo::new(holder, mode, None, left));
        return Some(());
    }
    let (since, rest) = rest.split_once(' ')?;
    let (mut holder, delay) = parse_waiter(rest);
    let left = left?;
    let lease = left.saturating_sub(delay);
    if owner.starts_with('-') || lease.is_zero() && !delay.is_zero() {
        status.reserved = status.reserved.max(Some(left));
        return Some(());
    }
    holder.since = wall_time(since.parse().ok()?);
    let token = Some(token.parse().ok()?);
    status
        .holds
        .push(HoldInfo::new(holder, mode, token, Some(lease)));
    Some(())
}

/// Of a holder that is another program: what can be shown without its secret.
fn foreign_holder(redisson: Option<RedissonLock>, value: &str) -> Holder {
    let mut holder = another_program();
    match (value.strip_prefix('?'), redisson) {
        (Some(kind), _) => holder.label = format!("a key of type {kind}, which is no lock"),
        (None, Some(_)) => holder.label = format!("Redisson, {value}"),
        (None, None) => {}
    }
    holder
}

/// Scans all keys of each server.
pub(super) async fn list(store: &Store, prefix: &str) -> Result<Listed, Error> {
    let mut names = Vec::new();
    for connection in store.connections.all().await? {
        let name = |key: Vec<u8>| {
            let key = String::from_utf8(key).ok()?;
            let name = name_of(&store.context.settings.prefix, lock_of_hold_key(&key)?)?;
            name.as_str().starts_with(prefix).then_some(name)
        };
        let keys = connection.scan(HOLD_KEYS).await?;
        names.extend(keys.into_iter().filter_map(name));
    }
    Ok(Listed::Names(names))
}

/// `TOKEN OWNER SINCE MIN_HOLD DELAY CHANNEL HOLDER`: token, owner, holder, delay.
fn parse_hold(text: &str) -> Option<(u64, &str, Holder, Duration)> {
    let mut words = text.strip_prefix('+').unwrap_or(text).splitn(4, ' ');
    let (token, owner) = (words.next()?.parse().ok()?, words.next()?);
    let since = wall_time(words.next()?.parse().ok()?);
    let (mut holder, delay) = parse_waiter(words.next()?);
    holder.since = since;
    Some((token, owner, holder, delay))
}

/// `MIN_HOLD DELAY CHANNEL HOLDER`: holder and delay, as far as they can be read. The mode comes before, unless it is
/// exclusive.
fn parse_waiter(text: &str) -> (Holder, Duration) {
    let text = match text.split_once(' ') {
        Some((mode, rest)) if parse_mode(mode).is_some() => rest,
        _ => text,
    };
    let mut words = text.splitn(4, ' ');
    let delay = words.nth(1).and_then(|delay| delay.parse().ok());
    let holder = HolderRecord::read(words.nth(1).unwrap_or_default());
    (holder, Duration::from_millis(delay.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn holds_are_read_whatever_is_in_them() {
        let text = r#"17 abc 1000000 0 250 tenure:push:x {"host":"a b","pid":4,"label":"x\ny","client":"c"}"#;
        let (token, owner, holder, delay) = parse_hold(text).unwrap();
        assert_eq!(
            (token, owner, delay),
            (17, "abc", Duration::from_millis(250))
        );
        assert_eq!((holder.host.as_str(), holder.pid), ("a b", 4));
        assert_eq!(holder.label, "x\ny");
        assert_eq!(holder.since, Some(UNIX_EPOCH + Duration::from_secs(1)));
        for broken in ["", "x", "17", "17 abc", "17 abc x 0 0 c {}"] {
            assert!(parse_hold(broken).is_none(), "{broken}");
        }
        assert_eq!(parse_waiter("0 0 c nonsense").0, Holder::default());
    }
}
