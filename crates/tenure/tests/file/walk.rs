//! Random steps of several clients, compared with the reference table after each one.
//!
//! No order of waiters is promised, so requests for a hold do not wait here; those for an upgrade do.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tenure::file;
use tenure::store::{Answer, BoxFuture, ChangeMode as _, Hold, Operate as _, Request, Store as _};
use tenure::{Error, Mode, OwnerId};
use tenure_core::logic::table::{LockRequest, Table, Verdict};
use tenure_core::time::Time;

use crate::support::{
    Scratch, block_on, hold, inspect, list, name, now, permits, poll, release, request, upgrade_of,
    with,
};

type Upgrading = (Arc<Request>, BoxFuture<Result<Answer, Error>>);

/// What one client does at the moment.
enum State {
    Idle,
    Holding(Hold, Mode),
    Upgrading(Hold, Upgrading),
}

struct Walk {
    stores: Vec<Arc<file::Store>>,
    states: Vec<State>,
    table: Table,
    last_token: u64,
    random: StdRng,
    steps: Vec<String>,
}

const NOW: Time = Time::ZERO;

impl Walk {
    fn table_request(owner: OwnerId, mode: Mode) -> LockRequest {
        LockRequest {
            name: name("a"),
            owner,
            mode,
            ttl: None,
            wait: false,
            barge: false,
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            waiter_ttl: None,
            propose: None,
        }
    }

    fn granted(&mut self, token: u64) {
        assert!(token > self.last_token, "{:#?}", self.steps);
        self.last_token = token;
    }

    fn step(&mut self) {
        let who = self.random.random_range(0..self.stores.len());
        match std::mem::replace(&mut self.states[who], State::Idle) {
            State::Idle => self.acquire(who),
            State::Holding(hold, Mode::Upgradable) if self.random.random_range(0..3) > 0 => {
                self.upgrade(who, hold);
            }
            State::Holding(hold, mode) => self.end(who, hold, mode),
            State::Upgrading(hold, (request, future)) => {
                self.steps.push(format!("{who} gives up its upgrade"));
                request.stop.raise();
                let answer = block_on(future).unwrap();
                assert!(matches!(answer, Answer::Busy), "{:#?}", self.steps);
                let upgradable = Mode::Upgradable;
                self.table
                    .downgrade(&name("a"), hold.owner, upgradable, NOW);
                self.states[who] = State::Holding(hold, upgradable);
            }
        }
    }

    fn acquire(&mut self, who: usize) {
        let modes = [
            Mode::Exclusive,
            Mode::Shared,
            Mode::Shared,
            Mode::Upgradable,
            Mode::Upgradable,
            permits(2),
        ];
        let mode = modes[self.random.random_range(0..modes.len())];
        self.steps.push(format!("{who} tries {mode}"));
        let asked = Arc::new(with(request("a"), mode));
        let answer = now(self.stores[who].clone().acquire(asked.clone())).unwrap();
        let wanted = Self::table_request(asked.owner, mode);
        let is_granted = matches!(self.table.acquire(&wanted, NOW), Verdict::Granted { .. });
        let taken = hold(&asked, answer);
        assert_eq!(taken.is_some(), is_granted, "{:#?}", self.steps);
        if let Some((hold, grant)) = taken {
            assert_eq!(hold.token, grant.token);
            self.granted(grant.token);
            self.states[who] = State::Holding(hold, mode);
        }
    }

    fn upgrade(&mut self, who: usize, mut hold: Hold) {
        let waits = self.random.random_range(0..2) > 0;
        self.steps.push(format!("{who} upgrades, waiting: {waits}"));
        let request = upgrade_of(&hold, waits);
        let mut future = self.stores[who]
            .clone()
            .upgrade(hold.clone(), request.clone());
        let polled = poll(&mut future);
        let verdict = self.table.upgrade(&name("a"), hold.owner, waits, NOW);
        self.states[who] = match (verdict, polled) {
            (Verdict::Granted { .. }, std::task::Poll::Ready(Ok(Answer::Granted(grant)))) => {
                self.granted(grant.token);
                hold.token = grant.token;
                State::Holding(hold, Mode::Exclusive)
            }
            (Verdict::Queued, std::task::Poll::Pending) => {
                State::Upgrading(hold, (request, future))
            }
            (Verdict::Busy, std::task::Poll::Ready(Ok(Answer::Busy))) => {
                State::Holding(hold, Mode::Upgradable)
            }
            (verdict, polled) => panic!("{verdict:?} is {polled:?} {:#?}", self.steps),
        };
    }

