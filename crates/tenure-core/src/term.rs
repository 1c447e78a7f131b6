//! One leadership: a guard with its number.

use std::sync::Arc;

use crate::error::Error;
use crate::fence::FencingToken;
use crate::guard::Guard;
use crate::lost::LostReason;

/// One leadership, from the election to its end.
///
/// A term is a [guard](Guard) of the name of the election: it is renewed in the background, and lasts until
/// [`resign`](Term::resign), until it is dropped, or until it is [lost](Term::lost). Its number is the fencing token, which
/// grows with each leader: a resource that compares tokens refuses what a former leader still writes.
#[must_use = "a term that is dropped at once ends at once"]
#[derive(Debug)]
pub struct Term {
    guard: Guard,
}

impl Term {
    pub(crate) fn new(guard: Guard) -> Self {
        Self { guard }
    }

    /// The number of the term: see [`Guard::token`].
    pub fn token(&self) -> FencingToken {
        self.guard.token()
    }

    /// Whether this client still leads, as far as it can know: see [`Guard::is_held`].
    pub fn is_leader(&self) -> bool {
        self.guard.is_held()
    }

    /// Resolves with the reason when the term is lost, and with `None` when it has ended in another way: see [`Guard::lost`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub fn lost(&self) -> impl Future<Output = Option<LostReason>> + Send + Sync + 'static + use<> {
        self.guard.lost()
    }

    /// Resolves with `true` when another client asks the leader to resign
    /// ([`Election::ask_to_resign`](crate::Election::ask_to_resign)), with `false` when the term has ended before. The leader
    /// decides: see [`Guard::asked_to_release`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub fn asked_to_resign(&self) -> impl Future<Output = bool> + Send + Sync + 'static + use<> {
        self.guard.asked_to_release()
    }

    /// Whether another client has asked the leader to resign: see [`Guard::is_asked_to_release`].
    pub fn is_asked_to_resign(&self) -> bool {
        self.guard.is_asked_to_release()
    }

    /// Replaces the value that observers see: at most [`PublishedValue::MAX_LEN`](crate::holder::PublishedValue::MAX_LEN)
    /// bytes. It stays until the end of the term, or until the next one. Several calls at once are sent one after the other.
    ///
    /// # Cancel safety
    /// A request that has been sent goes on if this future is dropped.
    ///
    /// # Errors
    /// `Lost`: the term has ended; the message says whether the value was sent before. `Indeterminate`: it is unknown which value observers see;
    /// proclaim again. `Unreachable`: the store did not answer. `Invalid`: the value is too long.
    pub async fn proclaim(&self, value: impl Into<Arc<str>>) -> Result<(), Error> {
        self.guard.proclaim(value.into()).await
    }

    /// Ends the term: the next candidate is elected.
    ///
    /// # Cancel safety
    /// After the call the term ends in the background, even if this future is dropped.
    ///
    /// # Errors
    /// As [`Guard::release`]; `Lost`: the term had ended before.
    pub async fn resign(self) -> Result<(), Error> {
        self.guard.release().await
    }

    /// The guard of the term, for everything that guards can do.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// The guard alone, for example for [`Guard::after`]. The term lasts as long as the guard.
    pub fn into_guard(self) -> Guard {
        self.guard
    }
}
