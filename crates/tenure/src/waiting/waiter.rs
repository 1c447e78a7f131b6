//! What a waiter knows between two requests for the lock, and what it does next. Sends nothing.

use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::pace;
use tenure_core::rt::Clock;
use tenure_core::store::{Grant, Request};
use tenure_core::support::{Merge, RetryBudget, WaiterRegistry};
use tenure_core::time::Time;

/// A place in the queue, and the state of the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueuePosition {
    /// How many waiters are ahead.
    pub(crate) ahead: u64,
    /// Time until the holder's lease ends. `None`: not known, or the holder has no lease.
    pub(crate) expires_in: Option<Duration>,
    /// The token of the last grant. A wake-up about an older one was sent before this request.
    pub(crate) last_token: u64,
    /// The holder is another program, which does not wake us when it releases.
    pub(crate) is_foreign: bool,
    /// When the request was sent.
    pub(crate) sent: Time,
    /// Time between request and reply, where the store hands the lock over.
    pub(crate) round_trip: Duration,
    /// When to ask for the lock again at the latest: the place has to be kept, or a wake-up may be lost.
    pub(crate) ask_by: Time,
}

impl QueuePosition {
    /// Whether the owner may have a place in the queue. A request without one is followed by the next at once.
    pub(super) fn has_place(&self) -> bool {
        self.ask_by > self.sent
    }

    /// Whether a request would be granted now.
    pub(super) fn is_free(&self) -> bool {
        self.ahead == 0 && self.expires_in == Some(Duration::ZERO)
    }
}

/// Why a waiter wakes up.
#[cfg_attr(
    not(all(feature = "redis", feature = "postgres")),
    allow(dead_code, reason = "Redis and PostgreSQL notify, each in its own way")
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeUp {
    /// Something changed, or an earlier wake-up may be lost: ask again.
    AskAgain,
    /// Many waiters may have lost a wake-up: ask again within this time.
    AskWithin(Duration),
    /// The lock is free, or will be soon.
    Freed,
    /// The waiter is the first in the queue.
    First,
    /// No wake-ups arrive from now on.
    PushStopped,
    /// A release granted the lock to the waiter.
    HandedOver { token: u64 },
    /// A release of the same client, sent at that time or later, removed the waiter's place from the queue, or released
    /// the lock that was granted to the waiter meanwhile.
    Released { sent: Time },
}

/// Tells all waiters to ask again, one after the other.
#[cfg_attr(
    not(feature = "postgres"),
    allow(
        dead_code,
        reason = "PostgreSQL notifies all waiters over one connection"
    )
)]
pub(crate) fn wake_all(waiters: &WaiterRegistry<WakeUp>) {
    let spread = pace::spread(waiters.len());
    waiters.notify_matching(|_, _| Some(WakeUp::ask_within(spread)));
}

impl WakeUp {
    /// Ask again within this time.
    pub(crate) fn ask_within(spread: Duration) -> Self {
        match spread.is_zero() {
            true => Self::AskAgain,
            false => Self::AskWithin(spread),
        }
    }

    /// The one with the greater number makes the other superfluous.
    fn strength(self) -> u8 {
        match self {
            // A waiter that does anything else also finds out whether wake-ups arrive.
            Self::PushStopped => 0,
            Self::Freed | Self::First => 1,
            Self::AskWithin(_) => 2,
            Self::AskAgain => 3,
            // Leads to a request if it proves nothing.
            Self::HandedOver { .. } => 4,
            // A lock that was handed over is released, too.
            Self::Released { .. } => 5,
        }
    }
}

impl Merge for WakeUp {
    fn merge(self, other: Self) -> Self {
        match (self, other) {
            (Self::Freed, Self::First) | (Self::First, Self::Freed) => Self::AskAgain,
            (Self::AskWithin(one), Self::AskWithin(two)) => Self::AskWithin(one.min(two)),
            (Self::HandedOver { token: one }, Self::HandedOver { token: two }) => {
                let token = one.max(two);
                Self::HandedOver { token }
            }
            (Self::Released { sent: one }, Self::Released { sent: two }) => {
                let sent = one.max(two);
                Self::Released { sent }
            }
            _ if self.strength() < other.strength() => other,
            _ => self,
        }
    }
}

