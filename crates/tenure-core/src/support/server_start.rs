//! When a server was started, and from when on it can be trusted to know who holds what.

use std::fmt::Display;
use std::time::Duration;

use crate::error::{Error, ErrorKind, ErrorParts as _};
use crate::holder::RestartGuard;
use crate::options::Options;
use crate::time::Time;

/// What one connection knows of the start of its server.
///
/// A server that forgets its locks when it ends is not trusted until every lease of before its start is over.
#[derive(Clone, Copy, Debug)]
pub struct ServerStart {
    /// When the server was asked.
    asked: Time,
    /// How long the server ran by then, at least.
    uptime: Duration,
}

impl ServerStart {
    /// At `asked` the server said that it had run for `uptime` or longer.
    pub fn new(asked: Time, uptime: Duration) -> Self {
        Self { asked, uptime }
    }

    /// How long the server has run by `now`, at least.
    pub fn uptime(&self, now: Time) -> Duration {
        self.uptime.saturating_add(now.since(self.asked))
    }

    /// The instant from which on a request with this ttl may be granted. `guard` is the option `restart_guard`; a
    /// longer ttl counts in its place.
    pub fn trusted_from(&self, guard: Duration, ttl: Duration) -> Time {
        self.asked.after(guard.max(ttl).saturating_sub(self.uptime))
    }

    /// The same for people.
    pub fn report(&self, server: impl Display, guard: Duration, now: Time) -> RestartGuard {
        RestartGuard::new(server.to_string(), self.uptime(now), guard)
    }
}

/// The error of a request with this ttl that a server does not get because of `guard`.
pub fn not_trusted_yet(guard: RestartGuard, ttl: Duration) -> Error {
    let err = Error::new(ErrorKind::Unreachable, guard.describe(ttl));
    err.with_restart_guard(Some(guard))
}

/// Says in the log, when a client connects, that the server grants nothing yet. Without that a first program waits for the
/// whole restart guard and seems to hang.
pub fn warn_of_restart(store: &str, guard: &RestartGuard) {
    let ttl = Options::DEFAULT_TTL;
    if !guard.left(ttl).is_zero() {
        tracing::warn!(store, "{}", guard.describe(ttl));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_trusted_when_the_longer_of_guard_and_ttl_is_over() {
        let second = Duration::from_secs;
        let asked = Time::from_nanos(3_600_000_000_000);
        let start = ServerStart::new(asked, second(3));
        assert_eq!(
            start.trusted_from(second(30), second(10)),
            asked.after(second(27))
        );
        assert_eq!(
            start.trusted_from(second(30), second(40)),
            asked.after(second(37))
        );
        assert_eq!(start.trusted_from(second(2), second(1)), asked);
        let now = asked.after(second(5));
        assert_eq!(start.uptime(now), second(8));
        // What a server says may be wrong.
        let endless = ServerStart::new(asked, Duration::MAX);
        assert_eq!(endless.uptime(now), Duration::MAX);
        let report = start.report("h:1", second(30), now);
        assert_eq!(report.left(second(10)), now.after(second(22)).since(now));
    }
}
