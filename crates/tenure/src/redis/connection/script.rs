//! A script that runs in a server, and one call of it. A script is one request, applied as a whole or not at all.

use std::sync::Arc;

use redis::{Cmd, FromRedisValue, RedisError};

use tenure_core::rt::Clock;
use tenure_core::time::Time;

use super::server::Connection;

/// A script: its text, and the digest by which a server knows the text.
pub(crate) struct Script {
    text: String,
    sha: String,
}

impl Script {
    /// The first line of a script names it, for people who watch the server (`MONITOR`).
    pub(crate) fn new(name: &str, body: &str) -> Self {
        let text = format!("-- tenure:{name}\n{body}");
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha }
    }
}

/// The reply to a call.
pub(crate) struct ScriptReply<T> {
    pub(crate) value: T,
    /// When the request was sent that got this reply. The request may have gone to other servers before, which did
    /// nothing.
    pub(crate) sent: Time,
    /// The connection over which the reply came.
    pub(crate) connection: Arc<Connection>,
}

impl<T> ScriptReply<T> {
    /// The same reply with another value.
    pub(crate) fn with<U>(self, value: U) -> ScriptReply<U> {
        ScriptReply {
            value,
            sent: self.sent,
            connection: self.connection,
        }
    }
}

/// A call of a script, to be sent to one server or another.
pub(super) struct Call<'a> {
    pub(super) script: &'a Script,
    pub(super) keys: &'a [&'a str],
    /// Adds the other arguments.
    pub(super) args: &'a (dyn Fn(&mut Cmd) + Sync),
    pub(super) clock: &'a Clock,
}

impl Call<'_> {
    /// Sends the digest of the script, and the text if the server does not know the digest.
    pub(super) async fn send<T: FromRedisValue>(
        &self,
        connection: Arc<Connection>,
        is_asking: bool,
    ) -> Result<ScriptReply<T>, RedisError> {
        let Script { text, sha } = self.script;
        for (command, script) in [("EVALSHA", sha), ("EVAL", text)] {
            let sent = self.clock.now();
            // Large enough for nearly all calls, so that the buffer need not grow.
            let mut cmd = Cmd::with_capacity(16, script.len() + 800);
            cmd.arg(command).arg(script).arg(self.keys.len());
            cmd.arg(self.keys);
            (self.args)(&mut cmd);
            let reply = if is_asking {
                // In a box, as in `Server::connection`.
                Box::pin(connection.send_asking(&cmd)).await
            } else {
                connection.send(&cmd).await
            };
            if command == "EVAL" || !reply.as_ref().is_err_and(is_unknown_script) {
                return reply.map(|value| ScriptReply {
                    value,
                    sent,
                    connection,
                });
            }
        }
        unreachable!("the second attempt returns")
    }
}

fn is_unknown_script(err: &RedisError) -> bool {
    err.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript)
}
