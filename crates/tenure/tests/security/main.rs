//! What somebody could try who is no friend, on every store alike: certificates that prove nothing, a network that
//! takes encryption away, and whoever reads along.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../common/mod.rs"]
mod common;

mod support;

mod breaking;
mod canary;
mod logs;
mod rights;
mod tls;
