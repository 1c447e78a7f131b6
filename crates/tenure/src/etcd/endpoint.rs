//! How a connection to one member is opened, with TLS or without it.

use std::io;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tonic::transport::{self, Channel};

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::url::Host;

use crate::tls;

use super::settings::Settings;

/// After how long without a message on a connection with an open stream the client asks whether the server is there.
/// The server closes the connection of a client that asks more often than every 5 s (`--grpc-keepalive-min-time`).
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// The protocol that is spoken over TLS, as TLS itself names it (ALPN).
const HTTP2: &[u8] = b"h2";

/// One member, with all that a connection to it needs, or a channel of the caller.
#[derive(Clone)]
pub(super) enum Endpoint {
    Member {
        endpoint: Box<transport::Endpoint>,
        /// `None`: connections are plain.
        tls: Option<tls::Connector>,
    },
    /// The client library connects by itself.
    Channel(Channel),
}

impl Endpoint {
    pub(super) fn new(settings: &Settings, host: &Host) -> Result<Self, Error> {
        let wrong = |err: transport::Error| {
            let message = format!("{host} cannot be connected to with these settings");
            Error::new(ErrorKind::Invalid, message).with_source(err)
        };
        let tls = match &settings.tls {
            Some(files) => Some(tls::Connector::new(files.client_config(&[HTTP2])?, host)?),
            None => None,
        };
        let name = match host.name.contains(':') {
            true => format!("[{}]", host.name),
            false => host.name.clone(),
        };
        let address = format!("{name}:{}", host.port);
        // Also with TLS: the client library shall not look for TLS of its own.
        let endpoint = transport::Endpoint::from_shared(format!("http://{address}"));
        let mut endpoint = endpoint
            .map_err(wrong)?
            .connect_timeout(settings.timeout)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(settings.timeout)
            // The server counts pings on an idle connection as an attack.
            .keep_alive_while_idle(false);
        if tls.is_some() {
            // What requests name as their scheme.
            let origin = format!("https://{address}").parse();
            endpoint = endpoint.origin(origin.expect("BUG: the same address with http was valid"));
        }
        let endpoint = Box::new(endpoint);
        Ok(Self::Member { endpoint, tls })
    }

    pub(super) async fn connect(&self) -> Result<Channel, transport::Error> {
        let (endpoint, tls) = match self {
            Self::Member { endpoint, tls } => (endpoint, tls.clone()),
            Self::Channel(channel) => return Ok(channel.clone()),
        };
        let Some(tls) = tls else {
            return endpoint.connect().await;
        };
        // The client library calls this again when the connection has broken.
        let connector = tower::service_fn(move |_| {
            let tls = tls.clone();
            async move {
                let stream = tls.connect().await?;
                if stream.get_ref().1.alpn_protocol() != Some(HTTP2) {
                    return Err(io::Error::other(
                        "the server does not speak HTTP/2 over TLS",
                    ));
                }
                Ok(TokioIo::new(stream))
            }
        });
        endpoint.connect_with_connector(connector).await
    }
}
