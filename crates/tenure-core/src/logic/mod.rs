//! Decisions, and nothing else.
//!
//! Each state machine is a plain value. Inputs and the current [`Time`](crate::time::Time) are arguments, and decisions
//! are return values. This module has no I/O, no async code, no clock, no randomness and no log, so every machine can be
//! searched exhaustively: the same inputs in the same order always give the same outputs.
//!
//! | machine | decides |
//! | --- | --- |
//! | [`lease`] | when to renew, and whether the hold is held, at risk or lost |
//! | [`queue`] | given the waiters in the order of the store, and one of them: whether it holds, or whom to watch |
//! | [`quorum`] | given the answers of N nodes: pending, won or lost, and how long the result is valid |
//! | [`quorum_acquisition`] | given what each node granted: wait, raise, won or lost, and the token to agree on |
//! | [`selection`] | of any `k` of `n` names, which to ask for and which to keep |
//! | [`quorum_mode`] | given the mode of a hold on each node: what its holder may claim, and what to ask a node for |
//! | [`election`] | in which order an observer sees leaders, and when a candidate pauses |
//! | [`hand_over`] | whether a hold passes to the next task of the same client, or goes back to the store |
//! | [`pace`] | when to try again where a store cannot push, and when a background task looks again |
//! | [`table`] | the reference lock table: the specification, and the lock table of `memory:` |

pub mod election;
pub mod hand_over;
pub mod lease;
pub mod pace;
pub mod queue;
pub mod quorum;
pub mod quorum_acquisition;
pub mod quorum_mode;
pub mod selection;
pub mod table;

#[cfg(test)]
mod tests;
