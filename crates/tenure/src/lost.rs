//! Why a hold ended that nobody released.

use std::fmt;

/// Why a hold ended that we did not release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out: renewals did not get through, or `renew(Never)` was asked for.
    Expired,
    /// `max_hold` is over.
    MaxHold,
    /// The session that carried the hold ended.
    SessionGone,
    /// Somebody else holds the name, or can: it was broken, or its file was replaced.
    TakenOver,
    /// The store says that we do not hold it.
    StoreSaysNo,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease ran out",
            Self::MaxHold => "max_hold is over",
            Self::SessionGone => "the session with the store ended",
            Self::TakenOver => "it was taken over",
            Self::StoreSaysNo => "the store says it is not ours",
        })
    }
}
