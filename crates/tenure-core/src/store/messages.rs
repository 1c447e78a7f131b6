//! What driver and store tell each other: requests, grants, holds and outcomes.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::fence::OwnerId;
use crate::holder::{Holder, LockStatus};
use crate::lost::LostReason;
use crate::name::LockName;
use crate::options::{Fairness, Mode};
use crate::rt::Flag;
use crate::rt::sync::AtomicBool;
use crate::time::Time;

/// A boxed future that owns what it needs.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// One acquisition.
#[derive(Debug)]
#[non_exhaustive]
pub struct Request {
    /// What to lock.
    pub name: LockName,
    /// Under which identity; new for each request.
    pub owner: OwnerId,
    /// How.
    pub mode: Mode,
    /// Lease to ask for.
    pub ttl: Duration,
    /// `false`: answer at once, and enter no queue.
    pub wait: bool,
    /// See [`Options::fair`](crate::Options::fair).
    pub fair: Fairness,
    /// See [`Options::min_hold`](crate::Options::min_hold).
    pub min_hold: Duration,
    /// See [`Options::lock_delay`](crate::Options::lock_delay).
    pub lock_delay: Duration,
    /// The shortest lease to answer with, at most the ttl; a hand-over may bring less than the ttl.
    pub min_lease: Duration,
    /// Whether the driver renews the hold; otherwise the hold ends with the lease that the answer has.
    pub is_renewed: bool,
    /// The fencing token to grant under, unless the name's next one is greater: for a store that is
    /// made of stores and wants the same token from all of them. `None`: the store's own choice.
    pub propose: Option<u64>,
    /// What others shall see of us; `since` is filled in by the store.
    pub holder: Arc<Holder>,
    /// Raised when the caller gave up: it dropped the future, or closed the client.
    pub stop: Flag,
    /// When the caller gives up, on [`Store::clock`](super::Store::clock); `MAX`: never. Then `stop` is raised; so a
    /// store needs this only to refuse at once what cannot come in time.
    pub until: Time,
    /// See [`report_taken`](Request::report_taken). `None`: the request does not wait, and only its answer counts.
    pub(crate) taken: Option<Arc<AtomicBool>>,
}

impl Request {
    /// A request for an exclusive hold that does not wait. For tests and for stores made of stores.
    pub fn new(name: LockName, owner: OwnerId, ttl: Duration) -> Self {
        Self {
            name,
            owner,
            mode: Mode::Exclusive,
            ttl,
            wait: false,
            fair: Fairness::default(),
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            min_lease: Duration::ZERO,
            is_renewed: false,
            propose: None,
            holder: Arc::default(),
            stop: Flag::new(),
            until: Time::MAX,
            taken: Some(Arc::default()),
        }
    }
}

impl Request {
    /// Says that the store has answered, and that the name is taken: another owner holds the name or comes first. A store
    /// calls this when a request begins to wait, and at each later answer. A wait that ends without such an answer counts
    /// as the silence of the store, unless [`inspect`](super::Store::inspect) answers at once.
    pub fn report_taken(&self) {
        if let Some(taken) = &self.taken {
            taken.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the store has said that the name is taken.
    pub fn is_taken(&self) -> bool {
        let taken = self.taken.as_ref();
        taken.is_some_and(|taken| taken.load(Ordering::Relaxed))
    }

    /// What `work` returns; `None` when the request is stopped before that. Cancel safe as far as `work` is.
    pub async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.stop.raised() => None,
            output = work => Some(output),
        }
    }
}

/// The outcome of an acquisition.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "a grant that is dropped is held until its lease ends"]
pub enum Answer {
    /// We hold the name.
    Granted(Grant),
    /// Another client holds the name, or the request was stopped.
    Busy,
}

/// The outcome of a request for several names at once.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "a grant that is dropped is held until its lease ends"]
pub enum AllAnswer {
    /// We hold all names; one grant for each, in the order of the requests.
    Granted(Vec<Grant>),
    /// The name of the request at this position is not free, or has waiters. Nothing of the requests is left.
    Busy(usize),
    /// The store cannot decide about these names in one step. Nothing was done.
    OneByOne,
}

/// The name was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Strictly greater than every token granted for this name before.
    pub token: u64,
    /// When the successful request was sent, on [`Store::clock`](super::Store::clock); read *before* sending.
    /// For a hold that another client handed over to us: when the last request that kept our place in the queue was sent.
    pub sent: Time,
    /// Time between request and reply; zero where there is no network.
    pub round_trip: Duration,
    /// Granted lease from `sent` on; `None`: the hold lasts until it is released or this process ends.
    pub ttl: Option<Duration>,
    /// The store reports the end of a hold without a lease by itself, through its
    /// [`LossNotifier`](super::LossNotifier), so that nothing has to be checked.
    pub watched: bool,
}

