//! What a store promises, as data: it makes the tables in the docs, answers `tenure check`,
//! and picks the conformance cases.

use std::fmt;

use crate::options::{Fairness, Mode, Options};

/// Everything that can go wrong between a holder and its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Fault {
    /// The holding process is killed.
    HolderKilled,
    /// The holding process stops for longer than its ttl and goes on (SIGSTOP, a long page-in).
    HolderPaused,
    /// Holder and store cannot talk for longer than the ttl.
    Partition,
    /// The store is killed and started again.
    StoreRestart,
    /// The store's machine loses power.
    PowerLoss,
    /// The store's leader or primary is replaced.
    Failover,
    /// The store's wall clock jumps forward.
    StoreClockForward,
    /// The store's wall clock jumps back.
    StoreClockBack,
    /// The client's wall clock jumps.
    ClientClock,
    /// The client's machine is suspended and woken up.
    ClientSuspended,
}

impl Fault {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 10] = [
        Self::HolderKilled,
        Self::HolderPaused,
        Self::Partition,
        Self::StoreRestart,
        Self::PowerLoss,
        Self::Failover,
        Self::StoreClockForward,
        Self::StoreClockBack,
        Self::ClientClock,
        Self::ClientSuspended,
    ];

    /// The name used on the command line and as column head.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HolderKilled => "kill",
            Self::HolderPaused => "pause",
            Self::Partition => "partition",
            Self::StoreRestart => "restart",
            Self::PowerLoss => "power",
            Self::Failover => "failover",
            Self::StoreClockForward => "clock-forward",
            Self::StoreClockBack => "clock-back",
            Self::ClientClock => "client-clock",
            Self::ClientSuspended => "suspend",
        }
    }

    /// What happens, in words.
    pub const fn description(self) -> &'static str {
        match self {
            Self::HolderKilled => "the holding process is killed",
            Self::HolderPaused => "the holder stops for longer than its ttl, then goes on",
            Self::Partition => "holder and store cannot talk for longer than the ttl",
            Self::StoreRestart => "the store is killed and started again",
            Self::PowerLoss => "the store's machine loses power",
            Self::Failover => "the store's leader or primary is replaced",
            Self::StoreClockForward => "the store's wall clock jumps forward",
            Self::StoreClockBack => "the store's wall clock jumps back",
            Self::ClientClock => "the client's wall clock jumps",
            Self::ClientSuspended => "the client's machine is suspended",
        }
    }
}

impl std::str::FromStr for Fault {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|fault| fault.as_str() == text)
            .ok_or_else(|| {
                let known: Vec<_> = Self::ALL.into_iter().map(Self::as_str).collect();
                crate::Error::new(
                    crate::ErrorKind::Invalid,
                    format!(
                        "there is no fault called \"{}\"; known are {}",
                        crate::name::Escaped(text),
                        known.join(", ")
                    ),
                )
            })
    }
}

/// What still holds when a fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Promise {
    /// Two clients may believe at the same time that they hold the name.
    Nothing,
    /// No two clients believe it at the same time; a late write of a former holder is possible without fencing.
    Claims,
    /// No two clients believe it at the same time, and no late write of a former holder is possible either.
    Effects,
    /// The fault cannot happen to this store.
    NotApplicable,
}

/// One cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cell {
    /// The fault.
    pub fault: Fault,
    /// What holds.
    pub promise: Promise,
    /// The next holder may have to wait, at most as long as `note` says.
    pub late: bool,
    /// Fencing tokens may go backward.
    pub token_regress: bool,
    /// The reason in one line.
    pub note: &'static str,
}

impl Cell {
    /// A cell without a delay, where tokens never go backward.
    pub const fn new(fault: Fault, promise: Promise, note: &'static str) -> Self {
        Self {
            fault,
            promise,
            late: false,
            token_regress: false,
            note,
        }
    }

    /// A cell for [`Promise::Nothing`].
    pub const fn nothing(fault: Fault, note: &'static str) -> Self {
        Self::new(fault, Promise::Nothing, note)
    }

    /// A cell for [`Promise::Claims`].
    pub const fn claims(fault: Fault, note: &'static str) -> Self {
        Self::new(fault, Promise::Claims, note)
    }

    /// A cell for [`Promise::Effects`].
    pub const fn effects(fault: Fault, note: &'static str) -> Self {
        Self::new(fault, Promise::Effects, note)
    }

    /// A cell for [`Promise::NotApplicable`].
    pub const fn not_applicable(fault: Fault, note: &'static str) -> Self {
        Self::new(fault, Promise::NotApplicable, note)
    }

