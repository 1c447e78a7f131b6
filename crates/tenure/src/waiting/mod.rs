//! How a client acquires a lock in a lease store, or makes a hold exclusive: a store that decides a request for a lock in
//! one step, by its own clock, and has a queue. Redis and tables work in this way.
//!
//! # Reading order
//! `wait` (the first request, the loop of a waiter, and what both need of a store) · `waiter` (the decisions of the loop,
//! without I/O)

#[cfg(test)]
mod tests;
mod wait;
mod waiter;

pub(crate) use self::wait::{AcquireReply, LeaseStore, WakeUps, acquire};
#[cfg(feature = "redis")]
pub(crate) use self::waiter::WAITER_TTL;
#[cfg(any(feature = "postgres", test))]
pub(crate) use self::waiter::wake_all;
pub(crate) use self::waiter::{QueuePosition, WakeUp, waiter_ttl};
