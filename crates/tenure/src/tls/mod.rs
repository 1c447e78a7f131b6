//! TLS, for every store that speaks it: what a URL says about it, and what a failed handshake means.
//!
//! All modules but `files` need `rustls`, which a build without TLS leaves out.

#[cfg(feature = "_tls")]
mod errors;
mod files;
#[cfg(feature = "_tls")]
mod pem;
#[cfg(feature = "_tls")]
mod provider;

#[cfg(feature = "_tls")]
pub(crate) use self::errors::explain;
pub(crate) use self::files::{Files, plaintext};
#[cfg(feature = "etcd")]
pub(crate) use self::pem::Pem;
#[cfg(feature = "zookeeper-tls")]
pub(crate) use self::provider::provider;
