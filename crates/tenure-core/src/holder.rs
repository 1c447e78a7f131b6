//! Who holds a lock, for people to read.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::fence::FencingToken;
use crate::name::{Escaped, LockName};
use crate::options::Mode;

/// A process that holds a lock or waits for one, as it described itself.
///
/// For people only: no decision depends on it, and a client of another library may leave all of it empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Host name.
    pub host: String,
    /// Process id on that host; 0 if the store does not know it.
    pub pid: u32,
    /// The purpose, in the holder's own words ([`Lock::label`](crate::Lock::label)); may be empty.
    pub label: String,
    /// Identity of the client within its process.
    pub client: String,
    /// Since when the process holds the lock (or waits), by the clock of the store; `None` if the store does not say.
    pub since: Option<SystemTime>,
    /// What the holder, as the leader of an election, lets observers see: empty if it publishes nothing. `None` for a lock.
    pub value: Option<PublishedValue>,
}

/// A value that a leader has published.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublishedValue {
    /// The value.
    pub text: Arc<str>,
    /// Grows with each value of one term, and from term to term of one client, so that an observer never goes back to an older
    /// value.
    pub number: u64,
}

impl PublishedValue {
    /// The longest value, in bytes: an address or a short record, and well below the limits of all stores.
    pub const MAX_LEN: usize = 4_096;

    /// A value, and its number.
    pub fn new(text: impl Into<Arc<str>>, number: u64) -> Self {
        let text = text.into();
        Self { text, number }
    }
}

/// `build-7, pid 4242, "deploy", since 3s`
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = if self.host.is_empty() {
            "unknown host"
        } else {
            &self.host
        };
        write!(f, "{}", Escaped(host))?;
        // No process has the number 0: the store does not know the process.
        if self.pid != 0 {
            write!(f, ", pid {}", self.pid)?;
        }
        if !self.label.is_empty() {
            write!(f, ", \"{}\"", Escaped(&self.label))?;
        }
        if let Some(held) = self.since.and_then(|since| since.elapsed().ok()) {
            write!(f, ", for {}", Rounded(held))?;
        }
        Ok(())
    }
}

/// A duration for people: the two largest units, no fractions above a second.
pub(crate) struct Rounded(pub(crate) Duration);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (secs, millis) = (self.0.as_secs(), self.0.subsec_millis());
        match secs {
            0 => write!(f, "{millis}ms"),
            1..60 => write!(f, "{secs}s"),
            60..3600 => write!(f, "{}m {}s", secs / 60, secs % 60),
            3600..86_400 => write!(f, "{}h {}m", secs / 3600, secs / 60 % 60),
            _ => write!(f, "{}d {}h", secs / 86_400, secs / 3600 % 24),
        }
    }
}

/// One hold of a lock, as seen in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldInfo {
    /// The holder.
    pub holder: Holder,
    /// The mode in which the name is held.
    pub mode: Mode,
    /// The fencing token; `None` for a holder of another library that has none.
    pub token: Option<FencingToken>,
    /// Time until the store frees the lock if it is not renewed; `None` where there is no lease.
    pub ttl_left: Option<Duration>,
}

impl HoldInfo {
    /// A hold as a store found it.
    pub fn new(holder: Holder, mode: Mode, token: Option<u64>, ttl_left: Option<Duration>) -> Self {
        Self {
            holder,
            mode,
            token: token.map(FencingToken::new),
            ttl_left,
        }
    }
}

/// A server that forgets locks when it is restarted grants nothing until the leases of before its start are over.
///
/// The option `restart_guard` in the URL says how long these are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestartGuard {
    /// The server, by host and port.
    pub server: String,
    /// How long it has run, at least.
    pub uptime: Duration,
    /// The option's value.
    pub guard: Duration,
    /// Why the start of the server is not known, and what to do; the uptime then counts from the connection on.
    pub unknown: Option<&'static str>,
}

impl RestartGuard {
    /// As a store found it.
    pub fn new(server: impl Into<String>, uptime: Duration, guard: Duration) -> Self {
        Self {
            server: server.into(),
            uptime,
            guard,
            unknown: None,
        }
    }

    /// For how much longer a request with this ttl is not granted; zero when it may be. A ttl that is longer than the
    /// option's value counts in its place.
    pub fn left(&self, ttl: Duration) -> Duration {
        self.guard.max(ttl).saturating_sub(self.uptime)
    }

