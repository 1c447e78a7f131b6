//! One acquisition: the turn among the tasks of this client, one request to the store, and the hold that it leads to.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::backend::{Answer, Grant, Hold, Request};
use crate::error::{Error, ErrorKind, Step};
use crate::fence::OwnerId;
use crate::holder::Holder;
use crate::logic::lease::{Lease, State, Terms};
use crate::name::LockName;
use crate::options::{Options, Renew};
use crate::rt::{Clock, Flag};
use crate::time::Time;

use super::held::Held;
use super::labels::LOG_TARGET;
use super::local_queue::Turn;
use super::observe::Observation;
use super::shared::Driver;
use super::under_way::UnderWay;

/// How long the driver asks the store for the holder after a wait has ended without a grant. Long enough for a login to
/// a database.
const INSPECT_LIMIT: Duration = Duration::from_millis(300);

/// A ttl must be at least this many round trips: a shorter one leaves no room for a renewal at ttl/3 with its retries.
const TTL_PER_ROUND_TRIP: u32 = 10;

impl Driver {
    /// Acquires `name`, waiting until `until`. `Ok(None)`: the name was busy until then.
    ///
    /// Cancel safe at every await: when the future is dropped, the driver stops the request, polls it to its end in the
    /// background, and releases the lock if it was granted.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        name: &LockName,
        options: &Options,
        until: Until,
    ) -> Result<Option<Arc<Held>>, Error> {
        self.acquire_inner(name, options, until)
            .await
            .map_err(|err| self.explain(err, name, Step::Acquire))
    }

    async fn acquire_inner(
        self: &Arc<Self>,
        name: &LockName,
        options: &Options,
        until: Until,
    ) -> Result<Option<Arc<Held>>, Error> {
        if self.closed.is_raised() {
            return Err(closed());
        }
        let turn = match self.queue.try_take(name) {
            Some(turn) => turn,
            None if until == Until::Once => return Ok(None),
            None => tokio::select! {
                biased;
                turn = self.queue.take(name) => turn,
                () = self.over(until) => return Ok(None),
                () = self.closed.raised() => return Err(closed()),
            },
        };
        let request = Arc::new(self.request(name, options, until != Until::Once));
        let mut attempt = Attempt::new(self, request, turn);
        // Most stores on this machine answer at the first poll, and need no timer.
        let answer = match attempt.under_way.poll_once() {
            Some(answer) => Some(answer),
            None => self.until_over(until, attempt.under_way.answer()).await?,
        };
        let answer = match answer {
            Some(answer) => answer,
            None => {
                // The wait is over. A grant that has arrived by now still counts.
                attempt.request.stop.raise();
                match attempt.under_way.poll_once() {
                    Some(answer) => answer,
                    None => return Ok(None),
                }
            }
        };
        match attempt.settle(answer)? {
            Some(grant) => {
                let held = self.hold(&attempt.request, options, &grant)?;
                self.check_round_trip(held, &grant).await.map(Some)
            }
            None => Ok(None),
        }
    }

    /// Rule 2: a lease that is too short for the round trips could not be renewed in time. One slow answer may be due to
    /// a pause of this process or of the store, so a second request decides.
    pub(super) async fn check_round_trip(
        self: &Arc<Self>,
        held: Arc<Held>,
        grant: &Grant,
    ) -> Result<Arc<Held>, Error> {
        let Some(lease) = grant.ttl else {
            return Ok(held);
        };
        let limit = lease / TTL_PER_ROUND_TRIP;
        if grant.round_trip <= limit {
            return Ok(held);
        }
        let name = held.name().clone();
        let mut tentative = Tentative::new(held);
        let until = Until::At(self.clock.now().after(limit));
        // Only the time counts, and not the answer.
        let answered = self
            .until_over(until, self.detachable(self.backend.inspect(name)))
            .await?;
        if answered.is_some() {
            tentative.check()?;
            return tentative.take().ok_or_else(lease_over);
        }
        let first = grant.round_trip;
        Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "a lease of {lease:?} is too short for this store: a round trip took {first:?}, another one more than {limit:?}, and it must be {TTL_PER_ROUND_TRIP} times as long; raise `ttl`"
            ),
        ))
    }

    /// The output of `request`, or `None` when the wait was over first. It looks at the flag `closed` without
    /// registering a waker, which would cost each request something: [`Driver::close`] wakes the callers of all requests.
    pub(super) async fn until_over<T>(
        &self,
        until: Until,
        request: impl Future<Output = T>,
    ) -> Result<Option<T>, Error> {
        let is_closed = |_: &mut Context<'_>| match self.closed.is_raised() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        };
        tokio::select! {
            biased;
            done = request => Ok(Some(done)),
            () = self.over(until) => Ok(None),
            () = poll_fn(is_closed) => Err(closed()),
        }
    }

    async fn over(&self, until: Until) {
        match until {
            // A store that answers a request that does not wait decides itself how long it may take.
            Until::Once | Until::Forever => std::future::pending().await,
            Until::At(time) => self.clock.sleep_until(time).await,
        }
    }

    /// Acquires a free name from a store on this machine. `None`: nothing was done; call [`Driver::acquire`].
    pub(crate) fn acquire_now(
        self: &Arc<Self>,
        name: &LockName,
        options: &Options,
    ) -> Result<Option<Arc<Held>>, Error> {
        // A task that waits for its turn was here first.
        if !self.answers_now || self.closed.is_raised() || self.queue.is_contended(name) {
            return Ok(None);
        }
        let request = self.request(name, options, false);
        let Some(grant) = self.backend.acquire_now(&request) else {
            return Ok(None);
        };
        self.hold(&request, options, &grant)
            .map(Some)
            .map_err(|err| self.explain(err, name, Step::Acquire))
    }

    pub(super) fn request(&self, name: &LockName, options: &Options, wait: bool) -> Request {
        Request {
            name: name.clone(),
            owner: self.fresh_owner(),
            mode: options.mode,
            ttl: options.ttl,
            wait,
            fair: options.fair,
            min_hold: options.min_hold,
            lock_delay: options.lock_delay,
            // A lease that is not renewed must have the whole length that was asked for.
            min_lease: match options.renew {
                Renew::Never => options.ttl,
                Renew::Automatic => options.min_lease,
            },
            is_renewed: options.renew == Renew::Automatic,
            propose: None,
            holder: self.describe(options),
            stop: Flag::new(),
        }
    }

    fn fresh_owner(&self) -> OwnerId {
        let half = || self.clock.seeded().map(u128::from);
        match half().zip(half()) {
            Some((high, low)) => OwnerId::from_bytes((high << 64 | low).to_be_bytes()),
            None => OwnerId::random(),
        }
    }

    /// What others see of an acquisition with these options.
    fn describe(&self, options: &Options) -> Arc<Holder> {
        if options.label.is_empty() {
            return self.identity.clone();
        }
        Arc::new(Holder {
            label: options.label.clone(),
            ..(*self.identity).clone()
        })
    }

    /// Makes a hold of a grant, unless the lease is over already.
    pub(super) fn hold(
        self: &Arc<Self>,
        request: &Request,
        options: &Options,
        grant: &Grant,
    ) -> Result<Arc<Held>, Error> {
        let terms = Terms {
            ttl: options.ttl,
            drift: options.drift,
            renew: options.renew,
            max_hold: options.max_hold,
        };
        let lease = Lease::granted(terms, grant.sent, grant.ttl);
        let hold = Hold::new(request, grant.token);
        // Rule 3: the lease is checked after the grant; a grant on an expired lease is not a grant.
        if lease.deadline() != Time::MAX
            && let State::Lost(_) = lease.state(self.clock.now())
        {
            self.tasks
                .clean_up(self.clone().release_until_definite(hold.unused()));
            return Err(lease_over());
        }
        let clocked = lease.deadline() != Time::MAX || !grant.watched;
        let observation = Observation::begin(self, &hold.name, hold.token, options);
        let held = Held::new(
            self.clone(),
            hold,
            request.holder.clone(),
            lease,
            grant.ttl.is_some(),
            clocked,
            observation,
        );
        held.begin();
        if self.closed.is_raised() {
            held.release_in_background();
            return Err(closed());
        }
        tracing::debug!(target: LOG_TARGET, name = %held.name(), backend = self.backend_name(), token = held.token(), "acquired");
        Ok(held)
    }

    /// The error of a wait that is over. It names the holder if the store answers quickly.
    pub(crate) async fn wait_elapsed(
        &self,
        name: &LockName,
        waited: Duration,
        ttl: Duration,
    ) -> Error {
        // On the real clock even where holds are on a virtual one: the limit bounds how long a caller waits.
        let clock = Clock::system();
        let status = tokio::select! {
            biased;
            status = self.detachable(self.backend.inspect(name.clone())) => status.ok(),
            () = clock.sleep_until(clock.now().after(INSPECT_LIMIT)) => None,
        };
        let reserved = status.as_ref().and_then(|status| status.reserved);
        let guard = status.as_ref().and_then(|it| it.restart_guard.clone());
        let guard = guard.filter(|guard| !guard.left(ttl).is_zero());
        let holder = status.and_then(|status| Some(status.holds.into_iter().next()?.holder));
        let taken = match (&holder, reserved) {
            (Some(holder), _) => format!("is held by {holder}"),
            (None, Some(left)) => format!("stays reserved for another {left:.0?}"),
            (None, None) => "is held".into(),
        };
        let message = if let Some(guard) = &guard {
            format!("waited {waited:?}; {}", guard.describe(ttl))
        } else if waited.is_zero() {
            format!("it {taken}, and `wait` is zero; raise it or use `try_acquire`")
        } else {
            format!("waited {waited:?} and it still {taken}; raise `wait` or use `try_acquire`")
        };
        let err = Error::new(ErrorKind::WaitElapsed, message);
        let err = err.with_holder(holder).with_restart_guard(guard);
        self.explain(err, name, Step::Acquire)
    }
}

