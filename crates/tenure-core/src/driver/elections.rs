//! What candidates and leaders of an election ask of the store, beside the lock.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use crate::error::{Error, ErrorKind, Step};
use crate::guarantees::Capability;
use crate::holder::{Holder, PublishedValue};
use crate::leader::Leader;
use crate::logic::lease::HoldState;
use crate::lost::LostReason;
use crate::name::LockName;
use crate::store::Elections;

use super::held::Held;
use super::running::{CleanUp, RunningRequest};
use super::shared::Driver;

impl Driver {
    /// The part of the store that has elections. Refuses, before any I/O, if the store has no such part.
    pub(crate) fn elections(&self) -> Result<Arc<dyn Elections>, Error> {
        let elections = self.store.clone().as_elections();
        elections.ok_or_else(|| self.refusal(Capability::Elections, ""))
    }

    /// Who leads, as the store says now.
    pub(crate) async fn leader(&self, name: &LockName) -> Result<Option<Leader>, Error> {
        let explain = |err: Error| self.explain(err, name, Step::Inspect);
        let elections = self.elections().map_err(explain)?;
        let reading = self.read(|_| elections.leader(name.clone()));
        Ok(reading.await.map_err(explain)?.leader)
    }

    /// Asks the leader to let go. Returns whom it has asked; `None`: nobody leads any more.
    pub(crate) async fn ask_to_resign(&self, name: &LockName) -> Result<Option<Leader>, Error> {
        let Some(leader) = self.leader(name).await? else {
            return Ok(None);
        };
        let explain = |err: Error| self.explain(err, name, Step::Inspect);
        let Some(token) = leader.token else {
            let message = "the leader is a program of another library, which cannot be asked; see who it is with `inspect`";
            return Err(explain(Error::new(ErrorKind::Unsupported, message)));
        };
        let elections = self.elections().map_err(explain)?;
        let asking = self.ask(|_| elections.ask_to_release(name.clone(), token.get()));
        let is_asked = asking.await.map_err(explain)?;
        Ok(is_asked.then_some(leader))
    }
}

impl Held {
    /// Replaces the value that observers see of this hold.
    ///
    /// Cancel safe: a request that has been sent goes on in the background, and a later one waits for its end.
    pub(crate) async fn proclaim(self: &Arc<Self>, value: Arc<str>) -> Result<(), Error> {
        let explain = |err: Error| self.explain(err, Step::Write);
        PublishedValue::check(&value).map_err(explain)?;
        let elections = self.driver.elections().map_err(explain)?;
        let refused = |reason: LostReason| {
            let message = format!("the term had ended ({reason}), and nothing was published");
            Err(explain(Error::new(ErrorKind::Lost, message)))
        };
        let permit = self.mode_gate().await;
        if let HoldState::Lost(reason) = self.state() {
            return refused(reason);
        }
        let holder = self.next_holder(value);
        // The number is used up, also if the outcome of the request stays unknown.
        self.set_holder(holder.clone());
        let publishing = Publishing { _permit: permit };
        let hold = self.as_hold(false);
        let mut running = RunningRequest::send(&self.driver, publishing, |_| {
            elections.publish(hold, holder)
        });
        let answer = running.answer().await;
        match running.settle(answer) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.clone().found_gone();
                refused(LostReason::StoreSaysNo)
            }
            Err(err) => Err(explain(err)),
        }
    }

    /// Has the store look for requests to let go, if it has to.
    pub(crate) fn listen_for_requests(&self) {
        if !self.hold_state().set_listening() {
            return;
        }
        if let Ok(elections) = self.driver.elections() {
            elections.listen_for_requests(self.as_hold(false));
        }
    }

    /// What others see of the holder, with another value.
    fn next_holder(&self, value: Arc<str>) -> Arc<Holder> {
        let holder = self.holder();
        let last = holder.value.as_ref().map_or(0, |value| value.number);
        Arc::new(Holder {
            value: Some(PublishedValue::new(value, last + 1)),
            ..(*holder).clone()
        })
    }
}

/// A request to publish. It ends as any other if its caller has left, and the next one waits for that.
struct Publishing {
    _permit: OwnedSemaphorePermit,
}

impl CleanUp<bool> for Publishing {
    fn stop(&self) {}

    /// The next value replaces this one, whatever became of it.
    fn is_needed_after(_: ErrorKind) -> bool {
        false
    }

    async fn clean_up(self, _: Arc<Driver>, _: Option<bool>) {}
}
