//! The reference lock table: what a store has to do, without a store.
//!
//! The table is the specification that other stores are compared with, and the lock table of `memory:`.
//!
//! # Rules
//! - Exclusive conflicts with everything, shared with exclusive. Upgradable conflicts with exclusive and with
//!   another upgradable. A permit conflicts with exclusive and is admitted while fewer than its own `limit`
//!   permits are held. Shared, upgradable and permits do not exclude each other.
//! - First come, first served: a request joins the queue behind every earlier waiter, even if it could
//!   be granted at once; so a writer does not starve behind readers. `barge` is the exception.
//! - After every change the queue is served from its head while the head can be granted.
//! - An upgradable hold that is to become exclusive comes before the whole queue: from its request on nothing is
//!   granted until all other holds have ended or the request is given up.
//! - Each grant of a name has a greater token than all before it, for as long as the table lives:
//!   the last plus one, or the one that the request proposes if that is greater.
//! - Every operation compares the owner. An owner that asks again, because a reply was lost, gets
//!   what it has: its place, or its hold with the same token.
//! - An ended hold can leave a reservation (`min_hold`, or `lock_delay` after an unclean end) which
//!   conflicts exactly as the hold did. So permits with `min_hold` limit a rate.
//!
//! Whatever is due at `now` is settled before any operation looks at the name: late ticks delay
//! grants to waiters, and nothing else.

mod data;
mod mode;
mod slot;
mod state;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::fence::OwnerId;
use crate::name::LockName;
use crate::time::Time;

pub use self::data::{HoldView, LockRequest, Verdict, View};
use self::slot::Slot;
pub use self::slot::{Claim, Hold, NameState, Queueing, Reservation, Waiter};

/// At least so many unused names are remembered before any is forgotten (about 200 bytes each).
pub const KEPT_NAMES: usize = 1_024;

/// The table. See the [module](self) for the rules. `S` hashes names.
#[derive(Clone, Debug, Default)]
pub struct Table<S = RandomState> {
    names: HashMap<LockName, usize, S>,
    pub(super) slots: Vec<Slot>,
    vacant: Vec<usize>,
    /// Named slots that are not in use.
    idle: usize,
    /// Greatest token of all forgotten names. A name that is seen (again) goes on from here, so its
    /// tokens grow although nothing of it is remembered.
    floor: u64,
    /// When which slot is to be looked at. Entries that differ from their slot's `planned` are void.
    agenda: BinaryHeap<Reverse<(Time, usize)>>,
    granted: Vec<(OwnerId, u64)>,
    forgotten: Vec<OwnerId>,
}

impl Table {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }
}

impl<S: BuildHasher> Table<S> {
    /// Grants the name to `request.owner`, or queues it, or says busy.
    ///
    /// An owner that holds already gets its token again and its lease counted anew from `now`: it will
    /// count its deadline from this very request. An owner that is queued keeps its place, as after
    /// [`Table::touch`]; if it does not want to wait any more, it loses it.
    pub fn acquire(&mut self, request: &LockRequest, now: Time) -> Verdict {
        self.acquire_claim(
            &request.name,
            Claim::of(request),
            Queueing::of(request),
            now,
        )
    }

    /// [`Table::acquire`] for a caller that needs no name of its own for the request.
    pub fn acquire_claim(
        &mut self,
        name: &LockName,
        claim: Claim,
        queueing: Queueing,
        now: Time,
    ) -> Verdict {
        let index = self.index(name);
        self.settle(index, now);
        let slot = &mut self.slots[index];
        let verdict = if let Some(hold) = slot.hold_of(claim.owner) {
            hold.extend(claim.ttl, now);
            Verdict::Granted { token: hold.token }
        } else if let Some(place) = slot.place_of(claim.owner) {
            if queueing.wait {
                slot.waiters[place].touch(now);
                Verdict::Queued
            } else {
                slot.waiters.remove(place);
                slot.serve(now, &mut self.granted);
                Verdict::Busy
            }
        } else if (queueing.barge || slot.waiters.is_empty())
            && !slot.is_upgrading()
            && slot.admits(claim.mode)
        {
            Verdict::Granted {
                token: slot.grant(claim, now),
            }
        } else if queueing.wait {
            slot.waiters
                .push_back(Waiter::of(claim, queueing.waiter_ttl, now));
            Verdict::Queued
        } else {
            Verdict::Busy
        };
        self.changed(index);
        verdict
    }

