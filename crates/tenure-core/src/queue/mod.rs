//! The engine of queue stores: stores that keep the contenders for a name as entries in order, each tied to a session of
//! its client. etcd (keys under a lease) and ZooKeeper (ephemeral nodes) are such stores.
//!
//! # The protocol
//! A contender creates an entry at the end of the queue and reads the queue. The rules of [`logic::queue`](crate::logic::queue)
//! say whether the entry holds or which entries it waits for. A contender that waits watches these entries, and reads the
//! queue again when one of them is gone or has changed, and after a while even if the watch reports nothing. The end of a
//! session removes the entries of its client.
//!
//! An upgradable holder becomes exclusive in three steps: it announces the upgrade in its entry, and from then on nothing
//! behind the entry is granted; it writes which contender is the last that held at that moment; it waits until all these
//! contenders are gone, and makes its entry exclusive under a new token. Each write names the version of the entry that it
//! replaces, so a write that arrives late changes nothing after a later one.
//!
//! # What the engine does and what a store does
//! The engine has the order of the steps: when to read again, how often and how long a request that failed is sent again,
//! what to do when the caller gives up, when an entry is lost, and when an error ends the request. A store has one small
//! operation for each step, in three traits: [`QueueRequest`] (read, watch), [`Acquisition`] (create, grant, leave) and
//! [`ModeChange`] (replace). Each operation has one of three outcomes: it was done (`Ok`); it was refused, or did not reach
//! the store (an error); it is unknown whether it was done (an error of kind `Indeterminate`).
//!
//! What a store can do faster is optional. Without it the engine sends more requests:
//! - a store that creates an entry and learns its position in one request returns the position from
//!   [`create`](Acquisition::create); otherwise the engine reads the queue;
//! - a watch that can tell the new position returns it from [`watch`](QueueRequest::watch); otherwise the engine reads the
//!   queue again;
//! - a store that can upgrade a hold which is the only one in one step does so in
//!   [`upgrade_at_once`](ModeChange::upgrade_at_once); otherwise the engine announces the upgrade.
//!
//! # What is left behind
//! A store remembers an entry before it sends the request that creates it, so that [`leave`](Acquisition::leave) finds what
//! a request of unknown outcome has created, also if that is applied late. The engine leaves the queue before it creates
//! another entry and before it answers anything but a grant.
//!
//! # Reading order
//! `interface` (what the engine needs of a store) · `acquire` · `wait` · `change_mode`

mod acquire;
mod change_mode;
mod interface;
#[cfg(test)]
mod tests;
mod wait;

pub use self::acquire::acquire;
pub use self::change_mode::{downgrade, lost, upgrade};
pub use self::interface::{
    Acquisition, Created, HoldMode, ModeChange, Others, Position, QueueRequest, Replaced, Reply,
    is_temporary, retry_limit,
};
pub use self::wait::{Waited, wait};
