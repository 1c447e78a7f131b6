//! What the backends that talk to a database have in common: the URL of its server, connections to it, and
//! what its errors mean. Decides nothing about locks.

mod connection;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod error_codes;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod errors;
mod hex;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod keys;
mod meaning;
mod request_error;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod server;

pub(crate) use self::connection::{Connection, Row, within};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) use self::errors::{explain, no_connection};
pub(crate) use self::hex::hex;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) use self::hex::unhex;
#[cfg(feature = "sqlite")]
pub(crate) use self::meaning::find;
pub(crate) use self::meaning::{Meaning, with_names};
pub(crate) use self::request_error::RequestError;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) use self::server::{KNOWN, Kind, Mode, Server};