impl Grant {
    /// A grant that has to be renewed, or checked if it has no lease.
    pub fn new(token: u64, sent: Time, round_trip: Duration, ttl: Option<Duration>) -> Self {
        Self {
            token,
            sent,
            round_trip,
            ttl,
            watched: false,
        }
    }

    /// The same, where the store reports the end of the hold by itself.
    #[must_use]
    pub fn watched(mut self) -> Self {
        self.watched = true;
        self
    }
}

/// A hold, as far as a store needs to know it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Hold {
    /// The name.
    pub name: LockName,
    /// Under which identity it was acquired.
    pub owner: OwnerId,
    /// How.
    pub mode: Mode,
    /// Its token; 0 when the outcome of the acquisition is unknown.
    pub token: u64,
    /// The lease that was asked for.
    pub ttl: Duration,
    /// The hold ended before this release, so its end is not clean (`lock_delay` applies).
    pub unclean: bool,
    /// No caller has ever had the hold, so the name does not stay reserved (`min_hold`, `lock_delay`) after its release.
    pub unused: bool,
}

impl Hold {
    /// The hold that an acquisition under `owner` may have led to, where nothing else is known of it.
    pub fn of(name: LockName, owner: OwnerId) -> Self {
        Self {
            name,
            owner,
            mode: Mode::Exclusive,
            token: 0,
            ttl: Duration::ZERO,
            unclean: false,
            unused: false,
        }
    }

    /// The hold that `request` may have led to, under `token`.
    pub fn new(request: &Request, token: u64) -> Self {
        Self {
            name: request.name.clone(),
            owner: request.owner,
            mode: request.mode,
            token,
            ttl: request.ttl,
            unclean: false,
            unused: false,
        }
    }

    /// The same hold, which no caller has ever had.
    #[must_use]
    pub fn unused(mut self) -> Self {
        self.unused = true;
        self
    }
}

/// The outcome of a renewal.
#[derive(Debug)]
#[non_exhaustive]
pub enum Renewal {
    /// The hold is ours for `ttl` from `sent` on (`None`: no lease runs, and the hold is still ours).
    Renewed {
        /// Read before the request was sent.
        sent: Time,
        /// The lease granted.
        ttl: Option<Duration>,
    },
    /// The hold is definitely over.
    Lost(LostReason),
    /// It is unknown whether the hold was renewed: neither a loss nor a success.
    Unknown(Error),
}

impl Renewal {
    /// One renewal for each of `count` holds, from answers that have the number of their hold. A hold without an answer
    /// stays unknown.
    pub fn in_order(count: usize, answers: impl IntoIterator<Item = (usize, Self)>) -> Vec<Self> {
        let unknown = || {
            let message = "the renewal has no answer for this hold";
            Self::Unknown(Error::new(ErrorKind::Indeterminate, message))
        };
        let mut renewals: Vec<_> = std::iter::repeat_with(unknown).take(count).collect();
        for (at, answer) in answers {
            if let Some(renewal) = renewals.get_mut(at) {
                *renewal = answer;
            }
        }
        renewals
    }
}

/// The definite outcome of a release. An outcome that is unknown is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Release {
    /// The hold was ours, and is released.
    Released,
    /// The hold was not ours, or not any more.
    NotHeld,
}

impl Release {
    /// The outcome of a release that found the hold in the store, or did not.
    pub fn of(was_held: bool) -> Self {
        match was_held {
            true => Self::Released,
            false => Self::NotHeld,
        }
    }
}

/// What a store finds that is held.
#[derive(Debug)]
pub enum Listed {
    /// Each name has to be inspected. A name may be there twice.
    Names(Vec<LockName>),
    /// The holds were read together.
    Statuses(Vec<LockStatus>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hold_has_its_own_renewal() {
        let lost = |at, reason| (at, Renewal::Lost(reason));
        let answers = [
            lost(2, LostReason::TakenOver),
            lost(0, LostReason::SessionGone),
            lost(3, LostReason::Expired),
        ];
        assert!(matches!(
            &Renewal::in_order(3, answers)[..],
            [
                Renewal::Lost(LostReason::SessionGone),
                Renewal::Unknown(_),
                Renewal::Lost(LostReason::TakenOver),
            ]
        ));
    }
}
