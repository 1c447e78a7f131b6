//! `zookeeper:`: an ephemeral sequential node per contender, laid out as Apache Curator does.
//!
//! The directory of a name has a node for each who holds or waits; the server numbers them, the first one
//! holds, and everybody else watches the one just ahead. So programs with Curator, go-zk and others of that
//! family take the same lock. The published format is in `docs/stores/zookeeper.md`.
//!
//! Taking a free lock costs two round trips the first time and one from then on, see `warm`.
//!
//! # Reading order
//! `names` (paths and node names) · `session` (sessions) · `contact` (until when they are good) · `hold` (a node made,
//! found again, deleted) · `keep` (renewed) · `wait` (the queue, from the waiter's side) · `warm` (one round trip) · `outcome` (what
//! errors mean) · `probe` (why there is no session) · `look` ·
//! `write` (writes that need the hold).

mod contact;
mod guarantees;
#[cfg(feature = "zookeeper-tls")]
mod handshake;
mod hold;
mod keep;
mod look;
mod names;
mod outcome;
mod probe;
mod session;
mod settings;
mod wait;
mod warm;
mod write;

#[cfg(feature = "_fuzzing")]
pub(crate) use self::names::fuzz as fuzz_names;

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::Error as Said;

use tenure_core::backend::{
    Alarm, Answer, Backend as Door, BoxFuture, Finding, Hold, Release, Renewal, Request,
};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::{Condition, ZooKeeperCheck};
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::Status;
use tenure_core::name::{Escaped, LockName};
use tenure_core::rt::{Spawner, lock};

use crate::capabilities::stores_with;

pub use self::guarantees::{Configuration, guarantees};
use self::hold::Store;
use self::session::Session;
use self::settings::{Dialect, Settings};

/// How long [`Door::close`] may take: the servers may be gone, and sessions end by themselves.
const FAREWELL: Duration = Duration::from_secs(1);

/// Locks in ZooKeeper, and what else speaks its protocol.
pub struct Backend {
    store: Arc<Store>,
    guarantees: Guarantees,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Store { settings, .. } = &*self.store;
        f.debug_tuple("Backend").field(&settings.hosts).finish()
    }
}

impl Backend {
    /// Connects to the store of a URL `zookeeper://HOST,HOST/PATH`.
    ///
    /// # Errors
    /// `Invalid`: the URL is wrong. `Unreachable`, `Denied`, `Unsupported`: the servers are not there, would
    /// not have us, or cannot keep locks.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let settings = Settings::new(url)?;
        let Some(spawner) = Spawner::current() else {
            return Err(Error::new(
                ErrorKind::Closed,
                "connect was called outside a tokio runtime; use `tenure::blocking` there",
            ));
        };
        #[cfg(feature = "zookeeper-tls")]
        if settings.tls.is_some() {
            // The client library asks for the provider of the whole program.
            drop(crate::tls::provider());
        }
        let is_session_prefix = settings.dialect == Dialect::SessionPrefix;
        let store = Arc::new(Store::new(settings, spawner));
        let session = store.any_session().await?;
        let members = store.members(&session).await;
        if let Some(members) = members {
            store.set_members(members.max(1));
        }
        store.check_root(&session).await?;
        let configuration = Configuration {
            is_single: members.is_some_and(|members| members < 2),
            is_session_prefix,
        };
        let guarantees = guarantees(configuration);
        Ok(Self { store, guarantees })
    }
}

impl Door for Backend {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        stores_with(capability)
    }

    fn attach(&self, alarm: Alarm) {
        *lock(&self.store.alarm) = Some(alarm);
    }

    fn acquire(&self, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(self.store.clone().acquire(request))
    }

    fn renew(&self, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        let store = self.store.clone();
        Box::pin(async move { store.renew(&holds).await })
    }

    fn release(&self, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        let store = self.store.clone();
        Box::pin(async move { store.release(hold).await })
    }

    fn ends_by_itself(&self, hold: &Hold) -> bool {
        let kept = self.store.kept(hold.owner);
        kept.is_none_or(|kept| kept.session.ended.is_raised())
    }

    fn inspect(&self, name: LockName) -> BoxFuture<Result<Status, Error>> {
        let store = self.store.clone();
        Box::pin(async move { store.inspect(name).await })
    }

    fn list(&self, prefix: String) -> BoxFuture<Result<Vec<Status>, Error>> {
        let store = self.store.clone();
        Box::pin(async move { store.list(&prefix).await })
    }

    fn break_lock(&self, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        let store = self.store.clone();
        Box::pin(async move { store.break_lock(name, token).await })
    }

    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Error>> {
        let store = self.store.clone();
        Box::pin(async move { store.check().await })
    }

    fn write(
        &self,
        holds: Vec<Hold>,
        key: String,
        value: Option<Vec<u8>>,
    ) -> BoxFuture<Result<bool, Error>> {
        let store = self.store.clone();
        Box::pin(async move { store.write(&holds, &key, value.as_deref()).await })
    }

    fn condition(&self, hold: &Hold) -> Option<Condition> {
        let (_, path) = self.store.kept(hold.owner)?.node()?;
        // Any version, as for our own writes: what others may write there (`__REVOKE__`) ends no hold.
        Some(Condition::ZooKeeper(ZooKeeperCheck::new(&*path, -1)))
    }

    fn close(&self) -> BoxFuture<()> {
        let store = self.store.clone();
        Box::pin(async move { store.close().await })
    }
}

impl Store {
    /// Sees to it that the node under which all locks lie is there and ours to use.
    async fn check_root(&self, session: &Session) -> Result<(), Error> {
        let root = &self.settings.root;
        if root.is_empty() {
            return Ok(());
        }
        match self.ask(session.client.list_children(root)).await {
            Ok(_) => Ok(()),
            Err(failed) if failed.is(&Said::NoNode) => self.make_directory(session, root).await,
            Err(failed) if failed.is(&Said::NoAuth) => Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "the node \"{}\" is somebody else's; is the user before `@` in the URL the one who made it, and the password right?",
                    Escaped(root)
                ),
            )),
            Err(failed) => Err(self.explain(failed)),
        }
    }

    /// Ends all sessions, so that nothing of them is left.
    async fn close(&self) {
        self.closing.raise();
        let limit = self.clock.now().after(FAREWELL);
        // A session that is being opened has to be ended as well.
        tokio::select! {
            biased;
            _ = self.sessions.opening.lock() => {}
            () = self.clock.sleep_until(limit) => {}
        }
        let sessions = self.sessions.all();
        let states: Vec<_> = sessions
            .iter()
            .map(|session| session.client.state_watcher())
            .collect();
        self.sessions.clear();
        self.forget_all();
        // The library ends a session when nobody has it any more.
        drop(sessions);
        let farewell = async {
            for mut state in states {
                while !state.changed().await.is_terminated() {}
            }
        };
        tokio::select! {
            () = farewell => {}
            () = self.clock.sleep_until(limit) => {}
        }
    }
}
