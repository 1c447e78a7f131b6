//! Holds beside others: the scripts against the reference table, and what other programs see of such holds.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tenure::{Client, Error, Guard, Lock, Mode};
use tenure_core::fence::OwnerId;
use tenure_core::logic::table::{LockRequest, Table, Verdict};
use tenure_core::time::Time;
use tenure_testkit::needs;
use tenure_testkit::redis::Redis;
use tokio::task::JoinHandle;

use crate::support::{
    assert_all_expire, client_of, keys, owner, soon, start_acquire, until, waiting,
};

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

/// Four clients on a server, and the table that says what they should see.
struct Walk<'a> {
    server: &'a Redis,
    name: String,
    clients: Vec<Client>,
    states: Vec<State>,
    table: Table,
    last_token: u64,
    random: StdRng,
}

fn id(who: usize) -> OwnerId {
    OwnerId::from_bytes([who as u8; 16])
}

impl Walk<'_> {
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

    /// One step of one owner, in the table and on the server.
    async fn step(&mut self) -> String {
        let who = self.random.random_range(0..OWNERS);
        let name = tenure::LockName::new(&self.name).unwrap();
        let now = Time::ZERO;
        match std::mem::replace(&mut self.states[who], State::Idle) {
            State::Idle => {
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
                    name,
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
                self.table.acquire(&request, now);
                let waiting = start_acquire(self.lock(who, mode));
                self.states[who] = State::Waiting(waiting);
                format!("{who} acquires {mode}")
            }
            State::Waiting(waiting) => {
                self.table.release(&name, id(who), false, now);
                waiting.abort();
                format!("{who} leaves the queue")
            }
            State::Upgrading(guard, upgrading) => {
                let upgradable = Mode::Upgradable;
                self.table.downgrade(&name, id(who), upgradable, now);
                upgrading.abort();
                self.states[who] = State::Holding(guard);
                format!("{who} gives up its upgrade")
            }
            State::Holding(guard) => match (self.random.random_range(0..4), guard.mode()) {
                (0 | 1, Mode::Upgradable) => {
                    let verdict = self.table.upgrade(&name, id(who), true, now);
                    let task = guard.clone();
                    let upgrading = tokio::spawn(async move { task.upgrade().await });
                    if verdict == Verdict::Queued {
                        let has_arrived = || self.has_upgrading();
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

    fn has_upgrading(&self) -> bool {
        let holders = format!("tenure:{{{}}}:holders", self.name);
        let values = self.server.ask(&["HVALS", &holders]).items();
        values
            .iter()
            .any(|value| value.text().split(' ').nth(1) == Some("w"))
    }

    /// Waits until the server shows what the table says, and takes over what was granted.
    async fn agree(&mut self, steps: &[String]) {
        let name = tenure::LockName::new(&self.name).unwrap();
        let view = self.table.view(&name);
        let who = |owner: OwnerId| owner.as_bytes()[0].to_string();
        let (mut holds, mut waiters) = (Vec::new(), Vec::new());
        if let Some(view) = view {
            holds.extend(view.holds.iter().map(|hold| (who(hold.owner), hold.mode)));
            waiters.extend(view.waiters.iter().map(|(owner, _)| who(*owner)));
        }
        holds.sort_by(|a, b| a.0.cmp(&b.0));
        let mut shown = (Vec::new(), Vec::new());
        for attempt in 0.. {
            let status = soon(self.clients[0].inspect(&self.name)).await.unwrap();
            let hold = |hold: &tenure::HoldInfo| (hold.holder.label.clone(), hold.mode);
            let mut held: Vec<_> = status.holds.iter().map(hold).collect();
            held.sort_by(|a, b| a.0.cmp(&b.0));
            let queue = status.queue.unwrap_or_default();
            let queue = queue.iter().map(|holder| holder.label.clone()).collect();
            shown = (held, queue);
            if shown == (holds.clone(), waiters.clone()) {
                break;
            }
            // Far above what the requests of one step take.
            if attempt > 3_000 {
                panic!("shown: {shown:?}\nwanted: {holds:?} {waiters:?}\nafter {steps:#?}");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        drop(shown);
        for (label, mode) in &holds {
            let who: usize = label.parse().unwrap();
            match std::mem::replace(&mut self.states[who], State::Idle) {
                State::Waiting(waiting) => {
                    let guard = soon(waiting).await.unwrap().unwrap();
                    let token = guard.token().get();
                    assert!(token > 0, "{steps:#?}");
                    self.last_token = self.last_token.max(token);
                    self.states[who] = State::Holding(Arc::new(guard));
                }
                State::Upgrading(guard, upgrading) if *mode == Mode::Exclusive => {
                    soon(upgrading).await.unwrap().unwrap();
                    let token = guard.token().get();
                    assert!(token > self.last_token, "{steps:#?}");
                    self.last_token = token;
                    self.states[who] = State::Holding(guard);
                }
                state => self.states[who] = state,
            }
        }
    }
}

/// Random steps of four clients: after each, holders and queue are those of the reference table.
#[tokio::test(flavor = "multi_thread")]
async fn the_scripts_do_what_the_table_says() {
    needs!(redis);
    let server = Redis::start(&[]);
    for seed in 0..20 {
        let mut clients = Vec::new();
        for _ in 0..OWNERS {
            clients.push(client_of(&server).await);
        }
        let mut walk = Walk {
            server: &server,
            name: format!("walk-{seed}"),
            clients,
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
        let name = walk.name;
        until("nothing is left but the token", || {
            let mut all = keys(&server);
            all.retain(|key| key.contains(&name));
            all == [format!("tenure:{{{name}}}:hold")]
        })
        .await;
        assert_all_expire(&server);
    }
}

/// A program that knows only the key excludes all our modes, and is excluded by them.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_holder_excludes_readers_and_permits() {
    needs!(redis);
    let server = Redis::start(&[]);
    let client = client_of(&server).await;
    let set = ["SET", "x", "theirs", "NX", "PX", "60000"];
    assert_eq!(server.ask(&set).text(), "OK");
    for lock in [
        client.lock("x").shared(),
        client.lock("x").upgradable(),
        client.lock("x").permits(3),
    ] {
        assert!(soon(lock.try_acquire()).await.unwrap().is_none());
        let mine = start_acquire(lock.ttl(LONG));
        until("it waits", || waiting(&server, "x") == 1).await;
        mine.abort();
        until("it left", || waiting(&server, "x") == 0).await;
    }
    server.ask(&["DEL", "x"]);
    let reader = soon(client.lock("x").shared().acquire()).await.unwrap();
    let permit = soon(client.lock("x").permits(3).acquire()).await.unwrap();
    assert_eq!(owner(&server, "x"), "*");
    assert_eq!(server.ask(&set), tenure_testkit::resp::Value::Nil);
    soon(reader.release()).await.unwrap();
    assert_eq!(server.ask(&set), tenure_testkit::resp::Value::Nil);
    soon(permit.release()).await.unwrap();
    assert_eq!(server.ask(&set).text(), "OK");
}
