//! Asks how many replicas have a write, over a connection of its own to the same server.
//!
//! `WAIT` blocks the connection over which it is sent, so on the connection of the requests it would delay them.
//! `WAIT` counts the writes of its own connection only; replication is one stream, so replicas that have a write which is
//! made there later have the earlier write too.

use std::sync::{Arc, Mutex, OnceLock};

use redis::{RedisError, Value};

use tenure_core::error::Error;
use tenure_core::rt::lock;
use tenure_core::support::millis_up;
use tenure_core::url::Host;

use super::endpoint::{Endpoint, Multiplexed};
use super::environment::Environment;
use super::errors;

/// How many replicas have what a server did, as long as one connection to that server lasts.
pub(super) struct Replication {
    endpoint: Arc<Endpoint>,
    env: Arc<Environment>,
    host: Host,
    /// The connection of the requests.
    requests: Multiplexed,
    /// The `WAIT` that was not sent yet: callers that come while another one is under way share it.
    next: Mutex<Option<Arc<SharedWait>>>,
    /// Locked by the task that sends a `WAIT`. `None`: there is no connection, or one with a request of unknown outcome.
    connection: tokio::sync::Mutex<Option<Multiplexed>>,
}

/// One `WAIT`, for all callers that came before it was sent.
#[derive(Default)]
struct SharedWait(OnceLock<Result<u32, Error>>);

impl Replication {
    pub(super) fn new(
        endpoint: &Arc<Endpoint>,
        env: &Arc<Environment>,
        host: &Host,
        requests: &Multiplexed,
    ) -> Self {
        Self {
            endpoint: endpoint.clone(),
            env: env.clone(),
            host: host.clone(),
            requests: requests.clone(),
            next: Mutex::default(),
            connection: tokio::sync::Mutex::default(),
        }
    }

    /// How many replicas have what the connection of the requests was answered by now; waits for `wanted` of them. `key`: a
    /// key on this server, which is written.
    ///
    /// Cancel safe: another caller that shares the `WAIT` sends it again.
    pub(super) async fn acknowledged(&self, key: &str, wanted: u32) -> Result<u32, Error> {
        let shared = lock(&self.next).get_or_insert_default().clone();
        let mut connection = self.connection.lock().await;
        if let Some(outcome) = shared.0.get() {
            return outcome.clone();
        }
        // A caller that comes from now on may speak of what came after the write.
        lock(&self.next).take_if(|next| Arc::ptr_eq(next, &shared));
        let outcome = self.ask(&mut connection, key, wanted).await;
        shared.0.get_or_init(|| outcome).clone()
    }

    async fn ask(
        &self,
        kept: &mut Option<Multiplexed>,
        key: &str,
        wanted: u32,
    ) -> Result<u32, Error> {
        // Taken, so that a dropped caller leaves no connection behind on which a `WAIT` is under way.
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let limit = millis_up(self.env.settings.timeout / 2);
        let mut both = redis::pipe();
        both.cmd("SET").arg(key).arg("").arg("PX").arg(limit.max(1));
        both.cmd("WAIT").arg(wanted).arg(limit);
        let replies = connection.send_packed_commands(&both, 0, 2).await;
        let count = replies.and_then(count).map_err(errors::request)?;
        *kept = Some(connection);
        Ok(count)
    }

    /// Connects to the server process that answered the requests.
    async fn connect(&self) -> Result<Multiplexed, Error> {
        let settings = &self.env.settings;
        let failed = |err| errors::connecting(err, &self.host, settings.is_tls());
        let connecting = self
            .endpoint
            .connect(&self.env, settings.connection_config());
        let connection = connecting.await.map_err(failed)?;
        // A process that was started meanwhile lacks the writes. The process of the other connection answers, so that
        // process had the port when this connection was opened.
        let mut requests = self.requests.clone();
        let asked = redis::cmd("TIME").query_async(&mut *requests).await;
        let _: Value = asked.map_err(errors::request)?;
        Ok(connection)
    }
}

fn count(replies: Vec<Value>) -> Result<u32, RedisError> {
    let mut count = 0;
    for reply in replies {
        let reply = reply.extract_error()?;
        if let Value::Int(number) = reply {
            count = u32::try_from(number).unwrap_or(0);
        }
    }
    Ok(count)
}