    /// One cell per [`Fault`]: the cell from `own`, or else that of a server whose wall clock ends leases.
    ///
    /// What a restart or a loss of power does depends on the settings of the server, so `own` has to say it.
    pub fn of_lease_store(own: &[Self]) -> Vec<Self> {
        let cell = |fault| {
            let own = own.iter().find(|cell| cell.fault == fault);
            own.or(LEASE_STORE.iter().find(|cell| cell.fault == fault))
        };
        Fault::ALL.into_iter().filter_map(cell).copied().collect()
    }

    /// The same, with a delay for the next holder.
    #[must_use]
    pub const fn late(mut self) -> Self {
        self.late = true;
        self
    }

    /// The same, where tokens may go backward.
    #[must_use]
    pub const fn token_regress(mut self) -> Self {
        self.token_regress = true;
        self
    }
}

/// What holds for a server whose wall clock ends leases, unless a store says otherwise.
const LEASE_STORE: [Cell; 8] = [
    Cell::effects(Fault::HolderKilled, "the lease ends within one ttl").late(),
    Cell::claims(
        Fault::HolderPaused,
        "the holder's deadline comes before the end of the lease; only the token stops a late write",
    ),
    Cell::claims(
        Fault::Partition,
        "the holder's deadline comes before the end of the lease; only the token stops a late write",
    ),
    Cell::not_applicable(Fault::Failover, "there is no replica"),
    Cell::nothing(
        Fault::StoreClockForward,
        "leases end by the server's wall clock",
    ),
    Cell::claims(
        Fault::StoreClockBack,
        "the lease of a dead holder lasts longer by the size of the jump",
    )
    .late(),
    Cell::effects(
        Fault::ClientClock,
        "the wall clock of a client decides nothing",
    ),
    Cell::claims(
        Fault::ClientSuspended,
        "deadlines are measured on a clock that continues during the suspension",
    ),
];

/// `S`: exclusion, and no late writes. `E`: exclusion. `X`: neither. `-`: the fault cannot happen.
/// ` L`: the next holder may have to wait. ` r`: tokens may go backward.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.promise {
            Promise::Nothing => "X",
            Promise::Claims => "E",
            Promise::Effects => "S",
            Promise::NotApplicable => "-",
        })?;
        if self.late {
            f.write_str(" L")?;
        }
        if self.token_regress {
            f.write_str(" r")?;
        }
        Ok(())
    }
}

/// The order in which waiters of different processes are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// First come, first served.
    Fair,
    /// No order is promised; the text says what happens in practice.
    Unordered(&'static str),
}

/// Which holds a store can [detach](crate::Guard::detach) from their client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DetachedHolds {
    /// None: a hold ends with its client.
    None,
    /// Exclusive holds.
    Exclusive,
    /// Holds of each mode that the store has.
    EachMode,
}

/// What a configuration of a store can do and what it promises.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Guarantees {
    /// The store, by its URL scheme.
    pub scheme: &'static str,
    /// The settings of the store for which this is true; empty where settings make no difference.
    pub setting: String,
    /// Whether exclusive holds are a mode of their own. In a semaphore of another library they are not.
    pub exclusive: bool,
    /// Whether shared holds are possible.
    pub shared: bool,
    /// Whether upgradable holds are possible.
    pub upgradable: bool,
    /// Whether permits are possible.
    pub permits: bool,
    /// Whether `min_hold` is possible.
    pub min_hold: bool,
    /// Whether `lock_delay` is possible.
    pub lock_delay: bool,
    /// Which holds can be detached.
    pub detached: DetachedHolds,
    /// The reason why an unsupported option is not possible here, for error messages; empty if there is none to give.
    pub why_not: &'static str,
    /// Order of waiters.
    pub order: Order,
    /// Whether waiters for upgradable holds have their places among all waiters. If not, they wait for each other first.
    pub upgradable_in_turn: bool,
    /// What keeps a hold alive.
    pub liveness: &'static str,
    /// Whose clock decides that a lease is over.
    pub clock: &'static str,
    /// How a waiter learns that it is its turn.
    pub waiting: &'static str,
    /// Where the fencing token comes from and how far it keeps growing.
    pub token: &'static str,
    /// How the holder learns that it lost, and how late at most.
    pub loss: &'static str,
    /// How an observer of an election learns of another leader, and how late at most; empty: the store has no elections.
    pub observers: &'static str,
    /// What the store is fit for.
    pub fit: &'static str,
    /// One cell per [`Fault`], in that order.
    pub faults: Vec<Cell>,
}

impl Guarantees {
    /// A store that can do nothing but exclusive holds; fill in the rest.
    pub fn new(scheme: &'static str, order: Order, faults: Vec<Cell>) -> Self {
        Self {
            scheme,
            setting: String::new(),
            exclusive: true,
            shared: false,
            upgradable: false,
            permits: false,
            min_hold: false,
            lock_delay: false,
            detached: DetachedHolds::None,
            why_not: "",
            order,
            upgradable_in_turn: true,
            liveness: "",
            clock: "",
            waiting: "",
            token: "",
            loss: "",
            observers: "",
            fit: "",
            faults,
        }
    }

