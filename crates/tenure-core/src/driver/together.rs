//! One acquisition of several names with one request to the store, which takes all of them or none.

use std::sync::Arc;

use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::options::Options;
use crate::store::{AllAnswer, Grant, Hold, Request};

use super::acquire::{Acquired, AskedName, Tentative};
use super::diagnosis::{BusyName, LastStatus};
use super::held::Held;
use super::local_queue::Turn;
use super::running::{CleanUp, RunningRequest};
use super::shared::Driver;
use super::until::Until;
use super::wait_report::WaitReports;

/// How an acquisition of several names with one request ended.
pub(crate) enum AcquiredAll<T> {
    /// One for each name, in the same order.
    All(Vec<T>),
    /// The name that is not free.
    Busy(BusyName),
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
    ) -> Result<AcquiredAll<Arc<Held>>, Error> {
        self.refuse_closed()?;
        // A task that has the turn for one of the names was here first.
        let turns = names.iter().map(|name| self.queue.try_take(name, None));
        let Some(turns): Option<Vec<Turn>> = turns.collect() else {
            return Ok(AcquiredAll::OneByOne);
        };
        let until = until.once();
        let asked = names.iter().zip(turns).map(|(name, turn)| AskedName {
            request: Arc::new(self.request(name, options, until, Some(turn.said_taken.clone()))),
            turn,
        });
        let asked: Vec<_> = asked.collect();
        let requests: Vec<_> = asked.iter().map(|it| it.request.clone()).collect();
        let mut running =
            RunningRequest::send(self, asked, |store| store.acquire_all(requests.clone()));
        let answer = match running.poll_once() {
            Some(answer) => answer,
            None => {
                let reports = WaitReports::begin(self, names[0], until);
                let is_busy = |answer: &AllAnswer| matches!(answer, AllAnswer::Busy(_));
                let first = &requests[0];
                let waited = self.wait_for_answer(&mut running, first, until, reports, is_busy);
                match waited.await? {
                    Acquired::Got(answer) => answer,
                    Acquired::Busy(busy) => return Ok(AcquiredAll::Busy(busy)),
                }
            }
        };
        let answer = running.settle(answer);
        // The turns pass on.
        drop(running);
        match answer? {
            AllAnswer::Granted(grants) => {
                let held = self.hold_all(&requests, options, &grants).await?;
                Ok(AcquiredAll::All(held))
            }
            AllAnswer::Busy(at) => {
                let busy = BusyName::new(names[at], LastStatus::NotAsked);
                Ok(AcquiredAll::Busy(busy))
            }
            AllAnswer::OneByOne => Ok(AcquiredAll::OneByOne),
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

impl CleanUp<AllAnswer> for Vec<AskedName> {
    fn stop(&self) {
        self.iter().for_each(|asked| asked.request.stop.raise());
    }

    fn is_needed_after(kind: ErrorKind) -> bool {
        kind == ErrorKind::Indeterminate
    }

    /// Releases what was granted, or may have been: each name in the background until the answer is definite.
    fn clean_up(
        self,
        driver: Arc<Driver>,
        answer: Option<AllAnswer>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let grants = match answer {
            Some(AllAnswer::Granted(grants)) => Some(grants),
            Some(AllAnswer::Busy(_) | AllAnswer::OneByOne) => None,
            None => Some(Vec::new()),
        };
        // The turns pass on before the clean-up, as after the request for one name.
        let requests: Vec<_> = self.into_iter().map(|asked| asked.request).collect();
        async move {
            let Some(grants) = grants else {
                return;
            };
            for (at, request) in requests.iter().enumerate() {
                let token = grants.get(at).map_or(0, |grant| grant.token);
                let hold = Hold::new(request, token).unused();
                let release = driver.clone().release_until_definite(hold);
                driver.tasks.clean_up(release);
            }
        }
    }
}
