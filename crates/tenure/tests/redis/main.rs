//! The `redis:` stores on real servers, with everything that can go wrong.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../common/mod.rs"]
mod common;

mod support;

mod access;
mod allocations;
mod batches;
mod bugs;
mod clocks;
mod clusters;
mod detach;
mod elections;
mod failovers;
mod forgetting;
mod hand_over;
mod holders;
mod leaks;
mod load;
#[cfg(feature = "redlock")]
mod majorities;
#[cfg(feature = "redlock")]
mod majority_elections;
#[cfg(feature = "redlock")]
mod majority_hand_over;
#[cfg(feature = "redlock")]
mod majority_modes;
mod modes;
mod nodes;
mod observers;
mod proxy;
mod redisson;
mod refusals;
mod restarts;
mod servers;
mod several;
mod socket;
mod steps;
mod tls;
mod walk;
mod writes;
