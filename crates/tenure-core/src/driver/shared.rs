//! What the locks, guards and tasks of one client share.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use crate::backend::{Backend, BoxFuture, Hold, LossListener as _, LossNotifier};
use crate::error::{Error, ErrorKind, Step};
use crate::fence::OwnerId;
use crate::guarantees::{Capability, Fault, Promise};
use crate::holder::Holder;
use crate::lost::{Loss, LostReason};
use crate::name::LockName;
use crate::options::Options;
use crate::rt::{Clock, Flag, Spawner};

use super::detach::DetachableRequest;
use super::labels::LOG_TARGET;
use super::local_queue::LocalQueue;
use super::losses::Losses;
use super::metrics::ClientMetrics;
use super::renewal::Renewals;
use super::repetition::Repetition;
use super::tasks::Tasks;

/// How long [`Driver::close`] waits for what is still being released.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// One client's link to its store. The last lock or guard to be dropped ends the link.
pub(crate) struct Driver {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Clock,
    /// See [`Backend::answers_now`].
    pub(super) answers_now: bool,
    pub(super) identity: Arc<Holder>,
    pub(super) queue: Arc<LocalQueue>,
    pub(super) renewals: Arc<Renewals>,
    losses: Arc<Losses>,
    pub(super) tasks: Tasks,
    pub(super) closed: Flag,
    pub(super) metrics: ClientMetrics,
    /// See [`Client::with_address`](crate::Client::with_address).
    address: OnceLock<String>,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("backend", &self.backend_name())
            .finish_non_exhaustive()
    }
}

impl Driver {
    /// Tells clients apart within this process.
    pub(crate) fn id(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    /// A driver for `backend`, whose background work runs in the current runtime.
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Result<Arc<Self>, Error> {
        let backend_name = backend.guarantees().backend;
        let spawner = Spawner::current().ok_or_else(|| {
            Error::new(
                ErrorKind::Closed,
                "connect was called outside a tokio runtime; use `tenure::blocking` there",
            )
            .with_backend(backend_name)
            .with_step(Step::Connect)
        })?;
        let clock = backend.clock();
        let renewals = Arc::new(Renewals::new(
            backend.clone(),
            clock.clone(),
            spawner.clone(),
        ));
        backend.attach(LossNotifier::new(Arc::<Renewals>::downgrade(&renewals)));
        Ok(Arc::new(Self {
            answers_now: backend.answers_now(),
            tasks: Tasks::new(spawner, &clock),
            clock,
            backend,
            identity: Arc::new(identity()),
            queue: Arc::default(),
            renewals,
            losses: Arc::default(),
            closed: Flag::new(),
            metrics: ClientMetrics::new(backend_name),
            address: OnceLock::new(),
        }))
    }

    pub(crate) fn backend_name(&self) -> &'static str {
        self.backend.guarantees().backend
    }

    /// Says where the store is, unless that was said before.
    pub(crate) fn set_address(&self, address: String) {
        let _ = self.address.set(address);
    }

    pub(crate) fn has_address(&self) -> bool {
        self.address.get().is_some()
    }

    /// Whether the store is a part of this process: then no loss of power leaves it behind.
    pub(crate) fn ends_with_process(&self) -> bool {
        let cell = self.backend.guarantees().cell(Fault::PowerLoss);
        cell.is_some_and(|cell| cell.promise == Promise::NotApplicable)
    }

    /// Where the store is; its name, if that was not said.
    pub(crate) fn address(&self) -> &str {
        let address = self.address.get().map(String::as_str);
        address.unwrap_or_else(|| self.backend_name())
    }

    /// Polls `future` inside the runtime of this client, whatever runtime the caller is in.
    pub(crate) async fn within<F: Future>(&self, future: F) -> F::Output {
        self.tasks.spawner.within(future).await
    }

    /// A request to the backend whose caller may stop polling it half-way.
    pub(crate) fn detachable<T: Send + 'static>(
        &self,
        future: BoxFuture<Result<T, Error>>,
    ) -> DetachableRequest<T> {
        self.tasks.detachable(future)
    }

    /// Refuses, before any I/O, what the backend does not claim.
    pub(crate) fn check_support(&self, options: &Options) -> Result<(), Error> {
        options.validate()?;
        let can = self.backend.guarantees();
        let Some(missing) = Capability::missing(options, can) else {
            return Ok(());
        };
        let why = match can.why_not {
            "" => String::new(),
            reason => format!(" ({reason})"),
        };
        let (backend, what) = (self.backend_name(), missing.as_str());
        let others = self.backend.stores_with(missing);
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("{backend} has no {what}{why}; stores that have it: {others}"),
        ))
    }

    /// Sends the release until the store has given a definite answer, or the client is closed, or the store has freed the
    /// hold by itself because its ttl has passed. For holds whose owner does not wait for the outcome.
    pub(crate) async fn release_until_definite(self: Arc<Self>, hold: Hold) {
        let mut repetition = Repetition::new(&self.clock, hold.ttl);
        while let Err(err) = self.backend.release(hold.clone()).await {
            tracing::debug!(target: LOG_TARGET, name = %hold.name, backend = self.backend_name(), %err, "release in the background");
            if !self.backend.ends_by_itself(&hold) {
                repetition.begin_again();
            }
            if !repetition.pause_after(err.kind()).await {
                return;
            }
        }
    }

    /// Adds what every error should name.
    pub(crate) fn explain(&self, err: Error, name: &LockName, step: Step) -> Error {
        err.with_name(name)
            .with_backend(self.backend_name())
            .with_step(step)
    }

    /// Calls `callback` for each loss from now on. Returns its number, for [`unregister_loss_callback`](Self::unregister_loss_callback).
    pub(crate) fn register_loss_callback(
        &self,
        callback: impl Fn(&Loss) + Send + Sync + 'static,
    ) -> u64 {
        self.losses.register(Arc::new(callback))
    }

    pub(crate) fn unregister_loss_callback(&self, id: u64) {
        self.losses.unregister(id);
    }

    /// Reports a loss to the callbacks of the client.
    pub(super) fn report_loss(&self, loss: Loss) {
        let Tasks {
            spawner,
            background,
            ..
        } = &self.tasks;
        self.losses.report(loss, spawner, background);
    }

    /// Ends all waits and all holds, waits for releases in the background, then ends the sessions of the backend.
    pub(crate) async fn close(&self) {
        self.closed.raise();
        self.tasks.monitor.wake_callers();
        // Before the backend gives anything back: no guard may claim its lock longer than that. An acquisition checks
        // the flag after its hold is in the list, so this reaches every hold.
        self.renewals.all_lost(LostReason::SessionGone);
        self.renewals.stop();
        // The program may end right after this, and its background tasks with it. On the real clock: the limit bounds
        // how long the caller waits for a silent store.
        let clock = Clock::system();
        tokio::select! {
            biased;
            () = self.tasks.background.all_done() => {}
            () = clock.sleep_until(clock.now().after(CLOSE_TIMEOUT)) => {}
        }
        self.losses.clear();
        self.backend.close().await;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.renewals.stop();
        if !self.closed.is_raised()
            && let Err(Some(pending)) = self.tasks.spawner.poll_anywhere(self.backend.close())
        {
            self.tasks.spawner.spawn(pending);
        }
    }
}

/// What other clients see of this client.
fn identity() -> Holder {
    Holder {
        client: OwnerId::random().to_hex()[..8].to_owned(),
        since: None::<SystemTime>,
        ..Holder::new(crate::rt::host_name(), std::process::id())
    }
}
