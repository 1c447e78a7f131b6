//! The `file:` store through the trait `Store`, on real files and with real processes.

#![cfg(feature = "file")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

mod breaking;
mod detach;
mod elections;
mod faults;
mod modes;
mod names;
mod permits;
mod processes;
mod taking;
mod upgrade;
mod waiting;
mod walk;
