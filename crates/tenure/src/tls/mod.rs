//! TLS, for every store that speaks it: what a URL says about it, the configuration that follows, and what a failed
//! handshake means.
//!
//! All modules but `files` need `rustls`, which a build without TLS leaves out. MySQL and PostgreSQL get the files
//! only: sqlx configures rustls itself, with the provider of the same cargo feature.

#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper-tls"))]
mod config;
#[cfg(any(feature = "etcd", feature = "redis"))]
mod connector;
#[cfg(feature = "_tls")]
mod errors;
mod files;
#[cfg(feature = "_tls")]
mod pem;
#[cfg(feature = "_tls")]
mod provider;

#[cfg(any(feature = "etcd", feature = "redis"))]
pub(crate) use self::connector::Connector;
#[cfg(feature = "_tls")]
pub(crate) use self::errors::explain;
pub(crate) use self::files::{Files, plaintext};
#[cfg(feature = "zookeeper-tls")]
pub(crate) use self::provider::set_process_provider_if_unset;
