//! A name is held on a majority of several independent stores (the Redlock algorithm). Where the stores are Redis
//! servers, the URL is `redlock://HOST,HOST,HOST`.
//!
//! The nodes know nothing of each other, so any of them may fail, and as long as more than half of them
//! answer the lock goes on. [`wait`](self) asks all of them at once and counts; the decisions are those of
//! the modules `quorum_acquisition` and `quorum` of `logic`. Nodes are backends of any kind, used through the trait only.
//!
//! ```
//! # async fn example() -> Result<(), tenure::Error> {
//! use std::sync::Arc;
//! use tenure::backend::Backend;
//! use tenure::memory;
//! use tenure::majority;
//! use tenure::Client;
//!
//! let first = memory::Backend::with_virtual_clock(); // in real life, stores on three machines
//! let nodes: Vec<Arc<dyn Backend>> =
//!     vec![Arc::new(first.beside()), Arc::new(first.beside()), Arc::new(first)];
//! let store = majority::Backend::new(nodes, majority::Settings::default())?;
//! let guard = Client::from_backend(store)?.lock("orders/42").acquire().await?;
//! guard.release().await
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
//! ```

mod crowd;
mod hold;
mod look;
mod wait;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tenure_core::backend::{
    Answer, Backend as Door, BoxFuture, Finding, Hold, LossListener, LossNotifier, Release,
    Renewal, Request,
};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::{OwnerId, RandomAlready};
use tenure_core::guarantees::{Capability, Cell, Fault, Guarantees, Order};
use tenure_core::holder::Status;
use tenure_core::logic::quorum;
use tenure_core::lost::LostReason;
use tenure_core::name::LockName;
use tenure_core::rt::{self, BackgroundTasks, Clock, Flag, Spawner, lock};
use tenure_core::time::Time;

use self::hold::Claim;
use crate::capabilities::stores_with;

/// Several stores as one. A cheap clone. One for each client: it remembers the holds of its client.
#[derive(Clone)]
pub struct Backend(Arc<Core>);

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

/// How long `close` waits for requests to single nodes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

impl Settings {
    /// The same with another [`node_limit`](Settings::node_limit).
    #[must_use]
    pub fn with_node_limit(mut self, limit: Duration) -> Self {
        self.node_limit = Some(limit);
        self
    }
}

struct Core {
    nodes: Vec<Arc<dyn Door>>,
    settings: Settings,
    guarantees: Guarantees,
    clock: Clock,
    /// Set by `attach`, which is called inside the client's runtime.
    spawner: OnceLock<Spawner>,
    alarm: OnceLock<LossNotifier>,
    /// What hears the nodes' alarms; they keep nothing alive, we do.
    ears: OnceLock<Vec<Arc<Ear>>>,
    claims: Mutex<Claims>,
    /// The greatest token seen.
    last_token: AtomicU64,
    /// Requests to single nodes that are seen to their end.
    background: Arc<BackgroundTasks>,
    closing: Flag,
}

#[derive(Default)]
struct Claims {
    /// By our owner id, and by every other that stands for it on a node.
    by_owner: HashMap<OwnerId, Arc<Claim>, RandomAlready>,
    /// The size at which what nobody asks for any more is looked for.
    purge_at: usize,
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
    fn majority(&self) -> usize {
        quorum::majority(self.nodes.len())
    }

    /// How long a node may take; see [`Settings::node_limit`].
    fn node_limit(&self, ttl: Duration) -> Duration {
        let usual = || (ttl / 10).clamp(LEAST_NODE_LIMIT, MOST_NODE_LIMIT);
        self.settings.node_limit.unwrap_or_else(usual)
    }

    /// How long the nodes may take over a hold that is ours.
    fn hold_limit(&self, ttl: Duration) -> Duration {
        self.node_limit(ttl).max(ttl / 3)
    }

    /// The token to propose: in µs since 1970, so that it grows even over nodes that have forgotten theirs.
    fn proposal(&self) -> u64 {
        let seen = self.last_token.load(Ordering::Relaxed);
        rt::wall_micros().max(seen.saturating_add(1))
    }

    fn saw(&self, token: u64) {
        self.last_token.fetch_max(token, Ordering::Relaxed);
    }

    /// Polls the future once in place, and to its end in the background.
    fn see_to(&self, future: BoxFuture<()>) {
        // Without a spawner there was no client yet, and nothing to see to.
        if let Some(spawner) = self.spawner.get()
            && let Err(Some(pending)) = spawner.poll_anywhere(future)
        {
            self.background.spawn(spawner, pending);
        }
    }