/// What a waiter does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Ask for the lock, which also keeps the place in the queue.
    Ask,
    /// Read the queue, because no wake-up tells of a change.
    ReadQueue,
    /// Sleep, for as long as is known now.
    Sleep,
    /// Hold the lock: the release of the last holder granted it.
    Hold(Grant),
    /// Nothing: a release of the same client has removed the place from the queue.
    Stop,
    /// Leave the queue.
    Leave,
}

/// One waiter, between two requests for the lock.
pub(super) struct Waiter<'a> {
    request: &'a Request,
    clock: &'a Clock,
    /// As the last reply described it.
    position: QueuePosition,
    /// For how long the place is valid that the last request took or kept.
    place: Duration,
    /// How many replies in a row found the queue as it was before.
    unchanged: u32,
    /// Until when requests that fail are sent again.
    budget: RetryBudget,
    /// When a failed request is sent again.
    retry_at: Option<Time>,
}

impl<'a> Waiter<'a> {
    pub(super) fn new(
        request: &'a Request,
        clock: &'a Clock,
        position: QueuePosition,
        place: Duration,
    ) -> Self {
        Self {
            request,
            clock,
            budget: RetryBudget::until(position.sent.after(request.ttl)),
            position,
            place,
            unchanged: 0,
            retry_at: None,
        }
    }

    /// A waiter whose first request, sent at `sent`, got no answer but this error. `None`: the request is not sent again.
    pub(super) fn unanswered(
        request: &'a Request,
        clock: &'a Clock,
        sent: Time,
        err: &Error,
    ) -> Option<Self> {
        let position = QueuePosition {
            sent,
            ask_by: sent,
            ..QueuePosition::default()
        };
        // Counts with the first request that is answered.
        let place = Duration::ZERO;
        let mut waiter = Self::new(request, clock, position, place);
        waiter.may_ask_again(err).then_some(waiter)
    }

    /// When the last request was sent that was answered, or the first one.
    pub(super) fn sent(&self) -> Time {
        self.position.sent
    }

    /// What to do if nothing wakes the waiter before, and when.
    pub(super) fn plan(&self, has_push: bool) -> (Time, Next) {
        if let Some(at) = self.retry_at {
            return (at, Next::Ask);
        }
        let (position, now) = (&self.position, self.clock.now());
        let mut plan = (position.ask_by, Next::Ask);
        // Only the first waiter has to notice that a lease has ended.
        if let (0, Some(expires_in)) = (position.ahead, position.expires_in) {
            let left = expires_in.saturating_sub(now.since(position.sent));
            let jitter = pace::FIRST * (self.clock.random() % 4);
            plan.0 = plan.0.min(now.after(left + pace::FIRST + jitter));
        }
        // A foreign holder wakes no waiter, and only the first waiter has to notice its release.
        if !has_push || (position.is_foreign && position.ahead == 0) {
            // After a change more changes may follow soon. The more waiters are ahead, the less often a waiter reads.
            let pause = pace::next(self.unchanged, self.clock.random(), None, None);
            let pause = pause.unwrap_or(pace::CAP);
            let ahead = u32::try_from(position.ahead).unwrap_or(u32::MAX);
            let read_at = now.after(pause.saturating_mul(ahead.saturating_add(1)));
            if read_at < plan.0 {
                plan = (read_at, Next::ReadQueue);
            }
        }
        plan
    }

