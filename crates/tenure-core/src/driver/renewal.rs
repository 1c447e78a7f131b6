//! Keeps the holds of one client alive: one task, one request for all that are due.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Notify;

use crate::backend::{LossListener, Renewal};
use crate::fence::{OwnerId, RandomAlready};
use crate::logic::lease::Tick;
use crate::logic::pace;
use crate::lost::LostReason;
use crate::rt::{Task, lock};
use crate::time::Time;

use super::Driver;
use super::held::{Held, WeakHeld};
use super::losses::Losses;
use super::observe::RenewalOutcome;

/// All holds of a client, and those of them that something is due for.
#[derive(Default)]
pub(super) struct Renewals {
    list: Mutex<List>,
    earlier: Notify,
    /// Whom to tell of a hold that is lost.
    pub(super) losses: Arc<Losses>,
}

struct List {
    due: BTreeMap<(Time, OwnerId), WeakHeld>,
    /// When the task looks next. It may find nothing: most holds end long before anything is due for them, and nobody
    /// wakes it for that. Nor is it put off for that: the next hold would have to wake it again.
    wakes: Time,
    by_owner: HashMap<OwnerId, WeakHeld, RandomAlready>,
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

impl std::fmt::Debug for Renewals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewals")
            .field("holds", &lock(&self.list).by_owner.len())
            .finish()
    }
}

impl Renewals {
    /// Makes a new hold known to loss_notifiers, and to the task if something is due for it.
    pub(super) fn begin(
        self: &Arc<Self>,
        driver: &Arc<Driver>,
        held: &Arc<Held>,
        due: Option<Time>,
    ) {
        let mut list = lock(&self.list);
        list.by_owner.insert(held.owner(), Arc::downgrade(held));
        if due.is_some() && list.task.is_none() && !list.is_stopped {
            let task = run(self.clone(), Arc::downgrade(driver));
            list.task = Some(driver.spawner.spawn(task));
        }
        self.set(&mut list, held, None, due);
    }

    /// The counterpart of [`Renewals::begin`].
    pub(super) fn end(&self, held: &Arc<Held>, due: Option<Time>) {
        let mut list = lock(&self.list);
        list.by_owner.remove(&held.owner());
        self.set(&mut list, held, due, None);
    }

    /// Something is due for `held` at another time than before.
    pub(super) fn moved(&self, held: &Arc<Held>, from: Option<Time>, to: Option<Time>) {
        self.set(&mut lock(&self.list), held, from, to);
    }

    fn set(&self, list: &mut List, held: &Arc<Held>, from: Option<Time>, to: Option<Time>) {
        if let Some(from) = from {
            list.due.remove(&(from, held.owner()));
        }
        if let Some(to) = to {
            list.due.insert((to, held.owner()), Arc::downgrade(held));
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

    fn take_due(&self, until: Time) -> Vec<Arc<Held>> {
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

/// What the backend says.
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
        all.iter().for_each(|held| held.refused(reason));
    }
}

/// Neither the driver nor a hold is kept alive by this task while it sleeps.
async fn run(renewals: Arc<Renewals>, driver: Weak<Driver>) {
    loop {
        let (clock, next) = {
            let Some(driver) = driver.upgrade() else {
                return;
            };
            let now = driver.clock.now();
            let due = renewals.take_due(now);
            let batch: Vec<_> = due
                .into_iter()
                .filter(|held| held.due(now) == Tick::Renew)
                .collect();
            if !batch.is_empty() {
                // A task of its own: a request that hangs must not keep anybody from being told
                // that a deadline has passed.
                driver.spawner.spawn(renew(driver.clone(), batch));
            }
            (driver.clock.clone(), lock(&renewals.list).next(now))
        };
        tokio::select! {
            biased;
            () = clock.sleep_until(next) => {}
            () = renewals.earlier.notified() => {}
        }
    }
}

async fn renew(driver: Arc<Driver>, batch: Vec<Arc<Held>>) {
    let holds = batch.iter().map(|held| held.hold(false)).collect();
    let answers = driver.backend.renew(holds).await;
    debug_assert_eq!(answers.len(), batch.len(), "BUG: one answer per hold");
    for (held, answer) in batch.iter().zip(answers) {
        held.observe_renewal(match &answer {
            Renewal::Renewed { .. } => RenewalOutcome::Renewed,
            Renewal::Lost(_) => RenewalOutcome::Lost,
            Renewal::Unknown(_) => RenewalOutcome::Unanswered,
        });
        match answer {
            Renewal::Renewed { sent, ttl } => held.renewed(sent, ttl),
            Renewal::Lost(reason) => held.refused(reason),
            Renewal::Unknown(err) => held.unanswered(&err),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever takes and releases one lock after the other would wake the task each time.
    #[test]
    fn a_look_that_is_planned_is_not_put_off_because_nothing_is_due_any_more() {
        let at = Time::from_nanos;
        let hold = |due| ((at(due), OwnerId::random()), Weak::new());
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
