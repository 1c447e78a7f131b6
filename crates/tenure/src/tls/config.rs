//! The configuration with which rustls connects.

use std::sync::Arc;

use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};

use super::files::Files;
use super::provider::provider;

impl Files {
    /// The server must prove its identity to the authority of `ca`, or to one that the system trusts. `protocols` are
    /// what may be spoken over TLS (ALPN); empty: the server is not asked.
    pub(crate) fn client_config(&self, protocols: &[&[u8]]) -> Result<Arc<ClientConfig>, Error> {
        let unusable = |err: rustls::Error| {
            Error::new(ErrorKind::Invalid, "the settings of TLS cannot be used").with_source(err)
        };
        let authorities = match self.load_authorities()? {
            Some((_, authorities)) => authorities,
            None => system_authorities()?,
        };
        let builder = ClientConfig::builder_with_provider(provider()?)
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_root_certificates(authorities);
        let mut config = match self.load_identity()? {
            Some((_, identity)) => {
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity)))
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Arc::new(config))
    }
}

/// The authorities that the operating system trusts, as far as rustls can use their certificates.
fn system_authorities() -> Result<RootCertStore, Error> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut authorities = RootCertStore::empty();
    authorities.add_parsable_certificates(loaded.certs);
    for err in &loaded.errors {
        tracing::debug!(%err, "a certificate of the system cannot be read");
    }
    if authorities.is_empty() {
        let what = "this system has no list of trusted authorities; name the server's with ca=FILE";
        let err = Error::new(ErrorKind::Invalid, what);
        return Err(match loaded.errors.into_iter().next() {
            Some(cause) => err.with_source(cause),
            None => err,
        });
    }
    Ok(authorities)
}
