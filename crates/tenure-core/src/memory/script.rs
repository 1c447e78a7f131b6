//! What tests can do to a store in memory: move its clock, disturb requests, end holds.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use super::{Backend, Store};
use crate::backend::{BoxFuture, Request};
use crate::error::{Error, ErrorKind, Step};
use crate::holder::Status;
use crate::logic::table::Table;
use crate::name::LockName;
use crate::rt::{VirtualClock, lock};
use crate::time::Time;

/// What a test can do to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Disturbance {
    /// It does not reach the store: `Unreachable`.
    RequestLost,
    /// It is applied and the reply does not come back: `Indeterminate`.
    ReplyLost,
    /// It is applied and no reply comes until the request is stopped or the store is
    /// [resumed](Backend::resume): then `Indeterminate`.
    ReplyNever,
    /// It reaches the store this much later.
    Late(Duration),
}

impl Backend {
    /// Moves the clock forward in one step; what was due on the way is due now.
    ///
    /// What then happens happens in tasks: await something before you look, and make steps that are
    /// shorter than a third of the ttl where renewals shall be in time.
    ///
    /// # Panics
    /// On a store that runs on the real clock.
    pub fn advance(&self, by: Duration) {
        self.virtual_clock().advance(by);
        self.0.with_state(|_, _| ());
    }

    /// The instant of the earliest timer on this clock, if anything sleeps: how far a test can
    /// [`advance`](Backend::advance) in one step without missing anything.
    ///
    /// # Panics
    /// On a store that runs on the real clock.
    pub fn next_wake(&self) -> Option<Time> {
        self.virtual_clock().next_wake()
    }

    /// From now on, what clients of this store leave to chance (owner ids, jitter) follows from `seed`,
    /// so that a test on one thread takes the same course each time.
    ///
    /// # Panics
    /// On a store that runs on the real clock.
    pub fn seed(&self, seed: u64) {
        self.virtual_clock().seed(seed);
    }

    fn virtual_clock(&self) -> &VirtualClock {
        self.0
            .virtual_clock
            .as_ref()
            .expect("only a store made by `with_virtual_clock` has a clock that can be moved")
    }

    /// The next request of that step is disturbed. Calls queue up.
    pub fn disturb(&self, step: Step, disturbance: Disturbance) {
        lock(&self.0.state).script.push_back((step, disturbance));
    }

    /// From now on requests hang.
    pub fn pause(&self) {
        lock(&self.0.state).resumed.get_or_insert_default();
    }

    /// Requests that hang go on, and so does the store.
    pub fn resume(&self) {
        let mut state = lock(&self.0.state);
        if let Some(resumed) = state.resumed.take() {
            resumed.raise();
        }
    }

    /// Kills the store and starts it again, empty: holds, waiters and tokens are forgotten, and no
    /// holder is told. For `guard` after that it refuses every acquisition (`Unreachable`).
    pub fn restart(&self, guard: Duration) {
        self.0.with_state(|state, now| {
            state.table = Table::new();
            state.holders.clear();
            state.waiting.clear();
            state.guarded_until = Some(now.after(guard));
        });
    }

    /// Ends every hold of `name` as if its lease had run out, unnoticed by the holders.
    pub fn expire(&self, name: &str) -> Result<usize, Error> {
        let name = LockName::new(name)?;
        Ok(self
            .0
            .with_state(|state, now| state.table.expire(&name, now)))
    }

    /// Requests that reached the store so far.
    pub fn requests(&self) -> u64 {
        lock(&self.0.state).requests
    }

    /// Who holds it and who waits: no request, so nothing that is scripted happens to it.
    pub fn status(&self, name: &LockName) -> Status {
        self.0.status(name)
    }

    /// Whether nobody holds and nobody waits for anything.
    pub fn is_idle(&self) -> bool {
        let mut state = lock(&self.0.state);
        state.table.tick(self.0.clock.now());
        state.table.names("").is_empty() && state.waiting.is_empty() && state.holders.is_empty()
    }

    /// Runs `apply`, on time or as disturbed. `stop` ends what hangs.
    pub(super) fn request<T: Send + 'static>(
        &self,
        step: Step,
        stop: Option<Arc<Request>>,
        apply: impl FnOnce(&Arc<Store>) -> T + Send + 'static,
        stopped: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> BoxFuture<Result<T, Error>> {
        let (disturbance, paused) = {
            let mut state = lock(&self.0.state);
            state.requests += 1;
            if state.is_undisturbed() {
                drop(state);
                return Box::pin(ready(Ok(apply(&self.0))));
            }
            let at = state
                .script
                .iter()
                .position(|(scripted, _)| *scripted == step);
            (
                at.and_then(|at| state.script.remove(at)),
                state.resumed.clone(),
            )
        };
        let store = self.0.clone();
        Box::pin(async move {
            let stop_raised = async {
                match &stop {
                    Some(request) => request.stop.raised().await,
                    None => std::future::pending().await,
                }
            };
            if let Some(resumed) = paused {
                tokio::select! {
                    biased;
                    () = resumed.raised() => {}
                    () = stop_raised => return stopped(),
                }
                return Ok(apply(&store));
            }
            match disturbance.map(|(_, disturbance)| disturbance) {
                None => Ok(apply(&store)),
                Some(Disturbance::RequestLost) => Err(Error::new(
                    ErrorKind::Unreachable,
                    "the request was lost, as scripted",
                )),
                Some(Disturbance::ReplyLost) => {
                    drop(apply(&store));
                    Err(reply_lost())
                }
                Some(Disturbance::ReplyNever) => {
                    drop(apply(&store));
                    let resumed = lock(&store.state).resumed.get_or_insert_default().clone();
                    tokio::select! {
                        biased;
                        () = resumed.raised() => {}
                        () = stop_raised => {}
                    }
                    Err(reply_lost())
                }
                Some(Disturbance::Late(by)) => {
                    let at = store.clock.now().after(by);
                    tokio::select! {
                        biased;
                        () = store.clock.sleep_until(at) => Ok(apply(&store)),
                        () = stop_raised => stopped(),
                    }
                }
            }
        })
    }
}

pub(super) fn too_young(left: Duration) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "the store was restarted and may have forgotten holds; it grants nothing for another {left:.0?}"
        ),
    )
}

pub(super) fn reply_lost() -> Error {
    Error::new(ErrorKind::Indeterminate, "the reply was lost, as scripted")
}
