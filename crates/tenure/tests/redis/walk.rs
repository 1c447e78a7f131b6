//! Random steps of four clients in all modes, compared with the reference table after each step.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tenure::{Client, Error, Guard, Lock, LockName, Mode};
use tenure_core::fence::OwnerId;
use tenure_core::logic::table::{LockRequest, Table, Verdict};
use tenure_core::time::Time;
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::redis::Redis;
use tenure_testkit::resp::Value;
use tokio::task::JoinHandle;

use crate::support::{assert_all_expire, client_of, keys, start_acquire, until};

/// Longer than the test.
const LONG: Duration = Duration::from_secs(120);

/// The pause between two looks at the server.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

const OWNERS: usize = 4;

/// Who holds, in which mode, and who waits.
type Shown = (Vec<(String, Mode)>, Vec<String>);

/// What one owner does at the moment.
enum State {
    Idle,
    Waiting(JoinHandle<Result<Guard, Error>>),
    Holding(Arc<Guard>),
    Upgrading(Arc<Guard>, JoinHandle<Result<(), Error>>),
}

/// Four clients on a server, or on several independent servers, and the table that says what they should see.
pub(crate) struct Walk<'a> {
    servers: &'a [Redis],
    /// A client of each server alone.
    observers: Vec<Client>,
    /// One of these is chosen for each request.
    pub(crate) modes: Vec<Mode>,
    /// How many may wait, or upgrade, at a time: the order of several is not promised over independent servers.
    pub(crate) max_waiting: usize,
    /// How long a server may show something else than the table says.
    pub(crate) limit: Duration,
    name: LockName,
    clients: Vec<Client>,
    states: Vec<State>,
    table: Table,
    random: StdRng,
}

fn id(who: usize) -> OwnerId {
    OwnerId::from_bytes([who as u8; 16])
}

impl<'a> Walk<'a> {
    /// Four clients, made by `client`, on a name of their own, in all modes. The seed determines the steps.
    pub(crate) async fn new(
        servers: &'a [Redis],
        client: impl AsyncFn() -> Client,
        seed: u64,
    ) -> Self {
        let (mut observers, mut clients) = (Vec::new(), Vec::new());
        for server in servers {
            observers.push(client_of(server).await);
        }
        for _ in 0..OWNERS {
            clients.push(client().await);
        }
        let limit = NonZeroU32::new(2).unwrap();
        Self {
            servers,
            observers,
            modes: vec![
                Mode::Exclusive,
                Mode::Shared,
                Mode::Shared,
                Mode::Upgradable,
                Mode::Permits { limit },
            ],
            max_waiting: OWNERS,
            limit: TEST_TIMEOUT,
            name: LockName::new(format!("walk-{seed}")).unwrap(),
            clients,
            states: (0..OWNERS).map(|_| State::Idle).collect(),
            table: Table::new(),
            random: StdRng::seed_from_u64(seed),
        }
    }

    /// Goes so many steps, and fails if the servers show something else than the table. In the end nothing is left but
    /// tokens.
    pub(crate) async fn goes_as_the_table_says(self, count: usize) {
        let (servers, name) = (self.servers, self.name.as_str().to_owned());
        if let Err(why) = self.go(count).await {
            panic!("{name}: {why}");
        }
        for server in servers {
            until("nothing is left but the token", || {
                let mut all = keys(server);
                all.retain(|key| key.contains(&name));
                all == [format!("tenure:{{{name}}}:hold")]
            })
            .await;
            assert_all_expire(server);
        }
    }

    /// Goes so many steps, then leaves everything. An error says what a server shows, and what the table says.
    pub(crate) async fn go(mut self, count: usize) -> Result<(), String> {
        let (mut steps, mut last_token) = (Vec::new(), 0);
        for _ in 0..count {
            steps.push(self.step().await?);
            let agreed = self.agree(&mut last_token).await;
            agreed.map_err(|why| format!("{why}\nafter {steps:#?}"))?;
        }
        self.states.clear();
        for client in self.clients {
            client.close().await;
        }
        Ok(())
    }

    /// One step of one owner, in the table and on the servers.
    async fn step(&mut self) -> Result<String, String> {
        let who = self.random.random_range(0..OWNERS);
        let may_wait = self.count_waiting() < self.max_waiting;
        let now = Time::ZERO;
        let state = std::mem::replace(&mut self.states[who], State::Idle);
        let done = match state {
            State::Idle if !may_wait => format!("{who} does nothing"),
            State::Idle => {
                let mode = self.modes[self.random.random_range(0..self.modes.len())];
                self.acquire(who, mode);
                format!("{who} acquires {mode}")
            }
            State::Waiting(waiting) => {
                self.table.release(&self.name, id(who), false, now);
                waiting.abort();
                format!("{who} leaves the queue")
            }
            State::Upgrading(guard, upgrading) => {
                let upgradable = Mode::Upgradable;
                self.table.downgrade(&self.name, id(who), upgradable, now);
                upgrading.abort();
                // A later request to upgrade could not be told from this one.
                self.until_upgrading(false).await?;
                self.states[who] = State::Holding(guard);
                format!("{who} gives up its upgrade")
            }
            State::Holding(guard) => match (self.random.random_range(0..4), guard.mode()) {
                (0 | 1, Mode::Upgradable) if may_wait => {
                    self.upgrade(who, guard).await?;
                    format!("{who} upgrades")
                }
                (2, Mode::Upgradable | Mode::Exclusive) => {
                    self.table.downgrade(&self.name, id(who), Mode::Shared, now);
                    self.within("a downgrade", guard.downgrade()).await?;
                    self.states[who] = State::Holding(guard);
                    format!("{who} downgrades")
                }
                _ => {
                    self.table.release(&self.name, id(who), false, now);
                    let guard = Arc::into_inner(guard).unwrap();
                    self.within("a release", guard.release()).await?;
                    format!("{who} releases")
                }
            },
        };
        Ok(done)
    }

