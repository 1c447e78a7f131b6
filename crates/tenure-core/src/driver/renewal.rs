//! Keeps the holds of one client alive: one task, and one request for all holds that are due.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};

use crate::error::Error;
use crate::fence::{OwnerId, RandomAlready};
use crate::logic::lease::Tick;
use crate::lost::LostReason;
use crate::name::LockName;
use crate::rt::{Clock, Spawner, lock};
use crate::store::{Hold, LossListener, Renewal, Store};
use crate::support::Maintenance;
use crate::time::Time;

use super::attached_owners::AttachedOwners;

/// A hold, as far as its renewal is concerned.
pub(super) trait Renewable: Send + Sync {
    fn owner(&self) -> OwnerId;

    /// The hold as the store knows it.
    fn hold(&self) -> Hold;

    /// Whether the hold is one of `name`, and is held at this moment.
    fn is_hold_of(&self, name: &LockName) -> bool;

    /// The task took the hold out of its list because something is due for it. Returns what.
    fn tick(self: Arc<Self>, now: Time) -> Tick;

    /// The store answered a renewal.
    fn answered(self: Arc<Self>, answer: Renewal);

    /// The client is closed: a hold that was lost is released now, although its guard is still there.
    fn release_if_lost(self: Arc<Self>);

    /// The store, or its session, says that the hold is over.
    fn refused(self: Arc<Self>, reason: LostReason, cause: Option<Error>);

    /// Another client asks the holder to let go.
    fn asked_to_release(&self);
}

/// All holds of a client, and the task that renews them.
pub(super) struct Renewals {
    store: Arc<dyn Store>,
    clock: Clock,
    spawner: Spawner,
    list: Mutex<List>,
    /// Whose holds the client is attached to.
    pub(super) attached: Arc<AttachedOwners>,
    /// The task. An entry that is removed from the list does not wake it: most holds end long before something is due
    /// for them.
    maintenance: Arc<Maintenance>,
}

/// Does this for one hold. What observes holds is code of the program, as a subscriber of `tracing` is; if it panics, the
/// other holds go on. `None`: it has panicked.
fn for_one_hold<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// Losses that are kept for owners that have no hold here yet. As many grants of one client may be on their way at a
/// time; a hold that misses its loss is told at its next renewal.
const EARLY: usize = 256;

#[derive(Default)]
struct List {
    by_owner: HashMap<OwnerId, Weak<dyn Renewable>, RandomAlready>,
    /// The holds for which something is due, by the time when it is due.
    due: BTreeMap<(Time, OwnerId), Weak<dyn Renewable>>,
    /// Losses of owners that have no hold here: the store may end a hold before its grant has reached the caller.
    early: VecDeque<(OwnerId, LostReason)>,
    /// Requests to let go, for owners that have no hold here yet.
    early_asked: VecDeque<OwnerId>,
}

impl List {
    fn take_early_loss(&mut self, owner: OwnerId) -> Option<LostReason> {
        let at = self.early.iter().position(|(early, _)| *early == owner)?;
        self.early.remove(at).map(|(_, reason)| reason)
    }

    fn take_early_asked(&mut self, owner: OwnerId) -> bool {
        let at = self.early_asked.iter().position(|early| *early == owner);
        at.and_then(|at| self.early_asked.remove(at)).is_some()
    }
}

impl Renewals {
    pub(super) fn new(store: Arc<dyn Store>, clock: Clock, spawner: Spawner) -> Self {
        Self {
            store,
            clock,
            spawner,
            list: Mutex::default(),
            attached: Arc::default(),
            maintenance: Arc::default(),
        }
    }

