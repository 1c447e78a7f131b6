//! The queue machine with changes of modes: every state that a few contenders can reach, compared with the table.
//!
//! A contender decides only when it reads the list, and it reads the list again only when something that it watches is
//! gone or has changed. In some searches it does so at once, in the others at any later moment.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::time::Duration;

use super::{name, owner};
use crate::logic::queue::{
    Contender, Turn, Upgrading, count_holders, decide, decide_while_upgrading,
};
use crate::logic::table::{LockRequest, Table};
use crate::options::Mode;
use crate::time::Time;

const TWO: Mode = Mode::Permits {
    limit: NonZeroU32::MIN.saturating_add(1),
};

/// The machine, or a mutant of it.
type DecideUpgrading = fn(&[Contender], Upgrading, usize) -> Turn;

/// What one contender knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Knowledge {
    /// The owner has not read the list since the last change that the owner was told of.
    HasToRead,
    Holds,
    /// The owner waits until one of these owners is gone or has changed.
    Watches(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    owner: u8,
    mode: Mode,
    knowledge: Knowledge,
}

/// A request to upgrade that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Request {
    owner: u8,
    /// The owners that held when the request arrived, and have not left since.
    holders: Vec<u8>,
    /// Whether the entry says who held.
    is_said: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Queue {
    entries: Vec<Entry>,
    request: Option<Request>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Join(u8, Mode),
    Leave(usize),
    Read(usize),
    Upgrade(usize),
    /// The upgrading holder says who held when its request arrived.
    SayHolders,
    /// The last other holder is gone.
    BecomeExclusive,
    Downgrade(usize, Mode),
}

impl Queue {
    fn index_of(&self, owner: u8) -> usize {
        let at = self.entries.iter().position(|entry| entry.owner == owner);
        at.expect("the owner is in the queue")
    }

    fn upgrading(&self) -> Option<Upgrading> {
        let request = self.request.as_ref()?;
        let last = request.holders.iter().map(|owner| self.index_of(*owner));
        Some(Upgrading {
            at: self.index_of(request.owner),
            last_holder: last.max().filter(|_| request.is_said),
        })
    }

    fn turn(&self, me: usize, machine: DecideUpgrading) -> Turn {
        let contender = |entry: &Entry| Contender { mode: entry.mode };
        let contenders: Vec<_> = self.entries.iter().map(contender).collect();
        match self.upgrading() {
            Some(upgrading) => machine(&contenders, upgrading, me),
            None => decide(&contenders, me),
        }
    }

    fn read(&mut self, me: usize, machine: DecideUpgrading) {
        let watched = match self.turn(me, machine) {
            Turn::Held => {
                self.entries[me].knowledge = Knowledge::Holds;
                return;
            }
            Turn::WatchOne(at) => at..at + 1,
            Turn::WatchAll(range) => range,
        };
        let owners = self.entries[watched].iter().map(|entry| entry.owner);
        self.entries[me].knowledge = Knowledge::Watches(owners.collect());
    }

    /// The entry of `owner` is gone or has changed. An exclusive contender is told of the end of entries only.
    fn tell(&mut self, owner: u8, is_gone: bool) {
        for entry in &mut self.entries {
            let is_told = is_gone || entry.mode != Mode::Exclusive;
            if let Knowledge::Watches(watched) = &entry.knowledge
                && is_told
                && watched.contains(&owner)
            {
                entry.knowledge = Knowledge::HasToRead;
            }
        }
    }

    fn steps(&self, modes: &[Mode], owners: u8) -> Vec<Step> {
        let is_absent = |owner: &u8| self.entries.iter().all(|entry| entry.owner != *owner);
        let mut steps = Vec::new();
        for owner in (0..owners).filter(is_absent).take(1) {
            steps.extend(modes.iter().map(|mode| Step::Join(owner, *mode)));
        }
        for (at, entry) in self.entries.iter().enumerate() {
            steps.push(Step::Leave(at));
            if entry.knowledge == Knowledge::HasToRead {
                steps.push(Step::Read(at));
            }
            let holds = entry.knowledge == Knowledge::Holds;
            match entry.mode {
                Mode::Upgradable if holds => {
                    steps.push(Step::Downgrade(at, Mode::Shared));
                    steps.push(match self.request {
                        Some(_) => Step::Downgrade(at, Mode::Upgradable),
                        None => Step::Upgrade(at),
                    });
                }
                Mode::Exclusive if holds => {
                    steps.push(Step::Downgrade(at, Mode::Shared));
                    steps.push(Step::Downgrade(at, Mode::Upgradable));
                }
                _ => {}
            }
        }
        if let Some(request) = &self.request {
            steps.push(match (request.is_said, request.holders.len()) {
                (false, _) => Step::SayHolders,
                (true, 1) => Step::BecomeExclusive,
                (true, _) => return steps,
            });
        }
        steps
    }

