//! Who leads an election, as a store sees it.

use std::fmt;
use std::time::Duration;

use crate::fence::FencingToken;
use crate::holder::{HoldInfo, Holder, LockStatus};
use crate::name::Escaped;
use crate::options::Mode;

/// The leader of an election: the exclusive holder of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The number of the term, which is the fencing token of the hold. `None` for a holder of another library that has none. The
    /// stores with sessions of a database also show a candidate without a token if a fault came between its lock and its row:
    /// such a candidate does not lead yet.
    pub token: Option<FencingToken>,
    /// The process that leads, as it described itself.
    pub holder: Holder,
}

impl Leader {
    /// The holder of the name under this token.
    pub fn new(token: Option<FencingToken>, holder: Holder) -> Self {
        Self { token, holder }
    }

    /// What the leader has published with `Election::value` or `Term::proclaim`; `None` if that is nothing, or empty.
    pub fn value(&self) -> Option<&str> {
        let value = self.holder.value.as_ref();
        value
            .map(|value| &*value.text)
            .filter(|text| !text.is_empty())
    }
}

/// `build-7, pid 4242, for 3s, token 17: http://10.0.0.7:8080`
impl fmt::Display for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.holder.fmt(f)?;
        if let Some(token) = self.token {
            write!(f, ", token {token}")?;
        }
        match self.value() {
            Some(value) => write!(f, ": {}", Escaped(value)),
            None => Ok(()),
        }
    }
}

/// What a store says about an election at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sighting {
    /// The leader; `None`: nobody leads.
    pub leader: Option<Leader>,
    /// The greatest token that the store has granted for the name so far, or a number between that token and the next one;
    /// 0 if the store does not know. Observers order what they see by it.
    pub last_token: u64,
    /// When the lease of the leader ends, if it is not renewed; `None`: nobody leads, or there is no lease.
    pub ttl_left: Option<Duration>,
}

impl Sighting {
    /// This hold leads.
    pub fn of_hold(hold: HoldInfo) -> Self {
        Self {
            last_token: hold.token.map_or(0, FencingToken::get),
            ttl_left: hold.ttl_left,
            leader: Some(Leader::new(hold.token, hold.holder)),
        }
    }

    /// Nobody leads, and the store has granted no token above `last_token`.
    pub fn of_nobody(last_token: u64) -> Self {
        Self {
            leader: None,
            last_token,
            ttl_left: None,
        }
    }

    /// The exclusive holder in this status leads. `last_token` counts if there is none.
    pub fn of_status(status: LockStatus, last_token: u64) -> Self {
        let mut holds = status.holds.into_iter();
        let exclusive = holds.find(|hold| hold.mode == Mode::Exclusive);
        exclusive.map_or_else(|| Self::of_nobody(last_token), Self::of_hold)
    }
}