    fn acquire(&mut self, who: usize, mode: Mode) {
        let request = LockRequest {
            name: self.name.clone(),
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
    }

    async fn upgrade(&mut self, who: usize, guard: Arc<Guard>) -> Result<(), String> {
        let verdict = self.table.upgrade(&self.name, id(who), true, Time::ZERO);
        let task = guard.clone();
        let upgrading = tokio::spawn(async move { task.upgrade().await });
        if verdict == Verdict::Queued {
            self.until_upgrading(true).await?;
        }
        self.states[who] = State::Upgrading(guard, upgrading);
        Ok(())
    }

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

    /// How many wait, or upgrade.
    fn count_waiting(&self) -> usize {
        let waits = |state: &&State| matches!(state, State::Waiting(_) | State::Upgrading(..));
        self.states.iter().filter(waits).count()
    }

    /// The outcome of a request that is answered soon.
    async fn within<T, E: std::fmt::Debug>(
        &self,
        what: &str,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, String> {
        match tokio::time::timeout(self.limit, request).await {
            Ok(outcome) => outcome.map_err(|error| format!("{what}: {error:?}")),
            Err(_) => Err(format!("no answer: {what}")),
        }
    }

    /// Waits until each server has a request to upgrade, or none.
    async fn until_upgrading(&self, expected: bool) -> Result<(), String> {
        let holders = format!("tenure:{{{}}}:holders", self.name.as_str());
        let is_upgrading = |server: &Redis| {
            let values = server.ask(&["HVALS", &holders]).items();
            let mut values = values.iter().map(Value::text);
            values.any(|value| value.split(' ').nth(1) == Some("w"))
        };
        let start = Instant::now();
        while !self.servers.iter().all(|it| is_upgrading(it) == expected) {
            if start.elapsed() > self.limit {
                return Err(format!("a request to upgrade was expected: {expected}"));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }

    /// The holders and the waiters that a client sees.
    async fn shown_to(&self, client: &Client) -> Result<Shown, String> {
        let inspected = client.inspect(&self.name);
        let status = self.within("an inspection", inspected).await?;
        let hold = |hold: &tenure::HoldInfo| (hold.holder.label.clone(), hold.mode);
        let mut held: Vec<_> = status.holds.iter().map(hold).collect();
        held.sort_by(|a, b| a.0.cmp(&b.0));
        let queue = status.queue.unwrap_or_default();
        let queue = queue.iter().map(|holder| holder.label.clone());
        Ok((held, queue.collect()))
    }

    /// What the table says.
    fn wanted(&self) -> Shown {
        let who = |owner: OwnerId| owner.as_bytes()[0].to_string();
        let (mut holds, mut waiters) = (Vec::new(), Vec::new());
        if let Some(view) = self.table.view(&self.name) {
            holds.extend(view.holds.iter().map(|hold| (who(hold.owner), hold.mode)));
            waiters.extend(view.waiters.iter().map(|(owner, _)| who(*owner)));
        }
        holds.sort_by(|a, b| a.0.cmp(&b.0));
        (holds, waiters)
    }

    /// Waits until each server, and all together, show what the table says, and takes over what was granted.
    async fn agree(&mut self, last_token: &mut u64) -> Result<(), String> {
        let wanted = self.wanted();
        for client in self.observers.iter().chain(&self.clients[..1]) {
            let start = Instant::now();
            loop {
                let shown = self.shown_to(client).await?;
                if shown == wanted {
                    break;
                }
                if start.elapsed() > self.limit {
                    return Err(format!("shown: {shown:?}\nwanted: {wanted:?}"));
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
        for (label, mode) in &wanted.0 {
            let who: usize = label.parse().unwrap();
            match std::mem::replace(&mut self.states[who], State::Idle) {
                State::Waiting(waiting) => {
                    let guard = self.within("the granted hold", waiting).await?;
                    let guard = guard.map_err(|error| error.to_string())?;
                    *last_token = guard.token().get().max(*last_token);
                    self.states[who] = State::Holding(Arc::new(guard));
                }
                State::Upgrading(guard, upgrading) if *mode == Mode::Exclusive => {
                    let upgraded = self.within("the granted upgrade", upgrading).await?;
                    upgraded.map_err(|error| error.to_string())?;
                    let token = guard.token().get();
                    if token <= *last_token {
                        return Err(format!("the upgrade got the token {token}"));
                    }
                    *last_token = token;
                    self.states[who] = State::Holding(guard);
                }
                state => self.states[who] = state,
            }
        }
        Ok(())
    }
}
