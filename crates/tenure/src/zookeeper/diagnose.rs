//! Why no session could be opened: the client library does not say, so plain connections of our own find out.

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::url::Host;

use super::errors::{ClientError, RequestError};
#[cfg(feature = "zookeeper-tls")]
use super::handshake;
use super::server_info::{self, ServerReply};
use super::settings::Settings;

/// The error of a client that could open no session: what is wrong with the first server of the URL, or with the
/// settings of TLS.
pub(super) async fn explain(settings: &Settings, err: ClientError) -> Error {
    if err == ClientError::AuthFailed {
        return RequestError::Client(err).explain(settings.user());
    }
    let mut first = None;
    for host in &settings.hosts {
        let reply = match ask(host, settings).await {
            Ok(reply) => reply,
            Err(err) => return err,
        };
        let is_tls = settings.tls.is_some();
        first.get_or_insert_with(|| meaning(host, is_tls, reply));
    }
    first.unwrap_or_else(|| {
        let what = "no server of the URL opened a session";
        Error::new(ErrorKind::Unreachable, what)
    })
}

/// How a server answers a plain question, or a handshake of TLS.
async fn ask(host: &Host, settings: &Settings) -> Result<ServerReply, Error> {
    match &settings.tls {
        None => Ok(server_info::ask(host.clone(), "srvr", settings.timeout).await),
        #[cfg(not(feature = "zookeeper-tls"))]
        Some(_) => Ok(ServerReply::Silence),
        #[cfg(feature = "zookeeper-tls")]
        Some(files) => handshake::shake_hands(host.clone(), files.clone(), settings.timeout).await,
    }
}

/// What the answer of a server that opened no session means.
fn meaning(host: &Host, is_tls: bool, reply: ServerReply) -> Error {
    let what = match reply {
        ServerReply::NoConnection(err) => {
            let what =
                format!("no connection to {host}; is the server running, and the URL right?");
            return Error::new(ErrorKind::Unreachable, what).with_source(err);
        }
        ServerReply::Text(text) => meaning_of_text(host, &text),
        #[cfg(feature = "zookeeper-tls")]
        ServerReply::NoHandshake => format!(
            "{host} closed the connection during the TLS handshake; name the port on which it speaks TLS, or write tls=off if it has none"
        ),
        ServerReply::Silence if is_tls => format!(
            "{host} speaks TLS and opened no session; is it a ZooKeeper server that serves clients on this port?"
        ),
        ServerReply::Silence => format!(
            "{host} does not answer like a ZooKeeper server; is the port right, and does it want TLS (then write tls=on)?"
        ),
    };
    Error::new(ErrorKind::Unreachable, what)
}

/// The same for an answer to `srvr`.
fn meaning_of_text(host: &Host, text: &str) -> String {
    let has = |part| text.contains(part);
    if has("not currently serving requests") {
        format!(
            "{host} has no majority of its ensemble and serves no client; start the other servers"
        )
    } else if has("Mode: read-only") {
        format!(
            "{host} is cut off from the others and read-only; retry when a majority of them is there"
        )
    } else if has("Zookeeper version") || has("whitelist") {
        format!(
            "{host} is there and opened no session in time; is it overloaded, or is its limit of connections (maxClientCnxns) reached?"
        )
    } else {
        format!("{host} does not answer like a ZooKeeper server; is the port right?")
    }
}
