//! The options of an acquisition. `validate.rs` checks them.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// How a name is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// One holder at a time.
    #[default]
    Exclusive,
    /// Together with other shared holders and with holders of permits, never with an exclusive holder.
    Shared,
    /// As [`Shared`](Mode::Shared), and at most one holder at a time, which may become the exclusive holder with no other
    /// exclusive holder in between ([`Guard::upgrade`](crate::Guard::upgrade)).
    Upgradable,
    /// One permit of a semaphore: at most `limit` holders of permits at a time, never together with an exclusive
    /// holder. All clients must give the same limit; each request is decided by its own limit.
    Permits {
        /// The largest number of holders at a time.
        limit: NonZeroU32,
    },
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Upgradable => f.write_str("upgradable"),
            Self::Permits { limit } => write!(f, "1 of {limit} permits"),
        }
    }
}

/// Whether the lease is renewed while the guard lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Renew {
    /// Every third of the ttl, as long as the guard lives (and `max_hold` allows).
    #[default]
    Automatic,
    /// Never: a fixed lease. The hold is lost when the ttl is over.
    Never,
}

/// Whether new requests may overtake the requests that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Fairness {
    /// The order of the store; its [guarantees](crate::guarantees::Guarantees::order) say which order that is.
    #[default]
    StoreDefault,
    /// First come, first served. Acquiring fails where the store cannot promise that.
    Fair,
    /// New requests may overtake waiters.
    Unfair,
}

/// `true` is [`Fair`](Fairness::Fair), `false` is [`Unfair`](Fairness::Unfair).
impl From<bool> for Fairness {
    fn from(is_fair: bool) -> Self {
        if is_fair { Self::Fair } else { Self::Unfair }
    }
}

/// Options of one acquisition. [`Lock`](crate::Lock) has a setter for each.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The mode in which the name is held. Default: exclusive.
    pub mode: Mode,
    /// How long `acquire` may wait; zero means one try, `None` means for ever. Default: `None`.
    pub wait: Option<Duration>,
    /// Length of the lease. Default: 30 s. Bounds: 20 ms to 30 days.
    pub ttl: Duration,
    /// Added to the margin by which the local deadline is earlier than the end of the lease in the store (1 % of the
    /// ttl, at least 2 ms), for a store whose clock may run faster than ours. Default: zero. At most half the ttl.
    pub drift: Duration,
    /// The shortest lease with which `acquire` may return. A lock that the last holder passed on directly may begin
    /// with a lease that is shorter than the ttl, and has the whole ttl after its first renewal. If this option asks
    /// for more, such a grant costs one more request. Default: zero. At most the ttl.
    pub min_lease: Duration,
    /// How long after the grant renewals stop. Default: never.
    pub max_hold: Option<Duration>,
    /// Whether to renew. Default: automatically.
    pub renew: Renew,
    /// Whether new requests may overtake waiters. Default: as the store does.
    pub fair: Fairness,
    /// The name stays taken until this long after the grant, even after the release. Default: zero.
    pub min_hold: Duration,
    /// After a hold that ended without a release the name stays reserved for this long. Default: zero.
    pub lock_delay: Duration,
    /// How often the lock may pass from task to task of one client before it goes back to the store; zero: never.
    /// Default: [`DEFAULT_LOCAL_HAND_OVERS`](Options::DEFAULT_LOCAL_HAND_OVERS). Stores that cannot do it go on without.
    /// See [`Lock::local_hand_overs`](crate::Lock::local_hand_overs).
    pub local_hand_overs: u32,
    /// The purpose of the lock, shown to people who inspect it. Default: empty. At most 200 bytes.
    pub label: String,
    /// The value of the label `name` in metrics (feature `metrics`). Default: empty, which leaves that label out.
    /// At most 200 bytes.
    pub metrics_name: Cow<'static, str>,
    /// What a candidate of an [`Election`](crate::Election) lets observers see once it leads.
    pub(crate) value: Option<Arc<str>>,
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
            fair: Fairness::StoreDefault,
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            local_hand_overs: Self::DEFAULT_LOCAL_HAND_OVERS,
            label: String::new(),
            metrics_name: Cow::Borrowed(""),
            value: None,
        }
    }
}

impl Options {
    /// Default lease: the same as the default of Redisson's watchdog.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
    /// Shortest lease: ten times the smallest margin ([`MIN_MARGIN`](crate::logic::lease::MIN_MARGIN)).
    pub const MIN_TTL: Duration = Duration::from_millis(20);
    /// Longest lease: a holder that vanishes blocks the name for up to that long.
    pub const MAX_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
    /// Longest `min_hold` and longest `lock_delay`: ten years.
    pub const MAX_RESERVATION: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
    /// Longest label and longest name in metrics, in bytes.
    pub const MAX_LABEL: usize = 200;

    /// Default of `local_hand_overs`: with more of them, the requests that are left cost little (two of 33 acquisitions).
    pub const DEFAULT_LOCAL_HAND_OVERS: u32 = 32;
    /// Largest `local_hand_overs`. A store whose tokens are times in µs would otherwise reserve tokens of the far future.
    pub const MAX_LOCAL_HAND_OVERS: u32 = 10_000;

    /// The default of each option.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`mode`](Self#structfield.mode).
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Sets [`wait`](Self#structfield.wait).
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        let wait = Some(wait);
        Self { wait, ..self }
    }

    /// Sets [`ttl`](Self#structfield.ttl).
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// Sets [`drift`](Self#structfield.drift).
    #[must_use]
    pub fn drift(self, drift: Duration) -> Self {
        Self { drift, ..self }
    }

    /// Sets [`min_lease`](Self#structfield.min_lease).
    #[must_use]
    pub fn min_lease(self, min_lease: Duration) -> Self {
        Self { min_lease, ..self }
    }

    /// Sets [`max_hold`](Self#structfield.max_hold).
    #[must_use]
    pub fn max_hold(self, max_hold: Duration) -> Self {
        let max_hold = Some(max_hold);
        Self { max_hold, ..self }
    }

    /// Sets [`renew`](Self#structfield.renew).
    #[must_use]
    pub fn renew(self, renew: Renew) -> Self {
        Self { renew, ..self }
    }

    /// Sets [`fair`](Self#structfield.fair).
    #[must_use]
    pub fn fair(self, fair: impl Into<Fairness>) -> Self {
        let fair = fair.into();
        Self { fair, ..self }
    }

    /// Sets [`min_hold`](Self#structfield.min_hold).
    #[must_use]
    pub fn min_hold(self, min_hold: Duration) -> Self {
        Self { min_hold, ..self }
    }

    /// Sets [`lock_delay`](Self#structfield.lock_delay).
    #[must_use]
    pub fn lock_delay(self, lock_delay: Duration) -> Self {
        Self { lock_delay, ..self }
    }

    /// Sets [`local_hand_overs`](Self#structfield.local_hand_overs).
    #[must_use]
    pub fn local_hand_overs(self, local_hand_overs: u32) -> Self {
        Self {
            local_hand_overs,
            ..self
        }
    }

    /// Sets [`label`](Self#structfield.label).
    #[must_use]
    pub fn label(self, label: impl Into<String>) -> Self {
        let label = label.into();
        Self { label, ..self }
    }

    /// Sets [`metrics_name`](Self#structfield.metrics_name).
    #[must_use]
    pub fn metrics_name(self, name: impl Into<Cow<'static, str>>) -> Self {
        let metrics_name = name.into();
        Self {
            metrics_name,
            ..self
        }
    }
}
