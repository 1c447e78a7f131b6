//! The reference lock table: what a store has to do, without a store.
//!
//! It is the specification that other backends are compared with, and the heart of `memory:`.
//!
//! # Rules
//! - Exclusive conflicts with everything, shared with exclusive. A permit conflicts with exclusive and
//!   is admitted while fewer than its own `limit` permits are held. Shared and permits go together.
//! - First come, first served: a request joins the queue behind every earlier waiter, even if it could
//!   be granted at once; so a writer does not starve behind readers. `barge` is the exception.
//! - After every change the queue is served from its head while the head can be granted.
//! - Each grant of a name has a greater token than all before it, for as long as the table lives:
//!   the last plus one, or the one that the request proposes if that is greater.
//! - Every operation compares the owner. An owner that asks again, because a reply was lost, gets
//!   what it has: its place, or its hold with the same token.
//! - An ended hold can leave a reservation (`min_hold`, or `lock_delay` after an unclean end) which
//!   conflicts exactly as the hold did. So permits with `min_hold` limit a rate.
//!
//! Whatever is due at `now` is settled before any operation looks at the name: late ticks delay
//! grants to waiters, and nothing else.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use crate::fence::OwnerId;
use crate::name::LockName;
use crate::options::Mode;
use crate::time::Time;

/// So many unused names are remembered for sure before any is forgotten (about 200 bytes each).
pub const KEPT_NAMES: usize = 1_024;

/// A request for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// What to lock.
    pub name: LockName,
    /// For whom; one owner id serves one acquisition.
    pub owner: OwnerId,
    /// How.
    pub mode: Mode,
    /// Lease, from the grant on; `None`: until released.
    pub ttl: Option<Duration>,
    /// Whether to queue when the name is taken.
    pub wait: bool,
    /// Whether it may overtake waiters if the holders allow it.
    pub barge: bool,
    /// The name stays taken until this long after the grant, even past the end of the hold.
    pub min_hold: Duration,
    /// After an unclean end the name stays taken for this long.
    pub lock_delay: Duration,
    /// A waiter is forgotten when it was not heard of for this long; `None`: never.
    pub waiter_ttl: Option<Duration>,
    /// The token to grant under, unless the name's next one is greater.
    pub propose: Option<u64>,
}

/// The answer to an [`LockRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The owner holds the name under this token.
    Granted {
        /// Greater than every token granted for the name before.
        token: u64,
    },
    /// The owner is in the queue; [`Table::granted`] will tell.
    Queued,
    /// Taken, and nothing of the request is left.
    Busy,
}

/// Who holds a name, who waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// In the order of the grants.
    pub holds: Vec<HoldView>,
    /// In the order in which they will be served.
    pub waiters: Vec<(OwnerId, Mode)>,
    /// Ended holds keep the name reserved until then.
    pub reserved_until: Option<Time>,
}

/// One hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldView {
    /// Who.
    pub owner: OwnerId,
    /// How.
    pub mode: Mode,
    /// Under which number.
    pub token: u64,
    /// When its lease ends, if it has one.
    pub expires: Option<Time>,
    /// When it was granted.
    pub since: Time,
}

/// The table. See the [module](self) for the rules.
#[derive(Clone, Debug, Default)]
pub struct Table {
    names: HashMap<LockName, usize>,
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

/// What is known of one name. Kept when nobody uses it, because its tokens must keep growing.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) last_token: u64,
    pub(super) holds: Vec<Hold>,
    pub(super) reservations: Vec<Reservation>,
    pub(super) waiters: VecDeque<Waiter>,
    /// When the next lease, reservation or waiter ends.
    due: Time,
    /// The entry of the agenda that counts for this slot.
    planned: Time,
    idle: bool,
}

/// What an [`LockRequest`] comes to once it holds or waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) owner: OwnerId,
    pub(super) mode: Mode,
    pub(super) ttl: Option<Duration>,
    pub(super) min_hold: Duration,
    pub(super) lock_delay: Duration,
    pub(super) propose: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub(super) owner: OwnerId,
    pub(super) mode: Mode,
    pub(super) token: u64,
    pub(super) since: Time,
    pub(super) expires: Time,
    pub(super) min_hold: Duration,
    pub(super) lock_delay: Duration,
}

