//! Random steps of several clients, compared with the reference table.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tenure::{Client, Error, Guard, Lock, Mode};
use tenure_core::fence::OwnerId;
use tenure_core::logic::table::{LockRequest, Table, Verdict};
use tenure_core::time::Time;
use tenure_testkit::needs;
use tokio::task::JoinHandle;

use crate::support::{SHARED, client_of, nodes, soon, start_acquire, states, unique, until};

/// Longer than the test.
const LONG: Duration = Duration::from_secs(120);

const OWNERS: usize = 4;

/// What one owner does at the moment.
enum State {
    Idle,
    Waiting(JoinHandle<Result<Guard, Error>>),
    Holding(Arc<Guard>),
    Upgrading(Arc<Guard>, JoinHandle<Result<(), Error>>),
}

/// Four clients, and the table that says what they should see.
struct Walk {
    name: String,
    clients: Vec<Client>,
    states: Vec<State>,
    table: Table,
    /// The greatest token of all holds that are exclusive, or were.
    last_token: u64,
    random: StdRng,
}

fn id(who: usize) -> OwnerId {
    OwnerId::from_bytes([who as u8; 16])
}

impl Walk {
    fn lock(&self, who: usize, mode: Mode) -> Lock {
        let lock = self.clients[who].lock(&self.name).ttl(LONG);
        let lock = lock.label(who.to_string());
        match mode {
            Mode::Shared => lock.shared(),
            Mode::Upgradable => lock.upgradable(),
            Mode::Permits { limit } => lock.permits(limit.get()),
            _ => lock,
        }
    }

    fn acquire(&mut self, who: usize) -> String {
        let limit = std::num::NonZeroU32::new(2).unwrap();
        let modes = [
            Mode::Exclusive,
            Mode::Shared,
            Mode::Shared,
            Mode::Upgradable,
            Mode::Permits { limit },
        ];
        let mode = modes[self.random.random_range(0..modes.len())];
        let request = LockRequest {
            name: tenure::LockName::new(&self.name).unwrap(),
            owner: id(who),
            mode,
            ttl: None,
            wait: true,
            barge: false,
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            waiter_ttl: None,
            propose: None,
        };
        self.table.acquire(&request, Time::ZERO);
        self.states[who] = State::Waiting(start_acquire(self.lock(who, mode)));
        format!("{who} acquires {mode}")
    }

    /// One step of one owner, in the table and on the server.
    async fn step(&mut self) -> String {
        let who = self.random.random_range(0..OWNERS);
        let name = tenure::LockName::new(&self.name).unwrap();
        let now = Time::ZERO;
        match std::mem::replace(&mut self.states[who], State::Idle) {
            State::Idle => self.acquire(who),
            State::Waiting(waiting) => {
                self.table.release(&name, id(who), false, now);
                waiting.abort();
                format!("{who} leaves the queue")
            }
            State::Upgrading(guard, upgrading) => {
                let upgradable = Mode::Upgradable;
                self.table.downgrade(&name, id(who), upgradable, now);
                upgrading.abort();
                let has_left = || !self.has_upgrading("upgrading");
                until("the upgrade is given up", has_left).await;
                self.states[who] = State::Holding(guard);
                format!("{who} gives up its upgrade")
            }
            State::Holding(guard) => match (self.random.random_range(0..4), guard.mode()) {
                (0 | 1, Mode::Upgradable) => {
                    let verdict = self.table.upgrade(&name, id(who), true, now);
                    let task = guard.clone();
                    let upgrading = tokio::spawn(async move { task.upgrade().await });
                    if verdict == Verdict::Queued {
                        let has_arrived = || self.has_upgrading("\"last\":");
                        until("the request to upgrade is there", has_arrived).await;
                    }
                    self.states[who] = State::Upgrading(guard, upgrading);
                    format!("{who} upgrades")
                }
                (2, Mode::Upgradable | Mode::Exclusive) => {
                    self.table.downgrade(&name, id(who), Mode::Shared, now);
                    soon(guard.downgrade()).await.unwrap();
                    self.states[who] = State::Holding(guard);
                    format!("{who} downgrades")
                }
                _ => {
                    self.table.release(&name, id(who), false, now);
                    let guard = Arc::into_inner(guard).unwrap();
                    soon(guard.release()).await.unwrap();
                    format!("{who} releases")
                }
            },
        }
    }

