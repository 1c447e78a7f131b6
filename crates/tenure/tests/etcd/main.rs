//! The `etcd:` store on real members: waiting, leftovers, faults of requests, members and networks, and access.

#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../common/mod.rs"]
mod common;

mod support;

mod access;
mod delays;
mod detach;
mod elections;
mod leaks;
mod members;
mod modes;
mod observers;
mod several;
mod steps;
mod trio;
mod waiting;
mod writes;
