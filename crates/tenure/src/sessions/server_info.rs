//! What a server reports about itself and about a new session.

use std::time::Duration;

/// Identifies a session, also after a restart of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionId {
    /// The server's number of the connection. The server uses a number again after a restart, if not earlier.
    pub(super) number: u64,
    /// MySQL: when the server was started, in s. PostgreSQL: when the session began, in µs.
    pub(super) since: u64,
}

/// What a session does, as another session sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionState {
    Gone,
    Idle,
    /// The session waits for an upgrade, or keeps its lock.
    Busy,
}

/// What the server reports when a session begins.
#[derive(Clone, Debug)]
pub(super) struct ServerInfo {
    pub(super) session: SessionId,
    pub(super) version: String,
    /// How long the server has run, at least.
    pub(super) uptime: Duration,
    /// How many locks the session can have.
    pub(super) capacity: usize,
    /// Whether the server ends an idle session. If not, there is no lease.
    pub(super) ends_idle: bool,
    /// Why locks in this server would not exclude all other clients, and the remedy.
    pub(super) objection: Option<String>,
}
