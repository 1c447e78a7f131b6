//! A store in memory that says wrong who leads, or that tokens are reserved, below the real library.
//!
//! The store does not push, so observers ask it again and again, and it can lie in one place.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::guarantees::{DetachedHolds, Guarantees};
use tenure_core::holder::{HoldInfo, Holder, LockStatus, PublishedValue};
use tenure_core::leader::Sighting;
use tenure_core::options::Mode;
use tenure_core::rt::Clock;
use tenure_core::store::{
    Answer, BoxFuture, Elections, Hold, Listed, LossNotifier, Release, Renewal, Request,
    ReserveTokens, Store,
};
use tenure_core::{Error, LockName, memory};

/// What is wrong with the answers of the store; without a lie, tasks may pass holds on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// One of three answers is an older one, as from a replica that lags behind, but none from before the first term.
    OldAnswers,
    /// The same with those from before the first term. Their last token is 0, which also means that a store does not know its
    /// tokens, and then the core believes the store in its order.
    OldAnswersOfTheStart,
    /// The same, and when nobody leads the store does not say which term was the last.
    OldAnswersWithoutEnd,
    /// The value of a leader is that of the leader before.
    ValueOfLastTerm,
    /// The leader has a token that was not granted.
    TokenThatWasNotGranted,
    /// After some time the answer is always the same.
    Frozen,
    /// The store says that tokens are reserved, and they are not.
    TokensWithoutReservation,
}

/// How many answers a frozen store gives before.
const BEFORE_FROZEN: usize = 50;

/// What the store has said of one name.
#[derive(Default)]
struct Past {
    count: usize,
    /// Each sighting that differs from the one before.
    sightings: Vec<Sighting>,
    /// Token and value of the last leader.
    last_leader: Option<(u64, Option<PublishedValue>)>,
    /// The value of the leader before the last one.
    value_before: Option<PublishedValue>,
}

impl Past {
    /// What the store says instead of the truth.
    fn answer(&mut self, lie: Lie, truth: Sighting) -> Sighting {
        self.count += 1;
        if lie != Lie::Frozen || self.count <= BEFORE_FROZEN {
            self.note(&truth, lie);
        }
        let Some(last) = self.sightings.len().checked_sub(1) else {
            return truth;
        };
        let old = |back: usize| self.sightings[last.saturating_sub(back)].clone();
        match lie {
            Lie::OldAnswers | Lie::OldAnswersOfTheStart if self.count.is_multiple_of(3) => {
                old(1 + self.count % 2)
            }
            Lie::OldAnswersWithoutEnd if self.count.is_multiple_of(3) => old(1),
            Lie::OldAnswersWithoutEnd if truth.leader.is_none() => Sighting::of_nobody(0),
            Lie::ValueOfLastTerm => with_leader(truth, |_, holder| {
                holder.value = self.value_before.clone().or(holder.value.take());
            }),
            Lie::TokenThatWasNotGranted if self.count.is_multiple_of(10) => {
                with_leader(truth, |token, _| *token += 1_000)
            }
            Lie::Frozen => old(0),
            _ => truth,
        }
    }

    fn note(&mut self, truth: &Sighting, lie: Lie) {
        if let Some(leader) = &truth.leader {
            let value = leader.holder.value.clone();
            match self.last_leader.replace((truth.last_token, value)) {
                Some((token, value)) if token != truth.last_token => self.value_before = value,
                _ => {}
            }
        }
        let is_kept = truth.last_token > 0 || lie != Lie::OldAnswers;
        let last = self.sightings.last();
        if is_kept && last.is_none_or(|last| key(last) != key(truth)) {
            self.sightings.push(truth.clone());
        }
    }
}

/// What tells one sighting from another.
fn key(sighting: &Sighting) -> (u64, Option<&PublishedValue>) {
    let leader = sighting.leader.as_ref();
    let value = leader.and_then(|leader| leader.holder.value.as_ref());
    (sighting.last_token, value)
}

/// The same sighting with another token or another holder, if somebody leads.
fn with_leader(sighting: Sighting, change: impl FnOnce(&mut u64, &mut Holder)) -> Sighting {
    let Some(leader) = sighting.leader else {
        return sighting;
    };
    let (mut token, mut holder) = (sighting.last_token, leader.holder);
    change(&mut token, &mut holder);
    let left = sighting.ttl_left;
    Sighting::of_hold(HoldInfo::new(holder, Mode::Exclusive, Some(token), left))
}

/// The store of one client.
pub(crate) struct LyingStore {
    store: Arc<memory::Store>,
    guarantees: Guarantees,
    lie: Option<Lie>,
    past: Mutex<HashMap<LockName, Past>>,
}

impl LyingStore {
    pub(crate) fn new(store: memory::Store, lie: Option<Lie>) -> Self {
        let mut guarantees = store.guarantees().clone();
        guarantees.detached = DetachedHolds::None;
        Self {
            store: Arc::new(store),
            guarantees,
            lie,
            past: Mutex::default(),
        }
    }
}

impl Store for LyingStore {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn clock(&self) -> Clock {
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
        Some(self)
    }

    fn as_reserve_tokens(self: Arc<Self>) -> Option<Arc<dyn ReserveTokens>> {
        Some(self)
    }
}

impl ReserveTokens for LyingStore {
    fn reserve(self: Arc<Self>, hold: Hold, last: u64) -> BoxFuture<Result<bool, Error>> {
        let store = self.store.clone().as_raise_token();
        let lies = self.lie == Some(Lie::TokensWithoutReservation);
        Box::pin(async move {
            match store {
                Some(store) if !lies => Ok(store.raise(hold, last).await? == Some(last)),
                _ => Ok(lies),
            }
        })
    }
}

impl Elections for LyingStore {
    fn publish(self: Arc<Self>, hold: Hold, holder: Arc<Holder>) -> BoxFuture<Result<bool, Error>> {
        self.store.clone().publish(hold, holder)
    }

    fn leader(self: Arc<Self>, name: LockName) -> BoxFuture<Result<Sighting, Error>> {
        Box::pin(async move {
            let truth = self.store.clone().leader(name.clone()).await?;
            let mut past = self.past.lock().unwrap();
            Ok(match self.lie {
                Some(lie) => past.entry(name).or_default().answer(lie, truth),
                None => truth,
            })
        })
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_millis(5)
    }

    fn ask_to_release(
        self: Arc<Self>,
        name: LockName,
        token: u64,
    ) -> BoxFuture<Result<bool, Error>> {
        self.store.clone().ask_to_release(name, token)
    }
}
