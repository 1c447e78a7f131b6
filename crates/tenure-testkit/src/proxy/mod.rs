//! Proxies that stand between the clients of a test and their server, and inject faults.
//!
//! A fault is aimed at a request by what the request does: `acquire`, `renew`, `release` and so on. Each protocol has a
//! file that parses its messages and says what they do. `control.rs` is the same for all of them, and `connection.rs` for
//! all that send their messages over a byte stream; etcd speaks HTTP/2.

mod connection;
mod control;
mod etcd;
mod hazelcast;
mod redis;
mod sql;
mod tcp;
#[cfg(test)]
mod tests;
mod text;
mod zookeeper;

pub use control::{Direction, Fault, Planner, Proxy};
pub use redis::Mistake;
