//! Locks of sessions in MariaDB and PostgreSQL, on real servers, with everything that can go wrong.

#![cfg(all(feature = "mysql", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../common/mod.rs"]
mod common;

mod support;

mod access;
mod clocks;
mod elections;
mod ends;
mod failovers;
mod hand_over;
mod keeping;
mod modes;
mod names;
mod pool;
mod poolers;
mod sharing;
mod vanishing;
mod waiting;
