//! What the caller sets.

use std::time::Duration;

/// How to talk to the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// How long one node may take to answer a try, or a look; then it has no vote in it.
    /// `None`: a tenth of the ttl, at least [`LEAST_NODE_LIMIT`] and at most [`MOST_NODE_LIMIT`]
    /// (a ttl must be ten round trips long).
    ///
    /// It bounds what silent nodes cost when the others are no majority. Renewals and releases have a third
    /// of the ttl, if that is longer: they lose nothing by waiting.
    pub node_limit: Option<Duration>,
}

/// Below this the limit would measure a busy machine and not the node.
pub const LEAST_NODE_LIMIT: Duration = Duration::from_millis(100);

/// An answer that takes longer is as good as none.
pub const MOST_NODE_LIMIT: Duration = Duration::from_secs(2);

impl Settings {
    /// The same with another [`node_limit`](Settings::node_limit).
    #[must_use]
    pub fn with_node_limit(mut self, limit: Duration) -> Self {
        self.node_limit = Some(limit);
        self
    }
}
