//! The parts of one client.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::guarantees::Guarantees;
use tenure_core::logic::quorum;
use tenure_core::rt::{self, Clock, Flag};
use tenure_core::store::LossNotifier;
use tenure_core::time::Time;

use super::background::Background;
use super::guarantees::guarantees;
use super::holds::Holds;
use super::losses::NodeListener;
use super::settings::Settings;

/// By how much the tokens that clients choose at the same time are apart, in µs: less than a round trip, so that the
/// tokens stay close to the clocks.
const MAX_CHOICE_JITTER: u32 = 64;

/// Several stores as one. Each client needs one of its own, which remembers the holds of that client.
pub struct Store {
    pub(super) nodes: Vec<Arc<dyn tenure_core::store::Store>>,
    pub(super) settings: Settings,
    pub(super) guarantees: Guarantees,
    pub(super) clock: Clock,
    pub(super) holds: Arc<Holds>,
    /// One for each node; the nodes keep weak references to them.
    listeners: OnceLock<Vec<Arc<NodeListener>>>,
    /// The greatest token seen.
    last_token: AtomicU64,
    pub(super) background: Background,
    pub(super) closing: Flag,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("majority::Store")
            .field("nodes", &self.nodes.len())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// A lock over these nodes. They must share no machine, no disk and no other cause of failure, and use the same
    /// clock on the client's side. Take an odd number, three at least.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid): there is no node.
    pub fn new(
        nodes: Vec<Arc<dyn tenure_core::store::Store>>,
        settings: Settings,
    ) -> Result<Arc<Self>, Error> {
        let Some(first) = nodes.first() else {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a majority needs nodes; name three or five of them",
            ));
        };
        Ok(Arc::new(Self {
            settings,
            guarantees: guarantees(nodes.iter().map(|node| node.guarantees())),
            clock: first.clock(),
            nodes,
            holds: Arc::default(),
            listeners: OnceLock::new(),
            last_token: AtomicU64::new(0),
            background: Background::default(),
            closing: Flag::new(),
        }))
    }

    /// Called inside the runtime of the client.
    pub(super) fn attach_nodes(&self, loss_notifier: &LossNotifier) {
        self.background.attach(self.has_node_that_needs_runtime());
        let listener = |node| {
            Arc::new(NodeListener {
                node,
                holds: self.holds.clone(),
                loss_notifier: loss_notifier.clone(),
            })
        };
        let new = || (0..self.nodes.len()).map(listener).collect();
        let listeners = self.listeners.get_or_init(new);
        for (node, listener) in self.nodes.iter().zip(listeners) {
            node.attach(LossNotifier::new(Arc::<NodeListener>::downgrade(listener)));
        }
    }

    /// The runtime of the client. No node needs it if all of them are in this process.
    pub(super) fn has_node_that_needs_runtime(&self) -> bool {
        self.nodes.iter().any(|node| node.needs_runtime())
    }

    pub(super) fn majority(&self) -> usize {
        quorum::majority(self.nodes.len())
    }

    /// When a request that is sent now to one node has no vote any more.
    pub(super) fn node_deadline(&self, ttl: Duration) -> Time {
        self.clock.now().after(self.settings.node_timeout_for(ttl))
    }

    /// The token to propose: in µs since 1970, so that tokens grow even over nodes that have forgotten theirs.
    pub(super) fn proposal(&self) -> u64 {
        let seen = self.last_token.load(Ordering::Relaxed);
        rt::wall_micros().max(seen.saturating_add(1))
    }

    /// The token to agree on after nodes could not have the one before, because other clients use it or a greater one.
    /// Clients that choose at the same time should not choose the same again.
    pub(super) fn next_choice(&self) -> u64 {
        self.proposal() + u64::from(self.clock.random() % MAX_CHOICE_JITTER)
    }

    /// Later proposals are greater than `token`.
    pub(super) fn note_token(&self, token: u64) {
        self.last_token.fetch_max(token, Ordering::Relaxed);
    }
}
