//! One acquisition of several names with one request to the store, which takes all of them or none.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Step};
use crate::name::LockName;
use crate::options::Options;
use crate::rt::poll_now;
use crate::store::{AllAnswer, Grant, Hold, Request};

use super::acquire::Tentative;
use super::detach::DetachableRequest;
use super::diagnosis::{Asker, LastStatus};
use super::held::Held;
use super::local_queue::Turn;
use super::shared::{Driver, closed};
use super::until::Until;

/// What became of a request for several names.
pub(crate) enum Together {
    /// One hold for each name, in the same order.
    Held(Vec<Arc<Held>>),
    /// The name at this position is not free.
    Busy(usize, LastStatus),
    /// The names have to be acquired one by one: the store cannot do otherwise, or a task of this client acquires one of
    /// them.
    OneByOne,
}

impl Driver {
    /// Acquires all of `names` with one request if all are free, and none of them otherwise. Waits for nothing but the
    /// answer, and for that until `until`.
    ///
    /// Cancel safe at every await, as [`Driver::acquire`].
    pub(crate) async fn acquire_together(
        self: &Arc<Self>,
        names: &[&LockName],
        options: &Options,
        until: Until,
    ) -> Result<Together, Error> {
        self.acquire_together_inner(names, options, until)
            .await
            .map_err(|err| self.explain(err, names[0], Step::Acquire))
    }

    async fn acquire_together_inner(
        self: &Arc<Self>,
        names: &[&LockName],
        options: &Options,
        until: Until,
    ) -> Result<Together, Error> {
        if self.closed.is_raised() {
            return Err(closed());
        }
        // A task that has the turn for one of the names was here first.
        let turns = names.iter().map(|name| self.queue.try_take(name));
        let Some(turns): Option<Vec<Turn>> = turns.collect() else {
            return Ok(Together::OneByOne);
        };
        let requests = names.iter().zip(&turns).map(|(name, turn)| {
            Arc::new(self.request(name, options, until.once(), turn.said_taken.clone()))
        });
        let requests = requests.collect();
        let mut attempt = Attempt::new(self, requests, turns);
        let answer = match attempt.poll_once() {
            Some(answer) => answer,
            None => {
                let wait = until.length(&self.clock);
                let over = self.over(names[0], until);
                match self.until_over(over, attempt.finish()).await? {
                    Ok(answer) => answer,
                    Err(inspected) => {
                        let last = self.refuse_silence(inspected, wait, Asker::ThisTask)?;
                        return Ok(Together::Busy(0, last));
                    }
                }
            }
        };
        match attempt.settle(answer)? {
            AllAnswer::Granted(grants) => {
                let held = self.hold_all(&attempt.requests, options, &grants).await?;
                Ok(Together::Held(held))
            }
            AllAnswer::Busy(at) => Ok(Together::Busy(at, LastStatus::NotAsked)),
            AllAnswer::OneByOne => Ok(Together::OneByOne),
        }
    }

    /// Makes holds of the grants. If one of the leases is over already, or too short, all holds are released.
    async fn hold_all(
        self: &Arc<Self>,
        requests: &[Arc<Request>],
        options: &Options,
        grants: &[Grant],
    ) -> Result<Vec<Arc<Held>>, Error> {
        let grants = requests.iter().zip(grants);
        let holds = grants.map(|(request, grant)| {
            let held = self.hold(request, options, grant)?;
            Ok((Tentative::new(held), grant))
        });
        // All of them are made before the first error counts: each grant is a hold that has to be released.
        let holds: Vec<Result<_, Error>> = holds.collect();
        let mut holds: Vec<_> = holds.into_iter().collect::<Result<_, _>>()?;
        // All grants were answered by one request, so one round trip is checked.
        if let Some((first, grant)) = holds.first_mut()
            && let Some(held) = first.take()
        {
            *first = Tentative::new(self.check_round_trip(held, grant).await?);
        }
        for (hold, _) in &holds {
            hold.check()?;
        }
        Ok(holds
            .into_iter()
            .filter_map(|(mut hold, _)| hold.take())
            .collect())
    }
}

/// The request that is under way. Dropping the attempt stops the request and polls it to its end in the background.
struct Attempt<'a> {
    driver: &'a Arc<Driver>,
    requests: Vec<Arc<Request>>,
    future: Option<DetachableRequest<AllAnswer>>,
    turns: Vec<Turn>,
}

impl<'a> Attempt<'a> {
    fn new(driver: &'a Arc<Driver>, requests: Vec<Arc<Request>>, turns: Vec<Turn>) -> Self {
        let future = driver.detachable(driver.store.clone().acquire_all(requests.clone()));
        Self {
            driver,
            requests,
            future: Some(future),
            turns,
        }
    }

    /// The answer, if it is there already.
    fn poll_once(&mut self) -> Option<Result<AllAnswer, Error>> {
        match poll_now(self.future.take()?) {
            Ok(answer) => Some(answer),
            Err(pending) => {
                self.future = Some(pending);
                None
            }
        }
    }

    async fn finish(&mut self) -> Result<AllAnswer, Error> {
        let Some(future) = &mut self.future else {
            return Ok(AllAnswer::Busy(0));
        };
        let answer = future.await;
        self.future = None;
        answer
    }

    /// The answer. After an ambiguous one, what may be left in the store is released.
    fn settle(&mut self, answer: Result<AllAnswer, Error>) -> Result<AllAnswer, Error> {
        self.turns.clear();
        if let Err(err) = &answer
            && err.kind() == ErrorKind::Indeterminate
        {
            release_all(self.driver, &self.requests, &[]);
        }
        answer
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let Some(future) = self.future.take() else {
            return;
        };
        for request in &self.requests {
            request.stop.raise();
        }
        let (driver, requests) = (self.driver.clone(), std::mem::take(&mut self.requests));
        let turns = std::mem::take(&mut self.turns);
        let finish = async move {
            let grants = match future.await {
                Ok(AllAnswer::Granted(grants)) => grants,
                Err(err) if err.kind() == ErrorKind::Indeterminate => Vec::new(),
                Ok(AllAnswer::Busy(_) | AllAnswer::OneByOne) | Err(_) => return,
            };
            // The turns pass on before the clean-up, as after the request for one name.
            drop(turns);
            release_all(&driver, &requests, &grants);
        };
        let polled = self.driver.tasks.poll_anywhere(Box::pin(finish));
        if let Err(Some(pending)) = polled {
            self.driver.tasks.clean_up(pending);
        }
    }
}

/// Releases the holds that the requests may have led to, each in the background until the answer is definite.
fn release_all(driver: &Arc<Driver>, requests: &[Arc<Request>], grants: &[Grant]) {
    for (at, request) in requests.iter().enumerate() {
        let token = grants.get(at).map_or(0, |grant| grant.token);
        let hold = Hold::new(request, token).unused();
        let release = driver.clone().release_until_definite(hold);
        driver.tasks.clean_up(release);
    }
}
