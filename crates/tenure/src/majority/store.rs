//! The parts of one client.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tenure_core::backend::{Alarm, Backend as Door, BoxFuture};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::{OwnerId, RandomAlready};
use tenure_core::guarantees::Guarantees;
use tenure_core::logic::quorum;
use tenure_core::rt::{self, BackgroundTasks, Clock, Flag, Spawner, lock};

use super::claim::Claim;
use super::guarantees::guarantees;
use super::losses::Ear;
use super::settings::{LEAST_NODE_LIMIT, MOST_NODE_LIMIT, Settings};

/// Several stores as one. A cheap clone. One for each client: it remembers the holds of its client.
#[derive(Clone)]
pub struct Backend(pub(super) Arc<Core>);

/// How long `close` waits for requests to single nodes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct Core {
    pub(super) nodes: Vec<Arc<dyn Door>>,
    pub(super) settings: Settings,
    pub(super) guarantees: Guarantees,
    pub(super) clock: Clock,
    /// Set by `attach`, which is called inside the client's runtime.
    pub(super) spawner: OnceLock<Spawner>,
    pub(super) alarm: OnceLock<Alarm>,
    /// What hears the nodes' alarms; they keep nothing alive, we do.
    pub(super) ears: OnceLock<Vec<Arc<Ear>>>,
    pub(super) claims: Mutex<Claims>,
    /// The greatest token seen.
    pub(super) last_token: AtomicU64,
    /// Requests to single nodes that are seen to their end.
    pub(super) background: Arc<BackgroundTasks>,
    pub(super) closing: Flag,
}

#[derive(Default)]
pub(super) struct Claims {
    /// By our owner id, and by every other that stands for it on a node.
    pub(super) by_owner: HashMap<OwnerId, Arc<Claim>, RandomAlready>,
    /// The size at which what nobody asks for any more is looked for.
    pub(super) purge_at: usize,
}

impl Backend {
    /// A lock over these nodes, which must share no machine, no disk and no fate, and use the same clock
    /// on our side. Take an odd number, three at least.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) without any node.
    pub fn new(nodes: Vec<Arc<dyn Door>>, settings: Settings) -> Result<Self, Error> {
        let Some(first) = nodes.first() else {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a majority needs nodes; name three or five of them",
            ));
        };
        Ok(Self(Arc::new(Core {
            settings,
            guarantees: guarantees(nodes.iter().map(|node| node.guarantees())),
            clock: first.clock(),
            nodes,
            spawner: OnceLock::new(),
            alarm: OnceLock::new(),
            ears: OnceLock::new(),
            claims: Mutex::default(),
            last_token: AtomicU64::new(0),
            background: Arc::default(),
            closing: Flag::new(),
        })))
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("majority::Backend")
            .field("nodes", &self.0.nodes.len())
            .field("settings", &self.0.settings)
            .finish_non_exhaustive()
    }
}

impl Core {
    pub(super) fn majority(&self) -> usize {
        quorum::majority(self.nodes.len())
    }

    /// How long a node may take; see [`Settings::node_limit`].
    pub(super) fn node_limit(&self, ttl: Duration) -> Duration {
        let usual = || (ttl / 10).clamp(LEAST_NODE_LIMIT, MOST_NODE_LIMIT);
        self.settings.node_limit.unwrap_or_else(usual)
    }

    /// How long the nodes may take over a hold that is ours.
    pub(super) fn hold_limit(&self, ttl: Duration) -> Duration {
        self.node_limit(ttl).max(ttl / 3)
    }

    /// The token to propose: in µs since 1970, so that it grows even over nodes that have forgotten theirs.
    pub(super) fn proposal(&self) -> u64 {
        let seen = self.last_token.load(Ordering::Relaxed);
        rt::wall_micros().max(seen.saturating_add(1))
    }

    pub(super) fn saw(&self, token: u64) {
        self.last_token.fetch_max(token, Ordering::Relaxed);
    }

    /// Polls the future once in place, and to its end in the background.
    pub(super) fn see_to(&self, future: BoxFuture<()>) {
        // Without a spawner there was no client yet, and nothing to see to.
        if let Some(spawner) = self.spawner.get()
            && let Err(Some(pending)) = spawner.poll_anywhere(future)
        {
            self.background.spawn(spawner, pending);
        }
    }

    /// Lets what is being given back go. A node that does not answer is not asked again.
    pub(super) async fn settle(&self) {
        self.closing.raise();
        let claims: Vec<_> = lock(&self.claims).by_owner.values().cloned().collect();
        let now = self.clock.now();
        claims.iter().for_each(|claim| claim.end(now));
        // On the real clock: it bounds how long the caller waits.
        let clock = Clock::system();
        tokio::select! {
            biased;
            () = self.background.all_done() => {}
            () = clock.sleep_until(clock.now().after(CLOSE_TIMEOUT)) => {}
        }
    }

    pub(super) fn remember(&self, owner: OwnerId, claim: &Arc<Claim>) {
        let now = self.clock.now();
        let mut claims = lock(&self.claims);
        if claims.by_owner.len() >= claims.purge_at {
            claims.by_owner.retain(|_, claim| !claim.is_stale(now));
            claims.purge_at = 2 * claims.by_owner.len() + 64;
        }
        claims.by_owner.insert(owner, claim.clone());
    }

    pub(super) fn forget(&self, claim: &Claim) {
        let owners = claim.owners();
        let mut claims = lock(&self.claims);
        for owner in owners {
            claims.by_owner.remove(&owner);
        }
    }

    /// An identity on one node that was given up.
    pub(super) fn forget_alias(&self, owner: OwnerId, claim: &Claim) {
        if owner != claim.owner {
            lock(&self.claims).by_owner.remove(&owner);
        }
    }

    pub(super) fn claim(&self, owner: OwnerId) -> Option<Arc<Claim>> {
        lock(&self.claims).by_owner.get(&owner).cloned()
    }
}
