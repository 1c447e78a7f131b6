//! The scripts for locks of Redisson against the reference table. What Java programs see is in `tests/interop`.

use std::num::NonZeroU32;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tenure::{Client, Error, Guard, HoldInfo, Lock, LockName, Mode};
use tenure_core::fence::OwnerId;
use tenure_core::logic::table::{LockRequest, Table, Verdict};
use tenure_core::time::Time;
use tenure_testkit::needs;
use tenure_testkit::redis::Redis;
use tokio::task::JoinHandle;

use crate::support::{TRUSTED, connect, keys, soon, start_acquire, until};

/// The longest lease of a shared hold, which is renewed.
const LONG: Duration = Duration::from_secs(30);

const OWNERS: usize = 5;

/// What one owner does at the moment.
enum State {
    Idle,
    Waiting(JoinHandle<Result<Guard, Error>>),
    Holding(Guard),
}

/// Clients on a server, and the table that says what they should see.
struct Walk {
    name: LockName,
    /// The modes of this lock of Redisson.
    modes: &'static [Mode],
    /// Whether the lock has a queue; otherwise no client waits.
    is_fair: bool,
    clients: Vec<Client>,
    states: Vec<State>,
    table: Table,
    last_token: u64,
    random: StdRng,
}

fn id(who: usize) -> OwnerId {
    OwnerId::from_bytes([who as u8; 16])
}

async fn clients(server: &Redis, lock: &str) -> Vec<Client> {
    let url = format!("{}{TRUSTED}&dialect=redisson&lock={lock}", server.url());
    let mut clients = Vec::new();
    for _ in 0..OWNERS {
        clients.push(connect(&url).await);
    }
    clients
}

impl Walk {
    fn lock(&self, who: usize, mode: Mode) -> Lock {
        let lock = self.clients[who].lock(self.name.as_str()).ttl(LONG);
        let lock = lock.label(who.to_string());
        match mode {
            Mode::Shared => lock.shared(),
            Mode::Permits { limit } => lock.permits(limit.get()),
            _ => lock,
        }
    }

    async fn acquire(&mut self, who: usize) -> String {
        let mode = self.modes[self.random.random_range(0..self.modes.len())];
        let request = LockRequest {
            name: self.name.clone(),
            owner: id(who),
            mode,
            ttl: None,
            wait: self.is_fair,
            barge: false,
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            waiter_ttl: None,
            propose: None,
        };
        let verdict = self.table.acquire(&request, Time::ZERO);
        let lock = self.lock(who, mode);
        if self.is_fair {
            self.states[who] = State::Waiting(start_acquire(lock));
            return format!("{who} acquires {mode}");
        }
        let guard = soon(lock.try_acquire()).await.unwrap();
        let is_granted = matches!(verdict, Verdict::Granted { .. });
        assert_eq!(guard.is_some(), is_granted, "{who} tries {mode}");
        if let Some(guard) = guard {
            self.hold(who, guard);
        }
        format!("{who} tries {mode}: {is_granted}")
    }

    fn hold(&mut self, who: usize, guard: Guard) {
        let token = guard.token().get();
        assert!(token > self.last_token);
        self.last_token = token;
        self.states[who] = State::Holding(guard);
    }

    /// One step of one owner, in the table and on the server.
    async fn step(&mut self) -> String {
        let who = self.random.random_range(0..OWNERS);
        let now = Time::ZERO;
        match std::mem::replace(&mut self.states[who], State::Idle) {
            State::Idle => self.acquire(who).await,
            State::Waiting(waiting) => {
                self.table.release(&self.name, id(who), false, now);
                waiting.abort();
                format!("{who} leaves the queue")
            }
            State::Holding(guard) => {
                let is_shared = self.modes.contains(&Mode::Shared);
                if is_shared && guard.mode() == Mode::Exclusive && self.random.random() {
                    self.table.downgrade(&self.name, id(who), Mode::Shared, now);
                    soon(guard.downgrade()).await.unwrap();
                    self.states[who] = State::Holding(guard);
                    return format!("{who} downgrades");
                }
                if self.random.random_range(0..4) == 0 {
                    let token = guard.token().get();
                    let broken = self.clients[0].break_lock(self.name.as_str(), token);
                    assert!(soon(broken).await.unwrap());
                    self.table.release(&self.name, id(who), false, now);
                    soon(guard.lost()).await;
                    return format!("the hold of {who} is broken");
                }
                self.table.release(&self.name, id(who), false, now);
                soon(guard.release()).await.unwrap();
                format!("{who} releases")
            }
        }
    }

