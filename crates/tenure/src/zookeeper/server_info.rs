//! What a server says about itself, over a plain connection of our own.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use tenure_core::rt;
use tenure_core::url::Host;

/// The longest answer that is read.
const MAX_REPLY_BYTES: u64 = 64 * 1024;

/// How one server answers.
pub(super) enum ServerReply {
    NoConnection(io::Error),
    /// The server closed the connection, or sent nothing.
    Silence,
    /// The server closed the connection before it had proved its identity.
    #[cfg(feature = "zookeeper-tls")]
    NoHandshake,
    Text(String),
}

/// Sends one of the four-letter words that servers answer.
pub(super) async fn ask(host: Host, word: &'static str, limit: Duration) -> ServerReply {
    let asking = rt::apart(move || {
        let mut stream = match connect(&host, limit) {
            Ok(stream) => stream,
            Err(err) => return ServerReply::NoConnection(err),
        };
        let mut reply = Vec::new();
        // A server may close the connection with an error after its answer.
        let _ = stream
            .write_all(word.as_bytes())
            .and_then(|()| (&mut stream).take(MAX_REPLY_BYTES).read_to_end(&mut reply));
        match reply.is_empty() {
            true => ServerReply::Silence,
            false => ServerReply::Text(String::from_utf8_lossy(&reply).into_owned()),
        }
    });
    asking.await.unwrap_or(ServerReply::Silence)
}

/// A connection to the first address of that host that accepts one.
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
