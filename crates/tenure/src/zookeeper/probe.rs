//! Why there is no session: the client library does not say, so a plain connection of our own finds out.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use zookeeper_client::Error as Said;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::rt;
use tenure_core::url::Host;

use super::settings::Settings;

/// Longest answer that is read.
const LONGEST: u64 = 64 * 1024;

/// How one server answers a plain question.
pub(super) enum Found {
    NoConnection(io::Error),
    /// It hung up, or said nothing.
    Silence,
    /// The same before it had proved who it is.
    #[cfg(feature = "zookeeper-tls")]
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

pub(super) fn connect(host: &Host, limit: Duration) -> io::Result<TcpStream> {
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
            #[cfg(not(feature = "zookeeper-tls"))]
            Some(_) => Found::Silence,
            #[cfg(feature = "zookeeper-tls")]
            Some(files) => {
                match super::handshake::shake_hands(host.clone(), files.clone(), settings.timeout)
                    .await
                {
                    Ok(found) => found,
                    Err(err) => return err,
                }
            }
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
            #[cfg(feature = "zookeeper-tls")]
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
