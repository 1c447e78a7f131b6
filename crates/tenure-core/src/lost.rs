//! The reasons for the loss of a hold.

use std::fmt;

use crate::error::Error;
use crate::fence::FencingToken;
use crate::name::LockName;
use crate::options::Mode;

/// Why a hold was lost: it ended without a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ended: renewals did not reach the store, or the lease was fixed (`renew(Never)`).
    Expired,
    /// The time of `max_hold` is over.
    MaxHold,
    /// The session that carried the hold ended.
    SessionGone,
    /// Another client holds the name or can acquire it: the lock was broken, or its file was replaced.
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

/// A hold that was lost, as [`Client::on_lost`](crate::Client::on_lost) reports it.
///
/// Two losses are equal if the same hold was lost for the same reason; their causes are not compared.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Loss {
    /// What was held. Several names under one guard are several losses.
    pub name: LockName,
    /// The number of the grant that ended.
    pub token: FencingToken,
    /// How it was held.
    pub mode: Mode,
    /// Why it ended.
    pub reason: LostReason,
    /// The store, by its URL scheme.
    pub scheme: &'static str,
    pub(crate) cause: Option<Error>,
}

impl Loss {
    /// The error that led to the loss, as far as there is one and this client knows it: the error of the last renewal before
    /// the lease ran out, what ended the session, or the answer of the store that has no such hold. `None`, for example, for
    /// [`MaxHold`](LostReason::MaxHold).
    pub fn cause(&self) -> Option<&Error> {
        self.cause.as_ref()
    }
}

impl PartialEq for Loss {
    fn eq(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.token, it.mode, it.reason, it.scheme);
        self.name == other.name && of(self) == of(other)
    }
}

impl Eq for Loss {}

/// `"orders/42" (token 17, redis) was lost: the lease ran out`; `{:#}` adds the [cause](Loss::cause).
impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            token,
            reason,
            scheme,
            ..
        } = self;
        write!(f, "{name} (token {token}, {scheme}) was lost: {reason}")?;
        match &self.cause {
            Some(cause) if f.alternate() => write!(f, ": {cause:#}"),
            _ => Ok(()),
        }
    }
}
