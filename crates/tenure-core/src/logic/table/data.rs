//! What the table is asked, and what it answers.

use std::time::Duration;

use crate::fence::OwnerId;
use crate::name::LockName;
use crate::options::Mode;
use crate::time::Time;

/// A request for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// What to lock.
    pub name: LockName,
    /// For whom; one owner id serves one acquisition.
    pub owner: OwnerId,
    /// How.
    pub mode: Mode,
    /// Lease, from the grant on; `None`: until released.
    pub ttl: Option<Duration>,
    /// Whether to queue when the name is taken.
    pub wait: bool,
    /// Whether it may overtake waiters if the holders allow it.
    pub barge: bool,
    /// The name stays taken until this long after the grant, even past the end of the hold.
    pub min_hold: Duration,
    /// After an unclean end the name stays taken for this long.
    pub lock_delay: Duration,
    /// A waiter is forgotten when it sent no request for this long; `None`: never.
    pub waiter_ttl: Option<Duration>,
    /// The token to grant under, unless the name's next one is greater.
    pub propose: Option<u64>,
}

/// The answer to an [`LockRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The owner holds the name under this token.
    Granted {
        /// Greater than every token granted for the name before.
        token: u64,
    },
    /// The owner is in the queue; [`Table::granted`](super::Table::granted) will tell.
    Queued,
    /// Taken, and nothing of the request is left.
    Busy,
}

/// Who holds a name, who waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// In the order of their tokens.
    pub holds: Vec<HoldView>,
    /// In the order in which they will be served.
    pub waiters: Vec<(OwnerId, Mode)>,
    /// Ended holds keep the name reserved until then.
    pub reserved_until: Option<Time>,
}

/// One hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldView {
    /// Who.
    pub owner: OwnerId,
    /// How.
    pub mode: Mode,
    /// Under which number.
    pub token: u64,
    /// When its lease ends, if it has one.
    pub expires: Option<Time>,
    /// When it was granted.
    pub since: Time,
}