    /// Grants all names, or none of them: the position of the first one that is not free, or has waiters. Requests that
    /// do not wait, for different names.
    pub fn acquire_all(&mut self, requests: &[LockRequest], now: Time) -> Result<Vec<u64>, usize> {
        for (at, request) in requests.iter().enumerate() {
            let Some(index) = self.settled(&request.name, now) else {
                continue;
            };
            let slot = &mut self.slots[index];
            let is_free = slot.waiters.is_empty() && !slot.is_upgrading();
            let is_granted = is_free && slot.admits(request.mode);
            if !is_granted && slot.hold_of(request.owner).is_none() {
                return Err(at);
            }
        }
        let granted = requests.iter().map(|it| match self.acquire(it, now) {
            Verdict::Granted { token } => token,
            Verdict::Queued | Verdict::Busy => unreachable!("BUG: the name was free just now"),
        });
        Ok(granted.collect())
    }

    /// Makes the owner's lease last until `now + ttl`, if that is later than it would end anyway;
    /// `None` only checks. `false`: the owner does not hold the name, and does not by this.
    pub fn renew(
        &mut self,
        name: &LockName,
        owner: OwnerId,
        ttl: Option<Duration>,
        now: Time,
    ) -> bool {
        let Some(index) = self.settled(name, now) else {
            return false;
        };
        let Some(hold) = self.slots[index].hold_of(owner) else {
            return false;
        };
        if ttl.is_some() {
            hold.extend(ttl, now);
            self.changed(index);
        }
        true
    }

    /// Gives the owner's hold a lease that lasts until `now + ttl` at least, also if it had none. `false`: the owner does not
    /// hold the name.
    pub fn lease(&mut self, name: &LockName, owner: OwnerId, ttl: Duration, now: Time) -> bool {
        let Some(index) = self.settled(name, now) else {
            return false;
        };
        let Some(hold) = self.slots[index].hold_of(owner) else {
            return false;
        };
        match hold.expires {
            Time::MAX => hold.expires = now.after(ttl),
            _ => hold.extend(Some(ttl), now),
        }
        self.changed(index);
        true
    }

    /// Whether the owner's hold has a lease, as of the last operation.
    pub fn is_leased(&self, name: &LockName, owner: OwnerId) -> bool {
        let slot = self.names.get(name).map(|index| &self.slots[*index]);
        let hold = slot.and_then(|slot| slot.holds.iter().find(|hold| hold.owner == owner));
        hold.is_some_and(|hold| hold.expires < Time::MAX)
    }

    /// Raises the token of the owner's hold to `token`, so that later grants have greater ones, and returns the token that
    /// the hold has now: `token`, or the token that it had if that is greater, or a still greater one if another hold at the
    /// same time has or had `token` or a greater one. `None`: the owner does not hold the name, and nothing is changed.
    pub fn raise(&mut self, name: &LockName, owner: OwnerId, token: u64, now: Time) -> Option<u64> {
        let index = self.settled(name, now)?;
        let slot = &mut self.slots[index];
        let at = slot.holds.iter().position(|hold| hold.owner == owner)?;
        if slot.holds[at].token < token {
            slot.last_token = token.max(slot.last_token + 1);
            // Holds are in the order of their tokens.
            slot.holds[at..].rotate_left(1);
            slot.holds.last_mut()?.token = slot.last_token;
            return Some(slot.last_token);
        }
        Some(slot.holds[at].token)
    }

    /// A request of a waiter that keeps its place. `false`: it is not (any more) in the queue; it may hold by now.
    pub fn touch(&mut self, name: &LockName, owner: OwnerId, now: Time) -> bool {
        let Some(index) = self.settled(name, now) else {
            return false;
        };
        let slot = &mut self.slots[index];
        let Some(place) = slot.place_of(owner) else {
            return false;
        };
        slot.waiters[place].touch(now);
        self.changed(index);
        true
    }

