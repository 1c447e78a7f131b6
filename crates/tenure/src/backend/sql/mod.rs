//! What the backends that talk to a database have in common: the URL of its server, connections to it, and
//! what its errors mean. Decides nothing about locks.

#![allow(
    dead_code,
    unused_imports,
    reason = "the backends that use it come next"
)]

mod outcome;
mod server;

pub(super) use self::outcome::{Trouble, explain, no_connection};
pub(super) use self::server::{KNOWN, Kind, Mode, Server};
