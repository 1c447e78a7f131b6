//! What the caller sets.

use std::time::Duration;

/// How to talk to the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// How long one node may take to answer an attempt or an inspection; a node that takes longer is not counted.
    /// `None`: a tenth of the ttl, at least [`MIN_NODE_TIMEOUT`] and at most [`MAX_NODE_TIMEOUT`]
    /// (a ttl must be ten round trips long).
    ///
    /// It bounds what silent nodes cost when the other nodes are no majority. Renewals and releases have a third of
    /// the ttl, if that is longer: the hold is there already, so they may wait.
    pub node_timeout: Option<Duration>,
}

/// A shorter timeout would measure how busy this machine is, and not the node.
pub const MIN_NODE_TIMEOUT: Duration = Duration::from_millis(100);

/// A longer time limit would not help a caller.
pub const MAX_NODE_TIMEOUT: Duration = Duration::from_secs(2);

impl Settings {
    /// The same with another [`node_timeout`](Settings::node_timeout).
    #[must_use]
    pub fn with_node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = Some(timeout);
        self
    }

    /// How long a node may take; see [`Settings::node_timeout`].
    pub(super) fn node_timeout_for(&self, ttl: Duration) -> Duration {
        let usual = || (ttl / 10).clamp(MIN_NODE_TIMEOUT, MAX_NODE_TIMEOUT);
        self.node_timeout.unwrap_or_else(usual)
    }

    /// How long a node may take to renew or to release a hold.
    pub(super) fn hold_timeout_for(&self, ttl: Duration) -> Duration {
        self.node_timeout_for(ttl).max(ttl / 3)
    }
}
