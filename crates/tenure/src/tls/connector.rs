//! A TCP connection with TLS on it.

use std::io;
use std::sync::Arc;

use futures_util::future::select_ok;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::url::Host;

/// Connects to one server over TLS.
#[derive(Clone)]
pub(crate) struct Connector {
    host: Host,
    /// What the server's certificate has to be for.
    name: ServerName<'static>,
    tls: TlsConnector,
}

impl Connector {
    pub(crate) fn new(config: Arc<ClientConfig>, host: &Host) -> Result<Self, Error> {
        let name = ServerName::try_from(host.name.clone()).map_err(|err| {
            let what = format!("{host} has a name that no certificate can be for");
            Error::new(ErrorKind::Invalid, what).with_source(err)
        })?;
        Ok(Self {
            host: host.clone(),
            name,
            tls: TlsConnector::from(config),
        })
    }

    /// A connection to the address that is the first to end its handshake, of those that the host's name has.
    pub(crate) async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let addresses = lookup_host((self.host.name.as_str(), self.host.port)).await?;
        let mut attempts = Vec::new();
        for address in addresses {
            attempts.push(Box::pin(async move {
                let stream = TcpStream::connect(address).await?;
                // Without this option the operating system delays a small request until the one before is
                // acknowledged.
                stream.set_nodelay(true)?;
                self.tls.connect(self.name.clone(), stream).await
            }));
        }
        if attempts.is_empty() {
            let what = "the name has no address";
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        select_ok(attempts).await.map(|(stream, _)| stream)
    }
}
