//! The history of a run, made of its events: claims, waits, writes and faults, each with its begin and end.

use std::collections::{HashMap, HashSet};

pub use crate::claim::Claim;

use crate::detached::DetachedHistory;
use crate::elections::{ElectionBuilder, ElectionHistory};
use crate::event::Event;
use crate::mode::HoldMode;
use crate::plan::FaultKind;
use crate::settings::task_of;

/// A fault that was injected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InjectedFault {
    /// The kind of the fault.
    pub kind: FaultKind,
    /// The worker that had the fault; `None`: all workers, by a fault of servers or clocks.
    pub worker: Option<usize>,
    /// When it began.
    pub from: u64,
    /// When it ended.
    pub to: u64,
}

/// A task that waited for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The worker that waited.
    pub worker: usize,
    /// Which of its tasks.
    pub task: usize,
    /// The name of the lock.
    pub name: String,
    /// How the worker wants to hold.
    pub mode: HoldMode,
    /// When the worker had asked.
    pub from: u64,
    /// When the worker got an answer or was killed, or the run was over.
    pub to: u64,
}

/// One access to the register: a write of an exclusive holder, or a read of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// When.
    pub at: u64,
    /// The acquisition that wrote.
    pub acquisition: u64,
    /// Whether the fenced side accepted the write.
    pub accepted: bool,
}

/// Why workers could not work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerFailures {
    /// Workers that ended by themselves.
    pub vanished: Vec<usize>,
    /// The last error that a worker got instead of a lock.
    pub refusal: Option<String>,
}

/// What the monitor noticed about the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreRemarks {
    /// When the store was unreachable without a fault of the plan, and a text about it.
    pub outages: Vec<(u64, String)>,
    /// When the monitor noticed another change of the store, and the text of `tenure check`.
    pub notices: Vec<(u64, String)>,
}

/// The history of a whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Its begin.
    pub began: u64,
    /// Its end.
    pub over: u64,
    /// In the order in which they started.
    pub claims: Vec<Claim>,
    /// In the order in which they began.
    pub waits: Vec<Wait>,
    /// In the order in which they reached the register.
    pub writes: Vec<Write>,
    /// In the order in which they began.
    pub faults: Vec<InjectedFault>,
    /// What the monitor noticed about the store.
    pub store: StoreRemarks,
    /// Why workers could not work.
    pub failures: WorkerFailures,
    /// What candidates published and observers saw.
    pub elections: ElectionHistory,
    /// Holds that outlived their worker.
    pub detached: DetachedHistory,
}

impl History {
    /// Makes the history of a run. The order in which the processes wrote the events makes no difference.
    pub fn of(events: &[Event]) -> Self {
        let mut sorted: Vec<&Event> = events.iter().collect();
        sorted.sort_by_key(|event| at(event));
        let mut all = Self::default();
        let last = sorted.last().map_or(0, |event| at(event));
        all.began = sorted.first().map_or(0, |event| at(event));
        all.over = last;
        for event in &sorted {
            match event {
                Event::Began { at } => all.began = *at,
                Event::Over { at } => all.over = *at,
                _ => {}
            }
        }
        let mut builder = Builder {
            history: all,
            ..Builder::default()
        };
        for event in sorted {
            builder.add(event);
        }
        let mut all = builder.history;
        all.elections = builder.elections.finish(last);
        for (from, to, why) in builder.outages {
            all.outage(from, to, &why);
        }
        // Nothing is known after the last line about a claim that has no end in the log.
        for claim in &mut all.claims {
            claim.end = claim.end.min(last);
        }
        // An acquisition that returned after its own deadline claims nothing.
        all.claims.retain(|claim| claim.end > claim.start);
        all
    }

