//! The state that all tasks of one history share: the store, clients and names, and the first violation.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tenure::memory;
use tenure::store::Store as _;
use tenure::{LockName, OwnerId};
use tenure_core::rt::{Clock, Flag};
use tokio::sync::mpsc::UnboundedSender;

use crate::claims::{Claims, Name};
use crate::history::{Event, History};
use crate::random::Random;

pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];

/// A deliberate mistake, which the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// Deadlines count from the reply.
    DeadlineFromReply,
    /// A renewal without an answer counts as a success.
    RenewalAlwaysYes,
    /// A release frees the name without comparing the owner.
    ReleaseByName,
    /// After a restart tokens begin again.
    TokenRepeats,
    /// A waiter that gives up stays in the queue, and a grant to it is not given back.
    CancelSwallowsGrant,
    /// A store that forgot its holds grants at once.
    NoRestartGuard,
    /// The store's clock is faster than ours by more than the margin.
    FastStore,
    /// The store grants one permit too many.
    PermitTooMany,
}

/// Which faults happen to messages and processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultLevel {
    /// Every kind of fault.
    Everything,
    /// No new fault; earlier faults may still have effects.
    NoNew,
    /// Some messages are lost, and there is no other fault. Leases are long, so no hold ends by itself.
    FewLosses,
    /// No fault, so no request may fail. Leases are long as well.
    Nothing,
}

pub(crate) struct Simulation {
    pub(crate) store: Arc<memory::Store>,
    pub(crate) clock: Clock,
    pub(crate) mutant: Option<Mutant>,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub(crate) random: Random,
    pub(crate) faults: Faults,
    pub(crate) links: Vec<Link>,
    pub(crate) counts: Counts,
    /// Holds that were ended by `break_lock`. Their holders claim them until they are told, as documented.
    pub(crate) broken: BTreeSet<(usize, u64)>,
    pub(crate) names: [Name; NAMES.len()],
    work: Work,
    pub(crate) claims: Claims,
    pub(crate) history: History,
    pub(crate) violation: Option<String>,
}

/// The faults that may happen, and the state of the store.
#[derive(Clone, Copy)]
pub(crate) struct Faults {
    pub(crate) level: FaultLevel,
    /// Whether the store answers no request.
    pub(crate) is_down: bool,
}

/// The connection of one client to the store.
pub(crate) struct Link {
    pub(crate) is_cut: bool,
    /// The length of a second of the client's clock, in ms of the store's clock.
    pub(crate) second: u32,
    /// Raised when the client's process is killed.
    pub(crate) is_dead: Arc<Flag>,
    /// Raised when the client notices that its connection is gone.
    pub(crate) client_notices: Arc<Flag>,
    /// Raised when the store notices that, and removes the waiters of this connection.
    pub(crate) store_notices: Arc<Flag>,
    /// Receives the owner of a hold that was ended by `break_lock`.
    pub(crate) losses: Option<UnboundedSender<OwnerId>>,
}

/// Seconds of clocks that differ by less than the margin for clock rates.
const SECONDS: [u32; 5] = [991, 996, 1_000, 1_004, 1_009];

impl Link {
    pub(crate) fn new(second: u32) -> Self {
        Self {
            is_cut: false,
            second,
            is_dead: Arc::default(),
            client_notices: Arc::default(),
            store_notices: Arc::default(),
            losses: None,
        }
    }
}

/// The times at which the workers work.
#[derive(Default)]
struct Work {
    is_on: bool,
    resting: usize,
    /// Raised when work begins.
    begin: Arc<Flag>,
    /// Raised when work is to end.
    end: Arc<Flag>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) acquired: u64,
    /// Acquired while another client had the name, as shared holds and permits may be.
    pub(crate) together: u64,
    pub(crate) cancelled: u64,
    pub(crate) lost: u64,
    pub(crate) writes: u64,
    pub(crate) refused_writes: u64,
    pub(crate) late_writes: u64,
    pub(crate) messages: u64,
    pub(crate) message_faults: u64,
    pub(crate) faults: u64,
}

impl Simulation {
    pub(crate) fn new(seed: u64, clients: usize, mutant: Option<Mutant>, keeps_all: bool) -> Self {
        let store = Arc::new(memory::Store::with_virtual_clock());
        store.seed(seed ^ 0x5EED);
        let mut random = Random::new(seed);
        let links = (0..clients)
            .map(|_| Link::new(random.pick(&SECONDS)))
            .collect();
        Self {
            clock: store.clock(),
            store,
            mutant,
            state: Mutex::new(State {
                random,
                faults: Faults {
                    level: FaultLevel::NoNew,
                    is_down: false,
                },
                links,
                counts: Counts::default(),
                broken: BTreeSet::new(),
                names: Default::default(),
                work: Work::default(),
                claims: Claims::default(),
                history: History {
                    keeps_all,
                    ..History::default()
                },
                violation: None,
            }),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn has_mutant(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    pub(crate) async fn sleep(&self, pause: Duration) {
        self.clock.sleep_until(self.clock.now().after(pause)).await;
    }

    pub(crate) fn note(&self, client: usize, what: &'static str, name: &'static str, number: u64) {
        let at = self.clock.now();
        self.state().history.note(Event {
            at,
            client,
            what,
            name,
            number,
        });
    }

    pub(crate) fn violated(&self, what: String) {
        self.state().violation.get_or_insert(what);
    }

    pub(crate) fn violation(&self) -> Option<String> {
        self.state().violation.clone()
    }

    pub(crate) fn history(&self) -> String {
        let state = self.state();
        let lines = state.history.tail.iter().map(|event| format!("{event}\n"));
        lines.collect()
    }

    pub(crate) fn digest(&self) -> u64 {
        self.state().history.digest
    }

    /// Whether the store has no hold and no waiter.
    pub(crate) fn is_free(&self) -> bool {
        NAMES.iter().all(|name| {
            let status = self.store.status(&LockName::new(name).unwrap());
            status.holds.is_empty() && status.queue.is_none_or(|queue| queue.is_empty())
        })
    }

    // When workers work.

    pub(crate) fn begin_work(&self) {
        let mut state = self.state();
        let begin = std::mem::take(&mut state.work.begin);
        state.work.end = Arc::default();
        state.work.is_on = true;
        state.work.resting = 0;
        begin.raise();
    }

    pub(crate) fn end_work(&self) {
        let mut state = self.state();
        state.work.is_on = false;
        state.work.end.raise();
    }

    pub(crate) fn resting(&self) -> usize {
        self.state().work.resting
    }

    /// Waits for work. Returns the flag that is raised when work is to end.
    pub(crate) async fn work(&self) -> Arc<Flag> {
        let begin = {
            let mut state = self.state();
            if state.work.is_on {
                return state.work.end.clone();
            }
            state.work.resting += 1;
            state.work.begin.clone()
        };
        begin.raised().await;
        self.state().work.end.clone()
    }
}
