//! What a server says about itself and about a session that begins.

use std::time::Duration;

/// Which session, in a server that may have been restarted since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionId {
    /// The server's number of the connection. The server uses a number again after a restart, if not earlier.
    pub(super) number: u64,
    /// MySQL: when the server was started, in s. PostgreSQL: when the session began, in µs.
    pub(super) since: u64,
}

/// What the server tells a session at its begin.
#[derive(Clone, Debug)]
pub(super) struct ServerInfo {
    pub(super) session: SessionId,
    pub(super) version: String,
    /// How long the server has run, at least.
    pub(super) uptime: Duration,
    /// How many locks the session can have.
    pub(super) capacity: usize,
    /// Whether the server ends an idle session: without that there is no lease.
    pub(super) ends_idle: bool,
    /// Why locks in this server would not exclude everybody, and the cure.
    pub(super) objection: Option<String>,
}
