//! The store `zookeeper:` on real servers, with everything that can go wrong.

#![cfg(feature = "zookeeper")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../common/mod.rs"]
mod common;

mod support;

mod cache;
mod elections;
mod failovers;
mod leaks;
mod modes;
mod observers;
mod queue;
mod refusals;
mod semaphore;
mod sessions;
mod steps;
mod stops;
mod trio;
mod walk;
mod writes;