    pub(super) fn after_wake_up(&mut self, wake_up: WakeUp) -> Next {
        match wake_up {
            WakeUp::AskAgain => Next::Ask,
            WakeUp::AskWithin(spread) => {
                let pause = pace::fraction(spread, self.clock.random());
                let ask_by = self.clock.now().after(pause);
                self.position.ask_by = self.position.ask_by.min(ask_by);
                Next::Sleep
            }
            WakeUp::Freed if self.position.ahead == 0 => Next::Ask,
            WakeUp::Freed | WakeUp::PushStopped => Next::Sleep,
            WakeUp::First => {
                self.position.ahead = 0;
                Next::Sleep
            }
            WakeUp::HandedOver { token } => match self.handed_over(token) {
                Some(grant) => Next::Hold(grant),
                // One more request makes a whole lease of what is left, or tells that the lock was lost.
                None => Next::Ask,
            },
            WakeUp::Released { sent } => {
                let replied = self.position.sent.after(self.position.round_trip);
                // A request that was sent after the release, or that has no reply, may have entered the queue again.
                match !self.has_failed() && replied <= sent {
                    true => Next::Stop,
                    false => Next::Leave,
                }
            }
        }
    }

    /// The hold that was handed over under `token`. `None`: too little is left of its lease, or the wake-up is not about
    /// a grant that still stands.
    fn handed_over(&self, token: u64) -> Option<Grant> {
        let (position, request) = (&self.position, self.request);
        // The place has been valid since before the last request, and so is the lock.
        let lease = self.place;
        let elapsed = self.clock.now().since(position.sent);
        let is_enough = elapsed <= lease / 2 && lease >= request.min_lease;
        // The wake-up may have been here for so long that the lock has expired and was granted to another owner, as the
        // reply to a later request says. A foreign hold has no token, so then the wake-up proves nothing.
        let is_news = token > position.last_token && !position.is_foreign;
        let is_handed_over = is_enough && is_news && !self.has_failed();
        is_handed_over.then(|| Grant::new(token, position.sent, position.round_trip, Some(lease)))
    }

    /// Whether the last request failed.
    pub(super) fn has_failed(&self) -> bool {
        self.retry_at.is_some()
    }

    /// The lock was asked for, and is taken. `place`: for how long the place is valid since then.
    pub(super) fn asked(&mut self, position: QueuePosition, place: Duration) {
        self.retry_at = None;
        self.place = place;
        self.update(position);
    }

    /// The queue was read, which does not keep the place.
    pub(super) fn saw(&mut self, position: QueuePosition) {
        let ask_by = position.ask_by.min(self.position.ask_by);
        self.update(QueuePosition { ask_by, ..position });
    }

    fn update(&mut self, position: QueuePosition) {
        self.budget.restart(position.sent.after(self.request.ttl));
        let seen = |it: &QueuePosition| (it.ahead, it.last_token, it.is_foreign);
        self.unchanged = match seen(&position) == seen(&self.position) {
            true => self.unchanged.saturating_add(1),
            false => 0,
        };
        self.position = position;
    }

