//! The interface of all stores: what a store must be able to do.
//!
//! # Contract
//!
//! Stores implement [`Store`]; only the driver calls it. A store knows no other store.
//!
//! The driver has done before it calls:
//! - name and options are validated, and what [`Guarantees`](crate::guarantees::Guarantees) does not claim was refused;
//! - at most one [`Store::acquire`] per client and name is under way;
//! - the owner id is fresh for each acquisition.
//!
//! The driver does after it called:
//! - it polls every future of `acquire`, `renew` and `release` to its end, or the runtime is gone. They are
//!   never dropped before their end: when the caller gives up, the driver stops the [`Request`] and polls on in
//!   the background. So a store needs no clean-up for dropped futures, only for a stopped request.
//!   Futures that only read (`inspect`, `list`, `check`), break, write or close may be dropped;
//! - it computes deadlines, decides when to renew and when a hold is lost;
//! - when `acquire` failed with [`ErrorKind::Indeterminate`](crate::ErrorKind::Indeterminate) it calls `release`
//!   for that owner, again and again, until the answer is definite or the ttl has passed.
//!
//! In return every request to the store has a time limit: no future may hang for ever, except that of an
//! acquisition that waits for its turn.
//!
//! A returned future that is ready at its first poll costs no task switch and works without a runtime.
//! Run [`conformance`](crate::conformance) against a new store.

mod capabilities;
mod finding;
mod interface;
mod loss_notifier;
mod messages;
mod requests;

pub use self::capabilities::{
    AcquireAll, AnswerNow, ChangeMode, DEFAULT_POLL_INTERVAL, Detach, Elections, GuardedWrite,
    Operate, RaiseToken, ReserveTokens, Sightings, one_sighting,
};
pub use self::finding::{Finding, Severity};
pub use self::interface::{IntoStore, Store};
pub use self::loss_notifier::{LossListener, LossNotifier, Losses};
pub use crate::error::ErrorParts;

pub use self::messages::{
    AllAnswer, Answer, BoxFuture, Grant, Hold, Listed, Release, Renewal, Request,
};
