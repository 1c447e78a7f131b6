//! One call of a script.

use std::sync::Arc;

use redis::{Cmd, FromRedisValue, RedisError};

use tenure_core::rt::Clock;
use tenure_core::time::Time;

use super::super::scripts::Script;
use super::server::Connection;

/// The reply to a call.
pub(crate) struct Reply<T> {
    pub(crate) value: T,
    /// When the request was sent that got this reply. The request may have gone to other servers before, which did
    /// nothing.
    pub(crate) sent: Time,
    /// The connection over which the reply came.
    pub(crate) connection: Arc<Connection>,
}

impl<T> Reply<T> {
    /// The same reply with another value.
    pub(crate) fn with<U>(self, value: U) -> Reply<U> {
        Reply {
            value,
            sent: self.sent,
            connection: self.connection,
        }
    }
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