    fn apply(&mut self, step: Step, table: &mut Table) {
        let (door, now) = (name("door"), Time::ZERO);
        match step {
            Step::Join(id, mode) => {
                table.acquire(&ask(id, mode), now);
                self.entries.push(Entry {
                    owner: id,
                    mode,
                    knowledge: Knowledge::HasToRead,
                });
            }
            Step::Leave(at) => {
                let id = self.entries[at].owner;
                table.release(&door, owner(id), false, now);
                if let Some(request) = &mut self.request {
                    request.holders.retain(|holder| *holder != id);
                    if request.owner == id {
                        self.request = None;
                    }
                }
                self.entries.remove(at);
                self.tell(id, true);
            }
            Step::Upgrade(at) => {
                let id = self.entries[at].owner;
                table.upgrade(&door, owner(id), true, now);
                let contender = |entry: &Entry| Contender { mode: entry.mode };
                let contenders: Vec<_> = self.entries.iter().map(contender).collect();
                let holders = self.entries[..count_holders(&contenders)].iter();
                self.request = Some(Request {
                    owner: id,
                    holders: holders.map(|entry| entry.owner).collect(),
                    is_said: false,
                });
                self.tell(id, false);
            }
            Step::Downgrade(at, mode) => {
                let id = self.entries[at].owner;
                assert!(table.downgrade(&door, owner(id), mode, now));
                self.request = self.request.take().filter(|it| it.owner != id);
                self.entries[at].mode = mode;
                self.tell(id, false);
            }
            Step::SayHolders => {
                let request = self.request.as_mut().expect("a request");
                request.is_said = true;
                let id = request.owner;
                self.tell(id, false);
            }
            Step::BecomeExclusive => {
                let id = self.request.take().expect("a request").owner;
                let at = self.index_of(id);
                self.entries[at].mode = Mode::Exclusive;
                self.tell(id, false);
            }
            Step::Read(_) => unreachable!("the caller reads"),
        }
    }

    /// Each contender that believes that it holds does so in the table; and when all have read, the other way round.
    fn compare(&self, table: &Table) {
        let view = table.view(&name("door"));
        let holds = view.map(|view| view.holds).unwrap_or_default();
        let has_to_read = |entry: &Entry| entry.knowledge == Knowledge::HasToRead;
        let is_settled = !self.entries.iter().any(has_to_read)
            && self.request.as_ref().is_none_or(|it| it.is_said);
        for entry in &self.entries {
            let hold = holds.iter().find(|hold| hold.owner == owner(entry.owner));
            match (&entry.knowledge, hold) {
                (Knowledge::Holds, None) => panic!("believes for nothing: {self:?}"),
                (Knowledge::Watches(_), Some(_)) if is_settled => {
                    panic!("missed its wake-up: {self:?}")
                }
                _ => {}
            }
            let is_changing = self.request.is_some();
            if let Some(hold) = hold.filter(|_| !is_changing) {
                assert_eq!(hold.mode, entry.mode, "{self:?}");
            }
        }
    }
}

fn ask(id: u8, mode: Mode) -> LockRequest {
    LockRequest {
        name: name("door"),
        owner: owner(id),
        mode,
        ttl: None,
        wait: true,
        barge: false,
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        waiter_ttl: None,
        propose: None,
    }
}

/// What one search is about.
struct Search {
    modes: &'static [Mode],
    owners: u8,
    /// Whether contenders read the list as soon as they have to.
    reads_at_once: bool,
    machine: DecideUpgrading,
}

impl Search {
    /// The number of states that were reached.
    fn run(&self) -> usize {
        let mut seen = HashSet::new();
        let mut open = vec![(Queue::default(), Table::new())];
        while let Some((queue, table)) = open.pop() {
            if !seen.insert(queue.clone()) {
                continue;
            }
            queue.compare(&table);
            for step in queue.steps(self.modes, self.owners) {
                let (mut queue, mut table) = (queue.clone(), table.clone());
                match step {
                    Step::Read(me) => queue.read(me, self.machine),
                    step => queue.apply(step, &mut table),
                }
                for me in 0..queue.entries.len() {
                    let has_to_read = queue.entries[me].knowledge == Knowledge::HasToRead;
                    if has_to_read && self.reads_at_once {
                        queue.read(me, self.machine);
                    }
                }
                open.push((queue, table));
            }
        }
        seen.len()
    }
}

const MODES: &[Mode] = &[Mode::Exclusive, Mode::Shared, Mode::Upgradable, TWO];

#[test]
fn the_queue_changes_modes_as_the_table_does() {
    for (owners, reads_at_once, modes) in [
        (4, true, MODES),
        (3, false, MODES),
        (4, false, &[Mode::Exclusive, Mode::Shared, Mode::Upgradable]),
    ] {
        let search = Search {
            modes,
            owners,
            reads_at_once,
            machine: decide_while_upgrading,
        };
        println!("{owners} of {modes:?}: {} states", search.run());
    }
}

fn search_mutant(machine: DecideUpgrading) {
    let search = Search {
        modes: MODES,
        owners: 3,
        reads_at_once: false,
        machine,
    };
    search.run();
}

#[test]
#[should_panic(expected = "believes for nothing")]
fn mutant_an_upgrade_does_not_keep_readers_out() {
    search_mutant(|contenders, _, me| decide(contenders, me));
}

#[test]
#[should_panic(expected = "missed its wake-up")]
fn mutant_a_reader_that_held_before_the_upgrade_waits_for_it() {
    search_mutant(|contenders, upgrading, me| {
        let last_holder = Some(upgrading.at);
        let upgrading = Upgrading {
            last_holder,
            ..upgrading
        };
        decide_while_upgrading(contenders, upgrading, me)
    });
}

#[test]
#[should_panic(expected = "missed its wake-up")]
fn mutant_a_reader_behind_an_upgrade_watches_the_one_just_ahead() {
    search_mutant(|contenders, upgrading, me| {
        match decide_while_upgrading(contenders, upgrading, me) {
            Turn::WatchOne(_) => Turn::WatchOne(me - 1),
            other => other,
        }
    });
}
