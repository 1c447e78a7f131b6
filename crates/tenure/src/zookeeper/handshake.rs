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

use super::server_info::{ServerReply, connect};

/// The outcome of a handshake. Without a named authority none is made.
pub(super) async fn shake_hands(
    host: Host,
    files: tls::Files,
    limit: Duration,
) -> Result<ServerReply, Error> {
    let pem = files.read()?;
    let shown = host.clone();
    let shaking = rt::apart(move || {
        let mut stream = match connect(&host, limit) {
            Ok(stream) => stream,
            Err(err) => return Ok(ServerReply::NoConnection(err)),
        };
        // Only the client library knows which authorities the system trusts.
        let Some(ca) = pem.ca else {
            return Ok(ServerReply::Silence);
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
                    None => Ok(ServerReply::NoHandshake),
                };
            }
        }
        Ok(ServerReply::Silence)
    });
    match shaking.await {
        Some(Err(err)) => Err(tls::explain(&err, &shown, "zookeeper:// with tls=off")),
        Some(Ok(found)) => Ok(found),
        None => Ok(ServerReply::Silence),
    }
}
