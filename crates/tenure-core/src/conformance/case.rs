//! One run of one behaviour: its names, its clients, its time.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::error::Step;
use crate::guarantees::Guarantees;
use crate::holder::LockStatus;
use crate::rt::lock;
use crate::store::BoxFuture;
use crate::time::Time;
use crate::{Client, Error, ErrorKind, Guard, Lock, OwnerId};

use super::failure::{Failure, Verdict, check};
use super::harness::{ContenderCounts, Harness, RequestFault};

/// How long an event may take that happens at once on an idle machine. Far above that, so that a busy machine is
/// no failure.
pub const SOON: Duration = Duration::from_secs(60);

/// The first pause between two inspections, for a state that no event announces.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The longest pause: an inspection may open a connection, and the end of a lease takes seconds.
const LOOK_AGAIN_LATER: Duration = Duration::from_millis(20);

/// Ends the behaviour unless the outcome is an error of that kind.
#[track_caller]
pub(super) fn expect_error<T>(outcome: Result<T, Error>, expected: ErrorKind) -> Verdict {
    let kind = outcome.map(drop).map_err(|err| err.kind());
    check!(kind == Err(expected), "{kind:?} instead of {expected:?}");
    Ok(())
}

/// Ends the behaviour unless the token of the guard is greater than `last`; returns that token.
#[track_caller]
pub(super) fn expect_greater(guard: &Guard, last: u64) -> Result<u64, Failure> {
    let token = guard.token().get();
    check!(token > last, "{token} follows {last}");
    Ok(token)
}

/// A method for each capability of the harness that has no arguments.
macro_rules! capabilities {
    ($($name:ident),*) => { $(
        #[doc = concat!("[`Harness::", stringify!($name), "`].")]
        ///
        /// # Errors
        /// This harness does not have that capability.
        pub async fn $name(&self) -> Verdict {
            self.capability(stringify!($name), self.harness.$name()).await
        }
    )* };
}

/// One run of one behaviour against one harness.
pub struct Case {
    harness: Arc<dyn Harness>,
    id: String,
    names: Mutex<BTreeSet<String>>,
}

impl Case {
    pub(super) fn new(harness: Arc<dyn Harness>) -> Arc<Self> {
        Arc::new(Self {
            harness,
            id: OwnerId::random().to_hex()[..10].to_owned(),
            names: Mutex::default(),
        })
    }

    /// The store under test.
    pub fn harness(&self) -> &dyn Harness {
        &*self.harness
    }

    /// What the store promises.
    pub fn guarantees(&self) -> Guarantees {
        self.harness.guarantees()
    }

    /// See [`Harness::ttl`].
    pub fn ttl(&self) -> Duration {
        self.harness.ttl()
    }

    /// A ttl so long that no lease ends, however slow the machine is.
    pub fn long(&self) -> Duration {
        self.ttl() * 30
    }

    /// How much earlier than the end of the lease in the store a holder counts its hold as ended, by rule 2.
    pub fn margin(&self) -> Duration {
        (self.ttl() / 100).max(Duration::from_millis(2))
    }

    /// Now, on the clients' clock.
    pub fn now(&self) -> Time {
        self.harness.clock().now()
    }

    /// Lower-case letters and digits that no other run has.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A plain name of this run only.
    pub fn name(&self, tail: &str) -> String {
        let name = format!("{tail}-{}", self.id);
        self.note(&name);
        name
    }

    /// Notes a name. At the end of the run the suite checks that the store has no hold and no waiter of that name.
    pub fn note(&self, name: &str) {
        lock(&self.names).insert(name.to_owned());
    }

    pub(super) fn names(&self) -> Vec<String> {
        lock(&self.names).iter().cloned().collect()
    }

    /// A new independent client.
    ///
    /// # Errors
    /// The harness could not make one.
    pub async fn client(&self) -> Result<Client, Failure> {
        Ok(self.harness.client().await?)
    }

