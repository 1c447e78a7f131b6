//! The lease of one hold: when to renew it, and whether the hold is held, at risk or lost.
//!
//! Two rules make it safe, whatever the network does:
//! - the deadline counts from *before* the request was sent, because the store may have started the lease at any moment
//!   after that, and the reply does not say when;
//! - only a positive answer moves the deadline. An error is neither a loss nor a success.
//!
//! How to drive it: call [`Lease::tick`] at [`Lease::next`] (earlier does no harm); on [`Tick::Renew`]
//! send a renewal and report its outcome through exactly one of [`Lease::renewed`],
//! [`Lease::unanswered`] and [`Lease::refused`].

use std::time::Duration;

use crate::lost::LostReason;
use crate::options::Renew;
use crate::time::Time;

/// The smallest margin: it covers the granularity of a millisecond clock in the store and on our side.
pub const MIN_MARGIN: Duration = Duration::from_millis(2);

/// First step of the backoff after a failed renewal; doubles with each further failure.
pub const FIRST_RETRY: Duration = Duration::from_millis(50);

/// Two renewals of one hold are never closer than this after a failure.
pub const MIN_RETRY: Duration = Duration::from_millis(1);

/// How much earlier than the store a client counts its lease as over: 1 % of `ttl`, at least [`MIN_MARGIN`],
/// plus the configured `drift`.
///
/// 1 % is far above what two quartz clocks differ by over one ttl (some 0.01 %).
pub fn margin(ttl: Duration, drift: Duration) -> Duration {
    (ttl / 100).max(MIN_MARGIN).saturating_add(drift)
}

/// What the lease needs of the options.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The lease that was asked for. The granted one may differ, and counts.
    pub ttl: Duration,
    /// An additional margin for stores whose clock may run faster than ours.
    pub drift: Duration,
    /// Whether to renew.
    pub renew: Renew,
    /// Longest hold, counted from when the winning request was sent.
    pub max_hold: Option<Duration>,
}

/// What a client may claim about its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HoldState {
    /// We hold, and the last renewal that was due succeeded.
    Held,
    /// We hold, but a renewal failed or is overdue: the deadline may come.
    AtRisk,
    /// The hold is over.
    Lost(LostReason),
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tick {
    /// Nothing before [`Lease::next`].
    Wait,
    /// Send a renewal (where the store runs no lease: a check) now.
    Renew,
    /// The hold is over, for good.
    Lost(LostReason),
}

/// The lease of one hold. It is small, because a process may have 10,000 holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The lease that was granted last. Where the store runs none: the lease that was asked for, which sets the interval
    /// of checks.
    pub(super) ttl: Duration,
    pub(super) drift: Duration,
    /// When the lease ends, less the margin.
    pub(super) end: Time,
    /// When `max_hold` is over.
    pub(super) cap: Time,
    /// Read before the newest request was sent that had a positive answer.
    pub(super) sent: Time,
    pub(super) renewal: RenewalState,
    /// The store runs a lease.
    pub(super) is_leased: bool,
    /// The terms allow renewals.
    pub(super) renew: bool,
    pub(super) lost: Option<LostReason>,
}

