//! The trait that every store implements.

use std::sync::Arc;

use super::capabilities::{
    AcquireAll, AnswerNow, ChangeMode, Detach, Elections, GuardedWrite, Operate, RaiseToken,
    ReserveTokens,
};
use super::loss_notifier::LossNotifier;
use super::messages::{Answer, BoxFuture, Hold, Listed, Release, Renewal, Request};
use crate::error::Error;
use crate::guarantees::{Capability, Guarantees};
use crate::holder::LockStatus;
use crate::name::LockName;
use crate::rt::Clock;

/// A store that keeps locks. See the [module](super) for the contract.
///
/// What only some stores can do is a trait of its own. A store that can do it implements that trait where its code is, and
/// returns itself from the method here that names the trait (`Some(self)`). Without it what needs it is refused.
pub trait Store: Send + Sync + 'static {
    /// What this store, with these settings, can do and promises.
    fn guarantees(&self) -> &Guarantees;

    /// For a refusal, because [`guarantees`](Store::guarantees) does not claim the capability: the stores that have it, as
    /// far as the crate of this one knows them.
    fn stores_with(&self, capability: Capability) -> String {
        let _ = capability;
        "`memory:`, and some of other crates".into()
    }

    /// The clock that [`Grant::sent`](super::Grant::sent) and [`Renewal::Renewed`] are measured on.
    fn clock(&self) -> Clock {
        Clock::system()
    }

    /// Called once, before everything else: the way to tell the driver that a hold ended.
    fn attach(&self, notifier: LossNotifier) {
        drop(notifier);
    }

    /// Whether requests need the runtime that the client was made in, because they read sockets or wait for timers. When
    /// that runtime has shut down, the driver polls no request of such a store any more.
    fn needs_runtime(&self) -> bool {
        true
    }

    /// Whether requests for shared holds or permits of one name that are made at the same time cost the store little more
    /// than one of them. Then the tasks of a client do not wait for each other with such requests, and each may wait in the
    /// store, up to 64 of a name. Otherwise one task after the other asks.
    fn answers_shared_together(&self) -> bool {
        false
    }

    /// Takes the name for `request.owner`; waits for it when `request.wait` is set.
    ///
    /// Resolves with [`Answer::Busy`] soon after [`Request::stop`] was raised, if not granted by then;
    /// after `Busy` nothing of this request is left in the store.
    /// An error of kind `Indeterminate` means that something may be left; with any other error nothing is.
    fn acquire(self: Arc<Self>, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>>;

    /// Renews these holds in as few requests as possible: one result per hold, in the same order.
    /// Holds without a lease are checked instead.
    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>>;

    /// Releases the hold if the store still has it under this owner, and never that of another owner.
    /// Also called for owners that may hold or wait after a request of unknown outcome.
    fn release(self: Arc<Self>, hold: Hold) -> BoxFuture<Result<Release, Error>>;

    /// Whether the store frees the hold by itself, a ttl after the last request about it. `false` if the hold lasts as long
    /// as a session that other holds share: then the driver repeats a release of unknown outcome until the session ends.
    fn ends_by_itself(&self, hold: &Hold) -> bool {
        let _ = hold;
        true
    }

    /// The holders and the waiters of this name.
    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<Result<LockStatus, Error>>;

    /// The names that start with `prefix` and may be held, in any order; the driver inspects them, drops what is not held,
    /// and sorts. A store that reads many holds in one request returns them instead.
    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<Result<Listed, Error>>;

    /// Gives back what is left, as far as the servers answer. No request comes after this one.
    ///
    /// The driver drops the future after a second, or when its own caller gives up, and then calls
    /// [`abandon`](Store::abandon).
    fn close(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }

    /// Ends sessions and connections without waiting for a server; called after [`close`](Store::close). Holds that are
    /// left end with their sessions or run out.
    fn abandon(&self) {}

    /// See [`AcquireAll`].
    fn as_acquire_all(self: Arc<Self>) -> Option<Arc<dyn AcquireAll>> {
        None
    }

    /// See [`AnswerNow`].
    fn as_answer_now(self: Arc<Self>) -> Option<Arc<dyn AnswerNow>> {
        None
    }

    /// See [`ChangeMode`].
    fn as_change_mode(self: Arc<Self>) -> Option<Arc<dyn ChangeMode>> {
        None
    }

    /// See [`RaiseToken`].
    fn as_raise_token(self: Arc<Self>) -> Option<Arc<dyn RaiseToken>> {
        None
    }

    /// See [`ReserveTokens`].
    fn as_reserve_tokens(self: Arc<Self>) -> Option<Arc<dyn ReserveTokens>> {
        None
    }

    /// See [`GuardedWrite`].
    fn as_guarded_write(self: Arc<Self>) -> Option<Arc<dyn GuardedWrite>> {
        None
    }

    /// See [`Elections`].
    fn as_elections(self: Arc<Self>) -> Option<Arc<dyn Elections>> {
        None
    }

    /// See [`Detach`].
    fn as_detach(self: Arc<Self>) -> Option<Arc<dyn Detach>> {
        None
    }

    /// See [`Operate`].
    fn as_operate(self: Arc<Self>) -> Option<Arc<dyn Operate>> {
        None
    }
}

/// A store, or one that is in an `Arc` already: what [`Client::builder`](crate::Client::builder) takes.
pub trait IntoStore {
    /// The store.
    fn into_store(self) -> Arc<dyn Store>;
}

impl<S: Store> IntoStore for S {
    fn into_store(self) -> Arc<dyn Store> {
        Arc::new(self)
    }
}

impl<S: Store> IntoStore for Arc<S> {
    fn into_store(self) -> Arc<dyn Store> {
        self
    }
}

impl IntoStore for Arc<dyn Store> {
    fn into_store(self) -> Arc<dyn Store> {
        self
    }
}