    /// Ends the owner's hold; `unclean`: it was lost, so `lock_delay` applies.
    /// `false`: the owner did not hold the name. If it waited for it, it does not any more.
    pub fn release(&mut self, name: &LockName, owner: OwnerId, unclean: bool, now: Time) -> bool {
        let Some(index) = self.settled(name, now) else {
            return false;
        };
        let slot = &mut self.slots[index];
        let held = match slot.holds.iter().position(|hold| hold.owner == owner) {
            Some(at) => {
                slot.end(at, unclean, now, now);
                true
            }
            None => {
                let Some(place) = slot.place_of(owner) else {
                    return false;
                };
                slot.waiters.remove(place);
                false
            }
        };
        slot.serve(now, &mut self.granted);
        self.changed(index);
        held
    }

    /// Ends the owner's hold if that is the same at any time: it is the only hold, leaves nothing reserved, no owner waits, and
    /// in the whole table nothing ends by time. `false`: nothing was done; call [`Table::release`].
    pub fn release_at_any_time(&mut self, name: &LockName, owner: OwnerId) -> bool {
        let Some(&index) = self.names.get(name) else {
            return false;
        };
        let slot = &mut self.slots[index];
        let [hold] = &*slot.holds else {
            return false;
        };
        let is_simple = hold.owner == owner && hold.min_hold.is_zero();
        let is_last = slot.waiters.is_empty() && slot.reservations.is_empty();
        if !is_simple || !is_last || !self.agenda.is_empty() {
            return false;
        }
        slot.holds.clear();
        // Nothing of the slot was due, so the agenda stays as it is.
        slot.idle = true;
        self.idle += 1;
        self.forget_names_if_many();
        true
    }

    /// As a clean [`Table::release`] of a hold that was never used: nothing stays reserved.
    pub fn give_back(&mut self, name: &LockName, owner: OwnerId, now: Time) -> bool {
        let hold = self.settled(name, now);
        if let Some(hold) = hold.and_then(|index| self.slots[index].hold_of(owner)) {
            hold.min_hold = Duration::ZERO;
        }
        self.release(name, owner, false, now)
    }

    /// Ends the hold with that very token, uncleanly. `false`: there is none.
    pub fn break_hold(&mut self, name: &LockName, token: u64, now: Time) -> bool {
        let Some(index) = self.settled(name, now) else {
            return false;
        };
        let slot = &mut self.slots[index];
        let Some(at) = slot.holds.iter().position(|hold| hold.token == token) else {
            return false;
        };
        slot.end(at, true, now, now);
        slot.serve(now, &mut self.granted);
        self.changed(index);
        true
    }

    /// Ends every hold on the name as if its ttl had run out at `now`; how many there were.
    /// For tests that cannot wait.
    pub fn expire(&mut self, name: &LockName, now: Time) -> usize {
        let Some(index) = self.settled(name, now) else {
            return 0;
        };
        let slot = &mut self.slots[index];
        let ended = slot.holds.len();
        while !slot.holds.is_empty() {
            slot.end(0, true, now, now);
        }
        slot.serve(now, &mut self.granted);
        self.changed(index);
        ended
    }

    /// Ends what is over at `now`: leases (uncleanly), reservations, silent waiters.
    pub fn tick(&mut self, now: Time) {
        while let Some(&Reverse((due, index))) = self.agenda.peek()
            && due <= now
        {
            // The top of the agenda is never void, so this makes progress.
            self.settle(index, now);
        }
    }

    /// When [`Table::tick`] has something to do next; [`Time::MAX`]: never, as things stand.
    pub fn next(&self) -> Time {
        self.agenda
            .peek()
            .map_or(Time::MAX, |Reverse((due, _))| *due)
    }

    /// Moves the grants that waiters got since the last call to `out`, in their order.
    /// Each is to be told to its owner.
    pub fn granted(&mut self, out: &mut Vec<(OwnerId, u64)>) {
        out.append(&mut self.granted);
    }

