//! Locks and fences inside transactions, on real databases, with everything that can go wrong.

#![cfg(feature = "sqlx")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../common/mod.rs"]
mod common;

mod support;

mod advisory;
mod concurrency;
mod faults;
mod fences;
mod limits;
mod locks;
mod migrations;
mod plain;
mod transactions;
mod tx;
