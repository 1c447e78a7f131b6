//! One name of the table: its holds, its reservations and its queue.

use std::collections::VecDeque;
use std::time::Duration;

use super::data::{HoldView, LockRequest, View};
use crate::fence::OwnerId;
use crate::options::Mode;
use crate::time::Time;

/// What is known of one name. It is kept when the name is not used, because its tokens must keep growing.
#[derive(Clone, Debug)]
pub(in crate::logic) struct Slot {
    pub(in crate::logic) last_token: u64,
    pub(in crate::logic) holds: Vec<Hold>,
    pub(in crate::logic) reservations: Vec<Reservation>,
    pub(in crate::logic) waiters: VecDeque<Waiter>,
    /// When the next lease, reservation or waiter ends.
    pub(super) due: Time,
    /// The entry of the agenda that counts for this slot.
    pub(super) planned: Time,
    pub(super) idle: bool,
}

/// What an [`LockRequest`] comes to once it holds or waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who.
    pub owner: OwnerId,
    /// How.
    pub mode: Mode,
    /// Lease, from the grant on; `None`: until released.
    pub ttl: Option<Duration>,
    /// The name stays taken until this long after the grant, even past the end of the hold.
    pub min_hold: Duration,
    /// After an unclean end the name stays taken for this long.
    pub lock_delay: Duration,
    /// The token to grant under, unless the name's next one is greater.
    pub propose: Option<u64>,
}

/// What an owner does that cannot have the name at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queueing {
    /// See [`LockRequest::wait`].
    pub wait: bool,
    /// See [`LockRequest::barge`].
    pub barge: bool,
    /// See [`LockRequest::waiter_ttl`].
    pub waiter_ttl: Option<Duration>,
}

/// A hold, as the table keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Who.
    pub owner: OwnerId,
    /// How.
    pub mode: Mode,
    /// Under which number.
    pub token: u64,
    /// When it was granted.
    pub since: Time,
    /// When its lease ends; [`Time::MAX`]: it has none.
    pub expires: Time,
    /// See [`Claim::min_hold`].
    pub min_hold: Duration,
    /// See [`Claim::lock_delay`].
    pub lock_delay: Duration,
    /// The hold is upgradable, and is to become exclusive as soon as all other holds have ended.
    pub is_upgrading: bool,
}

/// What an ended hold leaves behind (`min_hold`, `lock_delay`): it conflicts as the hold did, and has no owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The mode of the hold.
    pub mode: Mode,
    /// When the reservation ends.
    pub until: Time,
}

/// A place in the queue, as the table keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// What the waiter wants.
    pub claim: Claim,
    /// The waiter is forgotten when it sent no request for this long; `None`: never.
    pub waiter_ttl: Option<Duration>,
    /// Until when the waiter is remembered.
    pub alive_until: Time,
}

/// All that the table knows of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameState {
    /// The greatest token that was granted.
    pub last_token: u64,
    /// In the order of the grants.
    pub holds: Vec<Hold>,
    /// What ended holds have left behind.
    pub reservations: Vec<Reservation>,
    /// In the order in which they will be served.
    pub waiters: VecDeque<Waiter>,
}

impl Slot {
    pub(super) fn new(last_token: u64) -> Self {
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
    pub(super) fn hold_of(&mut self, owner: OwnerId) -> Option<&mut Hold> {
        self.holds.iter_mut().find(|hold| hold.owner == owner)
    }

    pub(super) fn place_of(&self, owner: OwnerId) -> Option<usize> {
        self.waiters
            .iter()
            .position(|waiter| waiter.claim.owner == owner)
    }

    /// Whether the holds, and what ended holds left behind, leave room for `mode`.
    pub(super) fn admits(&self, mode: Mode) -> bool {
        let mut taken = self
            .holds
            .iter()
            .map(|hold| hold.mode)
            .chain(self.reservations.iter().map(|reservation| reservation.mode));
        match mode {
            Mode::Exclusive => taken.next().is_none(),
            Mode::Shared => taken.all(|mode| mode != Mode::Exclusive),
            Mode::Upgradable => {
                taken.all(|mode| !matches!(mode, Mode::Exclusive | Mode::Upgradable))
            }
            Mode::Permits { limit } => {
                let mut permits = 0;
                taken.all(|mode| {
                    permits += u32::from(matches!(mode, Mode::Permits { .. }));
                    mode != Mode::Exclusive && permits < limit.get()
                })
            }
        }
    }

    /// Whether a hold waits to become exclusive. Nothing is granted until then.
    pub(super) fn is_upgrading(&self) -> bool {
        self.holds.iter().any(|hold| hold.is_upgrading)
    }

    /// Whether there is no other hold, and nothing that another hold has left behind.
    pub(super) fn is_alone(&self, at: usize) -> bool {
        self.holds.len() == 1 && at == 0 && self.reservations.is_empty()
    }

    /// Makes a hold exclusive, under a new token, and returns the token.
    pub(super) fn upgrade(&mut self, at: usize) -> u64 {
        self.last_token += 1;
        let hold = &mut self.holds[at];
        hold.mode = Mode::Exclusive;
        hold.token = self.last_token;
        hold.is_upgrading = false;
        hold.token
    }

    #[inline]
    pub(super) fn grant(&mut self, claim: Claim, now: Time) -> u64 {
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
            is_upgrading: false,
        });
        self.last_token
    }

    /// Ends a hold that was over at `over`, perhaps noticed only `now`.
    pub(super) fn end(&mut self, at: usize, unclean: bool, over: Time, now: Time) {
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

    /// Grants from the head of the queue while the head can be granted. A hold that is to become exclusive comes first.
    pub(super) fn serve(&mut self, now: Time, granted: &mut Vec<(OwnerId, u64)>) {
        if let Some(at) = self.holds.iter().position(|hold| hold.is_upgrading) {
            if self.is_alone(at) {
                granted.push((self.holds[at].owner, self.upgrade(at)));
            }
            return;
        }
        while let Some(head) = self.waiters.front()
            && self.admits(head.claim.mode)
            && let Some(waiter) = self.waiters.pop_front()
        {
            granted.push((waiter.claim.owner, self.grant(waiter.claim, now)));
        }
    }

    pub(super) fn unused(&self) -> bool {
        self.holds.is_empty() && self.reservations.is_empty() && self.waiters.is_empty()
    }

    /// When the next lease, reservation or waiter ends.
    pub(super) fn next(&self) -> Time {
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

    pub(super) fn view(&self) -> View {
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
    pub(super) fn extend(&mut self, ttl: Option<Duration>, now: Time) {
        if let Some(ttl) = ttl {
            self.expires = self.expires.max(now.after(ttl));
        }
    }
}

impl Claim {
    #[inline]
    pub(super) fn of(request: &LockRequest) -> Self {
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

impl Queueing {
    pub(super) fn of(request: &LockRequest) -> Self {
        Self {
            wait: request.wait,
            barge: request.barge,
            waiter_ttl: request.waiter_ttl,
        }
    }
}

impl Waiter {
    pub(super) fn of(claim: Claim, waiter_ttl: Option<Duration>, now: Time) -> Self {
        let mut waiter = Self {
            claim,
            waiter_ttl,
            alive_until: now,
        };
        waiter.touch(now);
        waiter
    }

    pub(super) fn touch(&mut self, now: Time) {
        self.alive_until = self.waiter_ttl.map_or(Time::MAX, |ttl| now.after(ttl));
    }
}
