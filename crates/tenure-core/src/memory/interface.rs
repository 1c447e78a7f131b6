//! The interface of the store: each operation, undisturbed or as a test has scripted it.

use std::future::ready;
use std::sync::Arc;

use super::acquire::{self, TableReply};
use super::disturbance::reply_lost;
use super::request::perform;
use super::store::{Shared, Store};
use super::wait::Wanted;
use super::{detach, elections, inspect, release, upgrade, wait};
use crate::error::{Error, Step};
use crate::guarantees::Guarantees;
use crate::holder::{Holder, LockStatus};
use crate::leader::Sighting;
use crate::name::LockName;
use crate::options::Mode;
use crate::rt::{Clock, lock, poll_now};
use crate::store::{
    self, AcquireAll, AllAnswer, Answer, AnswerNow, BoxFuture, ChangeMode, Detach, Elections,
    Finding, Grant, Hold, Listed, LossNotifier, Operate, RaiseToken, Release, Renewal, Request,
    Sightings,
};
use crate::time::Time;

impl store::Store for Store {
    fn guarantees(&self) -> &Guarantees {
        &self.0.guarantees
    }

    fn clock(&self) -> Clock {
        self.0.clock.clone()
    }

    fn attach(&self, notifier: LossNotifier) {
        let mut state = lock(&self.0.state);
        let notifiers = &mut state.loss_notifiers;
        notifiers.retain(|notifier| !notifier.has_no_listener());
        notifiers.push(notifier);
    }

    fn acquire(self: Arc<Self>, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        grant_or_wait(
            &self.0,
            request,
            Step::Acquire,
            acquire::acquire,
            Wanted::Lock,
        )
    }

    fn needs_runtime(&self) -> bool {
        false
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        let (sent, count) = (self.0.clock.now(), holds.len());
        let apply = move |store: &Arc<Shared>| release::renew(store, &holds, sent);
        let renewing = perform(&self.0, Step::Renew, None, apply, || Err(reply_lost()));
        Box::pin(async move {
            renewing.await.unwrap_or_else(|err| {
                let unknown = || Renewal::Unknown(Error::new(err.kind(), err.to_string()));
                (0..count).map(|_| unknown()).collect()
            })
        })
    }

    fn release(self: Arc<Self>, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        let apply = move |store: &Arc<Shared>| release::release(store, &hold);
        perform(&self.0, Step::Release, None, apply, || Err(reply_lost()))
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<Result<LockStatus, Error>> {
        let apply = move |store: &Arc<Shared>| inspect::status(store, &name);
        perform(&self.0, Step::Inspect, None, apply, || Err(reply_lost()))
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<Result<Listed, Error>> {
        let apply = move |store: &Arc<Shared>| inspect::list(store, &prefix);
        perform(&self.0, Step::Inspect, None, apply, || Err(reply_lost()))
    }

    fn as_acquire_all(self: Arc<Self>) -> Option<Arc<dyn AcquireAll>> {
        Some(self)
    }

    fn as_change_mode(self: Arc<Self>) -> Option<Arc<dyn ChangeMode>> {
        Some(self)
    }

    fn as_answer_now(self: Arc<Self>) -> Option<Arc<dyn AnswerNow>> {
        Some(self)
    }

    fn as_raise_token(self: Arc<Self>) -> Option<Arc<dyn RaiseToken>> {
        Some(self)
    }

    fn as_elections(self: Arc<Self>) -> Option<Arc<dyn Elections>> {
        Some(self)
    }

    fn as_detach(self: Arc<Self>) -> Option<Arc<dyn Detach>> {
        Some(self)
    }

    fn as_operate(self: Arc<Self>) -> Option<Arc<dyn Operate>> {
        Some(self)
    }
}

impl AcquireAll for Store {
    fn acquire_all(
        self: Arc<Self>,
        requests: Vec<Arc<Request>>,
    ) -> BoxFuture<Result<AllAnswer, Error>> {
        // All requests are stopped together.
        let first = requests.first().cloned();
        // Read before the request is on its way: a test may make the way long.
        let sent = self.0.clock.now();
        let apply = move |store: &Arc<Shared>| acquire::acquire_all(store, &requests, sent);
        // A request that is stopped before it has reached the table has changed nothing.
        let stopped = || Ok(Ok(AllAnswer::Busy(0)));
        match poll_now(perform(&self.0, Step::Acquire, first, apply, stopped)) {
            Ok(outcome) => Box::pin(ready(outcome.and_then(|answer| answer))),
            Err(pending) => Box::pin(async move { pending.await? }),
        }
    }
}

impl ChangeMode for Store {
    fn upgrade(
        self: Arc<Self>,
        _: Hold,
        request: Arc<Request>,
    ) -> BoxFuture<Result<Answer, Error>> {
        grant_or_wait(
            &self.0,
            request,
            Step::Upgrade,
            upgrade::upgrade,
            Wanted::Upgrade,
        )
    }

    fn downgrade(self: Arc<Self>, hold: Hold, mode: Mode) -> BoxFuture<Result<bool, Error>> {
        let apply = move |store: &Arc<Shared>| upgrade::downgrade(store, &hold, mode);
        perform(&self.0, Step::Downgrade, None, apply, || Err(reply_lost()))
    }
}

impl AnswerNow for Store {
    fn acquire_now(&self, request: &Request) -> Option<Grant> {
        acquire::acquire_now(&self.0, request)
    }

    fn release_now(&self, hold: &Hold) -> Option<Release> {
        release::release_now(&self.0, hold)
    }
}

impl RaiseToken for Store {
    fn raise(self: Arc<Self>, hold: Hold, token: u64) -> BoxFuture<Result<Option<u64>, Error>> {
        let apply = move |store: &Arc<Shared>| {
            store.with_state(|state, now| state.table.raise(&hold.name, hold.owner, token, now))
        };
        perform(&self.0, Step::Acquire, None, apply, || Err(reply_lost()))
    }
}

impl Elections for Store {
    fn publish(self: Arc<Self>, hold: Hold, holder: Arc<Holder>) -> BoxFuture<Result<bool, Error>> {
        let apply = move |store: &Arc<Shared>| elections::publish(store, &hold, holder);
        perform(&self.0, Step::Write, None, apply, || Err(reply_lost()))
    }

    fn leader(self: Arc<Self>, name: LockName) -> BoxFuture<Result<Sighting, Error>> {
        let apply = move |store: &Arc<Shared>| elections::leader(store, &name);
        perform(&self.0, Step::Inspect, None, apply, || Err(reply_lost()))
    }

    fn watch(self: Arc<Self>, name: LockName) -> Option<Sightings> {
        Some(elections::watch(&self.0, name))
    }

    fn ask_to_release(
        self: Arc<Self>,
        name: LockName,
        token: u64,
    ) -> BoxFuture<Result<bool, Error>> {
        let apply = move |store: &Arc<Shared>| elections::ask_to_release(store, &name, token);
        perform(&self.0, Step::Write, None, apply, || Err(reply_lost()))
    }
}

impl Detach for Store {
    fn detach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        self.lease(Step::Detach, hold)
    }

    fn attach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        self.lease(Step::Attach, hold)
    }