    /// One line for people: why a request with this ttl is not granted, for how long, and what to do.
    pub fn describe(&self, ttl: Duration) -> String {
        let (server, uptime, left) = (&self.server, self.uptime, self.left(ttl));
        if let Some(reason) = self.unknown {
            return format!(
                "{reason}, so {server} counts as just started and grants nothing for another {}",
                Rounded(left.max(Duration::from_millis(1)))
            );
        }
        format!(
            "{server} was started lately ({} ago) and may have forgotten who held what, so it grants nothing for another {}; for a server that has no locks to lose, such as a new container in a test, put `?restart_guard=off` into the URL",
            Rounded(uptime),
            Rounded(left.max(Duration::from_millis(1)))
        )
    }
}

/// What the store knows about one name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStatus {
    /// The name.
    pub name: LockName,
    /// Who holds the name; empty when it is free.
    pub holds: Vec<HoldInfo>,
    /// Who waits, in the order of the store; `None` where the store cannot tell.
    pub queue: Option<Vec<Holder>>,
    /// The name is free but stays reserved for this long
    /// ([`Lock::min_hold`](crate::Lock::min_hold), [`Lock::lock_delay`](crate::Lock::lock_delay)).
    pub reserved: Option<Duration>,
    /// The name is free, and the server forgets its locks when it restarts: how long it has run, and for how long it
    /// grants nothing after a start. [`left`](RestartGuard::left) is zero when a request is granted. `None` where the name
    /// is held, where the store forgets nothing, and with `restart_guard=off`.
    pub restart_guard: Option<RestartGuard>,
    /// How many nodes agree, of how many, where the store consists of several: `(3, 5)`.
    pub nodes: Option<(usize, usize)>,
}

impl LockStatus {
    /// Adds what is known of the start of the server. While nothing is granted, the name counts as reserved.
    pub fn set_restart_guard(&mut self, guard: Option<RestartGuard>) {
        let left = guard.as_ref().map(|guard| guard.left(Duration::ZERO));
        self.reserved = left.filter(|left| !left.is_zero());
        self.restart_guard = guard;
    }

    /// A name without holders and waiters.
    pub fn free(name: LockName) -> Self {
        Self {
            name,
            holds: Vec::new(),
            queue: None,
            reserved: None,
            restart_guard: None,
            nodes: None,
        }
    }

    /// The same, where `agreeing` of `all` nodes agree.
    #[must_use]
    pub fn with_nodes(mut self, agreeing: usize, all: usize) -> Self {
        self.nodes = Some((agreeing, all));
        self
    }

    /// Whether the name is held.
    pub fn is_held(&self) -> bool {
        !self.holds.is_empty()
    }
}

/// An acquisition that still waits, as [`Client::on_wait`](crate::Client::on_wait) reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitReport {
    /// What is waited for.
    pub name: LockName,
    /// For how long by now.
    pub waited: Duration,
    /// The position of this client in the queue of the store, from 1 on; `None` where the store cannot tell. Tasks of one
    /// client that wait for the same name have one position in the store, that of the first of them.
    pub position: Option<usize>,
    /// What the store says about the name now. `None`: the store did not answer within a second, or another task of this
    /// client waits before this one, and the report of that task has the answer.
    pub status: Option<LockStatus>,
    /// The store, by its URL scheme.
    pub scheme: &'static str,
}

impl WaitReport {
    /// The first of the holders, where they are known.
    pub fn holder(&self) -> Option<&Holder> {
        let status = self.status.as_ref()?;
        status.holds.first().map(|hold| &hold.holder)
    }
}

/// `still waiting for "orders/42" (redis) after 5s, at position 2: it is held by build-7, pid 4242, for 8s`
impl fmt::Display for WaitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, scheme, .. } = self;
        let waited = Rounded(self.waited);
        write!(f, "still waiting for {name} ({scheme}) after {waited}")?;
        if let Some(position) = self.position {
            write!(f, ", at position {position}")?;
        }
        if let Some(holder) = self.holder() {
            write!(f, ": it is held by {holder}")?;
        }
        Ok(())
    }
}

impl Holder {
    /// A holder with nothing but a host and a process id.
    pub fn new(host: impl Into<String>, pid: u32) -> Self {
        Self {
            host: host.into(),
            pid,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_guard_lasts_for_the_longer_of_option_and_ttl() {
        let second = Duration::from_secs;
        let guard = RestartGuard::new("h:6379", second(3), second(30));
        assert_eq!(guard.left(second(10)), second(27));
        assert_eq!(guard.left(second(40)), second(37));
        let text = guard.describe(second(40));
        for words in [
            "h:6379 was started lately (3s ago)",
            "for another 37s;",
            "`?restart_guard=off`",
        ] {
            assert!(text.contains(words), "{text}");
        }
        let over = RestartGuard::new("h:6379", second(31), second(30));
        assert_eq!(over.left(second(30)), Duration::ZERO);
        assert_eq!(over.left(second(32)), second(1));
    }
}
