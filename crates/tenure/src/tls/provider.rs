//! The provider of cryptography.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// The one of the whole program.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    if CryptoProvider::get_default().is_none() {
        // Lost to another thread that installs one: then there is one.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let installed = CryptoProvider::get_default().cloned();
    installed.unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()))
}