    /// Adds a time in which the store was unreachable, unless a fault of the plan explains that, or that was before or
    /// after the run.
    fn outage(&mut self, from: u64, to: u64, why: &str) {
        /// After a fault, a store may need this much time for its first answer.
        const RECOVERY_TIME: u64 = 2_000_000_000;
        let ours = self.faults.iter().any(|it| {
            it.kind.hits_all_workers()
                && it.kind != FaultKind::Outage
                && it.from <= to
                && from <= it.to.saturating_add(RECOVERY_TIME)
        });
        if ours || to < self.began || from > self.over {
            return;
        }
        let seconds = (to - from) as f64 / 1e9;
        let text = format!(
            "the store was unreachable for {seconds:.1} s without a fault of this run: {why}"
        );
        self.store.outages.push((from, text));
        self.faults.push(InjectedFault {
            kind: FaultKind::Outage,
            worker: None,
            from,
            to,
        });
        self.faults.sort_by_key(|it| it.from);
    }

    /// The number of acquisitions and changes that led to each mode.
    pub fn mode_counts(&self) -> Vec<(HoldMode, usize)> {
        let count = |mode| self.claims.iter().filter(|it| it.mode == mode).count();
        let counts = HoldMode::ALL.map(|mode| (mode, count(mode)));
        counts.into_iter().filter(|it| it.1 > 0).collect()
    }

    /// The number of claims of workers that were attached to a detached hold.
    pub fn attached(&self) -> usize {
        let claims = self.claims.iter();
        claims
            .filter(|it| self.detached.attached_to(it).is_some())
            .count()
    }

    /// The number of tasks in each worker process, as far as they asked for something.
    pub fn tasks(&self) -> usize {
        let last = self.waits.iter().map(|it| it.task).max();
        last.map_or(1, |last| last + 1)
    }

    /// The number of claims of tasks that had their hold from another task of their process.
    pub fn passed_on(&self) -> usize {
        let claims = self.claims.iter().filter(|it| it.changes.is_none());
        let mut turns = HashSet::new();
        let known = claims.filter_map(|it| it.turn);
        known.filter(|turn| !turns.insert(*turn)).count()
    }

