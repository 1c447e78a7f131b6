//! The store as a backend: each operation, undisturbed or as a test has scripted it.

use std::future::ready;
use std::sync::Arc;

use super::acquire::{self, Acquired};
use super::disturbance::reply_lost;
use super::request::perform;
use super::store::{Backend, Store};
use super::wait::Wanted;
use super::{inspect, release, upgrade, wait};
use crate::backend::{
    self, AllAnswer, Answer, BoxFuture, Finding, Grant, Hold, LossNotifier, Release, Renewal,
    Request, Severity,
};
use crate::error::{Error, Step};
use crate::guarantees::Guarantees;
use crate::holder::Status;
use crate::name::LockName;
use crate::options::Mode;
use crate::rt::{Clock, lock, poll_now};
use crate::time::Time;

impl backend::Backend for Backend {
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

    fn acquire(&self, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        grant_or_wait(
            &self.0,
            request,
            Step::Acquire,
            acquire::acquire,
            Wanted::Lock,
        )
    }

    fn acquire_all(&self, requests: Vec<Arc<Request>>) -> BoxFuture<Result<AllAnswer, Error>> {
        // All requests are stopped together.
        let first = requests.first().cloned();
        // Read before the request is on its way: a test may make the way long.
        let sent = self.0.clock.now();
        let apply = move |store: &Arc<Store>| acquire::acquire_all(store, &requests, sent);
        // A request that is stopped before it has reached the table has changed nothing.
        let stopped = || Ok(Ok(AllAnswer::Busy(0)));
        match poll_now(perform(&self.0, Step::Acquire, first, apply, stopped)) {
            Ok(outcome) => Box::pin(ready(outcome.and_then(|answer| answer))),
            Err(pending) => Box::pin(async move { pending.await? }),
        }
    }

    fn upgrade(&self, _: Hold, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        grant_or_wait(
            &self.0,
            request,
            Step::Upgrade,
            upgrade::upgrade,
            Wanted::Upgrade,
        )
    }

    fn downgrade(&self, hold: Hold, mode: Mode) -> BoxFuture<Result<bool, Error>> {
        let apply = move |store: &Arc<Store>| upgrade::downgrade(store, &hold, mode);
        perform(&self.0, Step::Downgrade, None, apply, || Err(reply_lost()))
    }

    fn answers_now(&self) -> bool {
        true
    }

    fn acquire_now(&self, request: &Request) -> Option<Grant> {
        acquire::acquire_now(&self.0, request)
    }

    fn release_now(&self, hold: &Hold) -> Option<Release> {
        release::release_now(&self.0, hold)
    }

    fn renew(&self, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        let (sent, count) = (self.0.clock.now(), holds.len());
        let apply = move |store: &Arc<Store>| release::renew(store, &holds, sent);
        let renewing = perform(&self.0, Step::Renew, None, apply, || Err(reply_lost()));
        Box::pin(async move {
            renewing.await.unwrap_or_else(|err| {
                let unknown = || Renewal::Unknown(Error::new(err.kind(), err.to_string()));
                (0..count).map(|_| unknown()).collect()
            })
        })
    }

    fn release(&self, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        let apply = move |store: &Arc<Store>| release::release(store, &hold);
        perform(&self.0, Step::Release, None, apply, || Err(reply_lost()))
    }

    fn raise(&self, hold: Hold, token: u64) -> BoxFuture<Result<Option<u64>, Error>> {
        let apply = move |store: &Arc<Store>| {
            store.with_state(|state, now| state.table.raise(&hold.name, hold.owner, token, now))
        };
        perform(&self.0, Step::Acquire, None, apply, || Err(reply_lost()))
    }

    fn inspect(&self, name: LockName) -> BoxFuture<Result<Status, Error>> {
        let apply = move |store: &Arc<Store>| inspect::status(store, &name);
        perform(&self.0, Step::Inspect, None, apply, || Err(reply_lost()))
    }

    fn list(&self, prefix: String) -> BoxFuture<Result<Vec<Status>, Error>> {
        let apply = move |store: &Arc<Store>| inspect::list(store, &prefix);
        perform(&self.0, Step::Inspect, None, apply, || Err(reply_lost()))
    }

    fn break_lock(&self, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        let apply = move |store: &Arc<Store>| inspect::break_lock(store, &name, token);
        perform(&self.0, Step::Inspect, None, apply, || Err(reply_lost()))
    }

    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Error>> {
        Box::pin(ready(Ok(vec![Finding::new(
            Severity::Good,
            "the store is this process: it excludes clients of this store only, and ends with the process",
        )])))
    }
}

/// Sends a request that may have to wait for its turn.
fn grant_or_wait(
    store: &Arc<Store>,
    request: Arc<Request>,
    step: Step,
    ask: fn(&Arc<Store>, &Request, Time) -> Acquired,
    wanted: Wanted,
) -> BoxFuture<Result<Answer, Error>> {
    let apply = {
        let request = request.clone();
        // Read before the request is on its way: a test may make the way long.
        let sent = store.clock.now();
        move |store: &Arc<Store>| ask(store, &request, sent)
    };
    // A request that is stopped before it has reached the table has changed nothing.
    let stopped = || Ok(Acquired::Answered(Ok(Answer::Busy)));
    let asking = perform(store, step, Some(request.clone()), apply, stopped);
    let store = store.clone();
    let asking = match poll_now(asking) {
        Ok(Ok(Acquired::Answered(answer))) => return Box::pin(ready(answer)),
        Ok(Ok(Acquired::Queued(queued))) => {
            return Box::pin(wait::wait(store, request, queued, wanted));
        }
        Ok(Err(err)) => return Box::pin(ready(Err(err))),
        Err(pending) => pending,
    };
    Box::pin(async move {
        match asking.await? {
            Acquired::Answered(answer) => answer,
            Acquired::Queued(queued) => wait::wait(store, request, queued, wanted).await,
        }
    })
}
