//! Elections: in which order an observer sees leaders, when it reads the store again, and when a candidate pauses.

use std::time::Duration;

use super::pace::fraction;
use crate::leader::{Leader, Sighting};

/// How long an observer trusts a store that pushes changes before it reads the store again: a push may get lost.
pub const RESYNC_INTERVAL: Duration = Duration::from_secs(30);

/// How long an observer waits for the first push, which says what the store has now, before it reads the store.
pub const FIRST_PUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The most that is added to the end of a lease before an observer reads whether the leader is gone, so that observers do
/// not read at the same moment.
pub const MAX_EXPIRY_JITTER: Duration = Duration::from_millis(500);

/// After so many reads in a row of terms that are older than what was seen, the store has forgotten its tokens; a server that lags
/// behind has caught up by then.
pub const MAX_OLDER_READS: u32 = 3;

/// Upper end of the pause of an observer after the first read that failed.
pub const FIRST_RETRY: Duration = Duration::from_millis(50);

/// How often an observer reads the store while it still shows a leader whose lease is over.
const EXPIRED_INTERVAL: Duration = Duration::from_millis(100);

/// Upper end of every pause of an observer whose store does not answer: how late the observer sees that the store is back.
pub const MAX_RETRY: Duration = Duration::from_secs(2);

/// Upper end of the pause of a candidate after its first short term.
pub const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Upper end of every pause of a candidate.
pub const MAX_PAUSE: Duration = Duration::from_secs(30);

/// A term that lasted this long was no failure at once: the pauses begin again with the shortest.
pub const STEADY_TERM: Duration = Duration::from_secs(60);

/// The order in which one observer sees leaders.
///
/// # Rules
/// - Each term is seen once, and in the order of the tokens; each value of a term at most once, and in the order of its number.
/// - A term is over for good: after "nobody leads", with a last token that is at least that of the term, no sighting of the
///   term counts any more.
/// - A sighting that is older than what was seen is not seen: a reply that was late, or a server that lags behind.
/// - Where a store does not know its tokens, what it says counts in the order in which it says it.
#[derive(Clone, Debug, Default)]
pub struct LeaderOrder {
    position: Position,
    /// `None`: the observer does not know who leads.
    seen: Option<Option<Leader>>,
}

/// How far an observer has come. The fields are in the order in which they count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    token: u64,
    /// The term of this token has ended.
    is_over: bool,
    /// That of the value.
    number: u64,
}

/// What a sighting is to an observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The observer is told.
    New,
    /// The observer knows it.
    Known,
    /// It is older than what the observer has seen.
    Older,
}

impl LeaderOrder {
    /// Takes what the store says.
    pub fn see(&mut self, sighting: &Sighting) -> Seen {
        let position = self.position_of(sighting);
        if position < self.position {
            return Seen::Older;
        }
        let is_new = match (&self.seen, &sighting.leader) {
            (None, _) => true,
            (Some(None), None) => false,
            (Some(Some(seen)), Some(leader)) => !is_same(seen, leader),
            (Some(_), _) => true,
        };
        self.position = position;
        if !is_new {
            return Seen::Known;
        }
        self.seen = Some(sighting.leader.clone());
        Seen::New
    }

    /// Whether the sighting is of the last term that the observer has seen. An older sighting of that term is no sign of lost
    /// tokens: where a wall clock ends leases and goes back, a term that is over is there again for a while.
    pub fn is_of_last_term(&self, sighting: &Sighting) -> bool {
        self.position_of(sighting).token == self.position.token
    }

    /// The store did not answer, and the observer was told: the next sighting is new to it, unless it is older than what was
    /// seen.
    pub fn forget(&mut self) {
        self.seen = None;
    }

    fn position_of(&self, sighting: &Sighting) -> Position {
        let Some(leader) = &sighting.leader else {
            return match sighting.last_token {
                0 => self.position,
                token => Position {
                    token,
                    is_over: true,
                    number: 0,
                },
            };
        };
        let number = leader.holder.value.as_ref().map_or(0, |value| value.number);
        match leader.token {
            Some(token) => Position {
                token: token.get(),
                is_over: false,
                number,
            },
            // A holder of another library, which has no token.
            None => self.position,
        }
    }
}