    /// Lets what is being given back go. A node that does not answer is not asked again.
    async fn settle(&self) {
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

    fn remember(&self, owner: OwnerId, claim: &Arc<Claim>) {
        let now = self.clock.now();
        let mut claims = lock(&self.claims);
        if claims.by_owner.len() >= claims.purge_at {
            claims.by_owner.retain(|_, claim| !claim.is_stale(now));
            claims.purge_at = 2 * claims.by_owner.len() + 64;
        }
        claims.by_owner.insert(owner, claim.clone());
    }

    fn forget(&self, claim: &Claim) {
        let owners = claim.owners();
        let mut claims = lock(&self.claims);
        for owner in owners {
            claims.by_owner.remove(&owner);
        }
    }

    /// An identity on one node that was given up.
    fn forget_alias(&self, owner: OwnerId, claim: &Claim) {
        if owner != claim.owner {
            lock(&self.claims).by_owner.remove(&owner);
        }
    }

    fn claim(&self, owner: OwnerId) -> Option<Arc<Claim>> {
        lock(&self.claims).by_owner.get(&owner).cloned()
    }
}

impl Door for Backend {
    fn guarantees(&self) -> &Guarantees {
        &self.0.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        stores_with(capability)
    }

    fn clock(&self) -> Clock {
        self.0.clock.clone()
    }

    fn attach(&self, alarm: LossNotifier) {
        if let Some(spawner) = Spawner::current() {
            let _ = self.0.spawner.set(spawner);
        }
        let _ = self.0.alarm.set(alarm);
        let ear = |node| {
            let core = Arc::downgrade(&self.0);
            Arc::new(Ear { core, node })
        };
        let ears = self
            .0
            .ears
            .get_or_init(|| (0..self.0.nodes.len()).map(ear).collect());
        for (node, ear) in self.0.nodes.iter().zip(ears) {
            node.attach(LossNotifier::new(Arc::<Ear>::downgrade(ear)));
        }
    }

    fn acquire(&self, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(wait::acquire(self.0.clone(), request))
    }

    fn renew(&self, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        Box::pin(hold::renew(self.0.clone(), holds))
    }

    fn release(&self, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        Box::pin(hold::release(self.0.clone(), hold))
    }

    fn ends_by_itself(&self, hold: &Hold) -> bool {
        self.0.nodes.iter().all(|node| node.ends_by_itself(hold))
    }

    fn inspect(&self, name: LockName) -> BoxFuture<Result<Status, Error>> {
        Box::pin(look::inspect(self.0.clone(), name))
    }

    fn list(&self, prefix: String) -> BoxFuture<Result<Vec<Status>, Error>> {
        Box::pin(look::list(self.0.clone(), prefix))
    }

    fn break_lock(&self, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(look::break_lock(self.0.clone(), name, token))
    }

    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Error>> {
        Box::pin(look::check(self.0.clone()))
    }

    fn close(&self) -> BoxFuture<()> {
        let core = self.0.clone();
        Box::pin(async move {
            core.settle().await;
            let mut closing = crowd::Crowd::new(core.nodes.iter().map(|node| node.close()));
            while closing.next().await.is_some() {}
        })
    }
}

/// Hears what one node says about the end of holds.
struct Ear {
    core: Weak<Core>,
    node: usize,
}

impl Ear {
    /// The holds, by our owner ids, that no majority carries any more.
    fn tell(&self, reason: LostReason, claims: impl Fn(&Core) -> Vec<Arc<Claim>>) {
        let Some(core) = self.core.upgrade() else {
            return;
        };
        for claim in claims(&core) {
            if claim.lost_node(self.node) < core.majority()
                && let Some(alarm) = core.alarm.get()
            {
                alarm.lost(claim.owner, reason);
            }
        }
    }
}

impl LossListener for Ear {
    fn lost(&self, owner: OwnerId, reason: LostReason) {
        self.tell(reason, |core| core.claim(owner).into_iter().collect());
    }

    fn all_lost(&self, reason: LostReason) {
        self.tell(reason, |core| {
            let claims = lock(&core.claims);
            let ours = |(owner, claim): (&OwnerId, &Arc<Claim>)| {
                (*owner == claim.owner).then(|| claim.clone())
            };
            claims.by_owner.iter().filter_map(ours).collect()
        });
    }
}

/// One error for what several nodes said: unclear if one of them is, else what the first said.
fn merged(errors: Vec<Error>, nodes: usize, what: &str) -> Error {
    let count = errors.len();
    let unclear = |err: &Error| err.kind() == ErrorKind::Indeterminate;
    let at = errors.iter().position(unclear).unwrap_or(0);
    match errors.into_iter().nth(at) {
        Some(err) => Error::new(
            err.kind(),
            format!("{count} of {nodes} nodes {what}, so there is no majority"),
        )
        .with_restart_guard(err.restart_guard().cloned())
        .with_source(err),
        None => Error::new(
            ErrorKind::Unreachable,
            format!("too few of {nodes} nodes {what}"),
        ),
    }
}

fn no_answer(limit: Duration) -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        format!("the node did not answer within {limit:?}"),
    )
}

