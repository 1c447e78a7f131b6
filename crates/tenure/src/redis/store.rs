//! The parts of one client, and how a client connects.

use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;

use tenure_core::error::{Error, ErrorParts as _};
use tenure_core::fence::OwnerId;
use tenure_core::guarantees::Guarantees;
use tenure_core::logic::quorum;
use tenure_core::rt::Clock;
use tenure_core::store::Request;
use tenure_core::support::{self, HoldRegistry, Maintenance};

use crate::waiting::Places;

use super::connection::{Connections, Environment};
use super::context::Context;
use super::events::ServerEvents;
use super::guarantees::{Configuration, guarantees};
use super::holds::HeldKey;
use super::requests::Requests;
use super::settings::Settings;

/// Locks in Redis, Valkey, and other servers that speak their protocol and run their scripts.
pub struct Store {
    pub(super) guarantees: Guarantees,
    pub(super) context: Arc<Context>,
    pub(super) connections: Arc<Connections>,
    pub(super) requests: Requests,
    pub(super) holds: Arc<HoldRegistry<HeldKey>>,
    pub(super) places: Places,
    /// The task that verifies the holds when a connection was lost.
    pub(super) maintenance: Arc<Maintenance>,
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
        let holds = Arc::<HoldRegistry<HeldKey>>::default();
        let context = Arc::new(Context {
            settings,
            events: Arc::new(ServerEvents::new(maintenance.clone(), holds.clone())),
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
        let places = match context.settings.redisson {
            // The queue of its fair lock adds up the times of its places.
            Some(_) => Places::of_one_length(),
            None => Places::default(),
        };
        Ok(Arc::new(Self {
            guarantees: guarantees(configuration),
            requests: Requests::new(&context, &connections),
            context,
            connections,
            holds,
            places,
            maintenance,
        }))
    }

    /// Remembers a hold that is about to be passed to the driver.
    pub(super) fn remember(&self, request: &Request) {
        let entry = HeldKey::new(request, self.context.now());
        self.holds.insert(request.owner, entry);
    }

    /// Remembers what may have been granted, or may still be, until the driver has released it.
    pub(super) fn remember_ambiguous(&self, request: &Request) {
        let entry = HeldKey {
            is_released: true,
            ..HeldKey::new(request, self.context.now())
        };
        self.holds.insert(request.owner, entry);
    }

    /// Whether the hold of `owner` is that of a candidate of an election.
    pub(super) fn is_candidate(&self, owner: OwnerId) -> bool {
        let is_candidate = self.holds.read(owner, |entry| entry.is_candidate);
        is_candidate.unwrap_or(false)
    }
}