/// Whether an observer would be told the same twice. When the term began is computed from a clock, and may differ.
fn is_same(a: &Leader, b: &Leader) -> bool {
    let text = |leader: &Leader| leader.value().map(str::to_owned);
    match (a.token, b.token) {
        (Some(_), Some(_)) => a.token == b.token && text(a) == text(b),
        (None, None) => {
            let of = |it: &Leader| {
                (
                    it.holder.host.clone(),
                    it.holder.pid,
                    it.holder.client.clone(),
                )
            };
            of(a) == of(b) && text(a) == text(b)
        }
        _ => false,
    }
}

/// How long after a sighting an observer reads the store again. `poll` is the pace of a store that does not push.
///
/// A store that pushes says nothing when a lease ends and nobody asks for the name; so the end of the lease is a time to read.
/// A leader that renews its lease costs each observer one read for each ttl.
pub fn next_read(ttl_left: Option<Duration>, poll: Option<Duration>, random: u32) -> Duration {
    if let Some(poll) = poll {
        return poll - fraction(poll / 4, random);
    }
    let resync = RESYNC_INTERVAL - fraction(RESYNC_INTERVAL / 4, random);
    let Some(left) = ttl_left else {
        return resync;
    };
    // A lease that is over and not cleared yet. A server may keep it so for long.
    if left.is_zero() {
        return EXPIRED_INTERVAL - fraction(EXPIRED_INTERVAL / 4, random);
    }
    let jitter = fraction((left / 16).min(MAX_EXPIRY_JITTER), random);
    let at_the_end = left
        .saturating_add(Duration::from_millis(1))
        .saturating_add(jitter);
    at_the_end.min(resync)
}

/// How long an observer pauses after `failures` reads without an answer (the first is 0).
pub fn retry_pause(failures: u32, random: u32) -> Duration {
    grown(FIRST_RETRY, MAX_RETRY, failures, random)
}

/// The pauses of one observer before it asks a store again to push, after pushes that have ended without an error.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReopenPauses {
    /// Ends in a row that came at once.
    ends: u32,
}

impl ReopenPauses {
    /// How long to pause after pushes that `lasted` so long. A store that ends them at once is asked less and less often.
    pub fn after(&mut self, lasted: Duration, random: u32) -> Duration {
        if lasted >= MAX_RETRY {
            self.ends = 0;
        }
        let pause = retry_pause(self.ends, random);
        self.ends = self.ends.saturating_add(1);
        pause
    }
}

/// Drawn from the upper half of `first · 2^failures`, at most `most`.
fn grown(first: Duration, most: Duration, failures: u32, random: u32) -> Duration {
    let step = first.saturating_mul(1 << failures.min(20)).min(most);
    step / 2 + fraction(step / 2, random)
}

/// How an attempt to lead ended, after which the candidate campaigns again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermEnd {
    /// The campaign failed after so long: the store did not answer.
    NotElected(Duration),
    /// The body returned an error after so long.
    Failed(Duration),
    /// The term was lost after so long.
    Lost(Duration),
}

/// The pauses of one candidate between its campaigns.
#[derive(Clone, Copy, Debug, Default)]
pub struct CampaignPauses {
    /// Attempts in a row that ended at once.
    failures: u32,
}

