//! The store in memory with other elections than its own, or with none.

use crate::guarantees::Guarantees;
use crate::holder::LockStatus;
use crate::name::LockName;
use crate::store::{
    self, Answer, BoxFuture, Elections, Hold, Listed, LossNotifier, Release, Renewal, Request,
};

use super::*;

pub(super) struct Wrapped {
    store: Arc<Store>,
    guarantees: Guarantees,
    elections: Option<Arc<dyn Elections>>,
}

impl Wrapped {
    /// A client of a store that has these elections.
    pub(super) fn client(case: &Case, elections: Option<Arc<dyn Elections>>) -> Client {
        let (store, mut guarantees) = (Arc::new(case.0.clone()), crate::memory::guarantees());
        guarantees.scheme = "locks-only";
        if elections.is_none() {
            guarantees.observers = "";
        }
        let wrapped = Self {
            store,
            guarantees,
            elections,
        };
        Client::from_store(wrapped).unwrap()
    }
}

impl store::Store for Wrapped {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn clock(&self) -> crate::rt::Clock {
        self.store.clock()
    }

    fn attach(&self, notifier: LossNotifier) {
        self.store.attach(notifier);
    }

    fn acquire(self: Arc<Self>, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        self.store.clone().acquire(request)
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        self.store.clone().renew(holds)
    }

    fn release(self: Arc<Self>, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        self.store.clone().release(hold)
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<Result<LockStatus, Error>> {
        self.store.clone().inspect(name)
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<Result<Listed, Error>> {
        self.store.clone().list(prefix)
    }

    fn as_elections(self: Arc<Self>) -> Option<Arc<dyn Elections>> {
        self.elections.clone()
    }
}