    /// Whether the data of a node say so.
    fn has_upgrading(&self, text: &str) -> bool {
        let states = states(&SHARED, &self.name);
        states.iter().any(|state| state.contains(text))
    }

    /// Waits until the server shows what the table says, and takes over what was granted.
    async fn agree(&mut self, steps: &[String]) {
        let name = tenure::LockName::new(&self.name).unwrap();
        let who = |owner: OwnerId| owner.as_bytes()[0].to_string();
        let (mut holds, mut waiters) = (Vec::new(), Vec::new());
        if let Some(view) = self.table.view(&name) {
            holds.extend(view.holds.iter().map(|hold| (who(hold.owner), hold.mode)));
            waiters.extend(view.waiters.iter().map(|(owner, _)| who(*owner)));
        }
        holds.sort_by(|a, b| a.0.cmp(&b.0));
        let mut attempt = 0;
        loop {
            let status = soon(self.clients[0].inspect(&self.name)).await.unwrap();
            let hold = |hold: &tenure::HoldInfo| (hold.holder.label.clone(), hold.mode);
            let mut held: Vec<_> = status.holds.iter().map(hold).collect();
            held.sort_by(|a, b| a.0.cmp(&b.0));
            let queue = status.queue.unwrap_or_default();
            let queue: Vec<_> = queue.iter().map(|holder| holder.label.clone()).collect();
            if (&held, &queue) == (&holds, &waiters) {
                break;
            }
            attempt += 1;
            // Far above what the requests of one step take.
            if attempt > 3_000 {
                panic!(
                    "shown: {held:?} {queue:?}\nwanted: {holds:?} {waiters:?}\nafter {steps:#?}"
                );
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // Holds that come beside each other come in no order.
        let mut last_token = self.last_token;
        for (label, mode) in &holds {
            let who: usize = label.parse().unwrap();
            let (guard, is_new) = match std::mem::replace(&mut self.states[who], State::Idle) {
                State::Waiting(waiting) => {
                    let guard = soon(waiting).await.unwrap().unwrap();
                    (Arc::new(guard), true)
                }
                State::Upgrading(guard, upgrading) if *mode == Mode::Exclusive => {
                    soon(upgrading).await.unwrap().unwrap();
                    (guard, true)
                }
                State::Holding(guard) => (guard, false),
                state => {
                    self.states[who] = state;
                    continue;
                }
            };
            let token = guard.token().get();
            if is_new {
                assert!(token > self.last_token, "{token}: {steps:#?}");
                // An upgrade is greater than all that it waited for.
                if *mode == Mode::Exclusive {
                    last_token = token;
                }
            }
            self.states[who] = State::Holding(guard);
        }
        self.last_token = last_token;
        self.check_tokens(steps).await;
    }

    /// Each hold is shown with the token of its guard, and no two have the same.
    async fn check_tokens(&self, steps: &[String]) {
        let status = soon(self.clients[0].inspect(&self.name)).await.unwrap();
        let mut seen = HashMap::new();
        for hold in status.holds {
            let who: usize = hold.holder.label.parse().unwrap();
            if let State::Holding(guard) = &self.states[who] {
                let token = guard.token();
                assert_eq!(hold.token, Some(token), "{who}: {steps:#?}");
                assert_eq!(seen.insert(token, who), None, "{steps:#?}");
            }
        }
    }
}

/// Random steps of four clients: after each, holders and queue are those of the reference table.
#[tokio::test(flavor = "multi_thread")]
async fn the_queue_does_what_the_table_says() {
    needs!(zookeeper);
    for seed in 0..20 {
        let mut clients = Vec::new();
        for _ in 0..OWNERS {
            clients.push(client_of(&SHARED).await);
        }
        let mut walk = Walk {
            name: unique("walk"),
            clients,
            states: (0..OWNERS).map(|_| State::Idle).collect(),
            table: Table::new(),
            last_token: 0,
            random: StdRng::seed_from_u64(seed),
        };
        let mut steps = vec![format!("seed {seed}")];
        for _ in 0..60 {
            let step = walk.step().await;
            steps.push(step);
            walk.agree(&steps).await;
        }
        walk.states.clear();
        for client in walk.clients {
            client.close().await;
        }
        let name = walk.name;
        until("nothing is left", || nodes(&SHARED, &name).is_empty()).await;
    }
}
