//! Who holds, who waits; for people, and for nothing that decides.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{Cmd, Value};

use crate::tls;
use tenure_core::backend::{Finding, Severity};
use tenure_core::error::Error;
use tenure_core::holder::{HoldInfo, Holder, Status};
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::support::HolderRecord;

use super::errors;
use super::hold::{Store, nonsense};
use super::names::{Keys, lock_of_hold_key, name_of};
use super::settings::Format;

/// Keys that one step of a search looks at: some 0.2 ms of the server's time.
const SCAN_COUNT: usize = 1_000;

impl Store {
    pub(super) async fn inspect(&self, name: LockName) -> Result<Status, Error> {
        let keys = self.keys(&name);
        self.look(name, &keys).await
    }

    async fn look(&self, name: LockName, keys: &Keys) -> Result<Status, Error> {
        let look = &self.nodes.scripts.look;
        let answer: Vec<Value> = self.nodes.run(look, keys, |_| {}).await?.value;
        // The value of a stranger may be any bytes.
        let text = |value: &Value| match value {
            Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Value::Int(number) => number.to_string(),
            _ => String::new(),
        };
        let answer: Vec<String> = answer.iter().map(text).collect();
        let [value, left, hold, waiting @ ..] = &answer[..] else {
            return Err(nonsense());
        };
        let mut status = Status::free(name);
        let left = left.parse().ok().map(Duration::from_millis);
        match value.as_str() {
            // The server grants nothing before it can be trusted to know who holds what.
            "" => {
                let session = self.nodes.connection(keys.lock()).await.ok();
                let now = self.clock.now();
                status.set_restart_guard(session.and_then(|session| session.restart_guard(now)));
            }
            "-" => status.reserved = left,
            owner => {
                let (token, holder, delay) = match parse_hold(hold) {
                    Some((token, known, holder, delay)) if known == owner => {
                        (Some(token), holder, delay)
                    }
                    _ => (None, self.stranger(owner), Duration::ZERO),
                };
                let lease = left.map(|left| left.saturating_sub(delay));
                if lease.is_some_and(|lease| lease.is_zero()) && !delay.is_zero() {
                    status.reserved = left;
                } else {
                    status.holds = vec![HoldInfo::new(holder, Mode::Exclusive, token, lease)];
                }
            }
        }
        // Redisson's waiters stand nowhere.
        status.queue = (self.settings.format == Format::Token)
            .then(|| waiting.iter().map(|entry| parse_self(entry).0).collect());
        Ok(status)
    }

    /// A holder that is another program: what can be said of it without giving its secret away.
    fn stranger(&self, value: &str) -> Holder {
        let label = match (value.strip_prefix('?'), self.settings.format) {
            (Some(kind), _) => format!("a key of type {kind}, which is no lock"),
            (None, Format::Redisson) => format!("Redisson, {value}"),
            (None, Format::Token) => "another program".into(),
        };
        let mut holder = Holder::default();
        holder.label = label;
        holder
    }

    /// Looks at every key of the server, step by step.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<Status>, Error> {
        let mut names = Vec::new();
        for session in self.nodes.all().await? {
            let mut cursor = 0_u64;
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg("tenure:{*");
                scan.arg("COUNT").arg(SCAN_COUNT);
                let (next, keys): (u64, Vec<Vec<u8>>) =
                    session.send(&scan).await.map_err(errors::request)?;
                let name = |key: Vec<u8>| {
                    let key = String::from_utf8(key).ok()?;
                    let name = name_of(&self.settings.prefix, lock_of_hold_key(&key)?)?;
                    name.as_str().starts_with(prefix).then_some(name)
                };
                names.extend(keys.into_iter().filter_map(name));
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        names.sort();
        names.dedup();
        let keys: Vec<_> = names.iter().map(|name| self.keys(name)).collect();
        let looks = names.into_iter().zip(&keys);
        let looks = looks.map(|(name, keys)| self.look(name, keys));
        let mut held = Vec::new();
        for status in futures_util::future::join_all(looks).await {
            held.extend(Some(status?).filter(Status::is_held));
        }
        Ok(held)
    }

    pub(super) async fn break_lock(&self, name: LockName, token: u64) -> Result<bool, Error> {
        let keys = self.keys(&name);
        let script = &self.nodes.scripts.break_hold;
        let args = |cmd: &mut Cmd| {
            cmd.arg(token);
        };
        let broken: i64 = self.nodes.run(script, &keys, args).await?.value;
        Ok(broken == 1)
    }

    pub(super) async fn check(&self) -> Result<Vec<Finding>, Error> {
        let mut findings = Vec::new();
        for session in self.nodes.all().await? {
            let guard = self.settings.restart_guard;
            findings.extend(session.server_info.findings(&session.host, guard));
            let is_tls = self.settings.is_tls();
            findings.extend(tls::plaintext(
                &session.host,
                is_tls,
                "rediss://, or tls=on",
            ));
            let now = self.clock.now();
            if let Some(until) = session.untrusted_until(now, Duration::ZERO) {
                let left = until.since(now);
                findings.push(Finding::new(
                    Severity::Warning,
                    format!("{}: started lately: nothing is granted for another {left:.0?} (restart_guard)", session.host),
                ));
            }
        }
        Ok(findings)
    }
}

/// `TOKEN OWNER SINCE SELF`: token, owner, holder, delay.
fn parse_hold(text: &str) -> Option<(u64, &str, Holder, Duration)> {
    let mut words = text.strip_prefix('+').unwrap_or(text).splitn(4, ' ');
    let (token, owner) = (words.next()?.parse().ok()?, words.next()?);
    let since = Duration::from_micros(words.next()?.parse().ok()?);
    let (mut holder, delay) = parse_self(words.next()?);
    holder.since = SystemTime::checked_add(&UNIX_EPOCH, since);
    Some((token, owner, holder, delay))
}

/// `MIN_HOLD DELAY CHANNEL HOLDER`: holder and delay, as far as they can be read.
fn parse_self(text: &str) -> (Holder, Duration) {
    let mut words = text.splitn(4, ' ');
    let delay = words.nth(1).and_then(|delay| delay.parse().ok());
    let record: Option<HolderRecord> = words
        .nth(1)
        .and_then(|json| serde_json::from_str(json).ok());
    let holder = record.unwrap_or_default().into();
    (holder, Duration::from_millis(delay.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
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
        assert_eq!(parse_self("0 0 c nonsense").0, Holder::default());
    }
}