    /// Whether the request is sent again after this error, which may pass.
    pub(super) fn may_ask_again(&mut self, err: &Error) -> bool {
        let may_pass = matches!(
            err.kind(),
            ErrorKind::Unreachable | ErrorKind::Indeterminate
        );
        let may_ask = may_pass && !self.budget.is_spent(self.clock);
        if may_ask {
            self.retry_at = Some(self.budget.next_attempt(self.clock));
        }
        may_ask
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_core::OwnerId;
    use tenure_core::name::LockName;
    use tenure_core::rt::VirtualClock;

    use super::super::places::WAITER_TTL;
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    struct Case {
        request: Request,
        clock: Clock,
        time: Arc<VirtualClock>,
        sent: Time,
    }

    impl Case {
        fn new() -> Self {
            let (clock, time) = Clock::virtual_clock();
            time.seed(7);
            let name = LockName::new("n").expect("a valid name");
            Self {
                request: Request::new(name, OwnerId::random(), TTL),
                sent: clock.now(),
                clock,
                time,
            }
        }

        fn at(&self, after: Duration) -> Time {
            self.sent.after(after)
        }

        fn waiter(&self, position: QueuePosition) -> Waiter<'_> {
            Waiter::new(&self.request, &self.clock, position, WAITER_TTL)
        }

        fn position(&self, ahead: u64, expires_in: Option<Duration>) -> QueuePosition {
            QueuePosition {
                ahead,
                expires_in,
                last_token: 3,
                is_foreign: false,
                sent: self.sent,
                round_trip: millis(2),
                ask_by: self.at(WAITER_TTL / 3),
            }
        }
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn failure(kind: ErrorKind) -> Error {
        Error::new(kind, "it failed")
    }

    /// Each combination of what a waiter may know, and how late in the wait it plans.
    #[test]
    fn the_plan_is_the_earliest_of_keeping_the_place_the_end_of_the_lease_and_a_look() {
        for ahead in [0, 1, 9, u64::MAX] {
            for lease in [None, Some(0), Some(1), Some(700), Some(60_000)] {
                for elapsed in [0, 1, 699, 701, 5_000] {
                    for is_foreign in [false, true] {
                        check_plans(ahead, lease, elapsed, is_foreign);
                    }
                }
            }
        }
    }

    fn check_plans(ahead: u64, lease: Option<u64>, elapsed: u64, is_foreign: bool) {
        let case = Case::new();
        let position = QueuePosition {
            is_foreign,
            ..case.position(ahead, lease.map(millis))
        };
        let ask_by = position.ask_by;
        let mut waiter = case.waiter(position.clone());
        case.time.advance(millis(elapsed));
        let now = case.clock.now();
        // Only the first waiter notices the end of the holder's lease, from 1 to 4 ms late.
        let lease = lease.filter(|_| ahead == 0);
        let end = |late| {
            let end = lease.map(|lease| case.at(millis(lease)).max(now).after(millis(late)));
            end.map_or(ask_by, |end| end.min(ask_by))
        };
        let (first, last) = (end(1), end(4));
        for (unchanged, has_push) in (0..12).flat_map(|n| [(n, true), (n, false)]) {
            let text = format!("{ahead} {lease:?} {elapsed} {is_foreign} {unchanged} {has_push}");
            let (at, next) = waiter.plan(has_push);
            if has_push && !(is_foreign && ahead == 0) {
                assert_eq!(next, Next::Ask, "{text}");
                assert!(at >= first && at <= last, "{text}");
                continue;
            }
            // The pause doubles with each look, up to a limit, and is longer for each waiter ahead.
            let step = pace::FIRST.saturating_mul(1 << unchanged).min(pace::CAP);
            let waiters = u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1);
            let look = |step: Duration| now.after(step.saturating_mul(waiters));
            assert!(at >= first.min(look(step / 2)), "{text}");
            assert!(at <= last.min(look(step)), "{text}");
            match next {
                Next::Ask => assert!(at >= first, "{text}"),
                next => assert_eq!(next, Next::ReadQueue, "{text}"),
            }
            if !has_push {
                waiter.saw(position.clone());
            }
        }
    }

