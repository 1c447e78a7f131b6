//! Random steps of several clients of a store, compared with the reference table after each step.

use std::collections::HashSet;
use std::fmt::Debug;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tenure::{Client, Error, Guard, HoldInfo, Lock, LockName, LockStatus, Mode};
use tenure_core::fence::OwnerId;
use tenure_core::logic::table::{LockRequest, Table, Verdict};
use tenure_core::time::Time;
use tenure_testkit::TEST_TIMEOUT;
use tokio::task::{JoinError, JoinHandle};

use super::start_acquire;

/// The pause between two looks at the store.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

const TWO_PERMITS: Mode = Mode::Permits {
    limit: NonZeroU32::MIN.saturating_add(1),
};

/// What a holder does in one step. A holder whose mode does not allow the step releases.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HolderStep {
    /// An upgradable holder asks to become exclusive.
    Upgrade,
    /// An upgradable or exclusive holder becomes shared.
    Downgrade,
    /// A client breaks the lock; the holder notices at its next renewal.
    Break,
    /// A client breaks the lock, and the store tells the holder.
    BreakAndTell,
    Release,
}

/// How the walks on one store differ from those on other stores.
#[derive(Clone, Copy)]
pub(crate) struct WalkOptions<'a> {
    /// How many owners there are, each with a client of its own.
    pub(crate) owners: usize,
    /// One of these is chosen for each request.
    pub(crate) modes: &'a [Mode],
    /// One of these is chosen for each step of a holder.
    pub(crate) holder_steps: &'a [HolderStep],
    /// How many may wait, or upgrade, at a time. `None`: the lock has no queue, and each request is a single try.
    pub(crate) max_waiting: Option<usize>,
    /// Whether other owners ask for a shared hold while an owner has an upgradable hold, asked for one, or upgraded.
    pub(crate) one_upgradable: bool,
    /// Whether the store shows the token of a hold only a moment after the grant.
    pub(crate) tokens_lag: bool,
    pub(crate) ttl: Duration,
    /// How long one request may take, and how long the store may show something else than the table says.
    pub(crate) limit: Duration,
    /// Clients that hold nothing and must see what the table says, beside the client of the first owner.
    pub(crate) observers: &'a [Client],
    /// Whether the store has a request to upgrade a hold on this name in its queue (`true`), or has none (`false`).
    pub(crate) shows_upgrade: &'a dyn Fn(&str, bool) -> bool,
    /// Whether each request has the place in the queue that it keeps. The next step follows only then.
    pub(crate) is_settled: &'a dyn Fn(&str) -> bool,
}

impl Default for WalkOptions<'_> {
    /// Four owners of a store that has all modes and a queue for all of them.
    fn default() -> Self {
        Self {
            owners: 4,
            modes: &[
                Mode::Exclusive,
                Mode::Shared,
                Mode::Shared,
                Mode::Upgradable,
                TWO_PERMITS,
            ],
            holder_steps: &[
                HolderStep::Upgrade,
                HolderStep::Upgrade,
                HolderStep::Downgrade,
                HolderStep::Release,
            ],
            max_waiting: Some(usize::MAX),
            one_upgradable: false,
            tokens_lag: false,
            // Longer than a walk.
            ttl: Duration::from_secs(120),
            limit: TEST_TIMEOUT,
            observers: &[],
            // For stores without upgrades: an upgrade that waits would fail the walk.
            shows_upgrade: &|_, _| false,
            is_settled: &|_| true,
        }
    }
}

/// The labels and modes of the holders, sorted, and the labels of the waiters in the order of the queue.
type Shown = (Vec<(String, Mode)>, Vec<String>);

/// What one owner does at the moment.
enum State {
    Idle,
    Waiting(JoinHandle<Result<Guard, Error>>),
    Holding(Arc<Guard>),
    Upgrading(Arc<Guard>, JoinHandle<Result<(), Error>>),
}

/// The owners of a name, and the table that says what they should see.
pub(crate) struct Walk<'a> {
    options: WalkOptions<'a>,
    name: LockName,
    clients: Vec<Client>,
    states: Vec<State>,
    /// The owner that has an upgradable hold, asked for one, or upgraded, if the options allow only one such owner.
    upgradable: Option<usize>,
    table: Table,
    /// The greatest token of all holds so far.
    last_token: u64,
    random: StdRng,
    steps: Vec<String>,
}

fn id(who: usize) -> OwnerId {
    OwnerId::from_bytes([who as u8; 16])
}

fn returned_early<T: Debug>(outcome: Result<T, JoinError>) -> String {
    format!("a request returned, and the table says that it waits: {outcome:?}")
}

