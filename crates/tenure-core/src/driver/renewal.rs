//! Keeps the holds of one client alive: one task, one request for all that are due.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Notify;

use crate::backend::{Backend, Hold, LossListener, Renewal};
use crate::fence::{OwnerId, RandomAlready};
use crate::logic::lease::Tick;
use crate::logic::pace;
use crate::lost::LostReason;
use crate::rt::{Clock, Spawner, Task, lock};
use crate::time::Time;

/// A hold, as far as its renewal is concerned.
pub(super) trait Renewable: Send + Sync {
    fn owner(&self) -> OwnerId;

    /// The hold as the backend knows it.
    fn hold(&self) -> Hold;

    /// The task took the hold out of its list because something is due for it. Returns what.
    fn tick(self: Arc<Self>, now: Time) -> Tick;

    /// The backend answered a renewal.
    fn answered(self: Arc<Self>, answer: Renewal);

    /// The store, or its session, says that the hold is over.
    fn refused(self: Arc<Self>, reason: LostReason);
}

/// All holds of a client, and the task that renews them.
pub(super) struct Renewals {
    backend: Arc<dyn Backend>,
    clock: Clock,
    spawner: Spawner,
    list: Mutex<List>,
    earlier: Notify,
}

struct List {
    by_owner: HashMap<OwnerId, Weak<dyn Renewable>, RandomAlready>,
    /// The holds for which something is due, by the time when it is due.
    due: BTreeMap<(Time, OwnerId), Weak<dyn Renewable>>,
    /// When the task looks next. It may find nothing: most holds end long before anything is due for them, and nobody
    /// wakes it for that. Nor is it put off for that: the next hold would have to wake it again.
    wakes: Time,
    task: Option<Task>,
    is_stopped: bool,
}

impl Default for List {
    fn default() -> Self {
        Self {
            due: BTreeMap::new(),
            wakes: Time::MAX,
            by_owner: HashMap::default(),
            task: None,
            is_stopped: false,
        }
    }
}

impl List {
    /// When the task looks next, after a look at `now`.
    fn next(&mut self, now: Time) -> Time {
        let first = self.due.first_key_value();
        let due = first.map_or(Time::MAX, |((due, _), _)| *due);
        self.wakes = pace::look(self.wakes, due, now);
        self.wakes
    }
}

impl Renewals {
    pub(super) fn new(backend: Arc<dyn Backend>, clock: Clock, spawner: Spawner) -> Self {
        Self {
            backend,
            clock,
            spawner,
            list: Mutex::default(),
            earlier: Notify::new(),
        }
    }

    /// Adds a new hold, and starts the task if something is due for the hold.
    pub(super) fn begin<H: Renewable + 'static>(
        self: &Arc<Self>,
        held: &Arc<H>,
        due: Option<Time>,
    ) {
        let mut list = lock(&self.list);
        let weak: Weak<H> = Arc::downgrade(held);
        list.by_owner.insert(held.owner(), weak.clone());
        if due.is_some() && list.task.is_none() && !list.is_stopped {
            let task = run(Arc::downgrade(self), self.clock.clone());
            list.task = Some(self.spawner.spawn(task));
        }
        self.set(&mut list, held.owner(), weak, None, due);
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
        let weak: Weak<H> = Arc::downgrade(held);
        self.set(&mut lock(&self.list), held.owner(), weak, from, to);
    }

    fn set(
        &self,
        list: &mut List,
        owner: OwnerId,
        held: Weak<dyn Renewable>,
        from: Option<Time>,
        to: Option<Time>,
    ) {
        if let Some(from) = from {
            list.due.remove(&(from, owner));
        }
        if let Some(to) = to {
            list.due.insert((to, owner), held);
            if to < list.wakes {
                list.wakes = to;
                self.earlier.notify_one();
            }
        }
    }

    /// Ends the task, for good.
    pub(super) fn stop(&self) {
        let mut list = lock(&self.list);
        list.is_stopped = true;
        if let Some(task) = list.task.take() {
            task.abort();
        }
    }

    /// Does what is due, and returns when the task looks next.
    fn round(&self) -> Time {
        let now = self.clock.now();
        let due = self.take_due(now);
        let batch: Vec<_> = due
            .into_iter()
            .filter(|held| held.clone().tick(now) == Tick::Renew)
            .collect();
        if !batch.is_empty() {
            // A task of its own: while a request hangs, other holds are told that their deadline has passed.
            self.spawner.spawn(renew(self.backend.clone(), batch));
        }
        lock(&self.list).next(now)
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
}

/// The reports of the backend.
impl LossListener for Renewals {
    fn lost(&self, owner: OwnerId, reason: LostReason) {
        let held = lock(&self.list)
            .by_owner
            .get(&owner)
            .and_then(Weak::upgrade);
        if let Some(held) = held {
            held.refused(reason);
        }
    }

    fn all_lost(&self, reason: LostReason) {
        let all: Vec<_> = lock(&self.list)
            .by_owner
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        all.into_iter().for_each(|held| held.refused(reason));
    }
}

/// Keeps neither the client nor a hold alive while it sleeps.
async fn run(renewals: Weak<Renewals>, clock: Clock) {
    loop {
        let Some(renewals) = renewals.upgrade() else {
            return;
        };
        let next = renewals.round();
        tokio::select! {
            biased;
            () = clock.sleep_until(next) => {}
            () = renewals.earlier.notified() => {}
        }
    }
}

async fn renew(backend: Arc<dyn Backend>, batch: Vec<Arc<dyn Renewable>>) {
    let holds = batch.iter().map(|held| held.hold()).collect();
    let answers = backend.renew(holds).await;
    debug_assert_eq!(answers.len(), batch.len(), "BUG: one answer per hold");
    for (held, answer) in batch.into_iter().zip(answers) {
        held.answered(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever takes and releases one lock after the other would wake the task each time.
    #[test]
    fn a_look_that_is_planned_is_not_put_off_because_nothing_is_due_any_more() {
        let at = Time::from_nanos;
        let hold = |due| {
            (
                (at(due), OwnerId::random()),
                Weak::<crate::driver::Held>::new() as Weak<dyn Renewable>,
            )
        };
        let mut list = List::default();
        assert_eq!(list.next(at(1)), Time::MAX);
        list.due.extend([hold(10), hold(20)]);
        list.wakes = at(10);
        assert_eq!(list.next(at(2)), at(10));
        list.due.clear();
        assert_eq!(list.next(at(3)), at(10));
        list.due.extend([hold(30)]);
        assert_eq!(list.next(at(10)), at(30));
        list.due.clear();
        assert_eq!(list.next(at(30)), Time::MAX);
    }
}