/// What an ended hold leaves behind (`min_hold`, `lock_delay`): it conflicts as the hold did, and has no owner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reservation {
    pub(super) mode: Mode,
    pub(super) until: Time,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) claim: Claim,
    pub(super) waiter_ttl: Option<Duration>,
    pub(super) alive_until: Time,
}

impl Table {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Grants the name to `request.owner`, or queues it, or says busy.
    ///
    /// An owner that holds already gets its token again and its lease counted anew from `now`: it will
    /// count its deadline from this very request. An owner that is queued keeps its place, as after
    /// [`Table::touch`]; if it does not want to wait any more, it loses it.
    pub fn acquire(&mut self, request: &LockRequest, now: Time) -> Verdict {
        let index = self.index(&request.name);
        self.settle(index, now);
        let slot = &mut self.slots[index];
        let verdict = if let Some(hold) = slot.hold_of(request.owner) {
            hold.extend(request.ttl, now);
            Verdict::Granted { token: hold.token }
        } else if let Some(place) = slot.place_of(request.owner) {
            if request.wait {
                slot.waiters[place].touch(now);
                Verdict::Queued
            } else {
                slot.waiters.remove(place);
                slot.serve(now, &mut self.granted);
                Verdict::Busy
            }
        } else if (request.barge || slot.waiters.is_empty()) && slot.admits(request.mode) {
            Verdict::Granted {
                token: slot.grant(Claim::of(request), now),
            }
        } else if request.wait {
            slot.waiters.push_back(Waiter::of(request, now));
            Verdict::Queued
        } else {
            Verdict::Busy
        };
        self.changed(index);
        verdict
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

    /// Sees to it that the owner's hold, and every later one, has a token of at least `token`.
    /// `false`: the owner does not hold the name, and nothing is changed.
    pub fn raise(&mut self, name: &LockName, owner: OwnerId, token: u64, now: Time) -> bool {
        let Some(index) = self.settled(name, now) else {
            return false;
        };
        let slot = &mut self.slots[index];
        let Some(hold) = slot.hold_of(owner) else {
            return false;
        };
        if hold.token < token {
            hold.token = token;
            slot.last_token = slot.last_token.max(token);
        }
        true
    }

    /// A sign of life from a waiter. `false`: it is not (any more) in the queue; it may hold by now.
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

    /// Ends whatever is over at `now`: leases (uncleanly), reservations, silent waiters.
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

    /// Moves the waiters that were forgotten since the last call, because nothing was heard of them, to `out`.
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

    /// Book-keeping after a slot was changed: its due time, the agenda, names nobody uses.
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
        if self.idle > KEPT_NAMES && self.idle > self.names.len() / 2 {
            self.forget_names();
        }
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

    /// Forgets every unused name. At least half of the names are, so each use of a name pays for
    /// the visit of two.
    fn forget_names(&mut self) {
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

impl Slot {
    fn new(last_token: u64) -> Self {
        Self {
            last_token,
            holds: Vec::new(),
            reservations: Vec::new(),
            waiters: VecDeque::new(),
            due: Time::MAX,
            planned: Time::MAX,
            idle: true,
        }
    }
    fn hold_of(&mut self, owner: OwnerId) -> Option<&mut Hold> {
        self.holds.iter_mut().find(|hold| hold.owner == owner)
    }

    fn place_of(&self, owner: OwnerId) -> Option<usize> {
        self.waiters
            .iter()
            .position(|waiter| waiter.claim.owner == owner)
    }

    /// Whether the holds, and what ended holds left behind, leave room for `mode`.
    fn admits(&self, mode: Mode) -> bool {
        let mut taken = self
            .holds
            .iter()
            .map(|hold| hold.mode)
            .chain(self.reservations.iter().map(|reservation| reservation.mode));
        match mode {
            Mode::Exclusive => taken.next().is_none(),
            Mode::Shared => taken.all(|mode| mode != Mode::Exclusive),
            Mode::Permits { limit } => {
                let mut permits = 0;
                taken.all(|mode| {
                    permits += u32::from(matches!(mode, Mode::Permits { .. }));
                    mode != Mode::Exclusive && permits < limit.get()
                })
            }
        }
    }

    #[inline]
    fn grant(&mut self, claim: Claim, now: Time) -> u64 {
        self.last_token = (self.last_token + 1).max(claim.propose.unwrap_or(0));
        // Most names are only ever held by one: room for one, not for the usual four.
        if self.holds.capacity() == 0 {
            self.holds.reserve_exact(1);
        }
        self.holds.push(Hold {
            owner: claim.owner,
            mode: claim.mode,
            token: self.last_token,
            since: now,
            expires: claim.ttl.map_or(Time::MAX, |ttl| now.after(ttl)),
            min_hold: claim.min_hold,
            lock_delay: claim.lock_delay,
        });
        self.last_token
    }

    /// Ends a hold that was over at `over`, perhaps noticed only `now`.
    fn end(&mut self, at: usize, unclean: bool, over: Time, now: Time) {
        let hold = self.holds.remove(at);
        let mut until = hold.since.after(hold.min_hold);
        if unclean {
            until = until.max(over.after(hold.lock_delay));
        }
        if until > now {
            self.reservations.push(Reservation {
                mode: hold.mode,
                until,
            });
        }
    }

    /// Grants from the head of the queue while the head can be granted.
    fn serve(&mut self, now: Time, granted: &mut Vec<(OwnerId, u64)>) {
        while let Some(head) = self.waiters.front()
            && self.admits(head.claim.mode)
            && let Some(waiter) = self.waiters.pop_front()
        {
            granted.push((waiter.claim.owner, self.grant(waiter.claim, now)));
        }
    }

    fn unused(&self) -> bool {
        self.holds.is_empty() && self.reservations.is_empty() && self.waiters.is_empty()
    }

    /// When the next lease, reservation or waiter ends.
    fn next(&self) -> Time {
        let holds = self.holds.iter().map(|hold| hold.expires);
        let reserved = self
            .reservations
            .iter()
            .map(|reservation| reservation.until);
        let waiters = self.waiters.iter().map(|waiter| waiter.alive_until);
        holds
            .chain(reserved)
            .chain(waiters)
            .min()
            .unwrap_or(Time::MAX)
    }

    fn view(&self) -> View {
        let hold_view = |hold: &Hold| HoldView {
            owner: hold.owner,
            mode: hold.mode,
            token: hold.token,
            expires: (hold.expires < Time::MAX).then_some(hold.expires),
            since: hold.since,
        };
        View {
            holds: self.holds.iter().map(hold_view).collect(),
            waiters: self
                .waiters
                .iter()
                .map(|waiter| (waiter.claim.owner, waiter.claim.mode))
                .collect(),
            reserved_until: self
                .reservations
                .iter()
                .map(|reservation| reservation.until)
                .max(),
        }
    }
}

impl Hold {
    /// A lease is never shortened: a request that was sent long ago may arrive after a newer one.
    fn extend(&mut self, ttl: Option<Duration>, now: Time) {
        if let Some(ttl) = ttl {
            self.expires = self.expires.max(now.after(ttl));
        }
    }
}

impl Claim {
    #[inline]
    fn of(request: &LockRequest) -> Self {
        Self {
            owner: request.owner,
            mode: request.mode,
            ttl: request.ttl,
            min_hold: request.min_hold,
            lock_delay: request.lock_delay,
            propose: request.propose,
        }
    }
}

impl Waiter {
    fn of(request: &LockRequest, now: Time) -> Self {
        let mut waiter = Self {
            claim: Claim::of(request),
            waiter_ttl: request.waiter_ttl,
            alive_until: now,
        };
        waiter.touch(now);
        waiter
    }

    fn touch(&mut self, now: Time) {
        self.alive_until = self.waiter_ttl.map_or(Time::MAX, |ttl| now.after(ttl));
    }
}
