//! The lock under test, as workers use it: the library, or a client with a mistake in the tests.

use std::time::Duration;

use crate::clock::{nanos, now};
use crate::event::Sight;
use crate::mode::HoldMode;
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
    /// Asks the leader to let go.
    fn ask_to_resign(&self, name: &str) -> impl Future<Output = ()>;
    /// Observes an election.
    fn observe(&self, name: &str) -> Self::Observer;
    /// Ends the client, and leaves nothing in the store.
    fn close(self) -> impl Future<Output = ()>;
}

/// A hold as its owner knows it.
pub trait Held {
    /// The fencing token.
    fn token(&self) -> u64;
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
}

impl Tenure {
    /// Connects.
    ///
    /// # Errors
    /// The errors of [`tenure::connect`].
    pub async fn connect(settings: &Settings) -> Result<Self, tenure::Error> {
        let client = tenure::connect(&settings.url).await?;
        Ok(Self::of_client(client, settings))
    }

    /// With a client that is connected.
    pub fn of_client(client: tenure::Client, settings: &Settings) -> Self {
        Self {
            client,
            ttl: settings.workload.ttl,
            only_tries: settings.workload.only_tries,
        }
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
        Ok(TenureHold::Lock(guard))
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
    /// Of a lock.
    Lock(tenure::Guard),
    /// Of an election.
    Term(tenure::Term),
}

impl TenureHold {
    fn guard(&self) -> &tenure::Guard {
        match self {
            Self::Lock(guard) => guard,
            Self::Term(term) => term.guard(),
        }
    }
}

impl Held for TenureHold {
    fn token(&self) -> u64 {
        self.guard().token().into()
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
            Self::Lock(_) => false,
        }
    }

    async fn asked_to_release(&self) {
        if !self.guard().asked_to_release().await {
            // The hold has ended.
            std::future::pending::<()>().await;
        }
    }

    async fn release(self) {
        // The lock may be lost already, or the outcome is unknown; the checker judges by the history.
        let _ = match self {
            Self::Lock(guard) => guard.release().await,
            Self::Term(term) => term.resign().await,
        };
    }
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
