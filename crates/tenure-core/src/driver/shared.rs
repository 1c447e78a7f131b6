//! What the locks, guards and tasks of one client share.

use std::future::ready;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use crate::error::{Error, ErrorKind, ErrorParts as _, Step};
use crate::fence::OwnerId;
use crate::guarantees::{Capability, Fault, Promise};
use crate::holder::{Holder, WaitReport};
use crate::lost::{Loss, LostReason};
use crate::name::LockName;
use crate::options::Options;
use crate::receipt::StoreAddress;
use crate::rt::{Clock, Flag};
use crate::store::{AnswerNow, BoxFuture, LossListener as _, LossNotifier, Store};
use crate::support::{self, closed};

use super::callbacks::Callbacks;
use super::detach::{DetachableRequest, runtime_is_gone};
use super::local_queue::LocalQueue;
use super::metrics::ClientMetrics;
use super::renewal::Renewals;
use super::tasks::Tasks;

/// How long [`Driver::close`] waits for what is still being released.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// One client's link to its store. The last lock or guard to be dropped ends the link.
pub(crate) struct Driver {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    /// Of a store that may answer without waiting.
    pub(super) answer_now: Option<Arc<dyn AnswerNow>>,
    pub(super) queue: Arc<LocalQueue>,
    pub(super) renewals: Arc<Renewals>,
    pub(super) callbacks: ClientCallbacks,
    pub(super) tasks: Tasks,
    pub(super) closed: Flag,
    pub(super) metrics: ClientMetrics,
    pub(super) identity: Identity,
}

/// How errors, logs and other clients name this client.
pub(super) struct Identity {
    pub(super) holder: Arc<Holder>,
    /// See [`Client::with_address`](crate::Client::with_address).
    address: OnceLock<String>,
    /// The number of the next value that a leader of this client publishes.
    next_value: AtomicU64,
}

impl Identity {
    /// The number of a value: greater than that of each value of this client before, and at least `least`. A node of several
    /// may still show an earlier term of this client, and then the greatest number tells which value is the latest.
    pub(super) fn value_number(&self, least: u64) -> u64 {
        self.next_value.fetch_max(least, Ordering::SeqCst);
        self.next_value.fetch_add(1, Ordering::SeqCst)
    }
}

/// What a user registered for the events of this client.
pub(super) struct ClientCallbacks {
    losses: Arc<Callbacks<Loss>>,
    pub(super) waits: Arc<Callbacks<WaitReport>>,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("store", &self.scheme())
            .finish_non_exhaustive()
    }
}

impl Driver {
    /// Tells clients apart within this process.
    pub(crate) fn id(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    /// A driver for `store`, whose background work runs in the current runtime.
    pub(crate) fn new(store: Arc<dyn Store>) -> Result<Arc<Self>, Error> {
        let scheme = store.guarantees().scheme;
        let explain = |err: Error| err.with_scheme(scheme).with_step(Step::Connect);
        let spawner = support::spawner().map_err(explain)?;
        let clock = store.clock();
        let renewals = Arc::new(Renewals::new(store.clone(), clock.clone(), spawner.clone()));
        store.attach(LossNotifier::new(Arc::<Renewals>::downgrade(&renewals)));
        Ok(Arc::new(Self {
            answer_now: store.clone().as_answer_now(),
            tasks: Tasks::new(spawner, &clock, store.needs_runtime()),
            clock,
            store,
            queue: Arc::default(),
            renewals,
            callbacks: ClientCallbacks {
                losses: Callbacks::new("on_lost"),
                waits: Callbacks::new("on_wait"),
            },
            closed: Flag::new(),
            metrics: ClientMetrics::new(scheme),
            identity: Identity {
                holder: Arc::new(holder()),
                address: OnceLock::new(),
                next_value: AtomicU64::new(0),
            },
        }))
    }

    pub(crate) fn scheme(&self) -> &'static str {
        self.store.guarantees().scheme
    }

    /// Says where the store is, unless that was said before.
    pub(crate) fn set_address(&self, address: String) {
        let _ = self.identity.address.set(address);
    }

    pub(crate) fn has_address(&self) -> bool {
        self.identity.address.get().is_some()
    }

    /// Whether the store is a part of this process: then no loss of power leaves it behind.
    pub(crate) fn ends_with_process(&self) -> bool {
        let cell = self.store.guarantees().cell(Fault::PowerLoss);
        cell.is_some_and(|cell| cell.promise == Promise::NotApplicable)
    }

    /// Where the store is; its name, if that was not said.
    pub(crate) fn address(&self) -> &str {
        let address = self.identity.address.get().map(String::as_str);
        address.unwrap_or_else(|| self.scheme())
    }

