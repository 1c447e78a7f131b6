//! The lock under test, as workers use it: the library, or a client with a mistake in the tests.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure::{Mode, Receipt};

use crate::clock::{nanos, now};
use crate::event::Sight;
use crate::mode::{HoldMode, PERMITS};
use crate::settings::Settings;

/// The lock under test. [`Tenure`] is the real one; those with mistakes are in the tests.
pub trait Locks {
    /// A hold of it.
    type Held: Held;
    /// An observer of an election.
    type Observer: Observer;
    /// Acquires `name` in that mode, if necessary after a wait. An error gives the reason of the refusal.
    fn acquire(
        &self,
        name: &str,
        mode: HoldMode,
    ) -> impl Future<Output = Result<Self::Held, String>>;
    /// Waits until elected; then observers see `value`. An error gives the reason of the refusal.
    fn campaign(&self, name: &str, value: &str)
    -> impl Future<Output = Result<Self::Held, String>>;
    /// Whether holds of this mode can be detached.
    fn detaches(&self, mode: HoldMode) -> bool {
        let _ = mode;
        false
    }
    /// Attaches this process to the hold of a receipt.
    fn attach(&self, receipt: &str) -> impl Future<Output = Result<Self::Held, AttachFailure>> {
        let _ = receipt;
        std::future::ready(Err(AttachFailure::Over))
    }
    /// Asks the leader to let go.
    fn ask_to_resign(&self, name: &str) -> impl Future<Output = ()>;
    /// Observes an election.
    fn observe(&self, name: &str) -> Self::Observer;
    /// Ends the client, and leaves nothing in the store.
    fn close(self) -> impl Future<Output = ()>;
}

/// Why a process is not attached to a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachFailure {
    /// The hold is over.
    Over,
    /// Another error: the hold may be there.
    Other,
}

/// A hold as its owner knows it.
pub trait Held {
    /// The fencing token.
    fn token(&self) -> u64;
    /// A number that the hold has in common with those which tasks of the same process had before it, or will have after it,
    /// without a request to the store; `None` if it is unknown.
    fn turn(&self) -> Option<u64> {
        None
    }
    /// Until when the owner believes that it holds; `None` when it knows that it lost.
    fn deadline(&self) -> impl Future<Output = Option<u64>>;
    /// Makes an upgradable hold exclusive; `false` when the hold stays as it is.
    fn upgrade(&self) -> impl Future<Output = bool> {
        std::future::ready(false)
    }
    /// Makes the hold shared; `false` when that failed.
    fn downgrade(&self) -> impl Future<Output = bool> {
        std::future::ready(false)
    }
    /// Replaces the value that observers see of a leader; `false` when it is unknown which value they see.
    fn proclaim(&self, value: &str) -> impl Future<Output = bool> {
        let _ = value;
        std::future::ready(false)
    }
    /// Resolves when the leader is asked to let go.
    fn asked_to_release(&self) -> impl Future<Output = ()> {
        std::future::pending()
    }
    /// Detaches the hold, and returns its receipt; `None` when that failed: then the hold is released.
    fn detach(self) -> impl Future<Output = Option<String>>
    where
        Self: Sized,
    {
        std::future::ready(None)
    }
    /// Releases the lock. The checker judges by the history, so an error is not returned.
    fn release(self) -> impl Future<Output = ()>;
}

/// An observer of one election.
pub trait Observer {
    /// What the observer is told next.
    fn next(&mut self) -> impl Future<Output = Sight>;
}

/// The library, used through its public API.
pub struct Tenure {
    client: tenure::Client,
    ttl: Duration,
    only_tries: bool,
    /// The store as the receipts of this process have it, from the first one on.
    store: Arc<OnceLock<String>>,
}

impl Tenure {
    /// With a client that is connected.
    pub fn of_client(client: tenure::Client, settings: &Settings) -> Self {
        Self {
            client,
            ttl: settings.workload.ttl,
            only_tries: settings.workload.only_tries,
            store: Arc::default(),
        }
    }
}

impl Tenure {
    fn hold(&self, guard: tenure::Guard) -> TenureHold {
        TenureHold::Lock(guard, self.store.clone())
    }
}

impl Locks for Tenure {
    type Held = TenureHold;
    type Observer = TenureObserver;

    async fn acquire(&self, name: &str, mode: HoldMode) -> Result<TenureHold, String> {
        let lock = self.client.lock(name).ttl(self.ttl).label("torture");
        let lock = mode.applied_to(lock);
        let acquired = match self.only_tries {
            true => lock.try_acquire().await.map(|guard| guard.ok_or("held")),
            false => lock.acquire().await.map(Ok),
        };
        let guard = acquired.map_err(|error| format!("{error:#}"))??;
        Ok(self.hold(guard))
    }

    fn detaches(&self, mode: HoldMode) -> bool {
        let detaches = |mode| self.client.guarantees().detaches(mode);
        match mode {
            HoldMode::Exclusive => detaches(Mode::Exclusive),
            HoldMode::Shared => detaches(Mode::Shared),
            HoldMode::Permit => detaches(Mode::Permits { limit: PERMITS }),
            // A worker changes the mode of an upgradable hold.
            HoldMode::Upgradable | HoldMode::Election => false,
        }
    }

