//! One history: storms and fair weather, what goes wrong in between, and what must be over when.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure::Client;
use tenure::time::Time;

use crate::history::start;
use crate::machine::{Machine, panics};
use crate::network::Door;
use crate::random::Random;
use crate::way::{LATEST, LIMIT, PLACE};
use crate::worker::Worker;
use crate::world::{Counts, Link, Plant, Weather, World};

const CLIENTS: usize = 3;
const WORKERS: usize = 3;
/// The longest ttl that workers ask for in a storm.
const LONGEST: Duration = Duration::from_secs(10);
const STORM: Duration = Duration::from_secs(900);
/// After a storm, so many short times of work, the first third of them with some losses.
const BOUTS: u32 = 9;
const BOUT: Duration = Duration::from_secs(6);
/// Every waiter is served so soon after a storm: the guard of a restart, what died in the storm and its places in
/// the queues, each at most a ttl or [`PLACE`], one after the other.
const SETTLED: Duration = Duration::from_secs(60);
/// In fair weather nothing is left to a lease, so after work all is free within some messages.
const PROMPT: Duration = Duration::from_millis(100);
/// A hold of unclear fate is released until the answer is clear: some ten tries, each with its time limit.
const CLEAN: Duration = Duration::from_secs(20);
/// More steps than that at one instant: something spins.
const SPIN: u32 = 10_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    /// How many times a storm comes and goes.
    pub(crate) storms: u32,
    pub(crate) plant: Option<Plant>,
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
    world: Arc<World>,
    machine: Machine,
    random: Random,
    agenda: BTreeMap<(Time, u64), Act>,
    acts: u64,
    /// Those of histories before.
    panics: u32,
}

pub(crate) fn run(setup: Setup) -> Result<Report, Failure> {
    let mut random = Random::new(setup.seed);
    let world = World::new(random.number(), CLIENTS, setup.plant, setup.keeps_all);
    let world = Arc::new(world);
    let mut director = Director {
        machine: Machine::new(CLIENTS),
        random,
        world: world.clone(),
        agenda: BTreeMap::new(),
        acts: 0,
        panics: panics(),
    };
    (0..CLIENTS).for_each(|client| director.begin(client));
    let result = (0..setup.storms).try_for_each(|_| director.round());
    let lasted = world.clock.now().since(start());
    result.map_err(|what| Failure {
        seed: setup.seed,
        at: lasted,
        what,
        history: world.history(),
    })?;
    let counts = world.state().counts;
    Ok(Report {
        counts,
        lasted,
        digest: world.digest(),
        history: world.history(),
    })
}

