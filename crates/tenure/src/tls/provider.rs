//! The provider of cryptography, which a cargo feature chooses: `ring` with `tls-ring`, else `aws-lc-rs` with
//! `tls-aws-lc`. With both features it is `ring`, as in sqlx, which decides for itself.
//!
//! It is passed to each configuration. The provider that rustls keeps for the whole process belongs to the program:
//! a library that sets it decides for all other libraries of the program, too.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

use tenure_core::error::Error;

#[cfg(feature = "tls-ring")]
pub(super) fn provider() -> Result<Arc<CryptoProvider>, Error> {
    Ok(Arc::new(rustls::crypto::ring::default_provider()))
}

#[cfg(all(feature = "tls-aws-lc", not(feature = "tls-ring")))]
pub(super) fn provider() -> Result<Arc<CryptoProvider>, Error> {
    Ok(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
}

#[cfg(not(any(feature = "tls-ring", feature = "tls-aws-lc")))]
pub(super) fn provider() -> Result<Arc<CryptoProvider>, Error> {
    Err(super::files::no_provider())
}

/// Sets the provider of the process, if the program has set none: for a client library that knows no other.
#[cfg(feature = "zookeeper-tls")]
pub(crate) fn set_process_provider_if_unset() -> Result<(), Error> {
    if CryptoProvider::get_default().is_none() {
        // An error means that another thread has set one in the meantime.
        let _ = Arc::unwrap_or_clone(provider()?).install_default();
    }
    Ok(())
}