    async fn attach(&self, receipt: &str) -> Result<TenureHold, AttachFailure> {
        // Each worker has a proxy of its own, so a receipt of another worker has another address of the same store.
        let here = self.store.get().ok_or(AttachFailure::Other)?;
        let receipt = of_store(receipt, here).ok_or(AttachFailure::Over)?;
        let receipt: Receipt = receipt.parse().map_err(|_| AttachFailure::Over)?;
        match self.client.attach(&receipt).await {
            Ok(guard) => Ok(self.hold(guard)),
            Err(error) if error.is_lost() => Err(AttachFailure::Over),
            Err(_) => Err(AttachFailure::Other),
        }
    }

    async fn campaign(&self, name: &str, value: &str) -> Result<TenureHold, String> {
        let election = self.client.election(name).ttl(self.ttl).label("torture");
        let term = election.value(value).campaign().await;
        let term = term.map_err(|error| format!("{error:#}"))?;
        Ok(TenureHold::Term(term))
    }

    async fn ask_to_resign(&self, name: &str) {
        // The request is polite, and nothing depends on it.
        let _ = self.client.election(name).ask_to_resign().await;
    }

    fn observe(&self, name: &str) -> TenureObserver {
        TenureObserver {
            observer: self.client.election(name).observe(),
            last_error: None,
        }
    }

    async fn close(self) {
        self.client.close().await;
    }
}

/// A hold of the library.
pub enum TenureHold {
    /// Of a lock, and the address of the store for its receipts.
    Lock(tenure::Guard, Arc<OnceLock<String>>),
    /// Of an election.
    Term(tenure::Term),
}

impl TenureHold {
    fn guard(&self) -> &tenure::Guard {
        match self {
            Self::Lock(guard, _) => guard,
            Self::Term(term) => term.guard(),
        }
    }
}

impl Held for TenureHold {
    fn token(&self) -> u64 {
        self.guard().token().into()
    }

    fn turn(&self) -> Option<u64> {
        // The identity of the hold is a secret, and not for the log.
        let mut hasher = DefaultHasher::new();
        self.guard().owner_id().hash(&mut hasher);
        // A program that reads the log may know numbers of 53 bits only.
        Some(hasher.finish() >> 11)
    }

    async fn deadline(&self) -> Option<u64> {
        // The clock is read before the remaining time: if the process is stopped between the two, it claims a shorter
        // time and not a longer one.
        let (now, guard) = (now(), self.guard());
        guard
            .is_held()
            .then(|| now.saturating_add(nanos(guard.remaining())))
    }

    async fn upgrade(&self) -> bool {
        self.guard().upgrade().await.is_ok()
    }

    async fn downgrade(&self) -> bool {
        self.guard().downgrade().await.is_ok()
    }

    async fn proclaim(&self, value: &str) -> bool {
        match self {
            Self::Term(term) => term.proclaim(value).await.is_ok(),
            Self::Lock(..) => false,
        }
    }

    async fn asked_to_release(&self) {
        if !self.guard().asked_to_release().await {
            // The hold has ended.
            std::future::pending::<()>().await;
        }
    }

    async fn detach(self) -> Option<String> {
        let Self::Lock(guard, store) = self else {
            return None;
        };
        let receipt = guard.detach().await.ok()?.to_string();
        if let Some([_, here, _]) = parts(&receipt) {
            store.get_or_init(|| here.to_owned());
        }
        Some(receipt)
    }

    async fn release(self) {
        // The lock may be lost already, or the outcome is unknown; the checker judges by the history.
        let _ = match self {
            Self::Lock(guard, _) => guard.release().await,
            Self::Term(term) => term.resign().await,
        };
    }
}

/// What is before the address of the store in a receipt, the address, and the rest.
fn parts(receipt: &str) -> Option<[&str; 3]> {
    let begin = receipt.find("store=")? + "store=".len();
    let end = begin + receipt[begin..].find('&')?;
    Some([&receipt[..begin], &receipt[begin..end], &receipt[end..]])
}

/// The receipt with another address of the same store.
fn of_store(receipt: &str, store: &str) -> Option<String> {
    let [before, _, rest] = parts(receipt)?;
    Some(format!("{before}{store}{rest}"))
}

/// An observer of the library.
pub struct TenureObserver {
    observer: tenure::Observer,
    last_error: Option<String>,
}

impl Observer for TenureObserver {
    async fn next(&mut self) -> Sight {
        match self.observer.next().await {
            Some(Ok(Some(leader))) => {
                self.last_error = None;
                Sight::Leader {
                    token: leader.token.map(Into::into),
                    value: leader.value().map(str::to_owned),
                }
            }
            Some(Ok(None)) => {
                self.last_error = None;
                Sight::Nobody
            }
            Some(Err(error)) => {
                let why = format!("{error:#}");
                self.last_error = Some(why.clone());
                Sight::Unsure(why)
            }
            None => Sight::GaveUp(self.last_error.take().unwrap_or_default()),
        }
    }
}
