//! The lease table on real servers and in a file, with everything that can go wrong.

#![cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../common/mod.rs"]
mod common;

mod support;

mod detach;
mod elections;
mod failovers;
mod faults;
mod hand_over;
mod journal;
mod load;
mod min_hold;
mod modes;
mod pool;
mod poolers;
mod refusals;
mod replaced;
mod rows;
mod schema;
mod service;
mod several;
mod shedlock;
mod waiting;
