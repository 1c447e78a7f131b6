//! One history: phases with faults and phases without, and what must be true at the end of each phase.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure::Client;
use tenure::time::Time;

use crate::history::start;
use crate::machine::{Machine, panics};
use crate::network::SimulatedStore;
use crate::random::Random;
use crate::state::{Counts, FaultLevel, Link, Mutant, Simulation};
use crate::transport::{MAX_DELAY, REQUEST_TIMEOUT, WAITER_TTL};
use crate::worker::Worker;

const CLIENTS: usize = 3;
const WORKERS: usize = 3;
/// The longest ttl that workers ask for while there are faults.
const MAX_TTL: Duration = Duration::from_secs(10);
const FAULT_PHASE: Duration = Duration::from_secs(900);
/// The number of short phases of work after a phase with faults. In the first third of them some messages are lost.
const SHORT_PHASES: u32 = 9;
const SHORT_PHASE: Duration = Duration::from_secs(6);
/// Every waiter gets the lock within this time after the faults: the restart guard, then dead holders and dead waiters,
/// each for at most a ttl or [`WAITER_TTL`], one after the other.
const SERVED_WITHIN: Duration = Duration::from_secs(60);
/// Without faults no hold is left to its lease, so after work every name is free within some messages.
const FREE_WITHIN: Duration = Duration::from_millis(100);
/// A release of unknown outcome is repeated until there is an answer: some ten tries, each with its time limit.
const RELEASED_WITHIN: Duration = Duration::from_secs(20);
/// More steps than this at one instant mean that a task never waits.
const MAX_STEPS_AT_ONE_INSTANT: u32 = 10_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    /// The number of phases with faults.
    pub(crate) fault_phases: u32,
    pub(crate) mutant: Option<Mutant>,
    /// Whether the whole history is kept, and not only its end.
    pub(crate) keeps_all: bool,
}

#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) counts: Counts,
    pub(crate) lasted: Duration,
    pub(crate) digest: u64,
    pub(crate) history: String,
}

/// The violation, the seed that repeats it, and the end of the history.
pub(crate) struct Failure {
    pub(crate) seed: u64,
    pub(crate) at: Duration,
    pub(crate) what: String,
    history: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, at, what, .. } = self;
        write!(
            f,
            "seed {seed}, after {:.3} virtual seconds: {what}",
            at.as_secs_f64()
        )
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}{self}\nrepeat it with TENURE_SIMULATION_SEED={}",
            self.history, self.seed
        )
    }
}

/// A scheduled action.
#[derive(Clone, Copy, Debug)]
enum Action {
    Fault,
    Thaw(usize),
    Heal(usize),
    Up,
    ClientNotices(usize),
    StoreNotices(usize),
}

struct Director {
    simulation: Arc<Simulation>,
    machine: Machine,
    random: Random,
    agenda: BTreeMap<(Time, u64), Action>,
    actions: u64,
    /// The panics of earlier histories on this thread.
    panics: u32,
}

pub(crate) fn run(setup: Setup) -> Result<Report, Failure> {
    let mut random = Random::new(setup.seed);
    let simulation = Simulation::new(random.number(), CLIENTS, setup.mutant, setup.keeps_all);
    let simulation = Arc::new(simulation);
    let mut director = Director {
        machine: Machine::new(CLIENTS),
        random,
        simulation: simulation.clone(),
        agenda: BTreeMap::new(),
        actions: 0,
        panics: panics(),
    };
    (0..CLIENTS).for_each(|client| director.begin(client));
    let result = (0..setup.fault_phases).try_for_each(|_| director.round());
    let lasted = simulation.clock.now().since(start());
    result.map_err(|what| Failure {
        seed: setup.seed,
        at: lasted,
        what,
        history: simulation.history(),
    })?;
    let counts = simulation.state().counts;
    Ok(Report {
        counts,
        lasted,
        digest: simulation.digest(),
        history: simulation.history(),
    })
}