    /// Two independent clients, and a name for both: see [`name`](Case::name).
    ///
    /// # Errors
    /// The harness could not make a client.
    pub async fn two_clients(&self, tail: &str) -> Result<(Client, Client, String), Failure> {
        Ok((self.client().await?, self.client().await?, self.name(tail)))
    }

    /// Acquires for a long time and expects no contention.
    ///
    /// # Errors
    /// The lock was busy.
    #[track_caller]
    pub fn take(
        &self,
        client: &Client,
        name: &str,
    ) -> impl Future<Output = Result<Guard, Failure>> + Send + use<> {
        take(client, name, self.long())
    }

    /// The same with the shortest ttl, for behaviours in which a lease or its renewal matters.
    ///
    /// # Errors
    /// The lock was busy.
    #[track_caller]
    pub fn lease(
        &self,
        client: &Client,
        name: &str,
    ) -> impl Future<Output = Result<Guard, Failure>> + Send + use<> {
        take(client, name, self.ttl())
    }

    /// Acquires and releases a name that is free, or is freed without any time passing in the store.
    ///
    /// # Errors
    /// The lock stayed busy.
    #[track_caller]
    pub fn acquire_and_release<'a>(
        &'a self,
        client: &Client,
        name: &str,
    ) -> impl Future<Output = Verdict> + use<'a> {
        let lock = client.lock(name).ttl(self.long());
        let acquired = self.soon("the next holder", async move { lock.acquire().await });
        async move { Ok(acquired.await??.release().await?) }
    }

    /// Lets that much time pass in the store.
    pub async fn pass(&self, time: Duration) {
        let until = self.now().after(time);
        loop {
            let left = until.since(self.now());
            if left.is_zero() {
                return;
            }
            match self.harness.advance(left.min(self.step())) {
                Some(advanced) => advanced.await,
                None => self.harness.clock().sleep_until(until).await,
            }
        }
    }

    /// Waits before the state of a guard is read again. With virtual time a sleep could miss a state.
    pub(super) async fn look_again(&self) {
        match self.harness.advance(Duration::ZERO) {
            Some(_) => tokio::task::yield_now().await,
            None => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }

    /// A step of virtual time.
    fn step(&self) -> Duration {
        self.ttl() / 64
    }

    /// Awaits an event for which no time has to pass in the store.
    ///
    /// # Errors
    /// The event did not happen.
    #[track_caller]
    pub fn soon<'a, T>(
        &'a self,
        what: &'a str,
        future: impl Future<Output = T> + 'a,
    ) -> impl Future<Output = Result<T, Failure>> + 'a {
        let late = Failure::new(format_args!("did not happen: {what}"));
        async move {
            match tokio::time::timeout(SOON, future).await {
                Ok(value) => Ok(value),
                Err(_) => Err(late),
            }
        }
    }

    /// Awaits an event that happens within `limit` of the store's time.
    ///
    /// # Errors
    /// The event did not happen.
    #[track_caller]
    pub fn in_time<'a, T>(
        &'a self,
        limit: Duration,
        what: &'a str,
        future: impl Future<Output = T> + 'a,
    ) -> impl Future<Output = Result<T, Failure>> + 'a {
        let late = Failure::new(format_args!("did not happen within {limit:?}: {what}"));
        async move {
            let mut future = pin!(future);
            let until = self.now().after(limit);
            // Real time passes by itself; SOON is for what the machine takes beyond.
            while let Some(advanced) = self.harness.advance(self.step()) {
                tokio::select! {
                    biased;
                    value = &mut future => return Ok(value),
                    () = advanced => {}
                }
                if self.now() >= until {
                    return match tokio::time::timeout(SOON, future).await {
                        Ok(value) => Ok(value),
                        Err(_) => Err(late),
                    };
                }
            }
            match tokio::time::timeout(limit + SOON, future).await {
                Ok(value) => Ok(value),
                Err(_) => Err(late),
            }
        }
    }

    /// Starts `future` as a task, and returns once it has been polled for the first time.
    pub async fn start<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let (polled, was_polled) = oneshot::channel();
        let mut future = Box::pin(future);
        let mut polled = Some(polled);
        let task = tokio::spawn(std::future::poll_fn(move |cx| {
            let poll = future.as_mut().poll(cx);
            if let Some(polled) = polled.take() {
                let _ = polled.send(());
            }
            poll
        }));
        let _ = was_polled.await;
        task
    }

    /// Starts a task that acquires, and returns once the task has been polled for the first time.
    pub async fn start_acquire(&self, lock: Lock) -> JoinHandle<Result<Guard, Error>> {
        self.start(async move { lock.acquire().await }).await
    }

    /// Acquires as the next holder, within `limit` of the store's time. A store that has just started or that elects a leader
    /// may leave a request without an answer, and then nothing was locked.
    ///
    /// # Errors
    /// There was no answer by then.
    #[track_caller]
    pub fn acquire_within<'a>(
        &'a self,
        limit: Duration,
        lock: &'a Lock,
    ) -> impl Future<Output = Result<Result<Guard, Error>, Failure>> + 'a {
        self.in_time(limit, "the next holder", until_answered(lock))
    }

    /// Inspects the store.
    ///
    /// # Errors
    /// The harness could not inspect the store.
    pub async fn count_contenders(&self, name: &str) -> Result<ContenderCounts, Failure> {
        self.harness.count_contenders(name).await
    }

    /// Inspects the store again and again until it shows what is expected.
    ///
    /// # Errors
    /// The store never showed that; the text has its last state.
    #[track_caller]
    pub fn until_counts<'a>(
        &'a self,
        name: &'a str,
        what: &'a str,
        expected: impl Fn(ContenderCounts) -> bool + 'a,
    ) -> impl Future<Output = Verdict> + 'a {
        let never = Failure::new(format_args!("the store never showed: {what}"));
        async move {
            let start = std::time::Instant::now();
            loop {
                let counts = self.count_contenders(name).await?;
                if expected(counts) {
                    return Ok(());
                }
                if start.elapsed() > SOON {
                    return Err(never.with(format_args!("last counts: {counts:?}")));
                }
                let pause = start.elapsed() / 50;
                tokio::time::sleep(pause.clamp(LOOK_AGAIN, LOOK_AGAIN_LATER)).await;
            }
        }
    }

    /// Waits with `lock`, whose name is held, until the wait has elapsed, and returns the error. A store that was too slow for
    /// the wait is asked again.
    ///
    /// # Errors
    /// The name was granted, or the error is another one.
    pub(super) async fn wait_in_vain(&self, lock: Lock, wait: Duration) -> Result<Error, Failure> {
        let lock = lock.wait(wait);
        let begin = std::time::Instant::now();
        loop {
            let start = self.now();
            let ended = self.in_time(wait, "the end of the wait", lock.acquire());
            let Err(err) = ended.await? else {
                return Err(Failure::new("two hold it"));
            };
            let waited = self.now().since(start);
            check!(waited >= wait, "gave up after {waited:?} of {wait:?}");
            match err.kind() {
                ErrorKind::WaitElapsed => return Ok(err),
                ErrorKind::Unreachable if begin.elapsed() < SOON => {}
                _ => check!(false, "{err:?} instead of WaitElapsed"),
            }
        }
    }

    /// Breaks the hold with that token, which the store has or will show in a moment.
    ///
    /// # Errors
    /// The store never had that hold.
    pub(super) async fn until_broken(&self, client: &Client, name: &str, token: u64) -> Verdict {
        self.soon("the hold is broken", async {
            while !client.break_lock(name, token).await? {
                self.look_again().await;
            }
            Ok::<_, Failure>(())
        })
        .await?
    }

    /// Lists until these names are among the listed ones. A store may show a hold a moment after its grant.
    ///
    /// # Errors
    /// One of the names is never listed.
    pub(super) async fn list_with(
        &self,
        client: &Client,
        prefix: &str,
        names: &[&str],
    ) -> Result<Vec<LockStatus>, Failure> {
        let begin = std::time::Instant::now();
        loop {
            let listed = client.list(prefix).await?;
            let is_listed = |name: &&str| listed.iter().any(|it| it.name.as_str() == *name);
            if names.iter().all(is_listed) {
                return Ok(listed);
            }
            let never = listed.iter().map(|it| it.name.as_str()).collect::<Vec<_>>();
            check!(
                begin.elapsed() < SOON,
                "listed are {never:?}, and not all of {names:?}"
            );
            self.look_again().await;
        }
    }

    /// Returns when so many requests wait in the store; at once where the store does not show that.
    ///
    /// # Errors
    /// That number was never reached.
    pub async fn until_waiting(&self, name: &str, count: usize) -> Verdict {
        self.until_counts(name, &format!("{count} waiting"), |counts| {
            counts.waiters.is_none_or(|waiters| waiters >= count)
        })
        .await
    }

    /// Returns when the store shows one hold of the name.
    ///
    /// # Errors
    /// The name is never held.
    pub(super) async fn until_held(&self, name: &str) -> Verdict {
        self.until_counts(name, "one holder", |counts| counts.holders == 1)
            .await
    }

    /// Returns when the store has no hold and no waiter of the name.
    ///
    /// # Errors
    /// Something is left.
    pub async fn until_idle(&self, name: &str) -> Verdict {
        self.until_counts(name, "nothing left", |counts| {
            counts.holders == 0 && counts.waiters.unwrap_or(0) == 0
        })
        .await
    }

    /// Returns when the store shows no waiter of the name; at once where a cancelled waiter stays visible.
    ///
    /// # Errors
    /// A waiter is left.
    pub async fn until_nobody_waits(&self, name: &str) -> Verdict {
        if self.harness.stale_waiters() {
            return Ok(());
        }
        self.until_counts(name, "no waiter left", |counts| {
            counts.waiters.unwrap_or(0) == 0
        })
        .await
    }

    /// [`Harness::evict`].
    ///
    /// # Errors
    /// This harness does not have that capability.
    pub async fn evict(&self, name: &str) -> Verdict {
        self.capability("evict", self.harness.evict(name)).await
    }

    /// [`Harness::disturb`].
    ///
    /// # Errors
    /// This harness does not have that capability.
    pub async fn disturb(&self, step: Step, request_fault: RequestFault) -> Verdict {
        self.capability("disturb", self.harness.disturb(step, request_fault))
            .await
    }

    capabilities!(
        pause_store,
        resume_store,
        wipe_store,
        restart_store,
        break_connection
    );

    async fn capability(&self, what: &str, capability: Option<BoxFuture<Verdict>>) -> Verdict {
        let Some(capability) = capability else {
            return Err(Failure::new(format_args!("this harness has no {what}")));
        };
        self.soon(what, capability).await?
    }
}