/// Gives up a request that the table says must still wait.
async fn cancel<T: Debug>(request: JoinHandle<T>) -> Result<(), String> {
    request.abort();
    match request.await {
        Err(error) if error.is_cancelled() => Ok(()),
        outcome => Err(returned_early(outcome)),
    }
}

impl<'a> Walk<'a> {
    /// A walk on a name that nothing else uses, with clients made by `client`. The seed determines the steps.
    pub(crate) async fn new(
        name: &str,
        client: impl AsyncFn() -> Client,
        seed: u64,
        options: WalkOptions<'a>,
    ) -> Self {
        let mut clients = Vec::new();
        for _ in 0..options.owners {
            clients.push(client().await);
        }
        Self {
            name: LockName::new(name).unwrap(),
            states: clients.iter().map(|_| State::Idle).collect(),
            clients,
            upgradable: None,
            table: Table::new(),
            last_token: 0,
            random: StdRng::seed_from_u64(seed),
            steps: vec![format!("seed {seed}")],
            options,
        }
    }

    /// Goes so many steps, and panics if the store shows something else than the table says.
    pub(crate) async fn goes_as_the_table_says(&mut self, count: usize) {
        if let Err(why) = self.go(count).await {
            panic!("{}: {why}", self.name.as_str());
        }
    }

    /// Goes so many steps. The error says what differs from the table, and lists the steps so far.
    pub(crate) async fn go(&mut self, count: usize) -> Result<(), String> {
        for _ in 0..count {
            let stepped = match self.step().await {
                Ok(()) => self.agree().await,
                Err(why) => Err(why),
            };
            stepped.map_err(|why| format!("{why}\nafter {:#?}", self.steps))?;
        }
        Ok(())
    }

    /// Gives up all requests and drops all guards; the clients stay open.
    pub(crate) fn drop_all(&mut self) {
        for state in self.states.drain(..) {
            match state {
                State::Idle | State::Holding(_) => {}
                State::Waiting(request) => request.abort(),
                State::Upgrading(_, request) => request.abort(),
            }
        }
    }

    /// Drops all guards and closes the clients, which ends the requests.
    pub(crate) async fn close(mut self) {
        self.states.clear();
        for client in self.clients {
            client.close().await;
        }
    }

    /// One step of one owner, in the table and in the store.
    async fn step(&mut self) -> Result<(), String> {
        let who = self.random.random_range(0..self.states.len());
        match std::mem::replace(&mut self.states[who], State::Idle) {
            State::Idle => self.acquire(who).await?,
            State::Waiting(request) => {
                self.steps.push(format!("{who} leaves the queue"));
                self.end(who);
                cancel(request).await?;
            }
            State::Upgrading(guard, request) => {
                self.steps.push(format!("{who} gives up its upgrade"));
                let upgradable = Mode::Upgradable;
                self.table
                    .downgrade(&self.name, id(who), upgradable, Time::ZERO);
                cancel(request).await?;
                // A later request to upgrade could not be told from this one.
                self.until_upgrading(false).await?;
                self.states[who] = State::Holding(guard);
            }
            State::Holding(guard) => self.step_of_holder(who, guard).await?,
        }
        Ok(())
    }

    async fn acquire(&mut self, who: usize) -> Result<(), String> {
        let is_try = self.options.max_waiting.is_none();
        if !is_try && !self.may_wait() {
            self.steps.push(format!("{who} does nothing"));
            return Ok(());
        }
        let mode = self.choose_mode(who);
        let request = LockRequest {
            name: self.name.clone(),
            owner: id(who),
            mode,
            ttl: None,
            wait: !is_try,
            barge: false,
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            waiter_ttl: None,
            propose: None,
        };
        let verdict = self.table.acquire(&request, Time::ZERO);
        let lock = self.lock(who, mode);
        if !is_try {
            self.steps.push(format!("{who} acquires {mode}"));
            self.states[who] = State::Waiting(start_acquire(lock));
            return Ok(());
        }
        let is_granted = matches!(verdict, Verdict::Granted { .. });
        self.steps
            .push(format!("{who} tries {mode}, granted: {is_granted}"));
        let guard = self.within("a try", lock.try_acquire()).await?;
        if guard.is_some() != is_granted {
            return Err(format!("the outcome of the try is {guard:?}"));
        }
        if let Some(guard) = guard {
            self.check_new_tokens(vec![guard.token().get()])?;
            self.states[who] = State::Holding(Arc::new(guard));
        }
        Ok(())
    }