impl Director {
    /// The process of a client, with its workers.
    fn begin(&mut self, number: usize) {
        let network = self.machine.network();
        let handle = self.machine.client(number).clone();
        let _inside = handle.enter();
        let door = Door::new(self.world.clone(), number, network.clone());
        let client = Client::from_backend(door).unwrap();
        for _ in 0..WORKERS {
            let worker = Worker {
                world: self.world.clone(),
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
            let link = &mut self.world.state().links[client];
            // Its machine is the same, and so are its wire and its clock.
            let mut next = Link::new(link.second);
            next.is_cut = link.is_cut;
            std::mem::replace(link, next)
        };
        link.is_dead.raise();
        self.machine.kill(client);
        self.world.forget(client);
        let (world, notices) = (self.world.clone(), self.random.any_length(3_000));
        self.machine.network().spawn(async move {
            world.sleep(notices).await;
            link.store_notices.raise();
        });
        self.begin(client);
    }

    /// A storm, the calm after it, then better weather.
    fn round(&mut self) -> Result<(), String> {
        let resting = |world: &World| world.resting() == CLIENTS * WORKERS;
        self.world.begin_work();
        self.world.state().weather = Weather::Storm;
        self.later(Duration::ZERO, Act::Trouble);
        self.pass(STORM, |_| false)?;
        self.calm();
        self.world.end_work();
        if !self.pass(SETTLED, resting)? {
            let left = CLIENTS * WORKERS - self.world.resting();
            return Err(format!("{left} workers wait for ever after the storm"));
        }
        // What the storm delayed arrives, and may be granted to somebody who is gone.
        self.pass(LATEST, |_| false)?;
        if !self.pass(LONGEST + PLACE, World::is_free)? {
            return Err("something is left behind when all leases are over".into());
        }
        for bout in 0..BOUTS {
            let (weather, bound) = if bout < BOUTS / 3 {
                (Weather::Drizzle, CLEAN)
            } else {
                (Weather::Fair, PROMPT)
            };
            self.bout(weather, bound)?;
        }
        Ok(())
    }

    /// Some work, and then all has to be free long before a lease ends.
    fn bout(&mut self, weather: Weather, bound: Duration) -> Result<(), String> {
        self.world.state().weather = weather;
        self.world.begin_work();
        self.pass(BOUT, |_| false)?;
        self.world.end_work();
        if !self.pass(SETTLED, |world| world.resting() == CLIENTS * WORKERS)? {
            return Err(format!("a worker waits for ever: {weather:?}"));
        }
        if !self.pass(bound, World::is_free)? {
            return Err(format!("something is left to its lease: {weather:?}"));
        }
        self.world.state().weather = Weather::Calm;
        Ok(())
    }

    fn calm(&mut self) {
        self.agenda.clear();
        for client in 0..CLIENTS {
            self.machine.freeze(client, false);
            self.world.state().links[client].is_cut = false;
            self.notices(client, true);
            self.notices(client, false);
        }
        let mut state = self.world.state();
        state.weather = Weather::Calm;
        state.is_down = false;
    }

    fn later(&mut self, pause: Duration, act: Act) {
        self.acts += 1;
        let at = self.world.clock.now().after(pause);
        self.agenda.insert((at, self.acts), act);
    }

    /// Lets that much time pass, or less if `done` is true before; says whether it is.
    fn pass(&mut self, time: Duration, done: impl Fn(&World) -> bool) -> Result<bool, String> {
        let end = self.world.clock.now().after(time);
        let mut spins = 0;
        loop {
            let first = self.random.below(CLIENTS);
            self.machine.run_until_idle(first);
            self.world
                .check_losses(|client| self.machine.is_frozen(client));
            if panics() > self.panics {
                return Err("a task panicked".into());
            }
            if let Some(violation) = self.world.violation() {
                return Err(violation);
            }
            let now = self.world.clock.now();
            if done(&self.world) || now >= end {
                return Ok(done(&self.world));
            }
            let due = self.agenda.keys().next().map(|(at, _)| *at);
            let wake = self.world.store.next_wake();
            let next = [due, wake].into_iter().flatten().fold(end, Time::min);
            spins = if next > now { 0 } else { spins + 1 };
            if spins > SPIN {
                return Err("time stands still: something spins".into());
            }
            self.world.store.advance(next.since(now));
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
                self.world.state().links[client].is_cut = false;
            }
            Act::Up => {
                self.note(0, "the store is back");
                self.world.state().is_down = false;
            }
            Act::ClientNotices(client) => self.notices(client, true),
            Act::StoreNotices(client) => self.notices(client, false),
        }
    }

    fn notices(&self, client: usize, is_client: bool) {
        let mut state = self.world.state();
        let link = &mut state.links[client];
        let flag = if is_client {
            &mut link.client_notices
        } else {
            &mut link.store_notices
        };
        std::mem::take(flag).raise();
    }

    fn note(&self, client: usize, what: &'static str) {
        self.world.note(client, what, "", 0);
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
                    if lasts > PLACE {
                        self.later(PLACE, Act::StoreNotices(client));
                    }
                }
            }
            4..7 => {
                let is_cut = std::mem::replace(&mut self.world.state().links[client].is_cut, true);
                if !is_cut {
                    self.note(client, "is cut off");
                    self.later(lasts, Act::Heal(client));
                    self.later(LIMIT, Act::ClientNotices(client));
                    self.later(PLACE, Act::StoreNotices(client));
                }
            }
            7 => self.kill(client),
            8 => {
                let is_down = std::mem::replace(&mut self.world.state().is_down, true);
                if !is_down {
                    self.note(0, "the store is down");
                    self.later(lasts / 3, Act::Up);
                    for client in 0..CLIENTS {
                        self.later(LIMIT, Act::ClientNotices(client));
                        self.later(PLACE, Act::StoreNotices(client));
                    }
                }
            }
            _ => {
                self.note(0, "the store forgets all");
                let guard = if self.world.is_planted(Plant::NoRestartGuard) {
                    Duration::ZERO
                } else {
                    LONGEST
                };
                self.world.store.restart(guard);
            }
        }
        self.world.state().counts.faults += 1;
        let pause = self.random.millis(3_000, 25_000);
        self.later(pause, Act::Trouble);
    }
}
