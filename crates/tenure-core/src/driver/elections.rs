//! What candidates and leaders of an election ask of the store, beside the lock.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use crate::error::{Error, ErrorKind, Step};
use crate::guarantees::Capability;
use crate::holder::{Holder, PublishedValue};
use crate::leader::Leader;
use crate::logic::lease::HoldState;
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

impl Driver {
    /// Waits so long, but not longer than the client is open.
    pub(crate) async fn pause(&self, pause: Duration) {
        let end = self.clock.now().after(pause);
        tokio::select! {
            biased;
            () = self.closed.raised() => {}
            () = self.clock.sleep_until(end) => {}
        }
    }
}

impl Held {
    /// Replaces the value that observers see of this hold.
    ///
    /// Cancel safe: a request that has been sent goes on in the background, and a later one waits for its end.
    pub(crate) async fn proclaim(self: &Arc<Self>, value: Arc<str>) -> Result<(), Error> {
        let proclaimed = self.proclaim_inner(value).await;
        proclaimed.map_err(|err| self.explain(err, Step::Write))
    }

    async fn proclaim_inner(self: &Arc<Self>, value: Arc<str>) -> Result<(), Error> {
        PublishedValue::check(&value)?;
        let elections = self.driver.elections()?;
        // An earlier request may wait for a silent store.
        let permit = tokio::select! {
            biased;
            permit = self.mode_gate() => permit,
            () = self.state.ended() => return Err(self.nothing_published()),
        };
        if let HoldState::Lost(_) = self.state() {
            return Err(self.nothing_published());
        }
        let holder = self.next_holder(value);
        // The number is used up, also if the outcome of the request stays unknown.
        self.set_holder(holder.clone());
        let publishing = Publishing { _permit: permit };
        let hold = self.as_hold(false);
        let mut running = RunningRequest::send(&self.driver, publishing, |_| {
            elections.publish(hold, holder)
        });
        let answer = tokio::select! {
            biased;
            answer = running.answer() => answer,
            () = self.state.ended() => {
                let message = "the term ended before the store answered, and observers may have seen the value";
                return Err(Error::new(ErrorKind::Lost, message));
            }
        };
        match running.settle(answer) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.clone().found_gone();
                Err(self.nothing_published())
            }
            Err(err) => {
                if err.is_lost() {
                    self.clone().found_gone();
                }
                Err(err)
            }
        }
    }

    fn nothing_published(&self) -> Error {
        let reason = match self.state() {
            HoldState::Lost(reason) => format!(" ({reason})"),
            HoldState::Held | HoldState::AtRisk => String::new(),
        };
        let message = format!("the term had ended{reason}, and nothing was published");
        Error::new(ErrorKind::Lost, message)
    }

    /// Has the store look for requests to let go, if it has to.
    pub(crate) fn listen_for_requests(&self) {
        let is_over = self.is_ending() || matches!(self.state(), HoldState::Lost(_));
        if is_over || !self.hold_state().set_listening() {
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
        let number = self.driver.identity.value_number(last + 1);
        Arc::new(Holder {
            value: Some(PublishedValue::new(value, number)),
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