    /// The same as a receipt has it.
    pub(crate) fn store_address(&self) -> StoreAddress {
        StoreAddress::without_login(self.address())
    }

    /// Refuses what the store does not have.
    pub(crate) fn require(&self, capability: Capability) -> Result<(), Error> {
        match capability.is_in(self.store.guarantees()) {
            true => Ok(()),
            false => Err(self.refusal(capability, "")),
        }
    }

    /// Polls `future` inside the runtime of this client, whatever runtime the caller is in.
    pub(crate) async fn within<F: Future>(&self, future: F) -> F::Output {
        self.tasks.spawner.within(future).await
    }

    /// Sends a request to the store, whose caller may stop polling it half-way.
    pub(crate) fn send<T: Send + 'static>(
        &self,
        request: impl FnOnce(Arc<dyn Store>) -> BoxFuture<Result<T, Error>>,
    ) -> DetachableRequest<T> {
        let future = match self.tasks.is_runtime_gone() {
            true => Box::pin(ready(Err(runtime_is_gone()))),
            false => request(self.store.clone()),
        };
        DetachableRequest::new(&self.tasks.monitor, future)
    }

    /// Sends a request that is about no hold of this client, unless the client is closed.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        request: impl FnOnce(Arc<dyn Store>) -> BoxFuture<Result<T, Error>>,
    ) -> Result<T, Error> {
        let answer = async {
            self.refuse_closed()?;
            self.send(request).await
        };
        answer.await.map_err(|err| self.explain_inspection(err))
    }

    /// [`ask`](Self::ask) for a request that only reads.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        request: impl FnOnce(Arc<dyn Store>) -> BoxFuture<Result<T, Error>>,
    ) -> Result<T, Error> {
        self.ask(request).await.map_err(Error::of_read)
    }

    /// Adds what every error of a request that is about no hold should name.
    pub(super) fn explain_inspection(&self, err: Error) -> Error {
        err.with_scheme(self.scheme()).with_step(Step::Inspect)
    }

    /// Refuses each request after [`Client::close`](crate::Client::close), whatever is left of its connection.
    pub(super) fn refuse_closed(&self) -> Result<(), Error> {
        match self.closed.is_raised() {
            true => Err(closed()),
            false => Ok(()),
        }
    }

    /// Refuses, before any I/O, what the store does not claim.
    pub(crate) fn check_support(&self, options: &Options) -> Result<(), Error> {
        options.validate()?;
        let can = self.store.guarantees();
        let Some(missing) = Capability::missing(options, can) else {
            return Ok(());
        };
        let why = match can.why_not {
            "" => String::new(),
            reason => format!(" ({reason})"),
        };
        Err(self.refusal(missing, &why))
    }

    /// Names the stores that have what this one has not.
    pub(super) fn refusal(&self, missing: Capability, why: &str) -> Error {
        let (store, what) = (self.scheme(), missing.as_str());
        let others = self.store.stores_with(missing);
        Error::new(
            ErrorKind::Unsupported,
            format!("{store} has no {what}{why}; stores that have it: {others}"),
        )
    }

    /// Whether this client holds `name`, as far as it knows.
    pub(crate) fn is_held(&self, name: &LockName) -> bool {
        self.renewals.is_held(name)
    }

    /// Adds what every error should name.
    pub(crate) fn explain(&self, err: Error, name: &LockName, step: Step) -> Error {
        err.with_name(name)
            .with_scheme(self.scheme())
            .with_step(step)
    }

    /// Calls `callback` for each loss from now on. Returns its number, for [`unregister_callback`](Self::unregister_callback).
    pub(crate) fn register_loss_callback(
        &self,
        callback: impl Fn(&Loss) + Send + Sync + 'static,
    ) -> u64 {
        self.callbacks.losses.register(Arc::new(callback))
    }

    /// The same for each report of a wait.
    pub(crate) fn register_wait_callback(
        &self,
        callback: impl Fn(&WaitReport) + Send + Sync + 'static,
    ) -> u64 {
        self.callbacks.waits.register(Arc::new(callback))
    }

    pub(crate) fn unregister_callback(&self, id: u64) {
        self.callbacks.losses.unregister(id);
        self.callbacks.waits.unregister(id);
    }

    /// Reports a loss to the callbacks of the client.
    pub(super) fn report_loss(&self, loss: Loss) {
        let tasks = &self.tasks;
        self.callbacks
            .losses
            .report(loss, &tasks.spawner, &tasks.background);
    }

    /// Reports to the callbacks of the client that an acquisition still waits.
    pub(super) fn report_wait(&self, waiting: WaitReport) {
        let tasks = &self.tasks;
        self.callbacks
            .waits
            .report(waiting, &tasks.spawner, &tasks.background);
    }

    /// Ends all waits and all holds, waits for releases in the background, then ends the sessions of the store. Whatever of
    /// this is left when the future is dropped ends at once.
    pub(crate) async fn close(&self) {
        self.closed.raise();
        let callbacks = EndOfCallbacks(&self.callbacks);
        let store = (!self.tasks.is_runtime_gone()).then(|| EndOfStore(self.store.clone()));
        self.tasks.monitor.wake_callers();
        self.renewals.release_lost();
        // Before the store gives anything back: no guard may claim its lock longer than that. An acquisition checks
        // the flag after its hold is in the list, so this reaches every hold.
        self.renewals.all_lost(LostReason::SessionGone);
        self.renewals.stop();
        // The program may end right after this, and its background tasks with it.
        until_close_timeout(self.tasks.background.all_done()).await;
        drop(callbacks);
        if let Some(store) = store
            && !self.tasks.is_runtime_gone()
        {
            store.close().await;
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.renewals.stop();
        if self.closed.is_raised() || self.tasks.is_runtime_gone() {
            return;
        }
        let closing = Box::pin(EndOfStore(self.store.clone()).close());
        if let Err(Some(pending)) = self.tasks.poll_anywhere(closing) {
            self.tasks.spawner.spawn(pending);
        }
    }
}

