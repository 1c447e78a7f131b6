//! One hold's clockwork: when to renew, until when we may believe that we hold, held / at risk / lost.
//!
//! Two rules make it safe, whatever the network does:
//! - the deadline counts from *before* the request was sent, because the store may have started
//!   the lease at any moment after that, and the reply says nothing about when;
//! - only a positive answer moves the deadline. An error is neither loss nor success.
//!
//! How to drive it: call [`Lease::tick`] at [`Lease::next`] (earlier does no harm); on [`Tick::Renew`]
//! send a renewal and report its fate through exactly one of [`Lease::renewed`],
//! [`Lease::unanswered`] and [`Lease::refused`].

use std::time::Duration;

use crate::lost::LostReason;
use crate::options::Renew;
use crate::time::Time;

/// Least margin: covers the granularity of a millisecond clock in the store and on our side.
pub const MIN_MARGIN: Duration = Duration::from_millis(2);

/// First step of the backoff after a failed renewal; doubles with each further failure.
pub const FIRST_RETRY: Duration = Duration::from_millis(50);

/// Two renewals of one hold are never closer than this after a failure.
pub const MIN_RETRY: Duration = Duration::from_millis(1);

/// How much earlier than the store we stop believing: 1 % of `ttl`, at least [`MIN_MARGIN`],
/// plus the configured `drift`.
///
/// 1 % is far above what two quartz clocks differ by over one ttl (some 0.01 %).
pub fn margin(ttl: Duration, drift: Duration) -> Duration {
    (ttl / 100).max(MIN_MARGIN).saturating_add(drift)
}

/// What was asked for, as far as the lease is concerned.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Lease asked for. The granted one may differ, and counts.
    pub ttl: Duration,
    /// Extra margin for stores whose clock cannot be trusted to run like ours.
    pub drift: Duration,
    /// Whether to renew.
    pub renew: Renew,
    /// Longest hold, counted from when the winning request was sent.
    pub max_hold: Option<Duration>,
}

/// What we may believe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// We hold, and the last renewal that was due succeeded.
    Held,
    /// We hold, but a renewal failed or is overdue: the deadline may come.
    AtRisk,
    /// It is over.
    Lost(LostReason),
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tick {
    /// Nothing before [`Lease::next`].
    Wait,
    /// Send a renewal (where the store runs no lease: a check) now.
    Renew,
    /// It is over; this is the last word.
    Lost(LostReason),
}

/// The clockwork of one hold. Small: a process may have 10,000 of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Lease granted last; where the store runs none, the one asked for (it sets the pace of checks).
    pub(super) ttl: Duration,
    pub(super) drift: Duration,
    /// When the lease ends, margin taken off.
    pub(super) end: Time,
    /// When `max_hold` is over.
    pub(super) cap: Time,
    /// Before the newest request that was answered with yes.
    pub(super) sent: Time,
    /// When to send the next renewal.
    pub(super) due: Time,
    /// When the newest renewal without an answer was sent.
    pub(super) flight: Option<Time>,
    /// Failed renewals since the last yes.
    pub(super) failures: u8,
    /// The at-risk point was passed since the last yes. Remembered so that `next` leaves it behind.
    pub(super) overdue: bool,
    pub(super) leased: bool,
    pub(super) renew: bool,
    pub(super) lost: Option<LostReason>,
}

const _: () = assert!(size_of::<Lease>() <= 96);

impl Lease {
    /// The grant was seen. `sent`: before the winning request was sent; `ttl`: what the store granted
    /// from then on.
    ///
    /// `None`: the store runs no lease. Then a "renewal" is a check every third of `terms.ttl`;
    /// a failed check puts the hold at risk, but time alone never ends it, except under
    /// [`Renew::Never`]: then we end it ourselves at `sent + terms.ttl`.
    pub fn granted(terms: Terms, sent: Time, ttl: Option<Duration>) -> Self {
        let renew = terms.renew != Renew::Never;
        let end = match ttl {
            Some(ttl) => sent.after(ttl).before(margin(ttl, terms.drift)).max(sent),
            // No store will give the name away at that point, so there is nothing to stay clear of.
            None if !renew => sent.after(terms.ttl),
            None => Time::MAX,
        };
        let ttl_or_pace = ttl.unwrap_or(terms.ttl);
        Self {
            ttl: ttl_or_pace,
            drift: terms.drift,
            end,
            cap: terms
                .max_hold
                .map_or(Time::MAX, |max_hold| sent.after(max_hold)),
            sent,
            due: sent.after(ttl_or_pace / 3),
            flight: None,
            failures: 0,
            overdue: false,
            leased: ttl.is_some(),
            renew,
            lost: None,
        }
    }