/// Until when an acquisition waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// One try.
    Once,
    /// A point on the client's clock.
    At(Time),
    /// For ever.
    Forever,
}

impl Until {
    /// From the option.
    pub(crate) fn from_wait(wait: Duration, now: Time) -> Self {
        if wait.is_zero() {
            Self::Once
        } else {
            Self::At(now.after(wait))
        }
    }
}

/// A request that is under way. Dropping the attempt stops the request and polls it to its end in the background.
struct Attempt<'a> {
    driver: &'a Arc<Driver>,
    request: Arc<Request>,
    under_way: UnderWay<Answer>,
    turn: Option<Turn>,
}

impl<'a> Attempt<'a> {
    fn new(driver: &'a Arc<Driver>, request: Arc<Request>, turn: Turn) -> Self {
        let future = driver.detachable(driver.backend.acquire(request.clone()));
        Self {
            driver,
            request,
            under_way: UnderWay::new(future),
            turn: Some(turn),
        }
    }

    /// The grant, if there is one. After an ambiguous answer, what may be left in the store is released.
    fn settle(&mut self, answer: Result<Answer, Error>) -> Result<Option<Grant>, Error> {
        self.turn = None;
        match answer {
            Ok(Answer::Granted(grant)) => Ok(Some(grant)),
            Ok(Answer::Busy) => Ok(None),
            Err(err) => {
                if err.kind() == ErrorKind::Indeterminate {
                    let hold = Hold::new(&self.request, 0).unused();
                    self.driver
                        .tasks
                        .clean_up(self.driver.clone().release_until_definite(hold));
                }
                Err(err)
            }
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let Some(future) = self.under_way.take() else {
            return;
        };
        self.request.stop.raise();
        let (driver, request, turn) = (self.driver.clone(), self.request.clone(), self.turn.take());
        let finish = async move {
            let token = match future.await {
                Ok(Answer::Granted(grant)) => grant.token,
                Err(err) if err.kind() == ErrorKind::Indeterminate => 0,
                Ok(Answer::Busy) | Err(_) => return,
            };
            // The turn passes on before the clean-up: the next task can wait in the queue of the store already, behind us.
            drop(turn);
            driver
                .release_until_definite(Hold::new(&request, token).unused())
                .await;
        };
        // Stores on this machine answer at the first poll, inside or outside of a runtime.
        let polled = self.driver.tasks.spawner.poll_anywhere(Box::pin(finish));
        if let Err(Some(pending)) = polled {
            self.driver.tasks.clean_up(pending);
        }
    }
}

/// A hold that the caller has not got yet. Dropping it releases the hold.
pub(super) struct Tentative(Option<Arc<Held>>);

impl Tentative {
    pub(super) fn new(held: Arc<Held>) -> Self {
        Self(Some(held))
    }

    /// Rule 3: if the lease has expired meanwhile, there is no grant.
    pub(super) fn check(&self) -> Result<(), Error> {
        match &self.0 {
            Some(held) if !matches!(held.state(), State::Lost(_)) => Ok(()),
            _ => Err(lease_over()),
        }
    }

    /// Takes the hold out; it is released no more when this is dropped.
    pub(super) fn take(&mut self) -> Option<Arc<Held>> {
        self.0.take()
    }
}

impl Drop for Tentative {
    fn drop(&mut self) {
        if let Some(held) = &self.0 {
            held.release_in_background();
        }
    }
}

fn lease_over() -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        "the lease was over before its grant arrived; retry, or raise `ttl`",
    )
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client was closed")
}