impl Director {
    /// Starts the process of a client, with its workers.
    fn begin(&mut self, number: usize) {
        let network = self.machine.network();
        let handle = self.machine.client(number).clone();
        let _inside = handle.enter();
        let store = SimulatedStore::new(self.simulation.clone(), number, network.clone());
        let client = Client::from_store(store).unwrap();
        for _ in 0..WORKERS {
            let worker = Worker {
                simulation: self.simulation.clone(),
                number,
                client: client.clone(),
                random: Random::new(self.random.number()),
                network: network.clone(),
            };
            handle.spawn(worker.live());
        }
    }

    /// Kills a process: it sends nothing any more and has no claims. The store notices that some time later.
    fn kill(&mut self, client: usize) {
        self.note(client, "is killed");
        let link = {
            let link = &mut self.simulation.state().links[client];
            // The new process runs on the same machine, with the same network and clock.
            let mut next = Link::new(link.second);
            next.is_cut = link.is_cut;
            std::mem::replace(link, next)
        };
        link.is_dead.raise();
        self.machine.kill(client);
        self.simulation.remove(client);
        let (simulation, notices) = (self.simulation.clone(), self.random.any_length(3_000));
        self.machine.network().spawn(async move {
            simulation.sleep(notices).await;
            link.store_notices.raise();
        });
        self.begin(client);
    }

    /// A phase with faults, the wait for its effects, then short phases with few faults or none.
    fn round(&mut self) -> Result<(), String> {
        let resting = |simulation: &Simulation| simulation.resting() == CLIENTS * WORKERS;
        self.simulation.begin_work();
        self.simulation.state().faults.level = FaultLevel::Everything;
        self.schedule(Duration::ZERO, Action::Fault);
        self.pass(FAULT_PHASE, |_| false)?;
        self.end_faults();
        self.simulation.end_work();
        if !self.pass(SERVED_WITHIN, resting)? {
            let left = CLIENTS * WORKERS - self.simulation.resting();
            return Err(format!("{left} workers wait for ever after the faults"));
        }
        // A delayed request may arrive only now, and be granted to a client that is gone.
        self.pass(MAX_DELAY, |_| false)?;
        if !self.pass(MAX_TTL + WAITER_TTL, Simulation::is_free)? {
            return Err("something is left behind when all leases are over".into());
        }
        for short_phase in 0..SHORT_PHASES {
            let (fault_level, bound) = if short_phase < SHORT_PHASES / 3 {
                (FaultLevel::FewLosses, RELEASED_WITHIN)
            } else {
                (FaultLevel::Nothing, FREE_WITHIN)
            };
            self.short_phase(fault_level, bound)?;
        }
        Ok(())
    }

    /// A short phase of work, after which all names must be free long before a lease ends.
    fn short_phase(&mut self, fault_level: FaultLevel, bound: Duration) -> Result<(), String> {
        self.simulation.state().faults.level = fault_level;
        self.simulation.begin_work();
        self.pass(SHORT_PHASE, |_| false)?;
        self.simulation.end_work();
        if !self.pass(SERVED_WITHIN, |simulation| {
            simulation.resting() == CLIENTS * WORKERS
        })? {
            return Err(format!("a worker waits for ever: {fault_level:?}"));
        }
        if !self.pass(bound, Simulation::is_free)? {
            return Err(format!("something is left to its lease: {fault_level:?}"));
        }
        self.simulation.state().faults.level = FaultLevel::NoNew;
        Ok(())
    }

    fn end_faults(&mut self) {
        self.agenda.clear();
        for client in 0..CLIENTS {
            self.machine.freeze(client, false);
            self.simulation.state().links[client].is_cut = false;
            self.notices(client, true);
            self.notices(client, false);
        }
        let mut state = self.simulation.state();
        state.faults.level = FaultLevel::NoNew;
        state.faults.is_down = false;
    }

    fn schedule(&mut self, pause: Duration, perform: Action) {
        self.actions += 1;
        let at = self.simulation.clock.now().after(pause);
        self.agenda.insert((at, self.actions), perform);
    }