    /// Moves the waiters that were forgotten since the last call, because they sent no request for too long, to `out`.
    pub fn forgotten(&mut self, out: &mut Vec<OwnerId>) {
        out.append(&mut self.forgotten);
    }

    /// What is known of the name as of the last operation; `None`: free, unreserved, no waiters.
    pub fn view(&self, name: &LockName) -> Option<View> {
        let slot = &self.slots[*self.names.get(name)?];
        (!slot.unused()).then(|| slot.view())
    }

    /// All names that start with `prefix` and are held or waited for, sorted.
    pub fn names(&self, prefix: &str) -> Vec<LockName> {
        let in_use = |slot: &Slot| !slot.holds.is_empty() || !slot.waiters.is_empty();
        let mut names: Vec<_> = self
            .names
            .iter()
            .filter(|(name, index)| {
                name.as_str().starts_with(prefix) && in_use(&self.slots[**index])
            })
            .map(|(name, _)| name.clone())
            .collect();
        names.sort();
        names
    }

    /// The slot of a name that may be new.
    fn index(&mut self, name: &LockName) -> usize {
        if let Some(&index) = self.names.get(name) {
            return index;
        }
        let slot = Slot::new(self.floor);
        let index = match self.vacant.pop() {
            Some(index) => {
                self.slots[index] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        self.names.insert(name.clone(), index);
        self.idle += 1;
        index
    }

    /// The slot of a known name, with everything done that is due.
    fn settled(&mut self, name: &LockName, now: Time) -> Option<usize> {
        let index = *self.names.get(name)?;
        self.settle(index, now);
        Some(index)
    }

    fn settle(&mut self, index: usize, now: Time) {
        let slot = &mut self.slots[index];
        if slot.due > now {
            return;
        }
        while let Some(at) = slot.holds.iter().position(|hold| hold.expires <= now) {
            let over = slot.holds[at].expires;
            slot.end(at, true, over, now);
        }
        slot.reservations
            .retain(|reservation| reservation.until > now);
        slot.waiters.retain(|waiter| {
            let alive = waiter.alive_until > now;
            if !alive {
                self.forgotten.push(waiter.claim.owner);
            }
            alive
        });
        slot.serve(now, &mut self.granted);
        self.changed(index);
    }

    /// Updates what depends on a slot that was changed: its due time, the agenda, the count of unused names.
    fn changed(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.due = slot.next();
        if slot.due < slot.planned {
            slot.planned = slot.due;
            self.agenda.push(Reverse((slot.due, index)));
        }
        let idle = slot.unused();
        if idle != slot.idle {
            slot.idle = idle;
            if idle {
                self.idle += 1;
            } else {
                self.idle -= 1;
            }
        }
        self.tidy_agenda();
        self.forget_names_if_many();
    }

    /// Keeps the top of the agenda true, so that `next` is exact, and its length in proportion.
    fn tidy_agenda(&mut self) {
        while let Some(&Reverse((at, index))) = self.agenda.peek() {
            let slot = &mut self.slots[index];
            if at == slot.planned && at == slot.due {
                break;
            }
            self.agenda.pop();
            if at == slot.planned {
                slot.planned = slot.due;
                if slot.due < Time::MAX {
                    self.agenda.push(Reverse((slot.due, index)));
                }
            }
        }
        if self.agenda.len() > 2 * self.slots.len() + 16 {
            let planned = self.slots.iter().map(|slot| slot.planned);
            let entries = planned.zip(0..).filter(|(at, _)| *at < Time::MAX);
            self.agenda = entries.map(Reverse).collect();
        }
    }

    /// Forgets every unused name, if at least half of the names are unused: so each use of a name pays for the visit of two.
    fn forget_names_if_many(&mut self) {
        if self.idle <= KEPT_NAMES || self.idle <= self.names.len() / 2 {
            return;
        }
        self.names.retain(|_, index| {
            let slot = &mut self.slots[*index];
            if slot.idle {
                self.floor = self.floor.max(slot.last_token);
                *slot = Slot::new(0);
                self.vacant.push(*index);
                return false;
            }
            true
        });
        self.idle = 0;
    }
}