    fn choose_mode(&mut self, who: usize) -> Mode {
        let modes = self.options.modes;
        let mode = modes[self.random.random_range(0..modes.len())];
        if mode == Mode::Upgradable && self.options.one_upgradable {
            if self.upgradable.is_some() {
                return Mode::Shared;
            }
            self.upgradable = Some(who);
        }
        mode
    }

    fn lock(&self, who: usize, mode: Mode) -> Lock {
        let lock = self.clients[who].lock(&self.name).ttl(self.options.ttl);
        let lock = lock.label(who.to_string());
        match mode {
            Mode::Shared => lock.shared(),
            Mode::Upgradable => lock.upgradable(),
            Mode::Permits { limit } => lock.permits(limit.get()),
            _ => lock,
        }
    }

    async fn step_of_holder(&mut self, who: usize, guard: Arc<Guard>) -> Result<(), String> {
        let steps = self.options.holder_steps;
        let step = steps[self.random.random_range(0..steps.len())];
        match (step, guard.mode()) {
            (HolderStep::Upgrade, Mode::Upgradable) if self.may_wait() => {
                self.steps.push(format!("{who} upgrades"));
                self.upgrade(who, guard).await?;
            }
            (HolderStep::Downgrade, Mode::Upgradable | Mode::Exclusive) => {
                self.steps.push(format!("{who} downgrades"));
                self.table
                    .downgrade(&self.name, id(who), Mode::Shared, Time::ZERO);
                self.within("a downgrade", guard.downgrade()).await?;
                self.clear_upgradable(who);
                self.states[who] = State::Holding(guard);
            }
            (HolderStep::Break | HolderStep::BreakAndTell, _) => {
                self.steps.push(format!("the hold of {who} is broken"));
                self.end(who);
                let broken = self.clients[0].break_lock(&self.name, guard.token());
                if !self.within("a break", broken).await? {
                    return Err("the hold to break was not found".into());
                }
                if matches!(step, HolderStep::BreakAndTell) {
                    let lost = async { Ok::<_, Error>(guard.lost().await) };
                    self.within("the loss", lost).await?;
                }
            }
            _ => {
                self.steps.push(format!("{who} releases"));
                self.end(who);
                let guard = Arc::into_inner(guard).unwrap();
                self.within("a release", guard.release()).await?;
            }
        }
        Ok(())
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

    /// In the table, the owner neither holds nor waits any more.
    fn end(&mut self, who: usize) {
        self.table.release(&self.name, id(who), false, Time::ZERO);
        self.clear_upgradable(who);
    }

    fn clear_upgradable(&mut self, who: usize) {
        self.upgradable = self.upgradable.filter(|it| *it != who);
    }

    /// Whether one more request may wait, or upgrade.
    fn may_wait(&self) -> bool {
        let waits = |state: &&State| matches!(state, State::Waiting(_) | State::Upgrading(..));
        let waiting = self.states.iter().filter(waits).count();
        self.options.max_waiting.is_some_and(|max| waiting < max)
    }

    /// The outcome of a request that is answered soon.
    async fn within<T, E: Debug>(
        &self,
        what: &str,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, String> {
        match tokio::time::timeout(self.options.limit, request).await {
            Ok(outcome) => outcome.map_err(|error| format!("{what}: {error:?}")),
            Err(_) => Err(format!("no answer: {what}")),
        }
    }

    /// Waits until the store has a request to upgrade in its queue, or has none.
    async fn until_upgrading(&self, expected: bool) -> Result<(), String> {
        let start = Instant::now();
        while !(self.options.shows_upgrade)(self.name.as_str(), expected) {
            if start.elapsed() > self.options.limit {
                return Err(format!("a request to upgrade was expected: {expected}"));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn until_settled(&self) -> Result<(), String> {
        let start = Instant::now();
        while !(self.options.is_settled)(self.name.as_str()) {
            if start.elapsed() > self.options.limit {
                return Err("a request still looks for its place in the queue".to_owned());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
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

    async fn inspect(&self, client: &Client) -> Result<LockStatus, String> {
        let inspected = client.inspect(&self.name);
        self.within("an inspection", inspected).await
    }

    /// The holders and the waiters that a client sees.
    async fn shown_to(&self, client: &Client) -> Result<Shown, String> {
        let status = self.inspect(client).await?;
        let hold = |hold: &HoldInfo| (hold.holder.label.clone(), hold.mode);
        let mut held: Vec<_> = status.holds.iter().map(hold).collect();
        held.sort_by(|a, b| a.0.cmp(&b.0));
        let queue = status.queue.unwrap_or_default();
        let queue = queue.iter().map(|holder| holder.label.clone());
        Ok((held, queue.collect()))
    }

    /// Waits until a client sees what the table says.
    async fn until_shown(&self, client: &Client, wanted: &Shown) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let shown = self.shown_to(client).await?;
            if shown == *wanted {
                return Ok(());
            }
            if start.elapsed() > self.options.limit {
                return Err(format!("shown: {shown:?}\nwanted: {wanted:?}"));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until the store shows what the table says, takes over what was granted, and checks tokens and waiters.
    async fn agree(&mut self) -> Result<(), String> {
        let wanted = self.wanted();
        let first = self.until_shown(&self.clients[0], &wanted).await;
        first.map_err(|why| format!("before all have settled: {why}"))?;
        self.until_settled().await?;
        let clients = self.options.observers.iter().chain(&self.clients[..1]);
        for (at, client) in clients.enumerate() {
            let shown = self.until_shown(client, &wanted).await;
            shown.map_err(|why| format!("observer {at}: {why}"))?;
        }
        let mut new_tokens = Vec::new();
        for (label, mode) in &wanted.0 {
            let who: usize = label.parse().unwrap();
            new_tokens.extend(self.take_over(who, *mode).await?);
        }
        self.check_new_tokens(new_tokens)?;
        self.until_tokens_are_shown().await?;
        self.check_waiting().await
    }

    /// Awaits the request of an owner that holds in this mode, if the request was granted. Returns the token if it is
    /// new.
    async fn take_over(&mut self, who: usize, mode: Mode) -> Result<Option<u64>, String> {
        let (guard, is_new) = match std::mem::replace(&mut self.states[who], State::Idle) {
            State::Waiting(request) => {
                let granted = self.within("the granted hold", request).await?;
                let guard = granted.map_err(|error| format!("{error:#}"))?;
                (Arc::new(guard), true)
            }
            State::Upgrading(guard, request) if mode == Mode::Exclusive => {
                let granted = self.within("the granted upgrade", request).await?;
                granted.map_err(|error| format!("{error:#}"))?;
                (guard, true)
            }
            State::Holding(guard) => (guard, false),
            state => {
                self.states[who] = state;
                return Ok(None);
            }
        };
        if guard.mode() != mode {
            let shown = guard.mode();
            return Err(format!("the guard of {who} is {shown}, and not {mode}"));
        }
        let token = guard.token().get();
        self.states[who] = State::Holding(guard);
        Ok(is_new.then_some(token))
    }

    /// Each token is greater than all tokens of earlier steps. Tokens of one step differ, and have no order: the holds
    /// begin beside each other.
    fn check_new_tokens(&mut self, mut tokens: Vec<u64>) -> Result<(), String> {
        tokens.sort_unstable();
        for token in tokens {
            if token <= self.last_token {
                let last = self.last_token;
                return Err(format!("{token} is a new token, and {last} an earlier one"));
            }
            self.last_token = token;
        }
        Ok(())
    }

    /// Checks the tokens that the store shows; if they lag, waits until they are right.
    async fn until_tokens_are_shown(&self) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let checked = self.check_shown_tokens().await;
            let is_late = start.elapsed() > self.options.limit;
            if checked.is_ok() || !self.options.tokens_lag || is_late {
                return checked;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Each guard's hold is shown with the token of the guard, and no two guards have the same. A store may write the token
    /// after the lock is granted, as etcd does with some holds, but not after `acquire` has returned.
    async fn check_shown_tokens(&self) -> Result<(), String> {
        let status = self.inspect(&self.clients[0]).await?;
        let mut seen = HashSet::new();
        for (who, state) in self.states.iter().enumerate() {
            let State::Holding(guard) = state else {
                continue;
            };
            let (label, token) = (who.to_string(), guard.token());
            let hold = status.holds.iter().find(|it| it.holder.label == label);
            let shown = hold.and_then(|hold| hold.token);
            if shown != Some(token) {
                return Err(format!("{who} has the token {token}, shown: {shown:?}"));
            }
            if !seen.insert(token) {
                return Err(format!("two holds have the token {token}"));
            }
        }
        Ok(())
    }

    /// All requests that were granted have been awaited, so the others must still wait.
    async fn check_waiting(&mut self) -> Result<(), String> {
        for state in &mut self.states {
            match state {
                State::Waiting(request) if request.is_finished() => {
                    return Err(returned_early(request.await));
                }
                State::Upgrading(_, request) if request.is_finished() => {
                    return Err(returned_early(request.await));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