    /// Waits until the server shows what the table says, and takes over what was granted.
    async fn agree(&mut self, steps: &[String]) {
        let view = self.table.view(&self.name);
        let who = |owner: OwnerId| owner.as_bytes()[0].to_string();
        let (mut holds, mut waiters) = (Vec::new(), Vec::new());
        if let Some(view) = view {
            holds.extend(view.holds.iter().map(|hold| (who(hold.owner), hold.mode)));
            waiters.extend(view.waiters.iter().map(|(owner, _)| who(*owner)));
        }
        holds.sort_by(|a, b| a.0.cmp(&b.0));
        for attempt in 0.. {
            let name = self.name.as_str();
            let status = soon(self.clients[0].inspect(name)).await.unwrap();
            let hold = |hold: &HoldInfo| (hold.holder.label.clone(), hold.mode);
            let mut held: Vec<_> = status.holds.iter().map(hold).collect();
            held.sort_by(|a, b| a.0.cmp(&b.0));
            let queue = status.queue.unwrap_or_default();
            let queue: Vec<_> = queue.iter().map(|holder| holder.label.clone()).collect();
            if (&held, &queue) == (&holds, &waiters) {
                break;
            }
            // Far above what the requests of one step take.
            if attempt > 3_000 {
                panic!(
                    "shown: {held:?} {queue:?}\nwanted: {holds:?} {waiters:?}\nafter {steps:#?}"
                );
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        for (label, _) in &holds {
            let who: usize = label.parse().unwrap();
            match std::mem::replace(&mut self.states[who], State::Idle) {
                State::Waiting(waiting) => {
                    let guard = soon(waiting).await.unwrap().unwrap();
                    self.hold(who, guard);
                }
                state => self.states[who] = state,
            }
        }
    }
}

/// Random steps of several clients: after each, holders and queue are those of the reference table. What is left in the
/// end are the keys of `left`, with the name in the place of `NAME`.
async fn walk(lock: &str, modes: &'static [Mode], left: &[&str]) {
    let server = Redis::start(&[]);
    for seed in 0..10 {
        let mut walk = Walk {
            name: LockName::new(format!("walk-{seed}")).unwrap(),
            modes,
            is_fair: lock == "fair",
            clients: clients(&server, lock).await,
            states: (0..OWNERS).map(|_| State::Idle).collect(),
            table: Table::new(),
            last_token: 0,
            random: StdRng::seed_from_u64(seed),
        };
        let mut steps = vec![format!("seed {seed}")];
        for _ in 0..80 {
            let step = walk.step().await;
            steps.push(step);
            walk.agree(&steps).await;
        }
        walk.states.clear();
        for client in walk.clients {
            client.close().await;
        }
        let name = walk.name.as_str();
        let mut left: Vec<_> = left.iter().map(|key| key.replace("NAME", name)).collect();
        left.sort();
        until("nothing is left but the token", || {
            let mut all = keys(&server);
            all.retain(|key| key.contains(name));
            all.sort();
            all == left
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_write_lock_does_what_the_table_says() {
    needs!(redis);
    let modes = &[Mode::Exclusive, Mode::Shared, Mode::Shared];
    walk("rw", modes, &["tenure:{NAME}:hold"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fair_lock_does_what_the_table_says() {
    needs!(redis);
    walk("fair", &[Mode::Exclusive], &["tenure:{NAME}:hold"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_does_what_the_table_says() {
    needs!(redis);
    const THREE: Mode = Mode::Permits {
        limit: NonZeroU32::new(3).unwrap(),
    };
    walk("semaphore", &[THREE], &["tenure:{NAME}:hold", "NAME"]).await;
}

/// Each kind of lock in each slot of a cluster: the keys that the scripts derive are where the lock is.
#[tokio::test(flavor = "multi_thread")]
async fn locks_of_redisson_in_a_cluster() {
    needs!(redis);
    let cluster = tenure_testkit::redis::Cluster::start(false);
    for (lock, shares) in [("rw", true), ("fair", false), ("semaphore", false)] {
        let url = cluster.url();
        let url = format!("{url}{TRUSTED}&dialect=redisson&lock={lock}");
        let (one, two) = (connect(&url).await, connect(&url).await);
        for name in ["a", "b", "c", "{d}e"] {
            let name = format!("{name}-{lock}");
            let guard = soon(one.lock(&name).ttl(LONG).acquire()).await.unwrap();
            let tried = soon(two.lock(&name).try_acquire()).await.unwrap();
            assert!(tried.is_none(), "{name}");
            let waiter = start_acquire(two.lock(&name).ttl(LONG));
            assert_eq!(soon(two.inspect(&name)).await.unwrap().holds.len(), 1);
            soon(guard.release()).await.unwrap();
            let guard = soon(waiter).await.unwrap().unwrap();
            soon(guard.release()).await.unwrap();
            if shares {
                let shared = |client: &Client| client.lock(&name).shared().ttl(LONG);
                let first = soon(shared(&one).acquire()).await.unwrap();
                let second = soon(shared(&two).acquire()).await.unwrap();
                soon(first.release()).await.unwrap();
                soon(second.release()).await.unwrap();
            }
            assert!(!soon(two.inspect(&name)).await.unwrap().is_held());
        }
    }
}
