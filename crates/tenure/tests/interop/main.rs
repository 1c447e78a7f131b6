//! Lock clients of other projects and ours on one server: each excludes the other.
//!
//! `interop/` at the top of the repository has the foreign clients; `scripts/test --only interop` builds them.
//! The test of a client that is not built says `SKIP interop LANGUAGE: reason` and passes.

#![cfg(all(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "mysql",
    feature = "postgres"
))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

mod curator;
mod curator_elections;
mod etcd;
mod etcd_candidates;
mod etcd_elections;
mod etcd_peers;
mod redisson;
mod redisson_fair;
mod redisson_multi;
mod redisson_rw;
mod redisson_semaphore;
mod shedlock;
mod tokens;
mod zookeeper;
mod zookeeper_peers;
