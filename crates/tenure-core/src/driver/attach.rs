//! A client attaches itself to a hold that was detached from another one.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Step};
use crate::logic::lease::{HoldState, Lease, Terms};
use crate::options::{Options, Renew};
use crate::store::{Detach, Hold};
use crate::support::closed;

use super::acquire::lease_over;
use super::attached_owners::AttachedOwner;
use super::detaching::{Found, ended_before, found};
use super::held::Held;
use super::labels::LOG_TARGET;
use super::observe::HoldObservation;
use super::running::{CleanUp, RunningRequest};
use super::shared::Driver;

impl Driver {
    /// Renews the hold of a receipt for `options.ttl`, and makes it a hold of this client.
    ///
    /// Cancel safe: if the future is dropped, the hold stays as it is, or is renewed once.
    pub(crate) async fn attach(
        self: &Arc<Self>,
        hold: Hold,
        options: &Options,
    ) -> Result<Arc<Held>, Error> {
        let name = hold.name.clone();
        let attached = self.attach_inner(hold, options).await;
        attached.map_err(|err| self.explain(err, &name, Step::Attach))
    }

    async fn attach_inner(
        self: &Arc<Self>,
        hold: Hold,
        options: &Options,
    ) -> Result<Arc<Held>, Error> {
        self.refuse_closed()?;
        let store = self.detaches(hold.mode)?;
        let place = Arc::new(self.place_of(&hold).await?);
        let attaching = Attaching {
            store: store.clone(),
            hold: hold.clone(),
            place: place.clone(),
        };
        let mut running = RunningRequest::send(self, attaching, |_| {
            found(store.clone().attach(hold.clone()))
        });
        let answer = tokio::select! {
            biased;
            answer = running.answer() => answer,
            () = self.closed.raised() => return Err(closed()),
        };
        let (sent, ttl) = match answer {
            Ok(Found::Held { sent, ttl }) => (sent, ttl),
            Ok(Found::Gone(reason)) => return Err(ended_before(reason)),
            Err(err) => {
                // At once, and not in the background: the caller may try again.
                store.forget(&hold);
                return Err(err);
            }
        };
        let terms = Terms {
            ttl: hold.ttl,
            drift: options.drift,
            renew: Renew::Automatic,
            max_hold: None,
        };
        let lease = Lease::granted(terms, sent, ttl);
        let observation = HoldObservation::begin(self, &hold.name, hold.token, options);
        let holder = self.identity.holder.clone();
        let held = Held::attached(self.clone(), hold, holder, lease, observation, place);
        held.begin();
        held.set_used();
        if let HoldState::Lost(_) = held.state() {
            held.leave();
            return Err(lease_over());
        }
        if self.closed.is_raised() {
            held.leave();
            return Err(closed());
        }
        tracing::debug!(target: LOG_TARGET, name = %held.name(), store = self.scheme(), token = held.token(), "attached");
        Ok(held)
    }
}

impl Driver {
    /// The right of this client to be attached to the hold. Waits for the end of an earlier attachment that is given up: the
    /// store may still answer its last request. Cancel safe.
    async fn place_of(&self, hold: &Hold) -> Result<AttachedOwner, Error> {
        loop {
            let other = match self.renewals.attached.add(hold.owner) {
                Ok(place) => return Ok(place),
                Err(other) => other,
            };
            if !other.is_ending() {
                let message = "this client is attached to the hold already";
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            tokio::select! {
                biased;
                () = other.over() => {}
                () = self.closed.raised() => return Err(closed()),
            }
        }
    }
}

/// A client that is being attached.
struct Attaching {
    store: Arc<dyn Detach>,
    hold: Hold,
    /// The client is attached to this owner once.
    place: Arc<AttachedOwner>,
}

impl CleanUp<Found> for Attaching {
    fn stop(&self) {
        self.place.set_ending();
    }

    fn is_needed_after(_: ErrorKind) -> bool {
        true
    }

    /// The hold goes on under its receipt, and this client sends nothing more about it.
    async fn clean_up(self, _: Arc<Driver>, _: Option<Found>) {
        self.store.forget(&self.hold);
    }
}
