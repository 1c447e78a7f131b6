//! How a client acquires a lock in a lease store, or makes a hold exclusive: a store that decides a request for a lock in
//! one step, by its own clock, and has a queue. Redis and tables work in this way.
//!
//! # Reading order
//! `wait` (the first request, the loop of a waiter, and what both need of a store) · `waiter` (the decisions of the loop,
//! without I/O) · `places` (for how long a place in the queue is valid)

mod places;
#[cfg(test)]
mod tests;
mod wait;
mod waiter;

#[cfg(feature = "redis")]
pub(crate) use self::places::WAITER_TTL;
pub(crate) use self::places::{Places, keep_by};
pub(crate) use self::wait::{AcquireReply, LeaseStore, WakeUps, acquire};
#[cfg(any(feature = "postgres", test))]
pub(crate) use self::waiter::wake_all;
pub(crate) use self::waiter::{QueuePosition, WakeUp};
