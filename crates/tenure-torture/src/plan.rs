//! The schedule of faults, made from a seed. No clock, no I/O: the same seed gives the same plan.
//!
//! A seed determines which faults come and when, and not which worker holds the lock at that moment. So it repeats the
//! faults, and not each interleaving.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tenure::guarantees::Fault;

use crate::clock::nanos;
use crate::random::Random;

/// A kind of fault of a holder, its connection, the server, or a clock.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The holder is stopped for longer than the ttl and resumed.
    Pause,
    /// The holder is killed; another process takes its place.
    Kill,
    /// All messages to and from the holder arrive late.
    Delay,
    /// No message passes for longer than the ttl; then all messages arrive, late.
    Stall,
    /// The holder's connections break.
    Cut,
    /// Requests arrive, replies never do, then the connection breaks.
    LostReply,
    /// Requests arrive, replies are replaced by random bytes, then the connection breaks.
    Garbage,
    /// Replies come byte by byte, one a second.
    Trickle,
    /// The holder's host is gone: it sends nothing, and acknowledges nothing that is sent to it. Later another process
    /// takes its place.
    Vanish,
    /// The server is stopped for longer than the ttl and resumed.
    ServerPause,
    /// The server is killed and started again.
    ServerKill,
    /// The leader of several servers is stopped until another one leads, and resumed.
    LeaderPause,
    /// The leader of several servers is killed, and started again when another one leads.
    LeaderKill,
    /// The server's wall clock jumps forward by more than the ttl, and stays there.
    ClockForward,
    /// The server's wall clock jumps back by more than the ttl, and stays there.
    ClockBack,
    /// The wall clock of all workers jumps forward by more than the ttl, and later back.
    ClientClock,
    /// The machine of the workers sleeps for longer than the ttl: all workers stand still, and so does the clock on
    /// which most programs measure time.
    Suspend,
    /// The store was unreachable without a fault of the plan. This kind is never planned.
    Outage,
}

impl FaultKind {
    /// All kinds that can be planned.
    pub const ALL: [Self; 17] = [
        Self::Pause,
        Self::Kill,
        Self::Delay,
        Self::Stall,
        Self::Cut,
        Self::LostReply,
        Self::Garbage,
        Self::Trickle,
        Self::Vanish,
        Self::ServerPause,
        Self::ServerKill,
        Self::LeaderPause,
        Self::LeaderKill,
        Self::ClockForward,
        Self::ClockBack,
        Self::ClientClock,
        Self::Suspend,
    ];

    /// The name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Kill => "kill",
            Self::Delay => "delay",
            Self::Stall => "stall",
            Self::Cut => "cut",
            Self::LostReply => "lost-reply",
            Self::Garbage => "garbage",
            Self::Trickle => "trickle",
            Self::Vanish => "vanish",
            Self::ServerPause => "server-pause",
            Self::ServerKill => "server-kill",
            Self::LeaderPause => "leader-pause",
            Self::LeaderKill => "leader-kill",
            Self::ClockForward => "clock-forward",
            Self::ClockBack => "clock-back",
            Self::ClientClock => "client-clock",
            Self::Suspend => "suspend",
            Self::Outage => "outage",
        }
    }

    /// Whether the fault happens between a worker and its store.
    pub const fn is_of_connection(self) -> bool {
        matches!(
            self,
            Self::Delay
                | Self::Stall
                | Self::Cut
                | Self::LostReply
                | Self::Garbage
                | Self::Trickle
                | Self::Vanish
        )
    }

    /// Whether the fault happens to servers or clocks, and so to all workers at once.
    pub const fn hits_all_workers(self) -> bool {
        !self.is_of_connection() && !matches!(self, Self::Pause | Self::Kill)
    }

    /// The rows of the guarantee table that say what still holds. Of several rows the one that promises least counts.
    pub const fn causes(self) -> &'static [Fault] {
        match self {
            Self::Pause => &[Fault::HolderPaused],
            Self::Kill | Self::Vanish => &[Fault::HolderKilled],
            // From outside, these three look alike.
            Self::Outage => &[Fault::StoreRestart, Fault::Failover, Fault::Partition],
            Self::Delay
            | Self::Stall
            | Self::Cut
            | Self::LostReply
            | Self::Garbage
            | Self::Trickle
            | Self::ServerPause => &[Fault::Partition],
            Self::ServerKill => &[Fault::StoreRestart],
            Self::LeaderPause | Self::LeaderKill => &[Fault::Failover],
            Self::ClockForward => &[Fault::StoreClockForward],
            Self::ClockBack => &[Fault::StoreClockBack],
            Self::ClientClock => &[Fault::ClientClock],
            Self::Suspend => &[Fault::ClientSuspended],
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::as_str).join(", ");
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| format!("there is no fault of this name; known are {}", known()))
    }
}

/// One fault of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedFault {
    /// When the fault begins, in nanoseconds after the start of the run.
    pub at: u64,
    /// The kind of the fault.
    pub kind: FaultKind,
    /// The duration in nanoseconds.
    pub lasts: u64,
    /// How late each message is, for [`FaultKind::Delay`].
    pub late: u64,
    /// The number of the name whose holder gets the fault.
    pub name: usize,
}

/// The schedule of a run: each kind in turn, in an order that changes from turn to turn.
///
/// Faults start about one ttl apart. With less time between faults mistakes would stay hidden: where nothing is granted,
/// nothing overlaps.
pub fn plan(
    seed: u64,
    kinds: &[FaultKind],
    ttl: Duration,
    lasts: Duration,
    names: usize,
) -> Vec<PlannedFault> {
    let ttl = nanos(ttl).max(1);
    let mut random = Random::new(seed);
    let mut part = |low: u64, high: u64| random.between(ttl / 10 * low, ttl / 10 * high);
    let mut plan = Vec::new();
    let mut at = part(5, 10);
    let mut turn: Vec<FaultKind> = Vec::new();
    // After the last fault a ttl is left, in which its effect can be seen.
    let end = nanos(lasts).saturating_sub(ttl);
    while at < end && !kinds.is_empty() {
        if turn.is_empty() {
            turn = kinds.to_vec();
        }
        let pick = part(0, 10) as usize % turn.len();
        let kind = turn.swap_remove(pick);
        let lasts = match kind {
            // For longer than the ttl, so that the store gives the name to another worker meanwhile.
            FaultKind::Pause
            | FaultKind::Stall
            | FaultKind::Trickle
            | FaultKind::Vanish
            | FaultKind::ServerPause
            | FaultKind::Suspend => part(12, 20),
            // How long an election takes is not known here; the environment waits for it.
            FaultKind::LeaderPause | FaultKind::LeaderKill => part(12, 20),
            // The clock jumps by this time; the fault does not last for it.
            FaultKind::ClockForward | FaultKind::ClockBack | FaultKind::ClientClock => part(12, 20),
            FaultKind::Delay => part(10, 20),
            FaultKind::LostReply | FaultKind::Garbage => part(2, 10),
            FaultKind::Kill | FaultKind::Cut | FaultKind::Outage => part(0, 5),
            // The server is back within the leases that it may have forgotten.
            FaultKind::ServerKill => part(0, 3),
        };
        plan.push(PlannedFault {
            at,
            kind,
            lasts,
            late: part(0, 2),
            name: part(0, 10) as usize % names.max(1),
        });
        // After a fault of all workers there is time for all of them to connect again.
        at += match kind.hits_all_workers() {
            true => lasts + part(15, 25),
            false => part(8, 16),
        };
    }
    plan
}