    /// Ends the hold, or makes it weaker.
    fn end(&mut self, who: usize, hold: Hold, mode: Mode) {
        let owner = hold.owner;
        let is_strong = matches!(mode, Mode::Exclusive | Mode::Upgradable);
        match self.random.random_range(0..4) {
            0 | 1 if is_strong => {
                let weaker = match self.random.random_range(0..2) {
                    0 => Mode::Shared,
                    _ => Mode::Upgradable,
                };
                self.steps.push(format!("{who} becomes {weaker}"));
                assert!(self.table.downgrade(&name("a"), owner, weaker, NOW));
                let changed = now(self.stores[who].clone().downgrade(hold.clone(), weaker));
                assert!(changed.unwrap(), "{:#?}", self.steps);
                self.states[who] = State::Holding(hold, weaker);
            }
            2 => {
                self.steps.push(format!("{who} is broken"));
                let held = inspect(&self.stores[0], "a").holds;
                let view = self.table.view(&name("a")).unwrap();
                let at = view.holds.iter().position(|it| it.owner == owner).unwrap();
                let token = held[self.rank(&view.holds, at)].token.unwrap().get();
                assert!(now(self.stores[0].clone().break_lock(name("a"), token)).unwrap());
                self.table.release(&name("a"), owner, false, NOW);
                // The client notices.
                block_on(self.stores[who].clone().renew(vec![hold]));
            }
            _ => {
                self.steps.push(format!("{who} releases"));
                self.table.release(&name("a"), owner, false, NOW);
                release(&self.stores[who], hold);
            }
        }
    }

    /// The place of a hold in the order of the tokens, in which `inspect` shows the holds.
    fn rank(&self, holds: &[tenure_core::logic::table::HoldView], at: usize) -> usize {
        let token = holds[at].token;
        holds.iter().filter(|hold| hold.token < token).count()
    }

    /// Takes over an upgrade that was granted, and compares the holders.
    fn agree(&mut self) {
        let view = self.table.view(&name("a"));
        let mut holds = view.map(|view| view.holds).unwrap_or_default();
        holds.sort_by_key(|hold| hold.token);
        for who in 0..self.states.len() {
            let is_exclusive = |owner| {
                let hold = holds.iter().find(|hold| hold.owner == owner);
                hold.is_some_and(|hold| hold.mode == Mode::Exclusive)
            };
            match std::mem::replace(&mut self.states[who], State::Idle) {
                State::Upgrading(mut hold, (_, future)) if is_exclusive(hold.owner) => {
                    match block_on(future).unwrap() {
                        Answer::Granted(grant) => {
                            self.granted(grant.token);
                            hold.token = grant.token;
                        }
                        other => panic!("{other:?} {:#?}", self.steps),
                    }
                    self.states[who] = State::Holding(hold, Mode::Exclusive);
                }
                state => self.states[who] = state,
            }
        }
        let wanted: Vec<_> = holds.iter().map(|hold| hold.mode).collect();
        let status = inspect(&self.stores[0], "a");
        let shown: Vec<_> = status.holds.iter().map(|hold| hold.mode).collect();
        assert_eq!(shown, wanted, "{:#?}", self.steps);
        // A hold keeps its token when it becomes weaker.
        let token_of = |state: &State| match state {
            State::Idle => None,
            State::Holding(hold, _) | State::Upgrading(hold, _) => Some(hold.token),
        };
        let mut tokens: Vec<_> = self.states.iter().filter_map(token_of).collect();
        tokens.sort_unstable();
        let shown: Vec<_> = status
            .holds
            .iter()
            .map(|hold| hold.token.unwrap().get())
            .collect();
        assert_eq!(shown, tokens, "{:#?}", self.steps);
        let listed = list(&self.stores[0], "");
        assert_eq!(listed.len(), usize::from(!wanted.is_empty()));
    }
}

#[test]
fn the_files_do_what_the_table_says() {
    for seed in 0..20 {
        let scratch = Scratch::new();
        let mut walk = Walk {
            stores: (0..4).map(|_| scratch.open()).collect(),
            states: (0..4).map(|_| State::Idle).collect(),
            table: Table::new(),
            last_token: 0,
            random: StdRng::seed_from_u64(seed),
            steps: vec![format!("seed {seed}")],
        };
        for _ in 0..150 {
            walk.step();
            walk.agree();
        }
    }
}
