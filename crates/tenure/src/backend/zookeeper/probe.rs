//! Why there is no session: the client library does not say, so a plain connection of our own finds out.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use zookeeper_client::Error as Said;

use crate::backend::tls;
use crate::error::{Error, ErrorKind};
use crate::rt;
use crate::url::Host;

use super::settings::Settings;

/// Longest answer that is read.
const LONGEST: u64 = 64 * 1024;

/// How one server answers a plain question.
enum Found {
    NoConnection(io::Error),
    /// It hung up, or said nothing.
    Silence,
    /// The same before it had proved who it is.
    NoHandshake,
    Said(String),
}

/// Sends one of the server's four-letter words. `None`: it did not answer, or may not.
pub(super) async fn word(host: &Host, word: &'static str, limit: Duration) -> Option<String> {
    match ask(host.clone(), word, limit).await {
        Found::Said(text) if !text.contains("is not in the whitelist") => Some(text),
        _ => None,
    }
}

async fn ask(host: Host, word: &'static str, limit: Duration) -> Found {
    let asking = rt::apart(move || {
        let mut stream = match connect(&host, limit) {
            Ok(stream) => stream,
            Err(err) => return Found::NoConnection(err),
        };
        let mut said = Vec::new();
        let talk = stream
            .write_all(word.as_bytes())
            .and_then(|()| (&mut stream).take(LONGEST).read_to_end(&mut said));
        match talk {
            _ if !said.is_empty() => Found::Said(String::from_utf8_lossy(&said).into_owned()),
            _ => Found::Silence,
        }
    });
    asking.await.unwrap_or(Found::Silence)
}

fn connect(host: &Host, limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for addr in (host.name.as_str(), host.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&addr, limit) {
            Ok(stream) => {
                stream.set_read_timeout(Some(limit))?;
                stream.set_write_timeout(Some(limit))?;
                return Ok(stream);
            }
            Err(err) => last = err,
        }
    }
    Err(last)
}

/// What to say when no session could be opened.
pub(super) async fn explain(settings: &Settings, err: Said) -> Error {
    let unreachable = |what: String| Error::new(ErrorKind::Unreachable, what);
    if err == Said::AuthFailed {
        return super::outcome::asking(super::outcome::Failed::Said(err), settings.user());
    }
    let mut first = None;
    for host in &settings.hosts {
        let found = match &settings.tls {
            None => ask(host.clone(), "srvr", settings.timeout).await,
            Some(files) => match shake_hands(host.clone(), files.clone(), settings.timeout).await {
                Ok(found) => found,
                Err(err) => return err,
            },
        };
        let is_tls = settings.tls.is_some();
        let why = match found {
            Found::NoConnection(err) => unreachable(format!(
                "no connection to {host}; is the server running, and the URL right?"
            ))
            .with_source(err),
            Found::Said(text) if text.contains("not currently serving requests") => {
                unreachable(format!(
                    "{host} has no majority of its ensemble and serves nobody; start the other servers"
                ))
            }
            Found::Said(text) if text.contains("Mode: read-only") => unreachable(format!(
                "{host} is cut off from the others and read-only; retry when a majority of them is there"
            )),
            Found::Said(text)
                if text.contains("Zookeeper version") || text.contains("whitelist") =>
            {
                unreachable(format!(
                    "{host} is there and opened no session in time; is it overloaded, or is its limit of connections (maxClientCnxns) reached?"
                ))
            }
            Found::Said(_) => unreachable(format!(
                "{host} does not answer like a ZooKeeper server; is the port right?"
            )),
            Found::NoHandshake => unreachable(format!(
                "{host} ended the handshake of TLS without a word; name the port on which it speaks TLS, or write tls=off if it has none"
            )),
            Found::Silence if is_tls => unreachable(format!(
                "{host} speaks TLS and opened no session; is it a ZooKeeper server that serves clients on this port?"
            )),
            Found::Silence => unreachable(format!(
                "{host} does not answer like a ZooKeeper server; is the port right, and does it want TLS (then write tls=on)?"
            )),
        };
        first.get_or_insert(why);
    }
    first.unwrap_or_else(|| unreachable("no server of the URL opened a session".into()))
}

/// What a handshake comes to, where we know whom to trust.
async fn shake_hands(host: Host, files: tls::Files, limit: Duration) -> Result<Found, Error> {
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