    /// Each combination of what decides whether a wake-up proves that the waiter holds the lock.
    #[test]
    fn a_hand_over_counts_if_it_is_news_and_enough_is_left() {
        let (limit, tokens) = (millis(2_500), [2, 3, 4]);
        let elapsed = [Duration::ZERO, limit, limit + Duration::from_nanos(1)];
        let min_leases = [Duration::ZERO, WAITER_TTL, WAITER_TTL + millis(1)];
        for (token, elapsed) in tokens.into_iter().flat_map(|it| elapsed.map(|e| (it, e))) {
            for (min_lease, is_foreign) in min_leases
                .into_iter()
                .flat_map(|it| [(it, false), (it, true)])
            {
                for has_failed in [false, true] {
                    let mut case = Case::new();
                    case.request.min_lease = min_lease;
                    let mut waiter = case.waiter(QueuePosition {
                        is_foreign,
                        ..case.position(1, None)
                    });
                    if has_failed {
                        assert!(waiter.may_ask_again(&failure(ErrorKind::Unreachable)));
                    }
                    case.time.advance(elapsed);
                    let counts = token > 3
                        && elapsed <= limit
                        && min_lease <= WAITER_TTL
                        && !is_foreign
                        && !has_failed;
                    let grant = Grant::new(token, case.sent, millis(2), Some(WAITER_TTL));
                    let expected = if counts { Next::Hold(grant) } else { Next::Ask };
                    let next = waiter.after_wake_up(WakeUp::HandedOver { token });
                    assert_eq!(
                        next, expected,
                        "{token} {elapsed:?} {min_lease:?} {is_foreign} {has_failed}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_release_of_the_same_client_ends_the_wait_if_no_later_request_entered_the_queue() {
        let replied = millis(2);
        for (released, has_failed, next) in [
            (replied, false, Next::Stop),
            (replied + millis(1), false, Next::Stop),
            (replied - Duration::from_nanos(1), false, Next::Leave),
            (Duration::ZERO, false, Next::Leave),
            (replied, true, Next::Leave),
        ] {
            let case = Case::new();
            let mut waiter = case.waiter(case.position(1, None));
            if has_failed {
                assert!(waiter.may_ask_again(&failure(ErrorKind::Indeterminate)));
            }
            let sent = case.at(released);
            assert_eq!(waiter.after_wake_up(WakeUp::Released { sent }), next);
        }
    }

    #[test]
    fn a_wake_up_leads_to_a_request_if_the_lock_may_be_had() {
        for ahead in [0, 1, 9] {
            let case = Case::new();
            let after = |wake_up| {
                case.waiter(case.position(ahead, None))
                    .after_wake_up(wake_up)
            };
            let is_first = ahead == 0;
            assert_eq!(after(WakeUp::AskAgain), Next::Ask);
            let freed = if is_first { Next::Ask } else { Next::Sleep };
            assert_eq!(after(WakeUp::Freed), freed);
            assert_eq!(after(WakeUp::First), Next::Sleep);
            assert_eq!(after(WakeUp::PushStopped), Next::Sleep);
            // From then on the waiter watches the lease of the holder.
            let mut waiter = case.waiter(case.position(ahead, Some(millis(9))));
            waiter.after_wake_up(WakeUp::First);
            assert!(waiter.plan(true).0 <= case.at(millis(13)));
            assert_eq!(waiter.after_wake_up(WakeUp::Freed), Next::Ask);
        }
    }

    /// Whatever is pending first, a waiter is told the strongest.
    #[test]
    fn pending_wake_ups_are_merged_into_the_strongest() {
        let at = Time::from_nanos;
        let by_strength = [
            WakeUp::PushStopped,
            WakeUp::Freed,
            WakeUp::AskWithin(millis(2)),
            WakeUp::AskWithin(millis(1)),
            WakeUp::AskAgain,
            WakeUp::HandedOver { token: 4 },
            WakeUp::HandedOver { token: 5 },
            WakeUp::Released { sent: at(1) },
            WakeUp::Released { sent: at(2) },
        ];
        for (index, strong) in by_strength.into_iter().enumerate() {
            for weak in &by_strength[..=index] {
                assert_eq!(strong.merge(*weak), strong);
                assert_eq!(weak.merge(strong), strong);
            }
        }
        // The first waiter asks when the lock is free.
        assert_eq!(WakeUp::First.merge(WakeUp::Freed), WakeUp::AskAgain);
        assert_eq!(WakeUp::Freed.merge(WakeUp::First), WakeUp::AskAgain);
        assert_eq!(WakeUp::First.merge(WakeUp::PushStopped), WakeUp::First);
    }

    #[test]
    fn a_look_keeps_no_place() {
        let case = Case::new();
        let mut waiter = case.waiter(case.position(4, None));
        let ask_by = case.position(4, None).ask_by;
        case.time.advance(millis(1_600));
        let seen = |ahead| QueuePosition {
            sent: case.clock.now(),
            ask_by: Time::MAX,
            ..case.position(ahead, None)
        };
        waiter.saw(seen(3));
        assert_eq!(waiter.plan(true), (ask_by, Next::Ask));
        let kept = QueuePosition {
            ask_by: Time::MAX,
            ..seen(3)
        };
        waiter.asked(kept, WAITER_TTL);
        assert_eq!(waiter.plan(true), (Time::MAX, Next::Ask));
    }

    #[test]
    fn looks_are_rare_while_the_queue_is_unchanged_and_frequent_after_a_change() {
        let case = Case::new();
        let mut waiter = case.waiter(case.position(2, None));
        for _ in 0..20 {
            waiter.saw(case.position(2, None));
        }
        let pause = |waiter: &Waiter<'_>| waiter.plan(false).0.since(case.sent);
        assert!(pause(&waiter) >= pace::CAP / 2 * 3);
        let token = |last_token| QueuePosition {
            last_token,
            ..case.position(2, None)
        };
        waiter.saw(token(4));
        assert!(pause(&waiter) <= pace::FIRST * 3);
        waiter.asked(token(4), WAITER_TTL);
        waiter.asked(token(4), WAITER_TTL);
        assert!(pause(&waiter) > pace::FIRST * 3);
        let nearer = QueuePosition {
            ahead: 1,
            ..token(4)
        };
        waiter.asked(nearer, WAITER_TTL);
        assert!(pause(&waiter) <= pace::FIRST * 2);
    }

    #[test]
    fn a_failure_that_may_pass_is_followed_by_a_pause_until_the_budget_is_spent() {
        let kinds = [
            ErrorKind::Unreachable,
            ErrorKind::Indeterminate,
            ErrorKind::Denied,
            ErrorKind::Invalid,
            ErrorKind::Closed,
        ];
        for kind in kinds {
            let case = Case::new();
            let mut waiter = case.waiter(case.position(0, Some(Duration::ZERO)));
            let may_pass = matches!(kind, ErrorKind::Unreachable | ErrorKind::Indeterminate);
            assert_eq!(waiter.may_ask_again(&failure(kind)), may_pass, "{kind:?}");
            case.time.advance(TTL);
            assert!(!waiter.may_ask_again(&failure(kind)), "{kind:?}");
        }
        let case = Case::new();
        let mut waiter = case.waiter(case.position(0, None));
        for failures in 0..12 {
            assert!(waiter.may_ask_again(&failure(ErrorKind::Unreachable)));
            let step = pace::FIRST.saturating_mul(1 << failures).min(pace::CAP);
            // No look before the failed request has had its reply.
            for has_push in [true, false] {
                let (at, next) = waiter.plan(has_push);
                assert_eq!(next, Next::Ask);
                let pause = at.since(case.sent);
                assert!(pause >= step / 2 && pause <= step, "{failures}: {pause:?}");
            }
        }
        // A reply starts the budget again, from when its request was sent.
        case.time.advance(TTL - millis(1));
        let sent = case.clock.now();
        let answered = QueuePosition {
            sent,
            ..case.position(0, None)
        };
        waiter.asked(answered, WAITER_TTL);
        assert_eq!(waiter.plan(true).0, case.position(0, None).ask_by);
        case.time.advance(TTL - millis(1));
        assert!(waiter.may_ask_again(&failure(ErrorKind::Unreachable)));
        case.time.advance(millis(1));
        assert!(!waiter.may_ask_again(&failure(ErrorKind::Unreachable)));
        // So does a look: where there is no place to keep, the lock is asked for rarely.
        let sent = case.clock.now();
        waiter.saw(QueuePosition {
            sent,
            ..case.position(0, None)
        });
        assert!(waiter.may_ask_again(&failure(ErrorKind::Unreachable)));
    }
}
