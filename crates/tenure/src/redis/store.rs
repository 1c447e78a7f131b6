//! The parts of one client, and how a client connects.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use tenure_core::error::{Error, ErrorParts as _};
use tenure_core::guarantees::Guarantees;
use tenure_core::logic::quorum;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::rt::Clock;
use tenure_core::store::Request;
use tenure_core::support::{self, HoldRegistry, Maintenance, millis_down, millis_up};
use tenure_core::time::Time;

use super::connection::{Connections, Environment};
use super::context::Context;
use super::events::ServerEvents;
use super::guarantees::{Configuration, guarantees};
use super::requests::{Requests, may_reserve};
use super::settings::Settings;

/// Locks in Redis, Valkey, and other servers that speak their protocol and run their scripts.
pub struct Store {
    pub(super) guarantees: Guarantees,
    pub(super) context: Arc<Context>,
    pub(super) connections: Arc<Connections>,
    pub(super) requests: Requests,
    pub(super) holds: HoldRegistry<HeldKey>,
    /// The task that verifies the holds when a connection was lost.
    pub(super) maintenance: Arc<Maintenance>,
}

/// What has to be remembered of a hold to renew and to release it.
#[derive(Clone, Debug)]
pub(super) struct HeldKey {
    pub(super) name: LockName,
    /// By how much the key outlives the lease, in ms.
    pub(super) lock_delay: u64,
    /// Until when the key lives at least.
    pub(super) min_hold_end: Time,
    /// Whether the name may stay reserved after a release.
    pub(super) may_reserve: bool,
    /// Whether it may be a shared hold: it was acquired as one, or has become shared.
    pub(super) is_shared_hold: bool,
    /// Whether the token was proposed: several servers are to have the same token.
    pub(super) is_proposed: bool,
    /// A release failed. The driver sends the release again, until the lease has ended.
    pub(super) is_released: bool,
}

impl HeldKey {
    /// How long the key is to live from `now` on, in ms, if the hold has this lease: until the lease and `lock_delay` are
    /// over, and not less than the rest of `min_hold`.
    pub(super) fn live(&self, lease: Duration, now: Time) -> u64 {
        let live = millis_down(lease).saturating_add(self.lock_delay);
        live.max(millis_up(self.min_hold_end.since(now)))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topology = &self.context.settings.servers.topology;
        f.debug_tuple("Store").field(topology).finish()
    }
}

impl Store {
    /// Connects to the store of a URL `redis://`, `rediss://`, `redis+unix://`, `redis+sentinel://` or
    /// `redis+cluster://`.
    ///
    /// # Errors
    /// `Invalid`: the URL is wrong. `Unreachable`, `Denied`, `Unsupported`: the server cannot be reached, refused the
    /// user, or cannot keep locks.
    pub async fn connect(url: &str) -> Result<Arc<Self>, Error> {
        Self::with(Settings::new(url)?).await
    }

    /// What [`connect`](Store::connect) refuses without a request.
    pub(crate) fn check_url(url: &str) -> Result<(), Error> {
        Settings::new(url).map(drop)
    }

    /// What [`connect_independent`](Store::connect_independent) refuses without a request.
    #[cfg_attr(
        not(feature = "redlock"),
        allow(dead_code, reason = "the scheme is redlock:")
    )]
    pub(crate) fn check_independent_url(url: &str) -> Result<(), Error> {
        Settings::independent_servers(url).map(drop)
    }

    /// Connects to the independent servers of a URL `redlock://HOST,HOST,HOST`; each is a store of its own.
    ///
    /// # Errors
    /// As [`connect`](Store::connect). `Unreachable` only if more than half of the servers cannot be reached; the client
    /// connects to the others later.
    pub async fn connect_independent(
        url: &str,
    ) -> Result<Vec<Arc<dyn tenure_core::store::Store>>, Error> {
        let settings = Settings::independent_servers(url)?;
        let stores = join_all(settings.into_iter().map(Self::with)).await;
        let stores = stores.into_iter().collect::<Result<Vec<_>, _>>()?;
        let (mut reachable, mut failure) = (0, None);
        for store in &stores {
            match store.connections.connection("").await {
                Ok(_) => reachable += 1,
                Err(err) => failure = Some(err),
            }
        }
        if let Some(err) = failure
            && reachable < quorum::majority(stores.len())
        {
            let (count, kind) = (stores.len(), err.kind());
            let message =
                format!("{reachable} of {count} servers can be reached, which is no majority");
            return Err(Error::new(kind, message).with_source(err));
        }
        Ok(stores.into_iter().map(|it| it as _).collect())
    }

    async fn with(settings: Settings) -> Result<Arc<Self>, Error> {
        let spawner = support::spawner()?;
        let maintenance = Arc::<Maintenance>::default();
        let context = Arc::new(Context {
            settings,
            events: Arc::new(ServerEvents::new(maintenance.clone())),
            operations: Arc::default(),
            clock: Clock::system(),
            spawner: spawner.clone(),
        });
        let connections = Connections::connect(Environment {
            settings: context.settings.servers.clone(),
            listener: context.events.clone(),
            clock: context.clock.clone(),
            spawner,
        });
        let connections = Arc::new(connections.await?);
        let reachable = match connections.reachable().await {
            // Nothing is known of a server that cannot be reached.
            Err(_) if context.settings.servers.may_be_unreachable => Vec::new(),
            reachable => reachable?,
        };
        for guard in reachable.iter().filter_map(|it| context.restart_guard(it)) {
            support::warn_of_restart("redis", &guard);
        }
        let configuration = Configuration::of(&context.settings, &reachable);
        Ok(Arc::new(Self {
            guarantees: guarantees(configuration),
            requests: Requests::new(&context, &connections),
            context,
            connections,
            holds: HoldRegistry::default(),
            maintenance,
        }))
    }

    /// Remembers a hold that is about to be passed to the driver.
    pub(super) fn remember(&self, request: &Request) {
        let entry = HeldKey {
            name: request.name.clone(),
            lock_delay: millis_up(request.lock_delay),
            // The server granted earlier, so `min_hold` is over there by then.
            min_hold_end: self.context.now().after(request.min_hold),
            may_reserve: may_reserve(request),
            is_shared_hold: request.mode != Mode::Exclusive,
            is_proposed: request.propose.is_some(),
            is_released: false,
        };
        self.holds.insert(request.owner, entry);
    }
}
