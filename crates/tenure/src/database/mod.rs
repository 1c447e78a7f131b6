//! What the stores in databases share: the URL of a server, connections, time limits, and what errors mean. Nothing here
//! decides about locks.

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod application;
mod borrowed;
mod connection;
mod database_pool;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod error_codes;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod errors;
mod hex;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod keys;
#[cfg(feature = "postgres")]
mod listener;
mod meaning;
#[cfg(feature = "postgres")]
mod observers;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod published;
#[cfg_attr(
    not(all(target_os = "linux", any(feature = "mysql", feature = "postgres"))),
    path = "no_relay.rs"
)]
mod relay;
mod request_error;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod server;

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) use self::application::process_of;
pub(crate) use self::connection::{Connection, Row, within};
pub use self::database_pool::DatabasePool;
pub(crate) use self::database_pool::PoolKind;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) use self::errors::{explain, no_connection};
pub(crate) use self::hex::hex;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) use self::hex::unhex;
#[cfg(feature = "postgres")]
pub(crate) use self::listener::{Listener, Subscribers};
#[cfg(feature = "sqlite")]
pub(crate) use self::meaning::find;
pub(crate) use self::meaning::{Meaning, with_names};
#[cfg(feature = "postgres")]
pub(crate) use self::observers::{Observers, ReadLeader};
#[cfg(feature = "mysql")]
pub(crate) use self::published::number_in_mysql;
#[cfg(feature = "postgres")]
pub(crate) use self::published::{channel, number_in_postgres};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) use self::relay::EndWatch;
pub(crate) use self::request_error::RequestError;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) use self::server::{KNOWN, Kind, Mode, Server};