    /// The instant from which on we claim nothing: `sent + ttl − margin` of the newest yes, or the end
    /// of `max_hold` if that is earlier. [`Time::MAX`] when neither exists.
    pub fn deadline(&self) -> Time {
        self.end.min(self.cap)
    }

    /// What we may believe at `now`. Never [`State::Held`] or [`State::AtRisk`] at or after the
    /// deadline, whether or not anybody called [`Lease::tick`].
    pub fn state(&self, now: Time) -> State {
        if let Some(reason) = self.lost {
            State::Lost(reason)
        } else if now >= self.deadline() {
            State::Lost(self.reason())
        } else if self.renewing() && (self.shaken() || now >= self.risk()) {
            State::AtRisk
        } else {
            State::Held
        }
    }

    /// The earliest instant at which [`Lease::tick`] says anything but [`Tick::Wait`], or at which
    /// [`Lease::state`] changes by time alone. May lie in the past: then tick now.
    /// [`Time::MAX`] when neither will happen.
    pub fn next(&self) -> Time {
        if self.lost.is_some() {
            return Time::MAX;
        }
        let mut next = self.deadline();
        if self.renewing() {
            next = next.min(self.due);
            if !self.shaken() {
                next = next.min(self.risk());
            }
        }
        next
    }

    /// What to do at `now`. [`Tick::Renew`] marks a renewal as sent: no second one is asked for while
    /// that is without an answer, unless it hangs for a third of the ttl.
    pub fn tick(&mut self, now: Time) -> Tick {
        if let Some(reason) = self.ended(now) {
            return Tick::Lost(reason);
        }
        if self.renewing() {
            self.overdue |= now >= self.risk();
            if now >= self.due {
                self.flight = Some(now);
                self.due = now.after(self.ttl / 3);
                return Tick::Renew;
            }
        }
        Tick::Wait
    }

    /// A renewal sent at `sent` was answered with yes, for `ttl` from `sent` on (`None`: a check of a
    /// store without leases; the deadline stays).
    ///
    /// The newest request that was confirmed counts, so the deadline moves forward only; the one
    /// exception is a store that now grants a shorter lease than before: then we must end earlier.
    /// Ignored when the hold is over at `now`: a late reply resurrects nothing. A fixed lease stays fixed.
    pub fn renewed(&mut self, sent: Time, ttl: Option<Duration>, now: Time) {
        if self.ended(now).is_some() || !self.renew || sent < self.sent {
            return;
        }
        self.sent = sent;
        self.failures = 0;
        self.overdue = false;
        if let Some(ttl) = ttl {
            self.leased = true;
            self.ttl = ttl;
            self.end = sent.after(ttl).before(margin(ttl, self.drift)).max(sent);
        }
        // The answer to an older renewal must not start a third one beside a younger that is on its way.
        if self.flight.is_none_or(|flight| flight <= sent) {
            self.flight = None;
            self.due = sent.after(self.ttl / 3);
        }
    }

    /// A renewal failed without a definite answer: at risk, and to be sent again after a backoff.
    ///
    /// The pause lies between [`MIN_RETRY`] and [`FIRST_RETRY`]` · 2^(failures − 1)`, at most a sixth of the
    /// ttl and half of the time left; `jitter`, a random number, picks the point in that band.
    pub fn unanswered(&mut self, now: Time, jitter: u32) {
        if self.ended(now).is_some() || !self.renewing() {
            return;
        }
        self.flight = None;
        self.failures = self.failures.saturating_add(1);
        let step = FIRST_RETRY
            .saturating_mul(1 << u32::from(self.failures - 1).min(20))
            .min(self.ttl / 6)
            .min(self.deadline().since(now) / 2);
        self.due = now.after(super::pace::fraction(step, jitter).max(MIN_RETRY));
    }

    /// The store, or whoever watches it, says definitely that the hold is over. The first reason stays.
    pub fn refused(&mut self, reason: LostReason) {
        self.lost.get_or_insert(reason);
    }

    /// Records the end by time, so that it is final whatever is reported afterwards.
    fn ended(&mut self, now: Time) -> Option<LostReason> {
        if self.lost.is_none() && now >= self.deadline() {
            self.lost = Some(self.reason());
        }
        self.lost
    }

    /// Why the deadline is where it is.
    fn reason(&self) -> LostReason {
        if self.cap <= self.end {
            LostReason::MaxHold
        } else {
            LostReason::Expired
        }
    }

    /// Whether renewals are of any use: not for a fixed lease, nor once it outlasts `max_hold`.
    fn renewing(&self) -> bool {
        self.renew && !(self.leased && self.end >= self.cap)
    }

    fn shaken(&self) -> bool {
        self.failures > 0 || self.overdue
    }

    /// From here on a renewal is overdue: it was due at a third of the ttl and has had as long again.
    fn risk(&self) -> Time {
        self.sent.after(self.ttl / 3 * 2)
    }
}
