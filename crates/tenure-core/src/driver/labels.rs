//! The words that logs, spans and metrics use for what happened.

use crate::lost::LostReason;

/// The target of the driver's events. Users of the crate `tenure` filter by its name, and know no other crate.
pub(super) const LOG_TARGET: &str = "tenure::driver";

/// How an acquisition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcquireOutcome {
    /// The lock was taken from the store.
    Granted,
    /// Another holder kept it until the end of the wait.
    Busy,
    /// The caller dropped the future.
    Cancelled,
    /// It ended with an error.
    Failed,
    /// The owner held the lock already; the store was not asked.
    Reentered,
}

impl AcquireOutcome {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Busy => "busy",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
            Self::Reentered => "reentered",
        }
    }
}

/// How the store answered a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenewalOutcome {
    Renewed,
    Lost,
    Unanswered,
}

impl RenewalOutcome {
    #[cfg_attr(not(feature = "metrics"), expect(dead_code))]
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Renewed => "renewed",
            Self::Lost => "lost",
            Self::Unanswered => "unanswered",
        }
    }
}

/// The label of a reason.
pub(super) const fn reason_label(reason: LostReason) -> &'static str {
    match reason {
        LostReason::Expired => "expired",
        LostReason::MaxHold => "max_hold",
        LostReason::SessionGone => "session_gone",
        LostReason::TakenOver => "taken_over",
        LostReason::StoreSaysNo => "store_says_no",
    }
}
