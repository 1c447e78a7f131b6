//! A store for tests: `memory:` on its virtual clock, but for what a test changes in it.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Error;
use crate::guarantees::Guarantees;
use crate::holder::LockStatus;
use crate::name::LockName;
use crate::rt::Clock;
use crate::store::{
    AcquireAll, Answer, BoxFuture, ChangeMode, Detach, Hold, Listed, Release, Renewal, Request,
    Store,
};
use crate::{Client, memory};

/// What is different from `memory:`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::driver) enum Change {
    #[default]
    None,
    /// The store grants a name only when the caller gives up.
    GrantsWhenStopped,
    /// Holds have no lease, and the store does not report their end.
    HasNoLeases,
    /// A hold ends with a session that other holds share.
    HasSessions,
    /// The store does not answer while it is closed.
    IsSilentAtClose,
}

/// How often the store was told something that has no effect in memory.
#[derive(Default)]
pub(in crate::driver) struct Told {
    closed: AtomicUsize,
    abandoned: AtomicUsize,
    forgotten: AtomicUsize,
    renewed: AtomicUsize,
}

impl Told {
    pub(in crate::driver) fn closed(&self) -> usize {
        self.closed.load(Ordering::SeqCst)
    }

    pub(in crate::driver) fn abandoned(&self) -> usize {
        self.abandoned.load(Ordering::SeqCst)
    }

    pub(in crate::driver) fn forgotten(&self) -> usize {
        self.forgotten.load(Ordering::SeqCst)
    }

    /// How many holds it was asked to renew.
    pub(in crate::driver) fn renewed(&self) -> usize {
        self.renewed.load(Ordering::SeqCst)
    }
}

pub(in crate::driver) struct TestStore {
    memory: Arc<memory::Store>,
    change: Change,
    told: Arc<Told>,
}

impl TestStore {
    pub(in crate::driver) fn with(change: Change) -> (Self, memory::Store, Arc<Told>) {
        let (store, told) = (memory::Store::with_virtual_clock(), Arc::<Told>::default());
        let test_store = Self {
            memory: Arc::new(store.clone()),
            change,
            told: told.clone(),
        };
        (test_store, store, told)
    }

    pub(in crate::driver) fn client(change: Change) -> (Client, memory::Store, Arc<Told>) {
        let (store, memory, told) = Self::with(change);
        (Client::from_store(store).unwrap(), memory, told)
    }
}

impl Store for TestStore {
    fn guarantees(&self) -> &Guarantees {
        self.memory.guarantees()
    }

    fn clock(&self) -> Clock {
        self.memory.clock()
    }

    fn acquire(self: Arc<Self>, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(async move {
            if self.change == Change::GrantsWhenStopped {
                request.stop.raised().await;
            }
            let mut answer = self.memory.clone().acquire(request).await;
            if self.change == Change::HasNoLeases
                && let Ok(Answer::Granted(grant)) = &mut answer
            {
                grant.ttl = None;
            }
            answer
        })
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        self.told.renewed.fetch_add(holds.len(), Ordering::SeqCst);
        self.memory.clone().renew(holds)
    }

    fn release(self: Arc<Self>, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        self.memory.clone().release(hold)
    }

    fn ends_by_itself(&self, _: &Hold) -> bool {
        self.change != Change::HasSessions
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<Result<LockStatus, Error>> {
        self.memory.clone().inspect(name)
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<Result<Listed, Error>> {
        self.memory.clone().list(prefix)
    }

    fn close(self: Arc<Self>) -> BoxFuture<()> {
        self.told.closed.fetch_add(1, Ordering::SeqCst);
        match self.change {
            Change::IsSilentAtClose => Box::pin(pending()),
            _ => self.memory.clone().close(),
        }
    }

    fn abandon(&self) {
        self.told.abandoned.fetch_add(1, Ordering::SeqCst);
    }

    fn as_acquire_all(self: Arc<Self>) -> Option<Arc<dyn AcquireAll>> {
        self.memory.clone().as_acquire_all()
    }

    fn as_change_mode(self: Arc<Self>) -> Option<Arc<dyn ChangeMode>> {
        self.memory.clone().as_change_mode()
    }

    fn as_detach(self: Arc<Self>) -> Option<Arc<dyn Detach>> {
        Some(self)
    }
}

impl Detach for TestStore {
    fn detach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        Detach::detach(self.memory.clone(), hold)
    }

    fn attach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        Detach::attach(self.memory.clone(), hold)
    }

    fn forget(&self, _: &Hold) {
        self.told.forgotten.fetch_add(1, Ordering::SeqCst);
    }
}
