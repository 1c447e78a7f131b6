//! The `etcd:` backend on real members, with everything that can go wrong.

#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../common/mod.rs"]
mod common;

mod support;

mod access;
mod leaks;
mod members;
mod partitions;
mod steps;
mod waiting;
mod writes;
