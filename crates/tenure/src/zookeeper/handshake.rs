//! A TLS handshake of our own, which says why the client library found no session.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use tenure_core::error::Error;
use tenure_core::rt;
use tenure_core::url::Host;

use crate::tls;

use super::probe::{Found, connect};

/// What a handshake comes to, where we know whom to trust.
pub(super) async fn shake_hands(
    host: Host,
    files: tls::Files,
    limit: Duration,
) -> Result<Found, Error> {
    let pem = files.read()?;
    let shown = host.clone();
    let shaking = rt::apart(move || {
        let mut stream = match connect(&host, limit) {
            Ok(stream) => stream,
            Err(err) => return Ok(Found::NoConnection(err)),
        };
        // Whom the system trusts is known to the client library alone.
        let Some(ca) = pem.ca else {
            return Ok(Found::Silence);
        };
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(&ca).flatten() {
            let _ = roots.add(authority);
        }
        let config = ClientConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(host.name.clone());
        let name = name.map_err(|_| rustls::Error::General("no name of a server".into()))?;
        let mut connection = ClientConnection::new(Arc::new(config), name)?;
        while connection.is_handshaking() {
            if let Err(err) = connection.complete_io(&mut stream) {
                let inner = err.into_inner();
                return match inner.and_then(|inner| inner.downcast::<rustls::Error>().ok()) {
                    Some(err) => Err(*err),
                    None => Ok(Found::NoHandshake),
                };
            }
        }
        Ok(Found::Silence)
    });
    match shaking.await {
        Some(Err(err)) => Err(tls::explain(&err, &shown, "zookeeper:// with tls=off")),
        Some(Ok(found)) => Ok(found),
        None => Ok(Found::Silence),
    }
}