    /// Adds a new hold, and starts the task if something is due for the hold. Returns why the hold has ended already.
    pub(super) fn begin<H: Renewable + 'static>(
        self: &Arc<Self>,
        held: &Arc<H>,
        due: Option<Time>,
    ) -> Option<LostReason> {
        let owner = held.owner();
        let weak = || -> Weak<H> { Arc::downgrade(held) };
        let mut list = lock(&self.list);
        list.by_owner.insert(owner, weak());
        let lost = list.take_early_loss(owner);
        if list.take_early_asked(owner) {
            held.asked_to_release();
        }
        if let Some(due) = due {
            list.due.insert((due, owner), weak());
            drop(list);
            let round = |renewals: Arc<Self>| ready(renewals.round());
            self.maintenance
                .start(&self.spawner, &self.clock, self, round);
            self.maintenance.due_at(due);
        }
        lost
    }

    /// The counterpart of [`Renewals::begin`].
    pub(super) fn end(&self, owner: OwnerId, due: Option<Time>) {
        let mut list = lock(&self.list);
        list.by_owner.remove(&owner);
        if let Some(due) = due {
            list.due.remove(&(due, owner));
        }
    }

    /// Something is due for `held` at another time than before.
    pub(super) fn moved<H: Renewable + 'static>(
        &self,
        held: &Arc<H>,
        from: Option<Time>,
        to: Option<Time>,
    ) {
        let owner = held.owner();
        let mut list = lock(&self.list);
        if let Some(from) = from {
            list.due.remove(&(from, owner));
        }
        if let Some(to) = to {
            let held: Weak<H> = Arc::downgrade(held);
            list.due.insert((to, owner), held);
            drop(list);
            self.maintenance.due_at(to);
        }
    }

    /// Whether one of the holds is one of `name`.
    pub(super) fn is_held(&self, name: &LockName) -> bool {
        self.all().iter().any(|held| held.is_hold_of(name))
    }

    /// Releases what was lost and has a guard still. So the store learns that it did not end cleanly.
    pub(super) fn release_lost(&self) {
        for held in self.all() {
            held.release_if_lost();
        }
    }

    fn all(&self) -> Vec<Arc<dyn Renewable>> {
        let list = lock(&self.list);
        list.by_owner.values().filter_map(Weak::upgrade).collect()
    }

    /// Ends the task, for good.
    pub(super) fn stop(&self) {
        self.maintenance.stop();
    }

    /// Does what is due. Returns when something is due next.
    fn round(self: &Arc<Self>) -> Time {
        let now = self.clock.now();
        let due = self.take_due(now);
        let batch: Vec<_> = due
            .into_iter()
            .filter(|held| for_one_hold(|| held.clone().tick(now)) == Some(Tick::Renew))
            .collect();
        if !batch.is_empty() {
            // A task of its own: while a request hangs, other holds are told that their deadline has passed.
            self.spawner.spawn(self.clone().renew(batch));
        }
        let list = lock(&self.list);
        let next = list.due.first_key_value();
        next.map_or(Time::MAX, |((due, _), _)| *due)
    }

    async fn renew(self: Arc<Self>, batch: Vec<Arc<dyn Renewable>>) {
        let holds = batch.iter().map(|held| held.hold()).collect();
        let answers = self.store.clone().renew(holds).await;
        debug_assert_eq!(answers.len(), batch.len(), "BUG: one answer per hold");
        for (held, answer) in batch.into_iter().zip(answers) {
            // The hold may have passed on to another task meanwhile.
            let current = lock(&self.list)
                .by_owner
                .get(&held.owner())
                .and_then(Weak::upgrade);
            for_one_hold(|| current.unwrap_or(held).answered(answer));
        }
    }

    fn take_due(&self, until: Time) -> Vec<Arc<dyn Renewable>> {
        let mut list = lock(&self.list);
        let mut due = Vec::new();
        while let Some(entry) = list.due.first_entry() {
            if entry.key().0 > until {
                break;
            }
            due.extend(entry.remove().upgrade());
        }
        due
    }

    /// The store has reported a loss. The cause of a loss whose hold is not here yet is not kept.
    fn report(&self, owner: OwnerId, reason: LostReason, cause: Option<Error>) {
        let held = {
            let mut list = lock(&self.list);
            let held = list.by_owner.get(&owner).and_then(Weak::upgrade);
            if held.is_none() {
                if list.early.len() == EARLY {
                    list.early.pop_front();
                }
                list.early.push_back((owner, reason));
            }
            held
        };
        if let Some(held) = held {
            held.refused(reason, cause);
        }
    }
}