    /// Lets that much time pass, or less if `done` is true before. Returns whether `done` is true.
    fn pass(&mut self, time: Duration, done: impl Fn(&Simulation) -> bool) -> Result<bool, String> {
        let end = self.simulation.clock.now().after(time);
        let mut spins = 0;
        loop {
            let first = self.random.below(CLIENTS);
            self.machine.run_until_idle(first);
            self.simulation
                .check_losses(|client| self.machine.is_frozen(client));
            if panics() > self.panics {
                return Err("a task panicked".into());
            }
            if let Some(violation) = self.simulation.violation() {
                return Err(violation);
            }
            let now = self.simulation.clock.now();
            if done(&self.simulation) || now >= end {
                return Ok(done(&self.simulation));
            }
            let due = self.agenda.keys().next().map(|(at, _)| *at);
            let wake = self.simulation.store.next_wake();
            let next = [due, wake].into_iter().flatten().fold(end, Time::min);
            spins = if next > now { 0 } else { spins + 1 };
            if spins > MAX_STEPS_AT_ONE_INSTANT {
                return Err("time stands still: something spins".into());
            }
            self.simulation.store.advance(next.since(now));
            while let Some(entry) = self.agenda.first_entry()
                && entry.key().0 <= next
            {
                let perform = entry.remove();
                self.perform(perform);
            }
        }
    }

    fn perform(&mut self, perform: Action) {
        match perform {
            Action::Fault => self.inject_fault(),
            Action::Thaw(client) => {
                self.note(client, "goes on");
                self.machine.freeze(client, false);
            }
            Action::Heal(client) => {
                self.note(client, "is reachable again");
                self.simulation.state().links[client].is_cut = false;
            }
            Action::Up => {
                self.note(0, "the store is back");
                self.simulation.state().faults.is_down = false;
            }
            Action::ClientNotices(client) => self.notices(client, true),
            Action::StoreNotices(client) => self.notices(client, false),
        }
    }

    fn notices(&self, client: usize, is_client: bool) {
        let mut state = self.simulation.state();
        let link = &mut state.links[client];
        let flag = if is_client {
            &mut link.client_notices
        } else {
            &mut link.store_notices
        };
        std::mem::take(flag).raise();
    }

    fn note(&self, client: usize, what: &'static str) {
        self.simulation.note(client, what, "", 0);
    }

    /// Injects a fault of a client or of the store, and schedules the next one.
    fn inject_fault(&mut self) {
        let client = self.random.below(CLIENTS);
        let lasts = self.random.any_length(30_000);
        match self.random.below(10) {
            0..4 => {
                if !self.machine.is_frozen(client) {
                    self.note(client, "is stopped");
                    self.machine.freeze(client, true);
                    self.schedule(lasts, Action::Thaw(client));
                    if lasts > WAITER_TTL {
                        self.schedule(WAITER_TTL, Action::StoreNotices(client));
                    }
                }
            }
            4..7 => {
                let is_cut =
                    std::mem::replace(&mut self.simulation.state().links[client].is_cut, true);
                if !is_cut {
                    self.note(client, "is cut off");
                    self.schedule(lasts, Action::Heal(client));
                    self.schedule(REQUEST_TIMEOUT, Action::ClientNotices(client));
                    self.schedule(WAITER_TTL, Action::StoreNotices(client));
                }
            }
            7 => self.kill(client),
            8 => {
                let is_down = std::mem::replace(&mut self.simulation.state().faults.is_down, true);
                if !is_down {
                    self.note(0, "the store is down");
                    self.schedule(lasts / 3, Action::Up);
                    for client in 0..CLIENTS {
                        self.schedule(REQUEST_TIMEOUT, Action::ClientNotices(client));
                        self.schedule(WAITER_TTL, Action::StoreNotices(client));
                    }
                }
            }
            _ => {
                self.note(0, "the store forgets all");
                let guard = if self.simulation.has_mutant(Mutant::NoRestartGuard) {
                    Duration::ZERO
                } else {
                    MAX_TTL
                };
                self.simulation.store.restart(guard);
            }
        }
        self.simulation.state().counts.faults += 1;
        let pause = self.random.millis(3_000, 25_000);
        self.schedule(pause, Action::Fault);
    }
}
