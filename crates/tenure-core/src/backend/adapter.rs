//! A backend from plain async functions.

use std::sync::Arc;

use super::finding::Finding;
use super::interface::{
    Backend, BoxFuture, only_reference_store, unsupported_mode_change, unsupported_raise,
    unsupported_write,
};
use super::loss_notifier::LossNotifier;
use super::messages::{AllAnswer, Answer, Hold, Release, Renewal, Request};
use crate::error::Error;
use crate::fence::Condition;
use crate::guarantees::{Capability, Guarantees};
use crate::holder::Status;
use crate::name::LockName;
use crate::options::Mode;
use crate::rt::Clock;

/// A store whose operations are async functions on a shared object: what most stores implement. An
/// [`Arc`] of such a store is a [`Backend`]. The contract is that of [`Backend`], function by function.
///
/// A store on this machine that can answer without waiting implements [`Backend`] itself.
pub trait AsyncBackend: Send + Sync + Sized + 'static {
    /// See [`Backend::guarantees`].
    fn guarantees(&self) -> &Guarantees;

    /// See [`Backend::stores_with`].
    fn stores_with(&self, capability: Capability) -> String {
        only_reference_store(capability)
    }

    /// See [`Backend::clock`].
    fn clock(&self) -> Clock {
        Clock::system()
    }

    /// See [`Backend::attach`].
    fn attach(&self, notifier: LossNotifier) {
        drop(notifier);
    }

    /// See [`Backend::acquire`].
    fn acquire(
        self: Arc<Self>,
        request: Arc<Request>,
    ) -> impl Future<Output = Result<Answer, Error>> + Send;

    /// See [`Backend::acquire_all`].
    fn acquire_all(
        self: Arc<Self>,
        requests: Vec<Arc<Request>>,
    ) -> impl Future<Output = Result<AllAnswer, Error>> + Send {
        drop(requests);
        std::future::ready(Ok(AllAnswer::OneByOne))
    }

    /// See [`Backend::upgrade`].
    fn upgrade(
        self: Arc<Self>,
        hold: Hold,
        request: Arc<Request>,
    ) -> impl Future<Output = Result<Answer, Error>> + Send {
        drop((hold, request));
        std::future::ready(Err(unsupported_mode_change()))
    }

    /// See [`Backend::downgrade`].
    fn downgrade(
        self: Arc<Self>,
        hold: Hold,
        mode: Mode,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        let _ = (hold, mode);
        std::future::ready(Err(unsupported_mode_change()))
    }

    /// See [`Backend::renew`].
    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> impl Future<Output = Vec<Renewal>> + Send;

    /// See [`Backend::release`].
    fn release(self: Arc<Self>, hold: Hold) -> impl Future<Output = Result<Release, Error>> + Send;

    /// See [`Backend::ends_by_itself`].
    fn ends_by_itself(&self, hold: &Hold) -> bool {
        let _ = hold;
        true
    }

    /// See [`Backend::raise`].
    fn raise(
        self: Arc<Self>,
        hold: Hold,
        token: u64,
    ) -> impl Future<Output = Result<Option<u64>, Error>> + Send {
        let _ = (hold, token);
        std::future::ready(Err(unsupported_raise()))
    }

    /// See [`Backend::inspect`].
    fn inspect(
        self: Arc<Self>,
        name: LockName,
    ) -> impl Future<Output = Result<Status, Error>> + Send;

    /// See [`Backend::list`].
    fn list(
        self: Arc<Self>,
        prefix: String,
    ) -> impl Future<Output = Result<Vec<Status>, Error>> + Send;

    /// See [`Backend::break_lock`].
    fn break_lock(
        self: Arc<Self>,
        name: LockName,
        token: u64,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// See [`Backend::check`].
    fn check(self: Arc<Self>) -> impl Future<Output = Result<Vec<Finding>, Error>> + Send;

    /// See [`Backend::init`].
    fn init(self: Arc<Self>) -> impl Future<Output = Result<Vec<String>, Error>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// See [`Backend::write`].
    fn write(
        self: Arc<Self>,
        holds: Vec<Hold>,
        key: String,
        value: Option<Vec<u8>>,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        drop((holds, key, value));
        std::future::ready(Err(unsupported_write(self.guarantees())))
    }

    /// See [`Backend::condition`].
    fn condition(&self, hold: &Hold) -> Option<Condition> {
        let _ = hold;
        None
    }

    /// See [`Backend::close`].
    fn close(self: Arc<Self>) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

impl<S: AsyncBackend> Backend for Arc<S> {
    fn guarantees(&self) -> &Guarantees {
        S::guarantees(self)
    }

    fn stores_with(&self, capability: Capability) -> String {
        S::stores_with(self, capability)
    }

    fn clock(&self) -> Clock {
        S::clock(self)
    }

    fn attach(&self, notifier: LossNotifier) {
        S::attach(self, notifier);
    }

    fn acquire(&self, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(S::acquire(self.clone(), request))
    }

    fn acquire_all(&self, requests: Vec<Arc<Request>>) -> BoxFuture<Result<AllAnswer, Error>> {
        Box::pin(S::acquire_all(self.clone(), requests))
    }

    fn upgrade(&self, hold: Hold, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(S::upgrade(self.clone(), hold, request))
    }

    fn downgrade(&self, hold: Hold, mode: Mode) -> BoxFuture<Result<bool, Error>> {
        Box::pin(S::downgrade(self.clone(), hold, mode))
    }

    fn renew(&self, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        Box::pin(S::renew(self.clone(), holds))
    }

    fn release(&self, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        Box::pin(S::release(self.clone(), hold))
    }

    fn ends_by_itself(&self, hold: &Hold) -> bool {
        S::ends_by_itself(self, hold)
    }

    fn raise(&self, hold: Hold, token: u64) -> BoxFuture<Result<Option<u64>, Error>> {
        Box::pin(S::raise(self.clone(), hold, token))
    }

    fn inspect(&self, name: LockName) -> BoxFuture<Result<Status, Error>> {
        Box::pin(S::inspect(self.clone(), name))
    }

    fn list(&self, prefix: String) -> BoxFuture<Result<Vec<Status>, Error>> {
        Box::pin(S::list(self.clone(), prefix))
    }

    fn break_lock(&self, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(S::break_lock(self.clone(), name, token))
    }

    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Error>> {
        Box::pin(S::check(self.clone()))
    }

    fn init(&self) -> BoxFuture<Result<Vec<String>, Error>> {
        Box::pin(S::init(self.clone()))
    }

    fn write(
        &self,
        holds: Vec<Hold>,
        key: String,
        value: Option<Vec<u8>>,
    ) -> BoxFuture<Result<bool, Error>> {
        Box::pin(S::write(self.clone(), holds, key, value))
    }

    fn condition(&self, hold: &Hold) -> Option<Condition> {
        S::condition(self, hold)
    }

    fn close(&self) -> BoxFuture<()> {
        Box::pin(S::close(self.clone()))
    }
}
