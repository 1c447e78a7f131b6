//! One history: phases with faults and phases without, and what must be true at the end of each phase.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure::Client;
use tenure::time::Time;

use crate::history::start;
use crate::machine::{Machine, panics};
use crate::network::SimulatedBackend;
use crate::random::Random;
use crate::state::{Counts, FaultLevel, Link, Mutant, Simulation};
use crate::transport::{MAX_DELAY, REQUEST_TIMEOUT, WAITER_TTL};
use crate::worker::Worker;

const CLIENTS: usize = 3;
const WORKERS: usize = 3;
/// The longest ttl that workers ask for while there are faults.
const MAX_TTL: Duration = Duration::from_secs(10);
const FAULT_PHASE: Duration = Duration::from_secs(900);
/// How many short phases of work follow a phase with faults. In the first third of them some messages are lost.
const SHORT_PHASES: u32 = 9;
const SHORT_PHASE: Duration = Duration::from_secs(6);
/// Every waiter is served within this time after the faults: the guard of a restart, then dead holders and dead
/// waiters, each for at most a ttl or [`WAITER_TTL`], one after the other.
const SERVED_WITHIN: Duration = Duration::from_secs(60);
/// Without faults no hold is left to its lease, so after work every name is free within some messages.
const FREE_WITHIN: Duration = Duration::from_millis(100);
/// A release of unknown outcome is repeated until there is an answer: some ten tries, each with its time limit.
const RELEASED_WITHIN: Duration = Duration::from_secs(20);
/// More steps than this at one instant mean that a task spins.
const MAX_STEPS_AT_ONE_INSTANT: u32 = 10_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    /// How many phases with faults there are.
    pub(crate) fault_phases: u32,
    pub(crate) mutant: Option<Mutant>,
    /// Keep the whole history, not its tail.
    pub(crate) keeps_all: bool,
}

#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) counts: Counts,
    pub(crate) lasted: Duration,
    pub(crate) digest: u64,
    pub(crate) history: String,
}

/// What was found, where it is found again, and how it came to it.
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

/// What is going to happen.
#[derive(Clone, Copy, Debug)]
enum Act {
    Trouble,
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
    agenda: BTreeMap<(Time, u64), Act>,
    acts: u64,
    /// Those of histories before.
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
        acts: 0,
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
    /// The process of a client, with its workers.
    fn begin(&mut self, number: usize) {
        let network = self.machine.network();
        let handle = self.machine.client(number).clone();
        let _inside = handle.enter();
        let backend = SimulatedBackend::new(self.simulation.clone(), number, network.clone());
        let client = Client::from_backend(backend).unwrap();
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

    /// A process dies: it sends nothing any more, and believes nothing. The store notices at some time.
    fn kill(&mut self, client: usize) {
        self.note(client, "is killed");
        let link = {
            let link = &mut self.simulation.state().links[client];
            // Its machine is the same, and so are its wire and its clock.
            let mut next = Link::new(link.second);
            next.is_cut = link.is_cut;
            std::mem::replace(link, next)
        };
        link.is_dead.raise();
        self.machine.kill(client);
        self.simulation.forget(client);
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
        self.simulation.state().fault_level = FaultLevel::Everything;
        self.later(Duration::ZERO, Act::Trouble);
        self.pass(FAULT_PHASE, |_| false)?;
        self.end_faults();
        self.simulation.end_work();
        if !self.pass(SERVED_WITHIN, resting)? {
            let left = CLIENTS * WORKERS - self.simulation.resting();
            return Err(format!("{left} workers wait for ever after the faults"));
        }
        // A delayed request arrives now, and may be granted to a client that is gone.
        self.pass(MAX_DELAY, |_| false)?;
        if !self.pass(MAX_TTL + WAITER_TTL, Simulation::is_free)? {
            return Err("something is left behind when all leases are over".into());
        }
        for bout in 0..SHORT_PHASES {
            let (fault_level, bound) = if bout < SHORT_PHASES / 3 {
                (FaultLevel::FewLosses, RELEASED_WITHIN)
            } else {
                (FaultLevel::Nothing, FREE_WITHIN)
            };
            self.bout(fault_level, bound)?;
        }
        Ok(())
    }

    /// Some work, and then all has to be free long before a lease ends.
    fn bout(&mut self, fault_level: FaultLevel, bound: Duration) -> Result<(), String> {
        self.simulation.state().fault_level = fault_level;
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
        self.simulation.state().fault_level = FaultLevel::NoNew;
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
        state.fault_level = FaultLevel::NoNew;
        state.is_down = false;
    }

    fn later(&mut self, pause: Duration, act: Act) {
        self.acts += 1;
        let at = self.simulation.clock.now().after(pause);
        self.agenda.insert((at, self.acts), act);
    }

    /// Lets that much time pass, or less if `done` is true before; says whether it is.
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
                let act = entry.remove();
                self.act(act);
            }
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Trouble => self.trouble(),
            Act::Thaw(client) => {
                self.note(client, "goes on");
                self.machine.freeze(client, false);
            }
            Act::Heal(client) => {
                self.note(client, "is reachable again");
                self.simulation.state().links[client].is_cut = false;
            }
            Act::Up => {
                self.note(0, "the store is back");
                self.simulation.state().is_down = false;
            }
            Act::ClientNotices(client) => self.notices(client, true),
            Act::StoreNotices(client) => self.notices(client, false),
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

    /// Something happens to somebody, and the next thing is planned.
    fn trouble(&mut self) {
        let client = self.random.below(CLIENTS);
        let lasts = self.random.any_length(30_000);
        match self.random.below(10) {
            0..4 => {
                if !self.machine.is_frozen(client) {
                    self.note(client, "is stopped");
                    self.machine.freeze(client, true);
                    self.later(lasts, Act::Thaw(client));
                    if lasts > WAITER_TTL {
                        self.later(WAITER_TTL, Act::StoreNotices(client));
                    }
                }
            }
            4..7 => {
                let is_cut =
                    std::mem::replace(&mut self.simulation.state().links[client].is_cut, true);
                if !is_cut {
                    self.note(client, "is cut off");
                    self.later(lasts, Act::Heal(client));
                    self.later(REQUEST_TIMEOUT, Act::ClientNotices(client));
                    self.later(WAITER_TTL, Act::StoreNotices(client));
                }
            }
            7 => self.kill(client),
            8 => {
                let is_down = std::mem::replace(&mut self.simulation.state().is_down, true);
                if !is_down {
                    self.note(0, "the store is down");
                    self.later(lasts / 3, Act::Up);
                    for client in 0..CLIENTS {
                        self.later(REQUEST_TIMEOUT, Act::ClientNotices(client));
                        self.later(WAITER_TTL, Act::StoreNotices(client));
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
        self.later(pause, Act::Trouble);
    }
}