/// A store whose client ends. It is abandoned when this is dropped: after it was closed, when the future that closes it is
/// dropped before its end, and when the runtime drops the task that closes it.
struct EndOfStore(Arc<dyn Store>);

impl EndOfStore {
    async fn close(self) {
        until_close_timeout(self.0.clone().close()).await;
    }
}

impl Drop for EndOfStore {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// The callbacks of a client that ends: they are forgotten when this is dropped. A callback may keep the client alive.
struct EndOfCallbacks<'a>(&'a ClientCallbacks);

impl Drop for EndOfCallbacks<'_> {
    fn drop(&mut self) {
        self.0.losses.clear();
        self.0.waits.clear();
    }
}

/// Awaits `work`, but no longer than a caller of `close` waits for a silent store: on the real clock.
async fn until_close_timeout(work: impl Future<Output = ()>) {
    let clock = Clock::system();
    tokio::select! {
        biased;
        () = work => {}
        () = clock.sleep_until(clock.now().after(CLOSE_TIMEOUT)) => {}
    }
}

/// What other clients see of this client.
fn holder() -> Holder {
    Holder {
        client: OwnerId::random().to_hex()[..8].to_owned(),
        since: None::<SystemTime>,
        ..Holder::new(crate::rt::host_name(), std::process::id())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::store::{Change, TestStore};
    use super::*;
    use crate::rt::poll_now;

    #[tokio::test]
    async fn a_store_that_is_silent_at_close_is_abandoned_when_the_caller_gives_up() {
        let (client, _, told) = TestStore::client(Change::IsSilentAtClose);
        let kept = Arc::new(());
        let callback = kept.clone();
        client.on_lost(move |_| drop(callback.clone()));
        let closing = poll_now(Box::pin(client.close()));
        let closing = closing.expect_err("the store is silent");
        assert_eq!(told.abandoned(), 0);
        drop(closing);
        assert_eq!(told.abandoned(), 1);
        assert_eq!(Arc::strong_count(&kept), 1);
        drop(client);
        assert_eq!((told.closed(), told.abandoned()), (1, 1));
    }

    /// The same while the client still waits for what goes on in the background.
    #[tokio::test]
    async fn a_store_is_abandoned_when_the_caller_does_not_wait_for_releases() {
        let (client, store, told) = TestStore::client(Change::IsSilentAtClose);
        let kept = Arc::new(());
        let callback = kept.clone();
        client.on_lost(move |_| drop(callback.clone()));
        let guard = client.lock("n").acquire().await.unwrap();
        store.pause();
        drop(guard);
        let closing = poll_now(Box::pin(client.close()));
        drop(closing.expect_err("the release is under way"));
        assert_eq!(told.abandoned(), 1);
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    /// The last client is dropped, and the runtime ends while the store is being closed.
    #[test]
    fn a_store_is_abandoned_when_the_runtime_drops_the_task_that_closes_it() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let told = runtime.block_on(async {
            let (client, _, told) = TestStore::client(Change::IsSilentAtClose);
            drop(client);
            told
        });
        assert_eq!(told.abandoned(), 0);
        drop(runtime);
        assert_eq!(told.abandoned(), 1);
    }
}