    /// Whether holds of this mode can be detached.
    pub fn detaches(&self, mode: Mode) -> bool {
        match self.detached {
            DetachedHolds::None => false,
            DetachedHolds::Exclusive => mode == Mode::Exclusive,
            DetachedHolds::EachMode => true,
        }
    }

    /// Which holds can be detached, in words.
    pub fn detached_text(&self) -> &'static str {
        match self.detached {
            DetachedHolds::None => "no",
            DetachedHolds::Exclusive => "exclusive",
            DetachedHolds::EachMode => "yes",
        }
    }

    /// The order of waiters, in words.
    pub fn order_text(&self) -> &'static str {
        match self.order {
            Order::Fair if self.upgradable_in_turn => "first come, first served",
            Order::Fair => {
                "first come, first served, but waiters for upgradable holds only among themselves"
            }
            Order::Unordered(practice) => practice,
        }
    }

    /// How an observer of an election learns of another leader, in words.
    pub fn observers_text(&self) -> &'static str {
        match self.observers {
            "" => "no elections",
            observers => observers,
        }
    }

    /// The cell for `fault`, if it is filled in.
    pub fn cell(&self, fault: Fault) -> Option<&Cell> {
        self.faults.iter().find(|cell| cell.fault == fault)
    }

    /// Whether exclusion holds under `fault`: no two clients believe at the same time that they hold the name.
    pub fn survives(&self, fault: Fault) -> bool {
        self.cell(fault)
            .is_some_and(|cell| cell.promise != Promise::Nothing)
    }
}

/// What a caller may ask for that not every store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capability {
    /// [`Mode::Shared`].
    Shared,
    /// [`Mode::Upgradable`].
    Upgradable,
    /// [`Mode::Permits`].
    Permits,
    /// [`Options::fair`](crate::Options::fair).
    Fair,
    /// [`Options::min_hold`](crate::Options::min_hold).
    MinHold,
    /// [`Options::lock_delay`](crate::Options::lock_delay).
    LockDelay,
    /// [`Client::election`](crate::Client::election).
    Elections,
    /// [`Guard::detach`](crate::Guard::detach).
    Detach,
}

impl Capability {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Shared,
        Self::Upgradable,
        Self::Permits,
        Self::Fair,
        Self::MinHold,
        Self::LockDelay,
        Self::Elections,
        Self::Detach,
    ];

    /// Those that the options of a lock ask for.
    pub const OPTIONS: [Self; 6] = [
        Self::Shared,
        Self::Upgradable,
        Self::Permits,
        Self::Fair,
        Self::MinHold,
        Self::LockDelay,
    ];

    /// As it is called in errors.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared holds",
            Self::Upgradable => "upgradable holds",
            Self::Permits => "permits",
            Self::Fair => "fair order",
            Self::MinHold => "`min_hold`",
            Self::LockDelay => "`lock_delay`",
            Self::Elections => "elections",
            Self::Detach => "detached holds",
        }
    }

    /// The first thing that `options` ask for and a store with these guarantees does not have.
    pub fn missing(options: &Options, store: &Guarantees) -> Option<Self> {
        Self::OPTIONS
            .into_iter()
            .find(|it| it.is_asked(options) && !it.is_in_for(options, store))
    }

    fn is_asked(self, options: &Options) -> bool {
        match self {
            Self::Shared => options.mode == Mode::Shared,
            Self::Upgradable => options.mode == Mode::Upgradable,
            Self::Permits => matches!(options.mode, Mode::Permits { .. }),
            Self::Fair => options.fair == Fairness::Fair,
            Self::MinHold => !options.min_hold.is_zero(),
            Self::LockDelay => !options.lock_delay.is_zero(),
            // No option of a lock asks for it.
            Self::Elections | Self::Detach => false,
        }
    }

    /// Whether a store with these guarantees has it for a request with these options.
    fn is_in_for(self, options: &Options, store: &Guarantees) -> bool {
        let is_out_of_turn = options.mode == Mode::Upgradable && !store.upgradable_in_turn;
        self.is_in(store) && !(self == Self::Fair && is_out_of_turn)
    }

    /// Whether a store with these guarantees has it.
    pub fn is_in(self, store: &Guarantees) -> bool {
        match self {
            Self::Shared => store.shared,
            Self::Upgradable => store.upgradable,
            Self::Permits => store.permits,
            Self::Fair => store.order == Order::Fair,
            Self::MinHold => store.min_hold,
            Self::LockDelay => store.lock_delay,
            Self::Elections => !store.observers.is_empty(),
            Self::Detach => store.detached != DetachedHolds::None,
        }
    }
}
