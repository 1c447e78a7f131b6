//! Requests that a store may not be able to answer, and a list that takes several requests. The driver, and a store made
//! of stores, send them by these functions; what a store cannot do is refused here.

use std::future::ready;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use super::capabilities::{ChangeMode, Detach, Operate};
use super::finding::Finding;
use super::interface::Store;
use super::messages::{AllAnswer, Answer, BoxFuture, Hold, Listed, Renewal, Request};
use crate::error::{Error, ErrorKind, ErrorParts as _};
use crate::holder::LockStatus;
use crate::name::LockName;
use crate::options::Mode;

/// How many names are inspected at the same time: few, so that a list of many names does not delay requests that renew.
const PARALLEL_INSPECTIONS: usize = 64;

impl dyn Store {
    /// See [`AcquireAll::acquire_all`](super::AcquireAll::acquire_all). A store without it answers that the names have to be
    /// acquired one by one.
    pub fn acquire_all(
        self: Arc<Self>,
        requests: Vec<Arc<Request>>,
    ) -> BoxFuture<Result<AllAnswer, Error>> {
        match self.as_acquire_all() {
            Some(store) => store.acquire_all(requests),
            None => Box::pin(ready(Ok(AllAnswer::OneByOne))),
        }
    }

    /// See [`ChangeMode::upgrade`].
    pub fn upgrade(
        self: Arc<Self>,
        hold: Hold,
        request: Arc<Request>,
    ) -> BoxFuture<Result<Answer, Error>> {
        self.change_mode(|store| store.upgrade(hold, request))
    }

    /// See [`ChangeMode::downgrade`].
    pub fn downgrade(self: Arc<Self>, hold: Hold, mode: Mode) -> BoxFuture<Result<bool, Error>> {
        self.change_mode(|store| store.downgrade(hold, mode))
    }

    fn change_mode<T: Send + 'static>(
        self: Arc<Self>,
        request: impl FnOnce(Arc<dyn ChangeMode>) -> BoxFuture<Result<T, Error>>,
    ) -> BoxFuture<Result<T, Error>> {
        match self.clone().as_change_mode() {
            Some(store) => request(store),
            None => self.unsupported(
                "cannot change the mode of a hold; release the lock and acquire it again",
            ),
        }
    }

    /// See [`RaiseToken::raise`](super::RaiseToken::raise).
    pub fn raise(self: Arc<Self>, hold: Hold, token: u64) -> BoxFuture<Result<Option<u64>, Error>> {
        match self.clone().as_raise_token() {
            Some(store) => store.raise(hold, token),
            None => {
                self.unsupported("cannot raise a token, so it cannot be a node of another store")
            }
        }
    }

    /// See [`GuardedWrite::write`](super::GuardedWrite::write).
    pub fn write(
        self: Arc<Self>,
        holds: Vec<Hold>,
        key: String,
        value: Option<Vec<u8>>,
    ) -> BoxFuture<Result<bool, Error>> {
        match self.clone().as_guarded_write() {
            Some(store) => store.write(holds, key, value),
            None => self.unsupported(
                "keeps no data but locks; send the fencing token along with the write instead",
            ),
        }
    }

    /// See [`Detach::detach`].
    pub fn detach_hold(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        self.lease(|store| store.detach(hold))
    }

    /// See [`Detach::attach`].
    pub fn attach_hold(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        self.lease(|store| store.attach(hold))
    }

    fn lease(
        self: Arc<Self>,
        request: impl FnOnce(Arc<dyn Detach>) -> BoxFuture<Renewal>,
    ) -> BoxFuture<Renewal> {
        match self.clone().as_detach() {
            Some(store) => request(store),
            None => {
                let refusal = self.refusal("has no holds that go on without their client");
                Box::pin(ready(Renewal::Unknown(refusal)))
            }
        }
    }

    /// See [`Detach::forget`]. A store without it has nothing to forget.
    pub fn forget_hold(self: &Arc<Self>, hold: &Hold) {
        if let Some(store) = self.clone().as_detach() {
            store.forget(hold);
        }
    }

    /// See [`Operate::break_lock`].
    pub fn break_lock(
        self: Arc<Self>,
        name: LockName,
        token: u64,
    ) -> BoxFuture<Result<bool, Error>> {
        self.operate(|store| store.break_lock(name, token))
    }

    /// See [`Operate::check`].
    pub fn check(self: Arc<Self>) -> BoxFuture<Result<Vec<Finding>, Error>> {
        self.operate(|store| store.check())
    }

    /// See [`Operate::init`].
    pub fn init(self: Arc<Self>) -> BoxFuture<Result<Vec<String>, Error>> {
        self.operate(|store| store.init())
    }

    fn operate<T: Send + 'static>(
        self: Arc<Self>,
        request: impl FnOnce(Arc<dyn Operate>) -> BoxFuture<Result<T, Error>>,
    ) -> BoxFuture<Result<T, Error>> {
        match self.clone().as_operate() {
            Some(store) => request(store),
            None => self.unsupported("has no actions for operators; use the tools of the store"),
        }
    }

    /// The names that start with `prefix` and are held, sorted by name.
    pub fn list_held(self: Arc<Self>, prefix: String) -> BoxFuture<Result<Vec<LockStatus>, Error>> {
        Box::pin(async move {
            let mut held = match self.clone().list(prefix).await? {
                Listed::Names(names) => self.inspect_all(names).await?,
                Listed::Statuses(statuses) => statuses,
            };
            held.retain(LockStatus::is_held);
            held.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(held)
        })
    }

    async fn inspect_all(
        self: Arc<Self>,
        mut names: Vec<LockName>,
    ) -> Result<Vec<LockStatus>, Error> {
        names.sort();
        names.dedup();
        let inspect = |name: LockName| {
            let inspecting = self.clone().inspect(name.clone());
            async move { inspecting.await.map_err(|err| err.with_name(&name)) }
        };
        let statuses = stream::iter(names)
            .map(inspect)
            .buffer_unordered(PARALLEL_INSPECTIONS);
        let held = statuses.try_filter(|status| ready(status.is_held()));
        held.try_collect().await
    }

    fn unsupported<T: Send + 'static>(&self, what: &str) -> BoxFuture<Result<T, Error>> {
        Box::pin(ready(Err(self.refusal(what))))
    }

    fn refusal(&self, what: &str) -> Error {
        let message = format!("{} {what}", self.guarantees().scheme);
        Error::new(ErrorKind::Unsupported, message)
    }
}
