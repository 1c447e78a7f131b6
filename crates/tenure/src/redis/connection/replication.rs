//! Asks how many replicas have a grant, over a connection of its own to the same server.
//!
//! `WAIT` blocks the connection over which it is sent, so on the connection of the locks it would delay renewals and
//! releases. `WAIT` counts the writes of its own connection only; replication is one stream, so replicas that have a
//! write which is made there after the grant have the grant too.

use std::sync::{Arc, Mutex, OnceLock};

use redis::{RedisError, Value};

use tenure_core::error::Error;
use tenure_core::rt::lock;
use tenure_core::support::millis_up;
use tenure_core::url::Host;

use super::super::context::Context;
use super::super::errors;
use super::endpoint::{Endpoint, Multiplexed};

/// How many replicas have what a server did, as long as one connection to that server lasts.
pub(super) struct Replication {
    endpoint: Arc<Endpoint>,
    context: Arc<Context>,
    host: Host,
    /// The connection of the locks.
    locks: Multiplexed,
    /// The batch that was not sent yet: grants that come while another batch is under way share one `WAIT`.
    next: Mutex<Option<Arc<Batch>>>,
    /// Locked by the task that sends a batch. `None`: there is no connection, or one with a request of unknown outcome.
    connection: tokio::sync::Mutex<Option<Multiplexed>>,
}

#[derive(Default)]
struct Batch(OnceLock<Result<u32, Error>>);

impl Replication {
    pub(super) fn new(
        endpoint: &Arc<Endpoint>,
        context: &Arc<Context>,
        host: &Host,
        locks: &Multiplexed,
    ) -> Self {
        Self {
            endpoint: endpoint.clone(),
            context: context.clone(),
            host: host.clone(),
            locks: locks.clone(),
            next: Mutex::default(),
            connection: tokio::sync::Mutex::default(),
        }
    }

    /// How many replicas have what the connection of the locks was answered by now. `key`: a key of ours on this server,
    /// which is written.
    ///
    /// Cancel safe: another task of the same batch sends the request again.
    pub(super) async fn acknowledged(&self, key: &str) -> Result<u32, Error> {
        let batch = lock(&self.next).get_or_insert_default().clone();
        let mut connection = self.connection.lock().await;
        if let Some(outcome) = batch.0.get() {
            return outcome.clone();
        }
        // A grant that comes from now on may come after the write.
        lock(&self.next).take_if(|next| Arc::ptr_eq(next, &batch));
        let outcome = self.ask(&mut connection, key).await;
        batch.0.get_or_init(|| outcome).clone()
    }

    async fn ask(&self, kept: &mut Option<Multiplexed>, key: &str) -> Result<u32, Error> {
        let settings = &self.context.settings;
        // Taken, so that a dropped caller leaves no connection behind on which a `WAIT` is under way.
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let limit = millis_up(settings.timeout / 2);
        let mut both = redis::pipe();
        both.cmd("SET").arg(key).arg("").arg("PX").arg(limit.max(1));
        both.cmd("WAIT").arg(settings.wait_replicas).arg(limit);
        let replies = connection.send_packed_commands(&both, 0, 2).await;
        let count = replies.and_then(count).map_err(errors::request)?;
        *kept = Some(connection);
        Ok(count)
    }

    /// Connects to the server process that has the grant.
    async fn connect(&self) -> Result<Multiplexed, Error> {
        let settings = &self.context.settings;
        let failed = |err| errors::connecting(err, &self.host, settings.is_tls());
        let connecting = self
            .endpoint
            .connect(&self.context, settings.connection_config());
        let connection = connecting.await.map_err(failed)?;
        // A process that was started meanwhile lacks the grant. The process of the other connection answers, so that
        // process had the port when this connection was opened.
        let mut locks = self.locks.clone();
        let asked = redis::cmd("TIME").query_async(&mut *locks).await;
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
