//! How a lock is to be acquired, and the one place where that is validated.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// How a name is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// One holder and nobody else.
    #[default]
    Exclusive,
    /// Together with other shared holders and with permits, never with an exclusive one.
    Shared,
    /// One unit of a semaphore: at most `limit` holders of permits at a time, never beside an exclusive one.
    /// All contenders must name the same limit; each is admitted by its own.
    Permits {
        /// How many holders there may be.
        limit: NonZeroU32,
    },
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Permits { limit } => write!(f, "1 of {limit} permits"),
        }
    }
}

/// Whether the lease is renewed while the guard lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Renew {
    /// At every third of the ttl, for as long as the guard lives (and `max_hold` allows).
    #[default]
    Automatic,
    /// Never: a fixed lease. The hold is lost when the ttl is over.
    Never,
}

/// Options of one acquisition. [`Lock`](crate::Lock) has a setter for each.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// How the name is held. Default: exclusive.
    pub mode: Mode,
    /// How long acquire may wait; zero means one try, `None` for ever. Default: `None`.
    pub wait: Option<Duration>,
    /// Length of the lease. Default: 30 s. Bounds: 20 ms to 30 days.
    pub ttl: Duration,
    /// Added to the margin by which we stop believing before the store does (1 % of the ttl, at least
    /// 2 ms): for a store whose clock cannot be trusted to run like ours. Default: zero. At most half the ttl.
    pub drift: Duration,
    /// The shortest lease that acquire may resolve with. A lock that was handed over by its last holder
    /// may begin with a lease shorter than the ttl, and has the whole ttl after its first renewal; asking for more
    /// costs one request in that case. Default: zero. At most the ttl.
    pub min_lease: Duration,
    /// When to stop renewing, counted from the grant. Default: never.
    pub max_hold: Option<Duration>,
    /// Whether to renew. Default: automatically.
    pub renew: Renew,
    /// `Some(true)` demands first come, first served from the store; `Some(false)` allows barging;
    /// `None` takes what the store does by itself. Default: `None`.
    pub fair: Option<bool>,
    /// The name stays taken until this long after the grant, even past the release. Default: zero.
    pub min_hold: Duration,
    /// After an unclean end the name stays reserved for this long. Default: zero.
    pub lock_delay: Duration,
    /// Why, for people who look at the lock. Default: empty. At most 200 bytes.
    pub label: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mode: Mode::Exclusive,
            wait: None,
            ttl: Self::DEFAULT_TTL,
            drift: Duration::ZERO,
            min_lease: Duration::ZERO,
            max_hold: None,
            renew: Renew::Automatic,
            fair: None,
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            label: String::new(),
        }
    }
}

impl Options {
    /// Lease when none is asked for. The figure that Redisson's watchdog made customary.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
    /// Shortest lease: ten times the smallest margin ([`MIN_MARGIN`](crate::kernel::lease::MIN_MARGIN)).
    pub const MIN_TTL: Duration = Duration::from_millis(20);
    /// Longest lease. A holder that vanishes blocks the name for that long.
    pub const MAX_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
    /// Longest label, in bytes.
    pub const MAX_LABEL: usize = 200;

    /// Checks what can be checked without knowing the backend.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], naming the option and its bounds.
    pub fn validate(&self) -> Result<(), Error> {
        let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        if self.ttl < Self::MIN_TTL || self.ttl > Self::MAX_TTL {
            return invalid(format!(
                "`ttl` is {:?}; it must lie between 20ms and 30 days",
                self.ttl
            ));
        }
        if self.drift > self.ttl / 2 {
            return invalid(format!(
                "`drift` is {:?}; it may be half the ttl, {:?}, at most",
                self.drift,
                self.ttl / 2
            ));
        }
        if self.min_lease > self.ttl {
            return invalid(format!(
                "`min_lease` is {:?}; it may be the ttl, {:?}, at most",
                self.min_lease, self.ttl
            ));
        }
        if self.max_hold.is_some_and(|max_hold| max_hold.is_zero()) {
            return invalid("`max_hold` is zero; leave it out to hold without a limit".into());
        }
        if self.label.len() > Self::MAX_LABEL {
            return invalid(format!(
                "`label` has {} bytes; it may have {}",
                self.label.len(),
                Self::MAX_LABEL
            ));
        }
        Ok(())
    }
}
