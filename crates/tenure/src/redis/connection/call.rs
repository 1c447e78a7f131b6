//! One call of a script, and the pause before a call is sent to another server.

use std::sync::Arc;

use redis::{Cmd, FromRedisValue, RedisError};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::pace;
use tenure_core::rt::{Clock, Spawner};
use tenure_core::time::Time;

use super::super::scripts::Script;
use super::server::Connection;

/// The reply to a call.
pub(in crate::redis) struct Reply<T> {
    pub(in crate::redis) value: T,
    /// When the request was sent that got this reply. The request may have gone to other servers before, which did
    /// nothing.
    pub(in crate::redis) sent: Time,
    /// The connection over which the reply came.
    pub(in crate::redis) connection: Arc<Connection>,
}

/// A call of a script, to be sent to one server or another.
pub(super) struct Call<'a> {
    pub(super) script: &'a Script,
    /// How many of the arguments are keys.
    pub(super) keys: usize,
    /// Adds keys and arguments.
    pub(super) fill: &'a (dyn Fn(&mut Cmd) + Sync),
    pub(super) clock: &'a Clock,
}

impl Call<'_> {
    /// Sends the digest of the script, and the text if the server does not know the digest.
    pub(super) async fn send<T: FromRedisValue>(
        &self,
        connection: Arc<Connection>,
        is_asking: bool,
    ) -> Result<Reply<T>, RedisError> {
        let mut cmd = self.script.by_digest(self.keys);
        for attempt in 0.. {
            let sent = self.clock.now();
            (self.fill)(&mut cmd);
            let reply = if is_asking {
                // In a box, as in `Server::connection`.
                Box::pin(connection.send_asking(&cmd)).await
            } else {
                connection.send(&cmd).await
            };
            if attempt > 0 || !reply.as_ref().is_err_and(is_unknown_script) {
                return reply.map(|value| Reply {
                    value,
                    sent,
                    connection,
                });
            }
            cmd = self.script.by_text(self.keys);
        }
        unreachable!("the second attempt returns")
    }
}

fn is_unknown_script(err: &RedisError) -> bool {
    err.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript)
}

/// Sleeps after failed attempt number `attempt`; the first is 0.
pub(super) async fn pause(clock: &Clock, spawner: &Spawner, attempt: u32) -> Result<(), Error> {
    // The guard was dropped while the runtime shuts down: a sleep would panic.
    if spawner.is_shut_down() {
        let message = "the runtime of this client is gone";
        return Err(Error::new(ErrorKind::Closed, message));
    }
    let pause = pace::next(attempt, clock.random(), None, None).unwrap_or(pace::CAP);
    clock.sleep_until(clock.now().after(pause)).await;
    Ok(())
}
