//! Attacks that all stores share: invalid certificates, a network that removes encryption, accounts that end the locks
//! of others, and readers of logs and errors who look for passwords.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../common/mod.rs"]
mod common;

mod support;

mod breaking;
mod canary;
mod logs;
mod rights;
mod tls;