/// How often in a row a request of a behaviour may meet a pause of the machine.
pub(super) const PAUSES: usize = 10;

/// Acquires; asks again where there was no answer, as long as an answer may take on a busy machine.
async fn until_answered(lock: &Lock) -> Result<Guard, Error> {
    let begin = std::time::Instant::now();
    loop {
        match lock.acquire().await {
            Err(err) if err.kind() == ErrorKind::Unreachable && begin.elapsed() < SOON => {}
            answer => return answer,
        }
    }
}

#[track_caller]
fn take(
    client: &Client,
    name: &str,
    ttl: Duration,
) -> impl Future<Output = Result<Guard, Failure>> + Send + use<> {
    let lock = client.lock(name).ttl(ttl);
    let busy = Failure::new("the name should be free");
    async move {
        let mut tried = lock.try_acquire().await;
        for _ in 0..PAUSES {
            match tried {
                // By rule 2 the lease is too short: for a machine that stood still during two requests.
                // Or the store has just started, and there was no answer.
                Err(err) if matches!(err.kind(), ErrorKind::Invalid | ErrorKind::Unreachable) => {
                    tried = lock.acquire().await.map(Some);
                }
                tried => return tried?.ok_or(busy),
            }
        }
        tried?.ok_or(busy)
    }
}