/// The reports of the store.
impl LossListener for Renewals {
    fn lost(&self, owner: OwnerId, reason: LostReason) {
        self.report(owner, reason, None);
    }

    fn lost_by(&self, owner: OwnerId, reason: LostReason, cause: Error) {
        self.report(owner, reason, Some(cause));
    }

    fn all_lost(&self, reason: LostReason) {
        let all = self.all().into_iter();
        all.for_each(|held| held.refused(reason, None));
    }

    fn asked_to_release(&self, owner: OwnerId) {
        let held = {
            let mut list = lock(&self.list);
            let held = list.by_owner.get(&owner).and_then(Weak::upgrade);
            if held.is_none() {
                if list.early_asked.len() == EARLY {
                    list.early_asked.pop_front();
                }
                list.early_asked.push_back(owner);
            }
            held
        };
        if let Some(held) = held {
            held.asked_to_release();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::ErrorKind;
    use crate::memory;

    /// A hold that asks for a renewal whenever something is due for it.
    struct Held {
        owner: OwnerId,
        log: Mutex<Vec<String>>,
        /// What observes the hold panics.
        panics: bool,
    }

    impl Held {
        fn new() -> Arc<Self> {
            Self::of(OwnerId::random(), false)
        }

        fn of(owner: OwnerId, panics: bool) -> Arc<Self> {
            let log = Mutex::default();
            Arc::new(Self { owner, log, panics })
        }

        fn add(&self, event: String) {
            lock(&self.log).push(event);
        }

        fn log(&self) -> Vec<String> {
            std::mem::take(&mut *lock(&self.log))
        }
    }

    impl Renewable for Held {
        fn owner(&self) -> OwnerId {
            self.owner
        }

        fn hold(&self) -> Hold {
            let name = crate::LockName::new("n").unwrap();
            Hold::of(name, self.owner)
        }

        fn is_hold_of(&self, _: &LockName) -> bool {
            true
        }

        fn tick(self: Arc<Self>, _: Time) -> Tick {
            self.add("tick".into());
            assert!(!self.panics, "planted");
            Tick::Renew
        }

        fn answered(self: Arc<Self>, answer: Renewal) {
            self.add(format!("{answer:?}"));
        }

        fn release_if_lost(self: Arc<Self>) {
            self.add("released if lost".into());
        }

        fn refused(self: Arc<Self>, reason: LostReason, cause: Option<Error>) {
            self.add(format!("{reason:?}"));
            if let Some(cause) = cause {
                self.add(cause.to_string());
            }
        }

        fn asked_to_release(&self) {
            self.add("asked to release".into());
        }
    }

    struct Case {
        store: memory::Store,
        renewals: Arc<Renewals>,
        start: Time,
    }

    impl Case {
        fn new() -> Self {
            let store = memory::Store::with_virtual_clock();
            let clock = store.clock();
            let start = clock.now();
            let spawner = Spawner::current().unwrap();
            let renewals = Renewals::new(Arc::new(store.clone()), clock, spawner);
            let renewals = Arc::new(renewals);
            Self {
                store,
                renewals,
                start,
            }
        }

        fn at(&self, secs: u64) -> Time {
            self.start.after(Duration::from_secs(secs))
        }

        async fn settle(&self) {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }

        async fn advance(&self, secs: u64) {
            self.settle().await;
            self.store.advance(Duration::from_secs(secs));
            self.settle().await;
        }
    }

    #[tokio::test]
    async fn holds_that_are_due_share_a_request_and_others_wait() {
        let case = Case::new();
        let (first, second, later) = (Held::new(), Held::new(), Held::new());
        case.renewals.begin(&first, Some(case.at(10)));
        case.renewals.begin(&second, Some(case.at(10)));
        case.renewals.begin(&later, Some(case.at(30)));
        case.advance(9).await;
        assert!(first.log().is_empty());
        case.advance(1).await;
        // The store has no such hold.
        let renewed = ["tick", "Lost(StoreSaysNo)"];
        assert_eq!(first.log(), renewed);
        assert_eq!(second.log(), renewed);
        assert_eq!(case.store.requests(), 1);
        case.renewals.moved(&first, None, Some(case.at(12)));
        case.advance(2).await;
        assert_eq!(first.log(), renewed);
        case.renewals.end(later.owner(), Some(case.at(30)));
        case.advance(30).await;
        assert!(later.log().is_empty());
        case.renewals.stop();
    }

    #[tokio::test]
    async fn a_panic_about_one_hold_stops_no_other() {
        let case = Case::new();
        let (first, second) = (Held::of(OwnerId::random(), true), Held::new());
        case.renewals.begin(&first, Some(case.at(10)));
        case.renewals.begin(&second, Some(case.at(11)));
        case.advance(10).await;
        assert_eq!(first.log(), ["tick"]);
        case.advance(1).await;
        assert_eq!(second.log(), ["tick", "Lost(StoreSaysNo)"]);
        case.renewals.stop();
    }

    #[tokio::test]
    async fn reports_of_the_store_reach_the_holds_until_their_end() {
        let case = Case::new();
        let (first, second) = (Held::new(), Held::new());
        case.renewals.begin(&first, None);
        case.renewals.begin(&second, None);
        case.renewals.lost(first.owner(), LostReason::TakenOver);
        assert_eq!(first.log(), ["TakenOver"]);
        assert!(second.log().is_empty());
        case.renewals.end(first.owner(), None);
        case.renewals.all_lost(LostReason::SessionGone);
        assert!(first.log().is_empty());
        assert_eq!(second.log(), ["SessionGone"]);
    }

    /// A hold passes on to another task while its renewal is under way.
    #[tokio::test]
    async fn an_answer_reaches_the_hold_that_has_the_owner_now() {
        let case = Case::new();
        let before = Held::new();
        let now = Held::of(before.owner, false);
        case.store.pause();
        case.renewals.begin(&before, Some(case.at(10)));
        case.advance(10).await;
        case.renewals.end(before.owner, None);
        case.renewals.begin(&now, None);
        case.store.resume();
        case.settle().await;
        assert_eq!(before.log(), ["tick"]);
        assert_eq!(now.log(), ["Lost(StoreSaysNo)"]);
        case.renewals.stop();
    }

    #[tokio::test]
    async fn a_report_has_its_cause() {
        let (case, held) = (Case::new(), Held::new());
        case.renewals.begin(&held, None);
        let cause = Error::new(ErrorKind::Lost, "the session expired");
        let owner = held.owner();
        case.renewals.lost_by(owner, LostReason::SessionGone, cause);
        assert_eq!(held.log(), ["SessionGone", "the session expired"]);
    }

    /// The store may end a hold before the caller has read the grant.
    #[tokio::test]
    async fn a_report_that_comes_before_its_hold_is_kept() {
        let case = Case::new();
        let (first, second) = (Held::new(), Held::new());
        case.renewals.lost(first.owner(), LostReason::TakenOver);
        for _ in 1..EARLY {
            case.renewals.lost(OwnerId::random(), LostReason::TakenOver);
        }
        let begun = case.renewals.begin(&first, None);
        assert_eq!(begun, Some(LostReason::TakenOver));
        assert_eq!(case.renewals.begin(&second, None), None);
        case.renewals.end(first.owner(), None);
        assert_eq!(case.renewals.begin(&first, None), None);
    }

    /// The holder is asked when the caller has not read the grant yet.
    #[tokio::test]
    async fn a_request_to_let_go_reaches_the_hold_also_before_its_grant() {
        let case = Case::new();
        let held = Held::new();
        case.renewals.asked_to_release(held.owner());
        case.renewals.asked_to_release(OwnerId::random());
        assert_eq!(case.renewals.begin(&held, None), None);
        assert_eq!(held.log(), ["asked to release"]);
        case.renewals.asked_to_release(held.owner());
        assert_eq!(held.log(), ["asked to release"]);
        case.renewals.end(held.owner(), None);
        assert!(held.log().is_empty());
    }
}