    /// The store remembers nothing of its clients.
    fn forget(&self, _: &Hold) {}
}

impl Store {
    fn lease(&self, step: Step, hold: Hold) -> BoxFuture<Renewal> {
        let sent = self.0.clock.now();
        let apply = move |store: &Arc<Shared>| detach::lease(store, &hold, sent);
        let leasing = perform(&self.0, step, None, apply, || Err(reply_lost()));
        Box::pin(async move { leasing.await.unwrap_or_else(Renewal::Unknown) })
    }
}

impl Operate for Store {
    fn break_lock(self: Arc<Self>, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        let apply = move |store: &Arc<Shared>| inspect::break_lock(store, &name, token);
        perform(&self.0, Step::Inspect, None, apply, || Err(reply_lost()))
    }

    fn check(self: Arc<Self>) -> BoxFuture<Result<Vec<Finding>, Error>> {
        Box::pin(ready(Ok(vec![Finding::good(
            "the store is this process: it excludes clients of this store only, and ends with the process",
        )])))
    }
}

/// Sends a request that may have to wait for its turn.
fn grant_or_wait(
    store: &Arc<Shared>,
    request: Arc<Request>,
    step: Step,
    ask: fn(&Arc<Shared>, &Request, Time) -> TableReply,
    wanted: Wanted,
) -> BoxFuture<Result<Answer, Error>> {
    let apply = {
        let request = request.clone();
        // Read before the request is on its way: a test may make the way long.
        let sent = store.clock.now();
        move |store: &Arc<Shared>| ask(store, &request, sent)
    };
    // A request that is stopped before it has reached the table has changed nothing.
    let stopped = || Ok(TableReply::Answered(Ok(Answer::Busy)));
    let asking = perform(store, step, Some(request.clone()), apply, stopped);
    let store = store.clone();
    let asking = match poll_now(asking) {
        Ok(Ok(TableReply::Answered(answer))) => return Box::pin(ready(answer)),
        Ok(Ok(TableReply::Queued(queued))) => {
            return Box::pin(wait::wait(store, request, queued, wanted));
        }
        Ok(Err(err)) => return Box::pin(ready(Err(err))),
        Err(pending) => pending,
    };
    Box::pin(async move {
        match asking.await? {
            TableReply::Answered(answer) => answer,
            TableReply::Queued(queued) => wait::wait(store, request, queued, wanted).await,
        }
    })
}