    /// The names of elections, each once.
    pub fn election_names(&self) -> Vec<&str> {
        let waits = self.waits.iter();
        let campaigns = waits.filter(|it| it.mode == HoldMode::Election);
        let mut names: Vec<&str> = campaigns.map(|it| it.name.as_str()).collect();
        let observers = self.elections.observers.iter();
        names.extend(observers.map(|it| it.name.as_str()));
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The names that were asked for, each once.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.waits.iter().map(|wait| wait.name.as_str()).collect();
        names.extend(self.claims.iter().map(|claim| claim.name.as_str()));
        names.extend(self.election_names());
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// A history under construction, with the waits and claims that have no end yet.
#[derive(Default)]
struct Builder {
    history: History,
    /// The index of the wait of each worker's tasks.
    waits: HashMap<(usize, usize), usize>,
    /// The index of the claim of each acquisition.
    claims: HashMap<u64, usize>,
    /// Faults of the plan explain some of these outages, and all faults are known only at the end.
    outages: Vec<(u64, u64, String)>,
    elections: ElectionBuilder,
}

impl Builder {
    fn add(&mut self, event: &Event) {
        self.elections.add(event);
        let history = &mut self.history;
        history.detached.add(event, &history.claims);
        match event {
            Event::Began { .. }
            | Event::Over { .. }
            | Event::Detached { .. }
            | Event::Publishing { .. }
            | Event::Published { .. }
            | Event::Observing { .. }
            | Event::Saw { .. } => {}
            Event::Asked {
                at,
                worker,
                task,
                name,
                mode,
            } => self.begin_wait(*at, (*worker, *task), name, *mode),
            Event::Refused {
                at,
                worker,
                task,
                why,
                ..
            } => {
                history.failures.refusal = Some(why.clone());
                self.end_wait((*worker, *task), *at);
            }
            Event::Left { at, worker, task } => self.end_wait((*worker, *task), *at),
            Event::Claimed { .. }
            | Event::Believed { .. }
            | Event::Ended { .. }
            | Event::Killed { .. } => self.add_to_claims(event),
            Event::Wrote {
                at,
                acquisition,
                accepted,
            } => history.writes.push(Write {
                at: *at,
                acquisition: *acquisition,
                accepted: *accepted,
            }),
            Event::Away { at, until, why } => self.outages.push((*at, *until, why.clone())),
            Event::Noticed { at, what } => history.store.notices.push((*at, what.clone())),
            Event::Vanished { worker, .. } => history.failures.vanished.push(*worker),
            Event::Fault {
                at,
                until,
                kind,
                worker,
            } => history.faults.push(InjectedFault {
                kind: *kind,
                worker: *worker,
                from: *at,
                to: *until,
            }),
        }
    }

    fn begin_wait(&mut self, at: u64, waiter: (usize, usize), name: &str, mode: HoldMode) {
        self.waits.insert(waiter, self.history.waits.len());
        self.history.waits.push(Wait {
            worker: waiter.0,
            task: waiter.1,
            name: name.to_owned(),
            mode,
            from: at,
            to: self.history.over.max(at),
        });
    }

    fn end_wait(&mut self, waiter: (usize, usize), at: u64) {
        if let Some(index) = self.waits.remove(&waiter) {
            self.history.waits[index].to = at;
        }
    }

    /// Begins, prolongs or ends claims.
    fn add_to_claims(&mut self, event: &Event) {
        match event {
            Event::Claimed {
                at,
                worker,
                name,
                acquisition,
                mode,
                changes,
                turn,
                token,
                asked,
                deadline,
            } => {
                self.end_wait((*worker, task_of(*acquisition)), *at);
                self.claims.insert(*acquisition, self.history.claims.len());
                self.history.claims.push(Claim {
                    acquisition: *acquisition,
                    worker: *worker,
                    name: name.clone(),
                    mode: *mode,
                    changes: *changes,
                    turn: *turn,
                    token: *token,
                    asked: *asked,
                    start: *at,
                    end: *deadline,
                });
            }
            Event::Believed {
                acquisition,
                deadline,
                ..
            } => {
                if let Some(index) = self.claims.get(acquisition) {
                    self.history.claims[*index].end = *deadline;
                }
            }
            Event::Ended {
                at, acquisition, ..
            } => {
                if let Some(index) = self.claims.remove(acquisition) {
                    let claim = &mut self.history.claims[index];
                    claim.end = claim.end.min(*at);
                }
            }
            Event::Killed { at, worker } => self.end_claims_of(*worker, *at),
            _ => {}
        }
    }

    /// The tasks of a killed worker wait and claim no longer.
    fn end_claims_of(&mut self, worker: usize, at: u64) {
        let waits = &mut self.history.waits;
        self.waits.retain(|waiter, index| {
            if waiter.0 == worker {
                waits[*index].to = at;
            }
            waiter.0 != worker
        });
        let claims = &mut self.history.claims;
        self.claims.retain(|_, index| {
            let claim = &mut claims[*index];
            if claim.worker == worker {
                claim.end = claim.end.min(at);
            }
            claim.worker != worker
        });
    }
}

fn at(event: &Event) -> u64 {
    match event {
        Event::Began { at }
        | Event::Asked { at, .. }
        | Event::Refused { at, .. }
        | Event::Left { at, .. }
        | Event::Detached { at, .. }
        | Event::Publishing { at, .. }
        | Event::Published { at, .. }
        | Event::Observing { at, .. }
        | Event::Saw { at, .. }
        | Event::Claimed { at, .. }
        | Event::Believed { at, .. }
        | Event::Ended { at, .. }
        | Event::Wrote { at, .. }
        | Event::Killed { at, .. }
        | Event::Fault { at, .. }
        | Event::Vanished { at, .. }
        | Event::Away { at, .. }
        | Event::Noticed { at, .. }
        | Event::Over { at } => *at,
    }
}
