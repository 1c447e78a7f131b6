//! One acquisition: the turn among the tasks of this client, one request to the store, and the hold that it leads to.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::error::{Error, ErrorKind};
use crate::fence::OwnerId;
use crate::holder::{Holder, PublishedValue};
use crate::logic::lease::{HoldState, Lease, Terms};
use crate::name::LockName;
use crate::options::{Mode, Options, Renew};
use crate::rt::Flag;
use crate::rt::sync::AtomicBool;
use crate::store::{Answer, Grant, Hold, Request};
use crate::support::closed;
use crate::time::Time;

use super::diagnosis::{Asker, BusyName, LastStatus};
use super::held::Held;
use super::labels::LOG_TARGET;
use super::local_queue::{HeldByNext, Passed, Turn};
use super::observe::HoldObservation;
use super::running::{CleanUp, RunningRequest};
use super::shared::Driver;
use super::until::Until;
use super::wait_report::WaitReports;

/// A ttl must be at least this many round trips: a shorter one leaves no room for a renewal at ttl/3 with its retries.
const TTL_PER_ROUND_TRIP: u32 = 10;

impl Driver {
    /// Acquires `name`, waiting until `until`. A store that said nothing until then is an error: nothing is known about the
    /// name.
    ///
    /// Cancel safe at every await: when the future is dropped, the driver stops the request, polls it to its end in the
    /// background, and releases the lock if it was granted.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        name: &LockName,
        options: &Options,
        until: Until,
    ) -> Result<Acquired<Arc<Held>>, Error> {
        self.refuse_closed()?;
        let mut reports = None;
        let turn = match self.queue.try_take(name, self.joint(options)) {
            Some(turn) => turn,
            None if !until.waits() => {
                // In a box: few tries meet another task of the same client.
                let busy = Box::pin(self.busy_behind_task(name, until)).await?;
                return Ok(Acquired::Busy(busy));
            }
            None => {
                let reports = reports.insert(WaitReports::begin(self, name, until));
                match self.wait_for_turn(name, options, until, reports).await? {
                    Acquired::Got(Passed::Turn(turn)) => turn,
                    Acquired::Got(Passed::Hold(hold)) => return take_over(hold).map(Acquired::Got),
                    Acquired::Busy(busy) => return Ok(Acquired::Busy(busy)),
                }
            }
        };
        let request = Arc::new(self.request(name, options, until, Some(turn.said_taken.clone())));
        let asked = AskedName {
            request: request.clone(),
            turn,
        };
        let mut running = RunningRequest::send(self, asked, |store| store.acquire(request.clone()));
        // Most stores on this machine answer at the first poll, and need no timer.
        let answer = match running.poll_once() {
            Some(answer) => answer,
            None => {
                let reports = reports.unwrap_or_else(|| WaitReports::begin(self, name, until));
                let is_busy = |answer: &Answer| matches!(answer, Answer::Busy);
                let waited = self.wait_for_answer(&mut running, &request, until, reports, is_busy);
                match waited.await? {
                    Acquired::Got(answer) => answer,
                    Acquired::Busy(busy) => return Ok(Acquired::Busy(busy)),
                }
            }
        };
        let answer = running.settle(answer);
        // Unless the hold keeps it, the turn passes on.
        let asked = running.take_clean_up();
        drop(running);
        match answer? {
            Answer::Granted(grant) => {
                let held = self.hold(&request, options, &grant)?;
                if let Some(asked) = asked {
                    held.keep_turn(asked.turn, options, grant.round_trip);
                }
                let held = self.check_round_trip(held, &grant).await?;
                Ok(Acquired::Got(held))
            }
            Answer::Busy => Ok(Acquired::Busy(BusyName::new(name, LastStatus::NotAsked))),
        }
    }

    /// The mode, if tasks that want it may ask the store at the same time.
    pub(super) fn joint(&self, options: &Options) -> Option<Mode> {
        let may_be = matches!(options.mode, Mode::Shared | Mode::Permits { .. });
        (may_be && self.store.answers_shared_together()).then_some(options.mode)
    }

    /// Waits for the answer to `request`, or to several requests of which it is the first, until the end of the wait.
    pub(super) async fn wait_for_answer<T: Send + 'static, C: CleanUp<T>>(
        self: &Arc<Self>,
        running: &mut RunningRequest<'_, T, C>,
        request: &Request,
        until: Until,
        mut reports: WaitReports<'_>,
        is_busy: fn(&T) -> bool,
    ) -> Result<Acquired<Result<T, Error>>, Error> {
        let wait = until.length(&self.clock);
        let answer = reports.during(Asker::ThisTask, running.answer());
        let over = self.over(&request.name, until);
        let inspected = match self.until_over(over, answer).await? {
            Ok(answer) => return Ok(Acquired::Got(answer)),
            Err(inspected) => inspected,
        };
        // A grant that has arrived by now still counts.
        running.stop();
        match running.poll_once() {
            Some(Ok(answer)) if !is_busy(&answer) => Ok(Acquired::Got(Ok(answer))),
            Some(Err(err)) => Ok(Acquired::Got(Err(err))),
            _ if request.is_taken() => {
                let last = LastStatus::of(inspected);
                Ok(Acquired::Busy(BusyName::new(&request.name, last)))
            }
            _ => {
                let asker = Asker::ThisTask;
                let busy = self.refuse_silence(&request.name, inspected, wait, asker)?;
                Ok(Acquired::Busy(busy))
            }
        }
    }

    async fn wait_for_turn(
        self: &Arc<Self>,
        name: &LockName,
        options: &Options,
        until: Until,
        reports: &mut WaitReports<'_>,
    ) -> Result<Acquired<Passed>, Error> {
        let wait = until.length(&self.clock);
        let passing_on = self.options_to_pass_on(options);
        let taking = self.queue.take(name, self.joint(options), passing_on);
        let inspected = tokio::select! {
            biased;
            passed = reports.during(Asker::AnotherTask, taking) => return Ok(Acquired::Got(passed)),
            inspected = self.over(name, until) => inspected,
            () = self.closed.raised() => return Err(closed()),
        };
        // The answers of the store went to the task that has the turn.
        let busy = self.refuse_silence(name, inspected, wait, Asker::AnotherTask)?;
        Ok(Acquired::Busy(busy))
    }

    /// Rule 2: a ttl that is too short for the round trips could not be renewed in time. One slow answer may be due to
    /// a pause of this process or of the store, so a second request decides. A connection that breaks before the second
    /// answer says nothing about the time of a round trip, so then the store is asked again.
    ///
    /// The lease of the grant may be shorter than the ttl, after a hand-over; the next renewal makes it as long.
    pub(super) async fn check_round_trip(
        self: &Arc<Self>,
        held: Arc<Held>,
        grant: &Grant,
    ) -> Result<Arc<Held>, Error> {
        let ttl = held.hold.ttl;
        let limit = ttl / TTL_PER_ROUND_TRIP;
        if grant.ttl.is_none() || grant.round_trip <= limit {
            return Ok(held);
        }
        let name = held.name().clone();
        let mut tentative = Tentative::new(held);
        let until = Until::At(self.clock.now().after(limit));
        // Only the time counts, and not what the answer says.
        let inspecting = self.inspect_until_answered(name);
        let answered = self.until_over(self.end(until), inspecting).await?;
        if answered.is_ok() {
            tentative.check()?;
            return tentative.take().ok_or_else(lease_over);
        }
        let first = grant.round_trip;
        Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "a ttl of {ttl:?} is too short for this store: a round trip took {first:?}, another one more than {limit:?}, and it must be {TTL_PER_ROUND_TRIP} times as long; raise `ttl`"
            ),
        ))
    }

    /// The output of `request`, or that of `over` if the wait was over first. This looks at the flag `closed` without
    /// registering a waker, which would cost each request something: [`Driver::close`] wakes the callers of all requests.
    pub(super) async fn until_over<T, O>(
        &self,
        over: impl Future<Output = O>,
        request: impl Future<Output = T>,
    ) -> Result<Result<T, O>, Error> {
        let is_closed = |_: &mut Context<'_>| match self.closed.is_raised() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        };
        tokio::select! {
            biased;
            done = request => Ok(Ok(done)),
            over = over => Ok(Err(over)),
            () = poll_fn(is_closed) => Err(closed()),
        }
    }

    /// Resolves at the end of the wait. A store that answers a request that does not wait decides itself how long it may
    /// take.
    pub(super) async fn end(&self, until: Until) {
        match until {
            Until::Once | Until::Forever => std::future::pending().await,
            Until::At(time) | Until::OnceBy(time) => self.clock.wait_until(time).await,
        }
    }

    /// Acquires a free name from a store on this machine. `None`: nothing was done; call [`Driver::acquire`].
    pub(crate) fn acquire_now(
        self: &Arc<Self>,
        name: &LockName,
        options: &Options,
    ) -> Result<Option<Arc<Held>>, Error> {
        // A task that waits for its turn was here first.
        let Some(answer_now) = &self.answer_now else {
            return Ok(None);
        };
        if self.closed.is_raised() || self.queue.is_contended(name) {
            return Ok(None);
        }
        let request = self.request(name, options, Until::Once, None);
        let Some(grant) = answer_now.acquire_now(&request) else {
            return Ok(None);
        };
        let hold = Hold {
            name: request.name,
            owner: request.owner,
            mode: request.mode,
            token: grant.token,
            ttl: request.ttl,
            unclean: false,
            unused: false,
        };
        self.hold_of(hold, request.holder, options, &grant)
            .map(Some)
    }

    pub(super) fn request(
        &self,
        name: &LockName,
        options: &Options,
        until: Until,
        said_taken: Option<Arc<AtomicBool>>,
    ) -> Request {
        Request {
            name: name.clone(),
            owner: self.fresh_owner(),
            mode: options.mode,
            ttl: options.ttl,
            wait: until.waits(),
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
            until: match until {
                Until::At(time) | Until::OnceBy(time) => time,
                Until::Once | Until::Forever => Time::MAX,
            },
            taken: said_taken,
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
    pub(super) fn describe(&self, options: &Options) -> Arc<Holder> {
        if options.label.is_empty() && options.value.is_none() {
            return self.identity.holder.clone();
        }
        let value = options.value.as_ref().map(|text| {
            let number = self.identity.value_number(0);
            PublishedValue::new(text.clone(), number)
        });
        Arc::new(Holder {
            label: options.label.clone(),
            value,
            ..(*self.identity.holder).clone()
        })
    }

    /// Makes a hold of a grant, unless the lease is over already.
    pub(super) fn hold(
        self: &Arc<Self>,
        request: &Request,
        options: &Options,
        grant: &Grant,
    ) -> Result<Arc<Held>, Error> {
        let hold = Hold::new(request, grant.token);
        self.hold_of(hold, request.holder.clone(), options, grant)
    }

    /// The same of a hold that the store has already.
    pub(super) fn hold_of(
        self: &Arc<Self>,
        hold: Hold,
        holder: Arc<Holder>,
        options: &Options,
        grant: &Grant,
    ) -> Result<Arc<Held>, Error> {
        // A lease that several holds share may be older than the request for this one.
        let age = || {
            let requested = self.clock.now().before(grant.round_trip);
            requested.since(grant.sent)
        };
        let terms = Terms {
            ttl: options.ttl,
            drift: options.drift,
            renew: options.renew,
            max_hold: options.max_hold.map(|it| it.saturating_add(age())),
        };
        let lease = Lease::granted(terms, grant.sent, grant.ttl);
        // Rule 3: the lease is checked after the grant; a grant on an expired lease is not a grant.
        if lease.deadline() != Time::MAX
            && let HoldState::Lost(_) = lease.state(self.clock.now())
        {
            self.tasks
                .clean_up(self.clone().release_until_definite(hold.unused()));
            return Err(lease_over());
        }
        let clocked = lease.deadline() != Time::MAX || !grant.watched;
        let observation = HoldObservation::begin(self, &hold.name, hold.token, options);
        let held = Held::new(
            self.clone(),
            hold,
            holder,
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
        tracing::debug!(target: LOG_TARGET, name = %held.name(), store = self.scheme(), token = held.token(), "acquired");
        Ok(held)
    }
}

/// How an acquisition ended.
pub(crate) enum Acquired<T> {
    Got(T),
    /// A name was taken until the end of the wait.
    Busy(BusyName),
}

impl<T> Acquired<T> {
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Acquired<U> {
        match self {
            Self::Got(got) => Acquired::Got(change(got)),
            Self::Busy(busy) => Acquired::Busy(busy),
        }
    }

    pub(crate) fn got(self) -> Option<T> {
        match self {
            Self::Got(got) => Some(got),
            Self::Busy(_) => None,
        }
    }
}

/// A name that the store is asked for, and the turn of the task that asks.
pub(super) struct AskedName {
    pub(super) request: Arc<Request>,
    pub(super) turn: Turn,
}

impl CleanUp<Answer> for AskedName {
    fn stop(&self) {
        self.request.stop.raise();
    }

    fn is_needed_after(kind: ErrorKind) -> bool {
        kind == ErrorKind::Indeterminate
    }

    /// Releases what was granted, or may have been.
    fn clean_up(
        self,
        driver: Arc<Driver>,
        answer: Option<Answer>,
    ) -> impl Future<Output = ()> + Send + 'static {
        // The turn passes on before: the next task can wait in the queue of the store already, behind us.
        drop(self.turn);
        async move {
            let token = match answer {
                Some(Answer::Granted(grant)) => grant.token,
                Some(Answer::Busy) => return,
                None => 0,
            };
            let hold = Hold::new(&self.request, token).unused();
            driver.release_until_definite(hold).await;
        }
    }
}

/// The hold of the task before, unless the lease is over by now.
fn take_over(hold: HeldByNext) -> Result<Arc<Held>, Error> {
    let mut tentative = hold.downcast::<Tentative>().map_err(|_| lease_over())?;
    tentative.check()?;
    let held = tentative.take().ok_or_else(lease_over)?;
    held.set_taken();
    Ok(held)
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
            Some(held) if !matches!(held.state(), HoldState::Lost(_)) => Ok(()),
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

pub(super) fn lease_over() -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        "the lease was over before its grant arrived; retry, or raise `ttl`",
    )
}