/// Where the renewals of one hold stand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RenewalState {
    /// When to send the next renewal.
    pub(super) due: Time,
    /// When the newest renewal without an answer was sent.
    pub(super) in_flight: Option<Time>,
    /// Failed renewals since the last positive answer.
    pub(super) failures: u8,
    /// The hold was at risk at some time since the last positive answer. Remembered so that `next` leaves that time
    /// behind.
    pub(super) is_overdue: bool,
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
            // No store gives the name to another client at that time, so no margin is needed.
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
            renewal: RenewalState {
                due: sent.after(ttl_or_pace / 3),
                in_flight: None,
                failures: 0,
                is_overdue: false,
            },
            is_leased: ttl.is_some(),
            renew,
            lost: None,
        }
    }

    /// What the newest positive answer said: when its request was sent, and the lease from then on; `None`: there is no lease.
    pub fn confirmed(&self) -> (Time, Option<Duration>) {
        (self.sent, self.is_leased.then_some(self.ttl))
    }

    /// The instant from which on we claim nothing: `sent + ttl − margin` of the newest positive answer, or the end
    /// of `max_hold` if that is earlier. [`Time::MAX`] when neither exists.
    pub fn deadline(&self) -> Time {
        self.end.min(self.cap)
    }

    /// The state at `now`. Never [`HoldState::Held`] or [`HoldState::AtRisk`] at or after the
    /// deadline, whether or not [`Lease::tick`] was called.
    pub fn state(&self, now: Time) -> HoldState {
        if let Some(reason) = self.lost {
            HoldState::Lost(reason)
        } else if now >= self.deadline() {
            HoldState::Lost(self.reason())
        } else if self.is_renewed() && (self.is_in_doubt() || now >= self.risk()) {
            HoldState::AtRisk
        } else {
            HoldState::Held
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
        if self.is_renewed() {
            next = next.min(self.renewal.due);
            if !self.is_in_doubt() {
                next = next.min(self.risk());
            }
        }
        next
    }

    /// What to do at `now`. [`Tick::Renew`] marks a renewal as sent: no second one is asked for while
    /// that is without an answer, unless it hangs for a third of the ttl.
    pub fn tick(&mut self, now: Time) -> Tick {
        if let Some(reason) = self.end_if_over(now) {
            return Tick::Lost(reason);
        }
        if self.is_renewed() {
            self.renewal.is_overdue |= now >= self.risk();
            if now >= self.renewal.due {
                self.renewal.in_flight = Some(now);
                self.renewal.due = now.after(self.ttl / 3);
                return Tick::Renew;
            }
        }
        Tick::Wait
    }

    /// A renewal that was sent at `sent` had a positive answer, for `ttl` from `sent` on (`None`: a check of a
    /// store without leases; the deadline stays).
    ///
    /// The newest request that was confirmed counts, so the deadline moves forward only; the one
    /// exception is a store that now grants a shorter lease than before: then we must end earlier.
    /// Ignored when the hold is over at `now`: a late reply never revives a hold. A fixed lease stays fixed.
    pub fn renewed(&mut self, sent: Time, ttl: Option<Duration>, now: Time) {
        if self.end_if_over(now).is_some() || !self.renew || sent < self.sent {
            return;
        }
        self.sent = sent;
        self.renewal.failures = 0;
        self.renewal.is_overdue = false;
        if let Some(ttl) = ttl {
            self.is_leased = true;
            self.ttl = ttl;
            self.end = sent.after(ttl).before(margin(ttl, self.drift)).max(sent);
        }
        // The answer to an older renewal must not start a third renewal while a newer one is on its way.
        if self.renewal.in_flight.is_none_or(|flight| flight <= sent) {
            self.renewal.in_flight = None;
            self.renewal.due = sent.after(self.ttl / 3);
        }
    }

    /// A renewal failed without a definite answer: at risk, and to be sent again after a backoff.
    ///
    /// The pause lies between [`MIN_RETRY`] and [`FIRST_RETRY`]` · 2^(failures − 1)`, at most a sixth of the
    /// ttl and half of the time left; `jitter`, a random number, picks the point in that band.
    pub fn unanswered(&mut self, now: Time, jitter: u32) {
        if self.end_if_over(now).is_some() || !self.is_renewed() {
            return;
        }
        self.renewal.in_flight = None;
        self.renewal.failures = self.renewal.failures.saturating_add(1);
        let step = FIRST_RETRY
            .saturating_mul(1 << u32::from(self.renewal.failures - 1).min(20))
            .min(self.ttl / 6)
            .min(self.deadline().since(now) / 2);
        self.renewal.due = now.after(super::pace::fraction(step, jitter).max(MIN_RETRY));
    }

    /// The store, or the session of the client, says definitely that the hold is over. The first reason stays.
    pub fn refused(&mut self, reason: LostReason) {
        self.lost.get_or_insert(reason);
    }

    /// Ends the hold if its deadline has passed; the end is final, whatever is reported afterwards.
    fn end_if_over(&mut self, now: Time) -> Option<LostReason> {
        if self.lost.is_none() && now >= self.deadline() {
            self.lost = Some(self.reason());
        }
        self.lost
    }

    /// Why the hold ends at the deadline.
    fn reason(&self) -> LostReason {
        if self.cap <= self.end {
            LostReason::MaxHold
        } else {
            LostReason::Expired
        }
    }

    /// Whether renewals are useful: not for a fixed lease, and not when the lease already lasts until `max_hold`.
    fn is_renewed(&self) -> bool {
        self.renew && !(self.is_leased && self.end >= self.cap)
    }

    fn is_in_doubt(&self) -> bool {
        self.renewal.failures > 0 || self.renewal.is_overdue
    }

    /// From this instant on a renewal is overdue: it was due at a third of the ttl, and another third has passed.
    fn risk(&self) -> Time {
        self.sent.after(self.ttl / 3 * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_millis(1_200);

    fn granted(renew: Renew) -> Lease {
        let terms = Terms {
            ttl: TTL,
            drift: Duration::ZERO,
            renew,
            max_hold: None,
        };
        Lease::granted(terms, Time::ZERO, Some(TTL))
    }

    #[test]
    fn the_pause_after_a_renewal_without_an_answer_grows_up_to_a_sixth_of_the_ttl() {
        let mut lease = granted(Renew::Automatic);
        let now = Time::ZERO.after(TTL / 3);
        for pause in [FIRST_RETRY, FIRST_RETRY * 2, TTL / 6, TTL / 6] {
            lease.unanswered(now, u32::MAX);
            assert_eq!(lease.next(), now.after(pause));
        }
    }

    #[test]
    fn a_fixed_lease_is_not_at_risk_because_of_a_renewal() {
        let mut lease = granted(Renew::Never);
        lease.unanswered(Time::ZERO, 0);
        assert_eq!(lease.state(Time::ZERO), HoldState::Held);
    }
}
