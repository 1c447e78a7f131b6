//! The `redis:` backends on real servers, with everything that can go wrong.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../common/mod.rs"]
mod common;

mod support;

mod access;
mod batches;
mod bugs;
mod clocks;
mod clusters;
mod failovers;
mod forgetting;
mod holders;
mod leaks;
#[cfg(feature = "redlock")]
mod majorities;
mod modes;
mod proxy;
mod refusals;
mod restarts;
mod servers;
mod steps;
mod tls;
mod writes;
