//! The `redis:` backends on real servers, with everything that can go wrong.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../servers/mod.rs"]
mod servers;

mod proxy;
mod shapes;
