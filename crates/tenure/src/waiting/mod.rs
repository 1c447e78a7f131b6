//! How a client waits for a lock in a lease store: a store that decides a request for a lock in one step, by its own
//! clock, and has a queue. Redis and tables wait in this way.
//!
//! The first request is sent by the store's own `acquire.rs`, which calls [`wait()`] when the lock is taken.
//!
//! # Reading order
//! `wait` (the loop, and what it needs of a store) · `waiter` (its decisions, without I/O)

#[cfg(test)]
mod tests;
mod wait;
mod waiter;

pub(crate) use self::wait::{AcquireReply, LeaseStore, Subscription, wait};
#[cfg(feature = "redis")]
pub(crate) use self::waiter::WAITER_TTL;
#[cfg(any(feature = "postgres", test))]
pub(crate) use self::waiter::wake_all;
pub(crate) use self::waiter::{QueuePosition, WakeUp, waiter_ttl};
