//! What the stores with a server do under the same faults: each scenario is written once, and is a test on each of them.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../common/mod.rs"]
mod common;

#[allow(dead_code, reason = "the conformance suite uses the rest")]
#[path = "../harness"]
mod harness {
    mod callers;
    pub(crate) mod etcd;
    pub(crate) mod redis;
    pub(crate) mod server;
    pub(crate) mod session;
    pub(crate) mod skips;
    pub(crate) mod table;
    pub(crate) mod zookeeper;
}

mod stores;

mod addresses;
mod crowds;
mod cuts;
mod leaks;
mod requests;
mod restarts;
mod silence;
mod stalls;
