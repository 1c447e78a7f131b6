//! `etcd:`: a key per contender under a lease, in the layout of etcd's own lock library and of `etcdctl lock`, so
//! that those exclude us and we them.
//!
//! The keys of a lock lie in one directory, and the one that was made first holds. One request acquires a free
//! lock and one releases it. A waiter watches those ahead of it, up to eight of them, and needs no further
//! request when its turn comes. The fencing token is the revision at which the key was made.
//! The published format is in `docs/stores/etcd.md`.
//!
//! # Reading order
//! `names` (keys) and `wire` (messages) · `place` (what a directory means to one of its keys) · `hold` (one
//! request each) · `wait` and `watch` (the waiter's side) · `session` (leases, and the task that keeps them
//! alive) · `link` (which member, and who we are) · `outcome` (what its errors mean) · `look`.

mod ears;
mod guarantees;
mod hold;
mod link;
mod look;
mod names;
mod outcome;
mod place;
mod session;
mod settings;
mod wait;
mod watch;
mod wire;

#[cfg(feature = "_fuzzing")]
pub(crate) use self::names::fuzz as fuzz_names;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;

use tenure_core::backend::{
    Answer, Backend as Door, BoxFuture, Finding, Hold, LossNotifier, Release, Renewal, Request,
};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::{Condition, EtcdCompare};
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::Status;
use tenure_core::name::LockName;
use tenure_core::rt::{Clock, Spawner, lock};

use crate::capabilities::stores_with;

pub use self::guarantees::guarantees;
use self::hold::{Store, signed};
use self::link::Link;
use self::settings::Settings;
use self::wire::path;

/// How long [`Door::close`] may take: the store may be away, and leases end by themselves.
const FAREWELL: Duration = Duration::from_secs(1);

/// Locks in etcd.
pub struct Backend(Arc<Store>);

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Backend")
            .field(&self.0.settings.hosts)
            .finish()
    }
}

impl Backend {
    /// Connects to the cluster of a URL `etcd://` or `etcds://`.
    ///
    /// # Errors
    /// `Invalid`: the URL is wrong. `Unreachable`, `Denied`, `Unsupported`: no member is there, none has a
    /// leader, or they would not have us.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let settings = Settings::new(url)?;
        let Some(spawner) = Spawner::current() else {
            return Err(Error::new(
                ErrorKind::Closed,
                "connect was called outside a tokio runtime; use `tenure::blocking` there",
            ));
        };
        let clock = Clock::system();
        let link = Link::new(&settings, clock.clone())?;
        let hosts: Vec<_> = settings.hosts.iter().map(ToString::to_string).collect();
        let explain =
            |trouble| outcome::first_word(trouble, &hosts.join(", "), settings.tls.is_some());
        link.open().await.map_err(explain)?;
        let asked = link.call(path::MEMBER_LIST, wire::Nothing {}).await;
        let reply = asked.map_err(explain)?;
        let members: wire::MemberListAnswer = reply.value;
        let votes = members.members.iter().filter(|it| !it.is_learner).count();
        let store = Store::new(settings, guarantees(votes), link, clock, spawner);
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

    fn attach(&self, alarm: LossNotifier) {
        // Called once.
        let _ = self.0.alarm.set(alarm);
    }

    fn acquire(&self, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(self.0.clone().acquire(request))
    }

    fn renew(&self, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        let store = self.0.clone();
        Box::pin(async move { store.renew(&holds).await })
    }

    fn release(&self, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        let store = self.0.clone();
        Box::pin(async move { store.release(&hold).await })
    }

    fn write(
        &self,
        holds: Vec<Hold>,
        key: String,
        value: Option<Vec<u8>>,
    ) -> BoxFuture<Result<bool, Error>> {
        let store = self.0.clone();
        Box::pin(async move { store.write(&holds, key, value).await })
    }

    fn condition(&self, hold: &Hold) -> Option<Condition> {
        let kept = lock(&self.0.kept);
        let key = kept.get(&hold.owner)?.key.clone();
        Some(Condition::Etcd(EtcdCompare::new(key, signed(hold.token))))
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
    /// Gives up all leases, and with them whatever hangs on them, and ends the connection.
    async fn close(&self) {
        self.closing.raise();
        if self.is_stranded.load(Ordering::SeqCst) {
            return;
        }
        // Wakes the keeper, which ends.
        self.maintenance.wake();
        let limit = self.clock.now().after(FAREWELL);
        let revoke_all = async {
            // Leases of single locks are given up in the background, and one that is being granted is not known yet.
            self.background.all_done().await;
            let mut leases: Vec<_> = {
                let sessions = lock(&self.sessions);
                sessions.values().map(|lease| lease.id).collect()
            };
            leases.extend(lock(&self.kept).values().map(|kept| kept.lease.id));
            leases.sort_unstable();
            leases.dedup();
            join_all(leases.into_iter().map(|id| self.revoke(id))).await;
        };
        tokio::select! {
            biased;
            // What cannot be given up runs out.
            () = revoke_all => {}
            () = self.clock.sleep_until(limit) => {}
        }
        self.link.close();
    }
}