/// When `at` on the clock has come: never, for [`Time::MAX`].
async fn due(clock: &Clock, at: Time) {
    if at == Time::MAX {
        std::future::pending::<()>().await;
    }
    clock.sleep_until(at).await;
}

/// What a majority of nodes promises that promise this.
pub fn guarantees<'a>(nodes: impl IntoIterator<Item = &'a Guarantees>) -> Guarantees {
    let nodes: Vec<_> = nodes.into_iter().collect();
    // What one node alone can do to a hold, if the majority was bare: the weakest of them decides.
    let weakest = |fault, note, void| {
        let nothing = nodes.iter().any(|node| !node.survives(fault));
        match nothing {
            true => Cell::nothing(fault, void).token_regress(),
            false => Cell::claims(fault, note).late(),
        }
    };
    let jump = |fault, note, void| {
        let nothing = nodes.iter().any(|node| !node.survives(fault));
        match nothing {
            true => Cell::nothing(fault, void),
            false => Cell::claims(fault, note).late(),
        }
    };
    let faults = vec![
        Cell::effects(Fault::HolderKilled, "the holder's leases end within one ttl",
        )
        .late(),
        Cell::claims(Fault::HolderPaused, "the holder's deadline comes before any node grants the name again; only the token stops a late write",
        )
        .late(),
        Cell::claims(Fault::Partition, "a minority of the nodes cannot grant the lock; a holder that reaches no majority loses it at its deadline",
        )
        .late(),
        weakest(
            Fault::StoreRestart,
            "a restarted node does not count towards the majority until the leases that it may have forgotten are over",
            "a node that forgets its locks at a restart grants them again at once, and one such node can complete a second majority",
        ),
        weakest(
            Fault::PowerLoss,
            "the same as a restart of the nodes that lost power",
            "the same as a restart of the nodes that lost power",
        ),
        if nodes.iter().any(|node| !node.survives(Fault::Failover)) {
            Cell::nothing(Fault::Failover, "a node that is replaced by a replica may forget locks and does not look restarted; use nodes without replicas",
            )
            .token_regress()
        } else {
            Cell::not_applicable(Fault::Failover, "no node has a replica")
        },
        jump(
            Fault::StoreClockForward,
            "the nodes' leases do not depend on a clock that jumps",
            "a node whose clock jumps ends its lease early; one such node is enough if the holder has no more than a bare majority",
        ),
        jump(
            Fault::StoreClockBack,
            "leases last longer on a node whose clock jumped; the other nodes may form a majority",
            "leases depend on a clock that jumps",
        ),
        Cell::effects(Fault::ClientClock, "leases are measured on a clock that does not jump; a new token is above the last ones of the nodes",
        ),
        Cell::claims(Fault::ClientSuspended, "deadlines are measured on a clock that continues during the suspension",
        )
        .late(),
    ];
    let lock_delay = nodes.iter().all(|node| node.lock_delay);
    let mut guarantees = Guarantees::new(
        "redlock",
        Order::Unordered(
            "each node serves its waiters first come, first served; where the orders of the nodes differ, chance decides",
        ),
        faults,
    );
    guarantees.setting = nodes
        .first()
        .map(|node| node.setting.clone())
        .unwrap_or_default();
    guarantees.lock_delay = lock_delay;
    guarantees.why_not = "each of several nodes decides alone, and a majority that agrees on one holder cannot count \
                  several, nor keep a name that only some of them granted";
    guarantees.liveness = "leases on a majority of nodes, renewed every third of the ttl; a renewal also restores the lease on a node that lost it";
    guarantees.clock = "each node ends its lease by its own clock";
    guarantees.waiting = "an entry in the queue of every node; a waiter that too few nodes granted gives those grants back after a short random time";
    guarantees.token = "max(last + 1, the client's wall clock in µs), agreed with a majority; can go backward only if nodes lose their \
                data and the clocks of two clients differ by more than the time for which a restarted node does not count";
    guarantees.loss = "at the next renewal (every third of the ttl), at the deadline at the latest";
    guarantees.fit = "saving double work, and correctness with a fencing token, where several independent stores exist and none of them may be a single point of failure";
    guarantees
}
