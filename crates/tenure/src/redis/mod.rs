//! `redis:`: a key with a random owner, and beside it what other libraries lack: a queue that the server
//! keeps, fencing tokens, and who holds.
//!
//! The key itself is the common one (`SET NX PX`, compared before it is deleted), so that programs in
//! other languages exclude us and we them. The published format is in `docs/stores/redis.md`.
//!
//! One script acquires and one releases, one round trip each. A release hands the lock to the first
//! waiter that has been heard of lately and tells only that one.
//!
//! # Reading order
//! `names` (keys) and `lua/` (what the server does) · `hold` (one request each) · `batch` (many at once) ·
//! `wait` (the queue, from the waiter's side) · `connection` (connections, and which server has a
//! key) · `server_info` (what a server says about itself) · `errors` (what its errors mean) · `inspect`.

mod batch;
mod connection;
mod errors;
mod events;
mod guarantees;
mod hold;
mod inspect;
mod names;
mod scripts;
mod server_info;
mod settings;
mod wait;

#[cfg(feature = "_fuzzing")]
pub(crate) use self::names::fuzz as fuzz_names;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use tenure_core::backend::{
    Alarm, Answer, Backend as Door, BoxFuture, Finding, Hold, Release, Renewal, Request,
};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::Status;
use tenure_core::logic::quorum;
use tenure_core::name::LockName;
use tenure_core::rt::{Clock, Spawner};
use tenure_core::support::Maintenance;

use crate::capabilities::stores_with;

use self::connection::Connections;
use self::events::ServerEvents;
pub use self::guarantees::{Configuration, guarantees};
use self::hold::{HeldEntry, Store};
pub use self::server_info::Persistence;
use self::settings::Settings;

/// How long [`Door::close`] may take: the server may be gone, and leases end by themselves.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Locks in Redis, Valkey, and what else speaks their protocol and runs their scripts.
pub struct Backend(Arc<Store>);

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Store { settings, .. } = &*self.0;
        f.debug_tuple("Backend").field(&settings.topology).finish()
    }
}

impl Backend {
    /// Connects to the store of a URL `redis://`, `rediss://`, `redis+sentinel://` or `redis+cluster://`.
    ///
    /// # Errors
    /// `Invalid`: the URL is wrong. `Unreachable`, `Denied`, `Unsupported`: the server is not there,
    /// would not have us, or cannot keep locks.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::with(Settings::new(url)?).await
    }

    /// The independent servers of a URL `redlock://HOST,HOST,HOST`, each a store of its own.
    ///
    /// # Errors
    /// As [`connect`](Backend::connect); `Unreachable` when more than half of the servers are not there.
    /// One that is not there may come later.
    pub async fn masters(url: &str) -> Result<Vec<Arc<dyn Door>>, Error> {
        let all = Settings::masters(url)?.into_iter().map(Self::with);
        let all = join_all(all).await;
        let all = all.into_iter().collect::<Result<Vec<_>, _>>()?;
        let (mut there, mut away) = (0, None);
        for master in &all {
            match master.0.nodes.connection("").await {
                Ok(_) => there += 1,
                Err(err) => away = Some(err),
            }
        }
        if let Some(err) = away
            && there < quorum::majority(all.len())
        {
            let (count, kind) = (all.len(), err.kind());
            let message = format!("{there} of {count} servers are there, which is no majority");
            return Err(Error::new(kind, message).with_source(err));
        }
        Ok(all.into_iter().map(|it| Arc::new(it) as _).collect())
    }

    async fn with(settings: Settings) -> Result<Self, Error> {
        let Some(spawner) = Spawner::current() else {
            return Err(Error::new(
                ErrorKind::Closed,
                "connect was called outside a tokio runtime; use `tenure::blocking` there",
            ));
        };
        let (maintenance, clock) = (Arc::<Maintenance>::default(), Clock::system());
        let inbox = Arc::new(ServerEvents::new(maintenance.clone()));
        let settings = Arc::new(settings);
        let nodes = Connections::connect(&settings, &inbox, &clock, &spawner).await?;
        let sessions = match nodes.reachable().await {
            // Nothing is known of a server that is away.
            Err(_) if settings.may_be_unreachable => Vec::new(),
            sessions => sessions?,
        };
        let configuration = Configuration::of(&settings, &sessions);
        let guarantees = guarantees(configuration);
        let store = Store::new(
            settings,
            guarantees,
            nodes,
            inbox,
            maintenance,
            clock,
            spawner,
        );
        Ok(Self(Arc::new(store)))
    }
}

impl Door for Backend {
    fn guarantees(&self) -> &Guarantees {
        &self.0.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        stores_with(capability)
    }

    fn attach(&self, alarm: Alarm) {
        self.0.inbox.attach(alarm);
    }

    fn acquire(&self, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(self.0.clone().acquire(request))
    }

    fn renew(&self, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        let store = self.0.clone();
        Box::pin(async move { store.renew(&holds, false).await })
    }

    fn release(&self, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        let store = self.0.clone();
        Box::pin(async move { store.release(hold).await })
    }

    fn raise(&self, hold: Hold, token: u64) -> BoxFuture<Result<bool, Error>> {
        let store = self.0.clone();
        Box::pin(async move { store.raise(hold, token).await })
    }

    fn write(
        &self,
        holds: Vec<Hold>,
        key: String,
        value: Option<Vec<u8>>,
    ) -> BoxFuture<Result<bool, Error>> {
        let store = self.0.clone();
        Box::pin(async move { store.write(&holds, &key, value.as_deref()).await })
    }

    fn inspect(&self, name: LockName) -> BoxFuture<Result<Status, Error>> {
        let store = self.0.clone();
        Box::pin(async move { store.inspect(name).await })
    }

    fn list(&self, prefix: String) -> BoxFuture<Result<Vec<Status>, Error>> {
        let store = self.0.clone();
        Box::pin(async move { store.list(&prefix).await })
    }

    fn break_lock(&self, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        let store = self.0.clone();
        Box::pin(async move { store.break_lock(name, token).await })
    }

    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Error>> {
        let store = self.0.clone();
        Box::pin(async move { store.check().await })
    }

    fn close(&self) -> BoxFuture<()> {
        let store = self.0.clone();
        Box::pin(async move { store.close().await })
    }
}

impl Store {
    /// Gives back what is held, lets those who wait leave, and ends the connections.
    async fn close(self: &Arc<Self>) {
        self.maintenance.stop();
        if self.runtime.is_gone() {
            return;
        }
        let limit = self.clock.now().after(CLOSE_TIMEOUT);
        let farewell = async {
            let hold = |owner, kept: &HeldEntry| Some(Hold::of(kept.name.clone(), owner));
            let holds = self.holds.select(hold);
            let releases = holds.into_iter().map(|hold| self.release(hold));
            join_all(releases).await;
            // The driver has stopped the waiters.
            self.operations.all_done().await;
        };
        tokio::select! {
            () = farewell => {}
            () = self.clock.sleep_until(limit) => {}
        }
        self.nodes.close();
    }
}