impl CampaignPauses {
    /// How long to pause before the next campaign. The pause is drawn from the upper half of a step that doubles with each
    /// attempt in a row that ended at once, so that a body that cannot work leaves the leadership to others.
    pub fn after(&mut self, end: TermEnd, random: u32) -> Duration {
        match end {
            TermEnd::Lost(lasted) if lasted >= STEADY_TERM => {
                self.failures = 0;
                return Duration::ZERO;
            }
            TermEnd::NotElected(lasted) | TermEnd::Failed(lasted) if lasted >= STEADY_TERM => {
                self.failures = 0;
            }
            TermEnd::NotElected(_) | TermEnd::Failed(_) | TermEnd::Lost(_) => {}
        }
        let pause = grown(FIRST_PAUSE, MAX_PAUSE, self.failures, random);
        self.failures = self.failures.saturating_add(1);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::FencingToken;
    use crate::holder::{HoldInfo, Holder, PublishedValue};
    use crate::options::Mode;

    fn leader(token: u64, number: u64) -> Sighting {
        let holder = Holder {
            value: Some(PublishedValue::new(format!("value {number}"), number)),
            ..Holder::new("h", 1)
        };
        Sighting::of_hold(HoldInfo::new(holder, Mode::Exclusive, Some(token), None))
    }

    fn nobody(last_token: u64) -> Sighting {
        Sighting::of_nobody(last_token)
    }

    fn foreign(host: &str) -> Sighting {
        let holder = Holder::new(host, 0);
        Sighting::of_hold(HoldInfo::new(holder, Mode::Exclusive, None, None))
    }

    fn seen(sightings: &[Sighting]) -> Vec<bool> {
        let mut order = LeaderOrder::default();
        let is_new = |it| order.see(it) == Seen::New;
        sightings.iter().map(is_new).collect()
    }

    #[test]
    fn each_term_and_each_value_is_seen_once_and_in_order() {
        let sightings = [
            nobody(0),
            leader(3, 0),
            leader(3, 0),
            leader(3, 1),
            leader(3, 0),
            nobody(3),
            nobody(3),
            leader(3, 2),
            leader(5, 0),
            leader(3, 2),
            nobody(4),
            nobody(6),
            leader(7, 0),
        ];
        let new = [
            true, true, false, true, false, true, false, false, true, false, false, true, true,
        ];
        assert_eq!(seen(&sightings), new);
    }

    /// Every course of 6 sightings of two terms with two values each, in any order and any number of times.
    #[test]
    fn no_course_of_sightings_goes_backwards() {
        // In the order in which they are true.
        let all = [
            leader(1, 0),
            leader(1, 1),
            nobody(1),
            leader(2, 0),
            leader(2, 1),
            nobody(2),
        ];
        let is_nobody = |at: usize| all[at].leader.is_none();
        // The observer, what it was told last, and the last that it has heard of.
        let mut courses = vec![(LeaderOrder::default(), None, None)];
        for _ in 0..6 {
            let mut next = Vec::new();
            for (order, told, heard) in &courses {
                for (at, sighting) in all.iter().enumerate() {
                    let (mut order, mut told, mut heard) = (order.clone(), *told, *heard);
                    let is_later = heard < Some(at);
                    let is_told_already = is_nobody(at) && told.is_some_and(is_nobody);
                    let seen = order.see(sighting);
                    let is_new = is_later && !is_told_already;
                    assert_eq!(seen == Seen::New, is_new, "{at} after {heard:?}");
                    let is_older = Some(at) < heard;
                    assert_eq!(seen == Seen::Older, is_older, "{at} after {heard:?}");
                    if is_new {
                        told = Some(at);
                    }
                    heard = heard.max(Some(at));
                    next.push((order, told, heard));
                }
            }
            courses = next;
        }
    }

    #[test]
    fn after_an_outage_the_leader_is_told_again_and_an_older_one_is_not() {
        let mut order = LeaderOrder::default();
        assert_eq!(order.see(&leader(5, 1)), Seen::New);
        order.forget();
        assert_eq!(order.see(&leader(4, 0)), Seen::Older);
        assert_eq!(order.see(&leader(5, 0)), Seen::Older);
        assert_eq!(order.see(&leader(5, 1)), Seen::New);
        assert_eq!(order.see(&leader(5, 1)), Seen::Known);
    }

    #[test]
    fn a_term_that_is_over_and_there_again_is_of_the_last_term() {
        let mut order = LeaderOrder::default();
        order.see(&leader(5, 1));
        assert_eq!(order.see(&nobody(5)), Seen::New);
        for again in [leader(5, 1), leader(5, 0)] {
            assert_eq!(order.see(&again), Seen::Older);
            assert!(order.is_of_last_term(&again));
        }
        for older in [leader(4, 0), nobody(4)] {
            assert_eq!(order.see(&older), Seen::Older);
            assert!(!order.is_of_last_term(&older));
        }
        assert_eq!(order.see(&leader(6, 0)), Seen::New);
    }

    #[test]
    fn a_store_without_tokens_is_believed_in_its_order() {
        let sightings = [
            foreign("a"),
            foreign("a"),
            nobody(0),
            foreign("b"),
            leader(9, 0),
            nobody(0),
            leader(9, 0),
            leader(8, 0),
            foreign("a"),
        ];
        let new = [true, false, true, true, true, true, true, false, true];
        assert_eq!(seen(&sightings), new);
        // The same process, with another value.
        let holder = |value: &str| Holder {
            value: Some(PublishedValue::new(value, 0)),
            ..Holder::new("a", 0)
        };
        let of = |holder| Sighting::of_hold(HoldInfo::new(holder, Mode::Exclusive, None, None));
        let sightings = ["x", "x", "y"].map(|value| of(holder(value)));
        assert_eq!(seen(&sightings), [true, false, true]);
    }

    #[test]
    fn a_new_observer_has_seen_nothing() {
        let token = Some(FencingToken::new(1));
        let sighting = leader(1, 0);
        assert_eq!(sighting.leader.as_ref().and_then(|it| it.token), token);
        assert_eq!(seen(&[sighting]), [true]);
        assert_eq!(seen(&[nobody(0), nobody(0)]), [true, false]);
    }

    #[test]
    fn an_observer_reads_at_the_end_of_the_lease_and_from_time_to_time() {
        let secs = Duration::from_secs;
        let (none, most) = (0, u32::MAX);
        assert_eq!(next_read(None, None, none), RESYNC_INTERVAL);
        assert_eq!(next_read(None, None, most), RESYNC_INTERVAL * 3 / 4);
        let end = next_read(Some(secs(10)), None, none);
        assert_eq!(end, secs(10) + Duration::from_millis(1));
        let end = next_read(Some(secs(10)), None, most);
        assert!(end <= secs(10) + MAX_EXPIRY_JITTER + Duration::from_millis(1));
        let end = next_read(Some(Duration::from_millis(160)), None, most);
        assert_eq!(end, Duration::from_millis(160 + 160 / 16 + 1));
        let expired = next_read(Some(Duration::ZERO), None, most);
        assert_eq!(expired, EXPIRED_INTERVAL * 3 / 4);
        assert_eq!(next_read(Some(secs(3600)), None, none), RESYNC_INTERVAL);
        let poll = Some(secs(1));
        assert_eq!(next_read(Some(secs(30)), poll, none), secs(1));
        assert_eq!(
            next_read(None, poll, most),
            Duration::from_millis(750),
            "jitter only makes a poll earlier"
        );
    }

    #[test]
    fn pauses_grow_with_terms_that_end_at_once_and_a_steady_term_ends_that() {
        let mut pauses = CampaignPauses::default();
        let at_once = TermEnd::Failed(Duration::ZERO);
        let most = u32::MAX;
        let mut last = Duration::ZERO;
        for _ in 0..9 {
            let pause = pauses.after(at_once, most);
            assert!(pause > last, "{pause:?} after {last:?}");
            last = pause;
        }
        assert_eq!(pauses.after(at_once, most), MAX_PAUSE);
        let not_elected = TermEnd::NotElected(Duration::ZERO);
        assert_eq!(pauses.after(not_elected, 0), MAX_PAUSE / 2);
        let short_loss = TermEnd::Lost(Duration::from_secs(1));
        assert_eq!(pauses.after(short_loss, most), MAX_PAUSE);
        assert_eq!(pauses.after(TermEnd::Lost(STEADY_TERM), 0), Duration::ZERO);
        assert_eq!(pauses.after(at_once, most), FIRST_PAUSE);
        assert_eq!(pauses.after(at_once, most), FIRST_PAUSE * 2);
        let failed_late = TermEnd::Failed(STEADY_TERM);
        assert_eq!(pauses.after(failed_late, most), FIRST_PAUSE);
        assert_eq!(pauses.after(at_once, most), FIRST_PAUSE * 2);
        // A process may stand by for days before its campaign fails.
        let stood_by = TermEnd::NotElected(STEADY_TERM);
        assert_eq!(pauses.after(stood_by, most), FIRST_PAUSE);
    }

    #[test]
    fn an_observer_of_a_silent_store_asks_less_and_less_often() {
        assert_eq!(retry_pause(0, u32::MAX), FIRST_RETRY);
        assert_eq!(retry_pause(1, 0), FIRST_RETRY);
        assert_eq!(retry_pause(u32::MAX, u32::MAX), MAX_RETRY);
    }

    #[test]
    fn pushes_that_end_at_once_are_asked_for_less_and_less_often() {
        let mut pauses = ReopenPauses::default();
        let (at_once, most) = (Duration::ZERO, u32::MAX);
        assert_eq!(pauses.after(at_once, most), FIRST_RETRY);
        assert_eq!(pauses.after(at_once, most), FIRST_RETRY * 2);
        for _ in 0..10 {
            pauses.after(at_once, most);
        }
        assert_eq!(pauses.after(at_once, most), MAX_RETRY);
        assert_eq!(pauses.after(MAX_RETRY, most), FIRST_RETRY);
    }
}
