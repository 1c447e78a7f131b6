//! Decisions, and nothing else.
//!
//! Each machine is a plain value. Inputs and the current [`Time`](crate::time::Time) come in as
//! arguments, verdicts come out as values. There is no I/O, no async, no clock, no randomness and no
//! logging in here, so every machine can be searched exhaustively: the same inputs in the same order
//! always give the same outputs.
//!
//! | machine | decides |
//! | --- | --- |
//! | [`ballot`] | given what each node granted: wait, raise, won or lost, and the token to agree on |
//! | [`lease`] | when to renew, until when we may believe, held / at risk / lost |
//! | [`queue`] | given the waiters in the store's order and me: held, or what to watch |
//! | [`quorum`] | given answers of N nodes: pending, won or lost, and the validity left |
//! | [`pace`] | when to try again where a store cannot push |
//! | [`table`] | the reference lock table: the specification, and the heart of `memory:` |

pub mod ballot;
pub mod lease;
pub mod pace;
pub mod queue;
pub mod quorum;
pub mod table;

#[cfg(test)]
mod tests;
