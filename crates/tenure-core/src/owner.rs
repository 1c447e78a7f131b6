//! Owners: who may enter a lock again that the same owner already holds.

use std::future::Future;
use std::sync::Arc;

use crate::entry::{LockKey, OwnedLocks};
use crate::name::LockName;

/// An identity that may enter its own locks again.
///
/// Locks are not re-entrant by default: a second acquisition of the same name waits for the first one.
/// With the same `Owner`, given to [`Lock::owner`](crate::Lock::owner) or by
/// [`Owner::scope`], the second acquisition enters the lock at once, without a request to the store. Entries are
/// counted, and the last one to end releases the lock. All entries share one hold: one token, one deadline, one loss.
///
/// Ownership belongs to the `Owner`, not to a thread or task: two tasks with clones of one `Owner`
/// do not exclude each other. A task that is spawned inside a scope is outside of the scope, unless it gets the owner.
#[derive(Clone, Debug, Default)]
pub struct Owner(pub(crate) Arc<OwnedLocks>);

tokio::task_local! {
    static SCOPE: Scope;
}

/// The scopes around the current task.
#[derive(Clone, Debug)]
struct Scope {
    owner: Owner,
    /// New acquisitions belong to the owner too. A closed scope, that of `run`, only allows entering a lock again that
    /// the owner holds already: anything more would let two branches of one task, as in `join!`, both into a lock that
    /// neither of them held before.
    open: bool,
    outer: Option<Arc<Scope>>,
}

impl Owner {
    /// A new identity.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `future` as one owner: every lock that `future` acquires without an owner of its own is re-entrant.
    ///
    /// Inside another scope the outer owner is kept, so that library code may use scopes of its own.
    ///
    /// # Cancel safety
    /// As cancel safe as `future`.
    pub async fn scope<F: Future>(future: F) -> F::Output {
        let owner = Self::of_scope().unwrap_or_default();
        owner.enter_scope(future).await
    }

    /// Runs `future` with this owner. A spawned task needs this to have the same owner as its parent.
    ///
    /// # Cancel safety
    /// As cancel safe as `future`.
    pub async fn enter_scope<F: Future>(&self, future: F) -> F::Output {
        self.run_in_scope(true, future).await
    }

    /// Runs the body of [`Lock::run`](crate::Lock::run): it may enter again what this owner holds, and nothing else changes.
    pub(crate) async fn enter_body<F: Future>(&self, future: F) -> F::Output {
        self.run_in_scope(false, future).await
    }

    async fn run_in_scope<F: Future>(&self, open: bool, future: F) -> F::Output {
        let outer = SCOPE.try_with(|scope| Arc::new(scope.clone())).ok();
        SCOPE
            .scope(
                Scope {
                    owner: self.clone(),
                    open,
                    outer,
                },
                future,
            )
            .await
    }

    /// The owner of the scope in which the current task runs, if there is one.
    pub fn current() -> Option<Self> {
        Self::of_scope()
    }

    fn of_scope() -> Option<Self> {
        SCOPE
            .try_with(|scope| {
                scope
                    .chain()
                    .find(|scope| scope.open)
                    .map(|scope| scope.owner.clone())
            })
            .ok()
            .flatten()
    }

    /// The owner that an acquisition of `name` belongs to when none was given.
    pub(crate) fn implied(client: usize, name: &LockName) -> Option<Self> {
        SCOPE
            .try_with(|scope| {
                let key = LockKey {
                    client,
                    name: name.clone(),
                };
                scope
                    .chain()
                    .find(|scope| scope.open || scope.owner.0.is_entered(&key))
                    .map(|scope| scope.owner.clone())
            })
            .ok()
            .flatten()
    }

    /// How many entries into the lock this owner has; 0 if the hold is lost.
    pub(crate) fn entries(&self, key: &LockKey) -> u32 {
        self.0.entries(key)
    }
}

impl Scope {
    fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |scope| scope.outer.as_deref())
    }
}
