//! Real servers for tests, each on a free loopback port and in a directory of its own, and proxies that inject faults.
//!
//! The testkit uses nothing of the library: a test acts on a server and inspects it by the server's own means.
//!
//! - Servers: [`redis`], [`etcd`], [`zookeeper`], [`hazelcast`], [`mariadb`], [`postgres`], [`pgbouncer`], [`sqlite`]; [`process`]
//!   starts and kills them, and [`server`] is what all of them have in common.
//! - Their environment: [`clock`] moves the clocks of a process, [`disk`] loses what was not synced, [`full_disk`] has no room, [`network`] cuts
//!   servers off from each other.
//! - Clients that are not of the library: [`resp`], [`jute`], [`sql_client`].
//! - Between a client and its server: [`proxy`] injects faults, and [`recorder`], which records what clients send.
//! - Tests: [`needs!`] skips a test whose server is not installed, [`until`] waits for a condition.

#![allow(missing_docs, reason = "for tests, whose authors read the code")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

pub mod clock;
mod compiler;
pub mod disk;
pub mod etcd;
pub mod full_disk;
pub mod hazelcast;
#[path = "../../tenure-core/src/conformance/idle.rs"]
mod idle;
pub mod jute;
mod login;
pub mod mariadb;
mod needs;
pub mod network;
pub mod pgbouncer;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod recorder;
pub mod redis;
pub mod resp;
pub mod server;
mod skip;
pub mod sql_client;
pub mod sqlite;
mod tracer;
mod wait;
pub mod zookeeper;

pub use login::{PASSWORD, USER};
pub use skip::skip_unless_installed;
pub use wait::{TEST_TIMEOUT, until};
