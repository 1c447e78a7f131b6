//! What the backends that talk to a database have in common: the URL of its server, connections to it, and
//! what its errors mean. Decides nothing about locks.

#[cfg(feature = "postgres")]
pub(crate) mod keys;
mod outcome;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod server;

pub(crate) use self::outcome::Trouble;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) use self::outcome::{explain, no_connection};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) use self::server::{KNOWN, Kind};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) use self::server::{Mode, Server};
