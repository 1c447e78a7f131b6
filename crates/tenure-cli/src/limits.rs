//! Until when the command may run: from what is left of the hold to the guardian's orders.

use std::time::Duration;

use crate::args::Run;
use crate::clock;
use crate::clock::NEVER;
use crate::guardian::protocol::Limits;

/// How much earlier than the deadline the last signal goes out: time for the guardian to wake up and to look through
/// the tree, and for the tree to end, on a machine that has more to do than it can. One twentieth of the lease, within
/// these bounds: a hundredth was too little for a lease of two seconds, now and then. More where TERM was late.
const KILL_MARGIN: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(500));

/// A timer of the runtime is no finer.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);

/// How limits for the command follow from what is left of the hold.
pub(crate) struct LimitRule {
    /// Between TERM and KILL at the end of a lease.
    grace: Duration,
    pub(crate) margin: Duration,
    /// From `--max-hold`.
    pub(crate) own: Limits,
    /// How often to look for an extension; `None` where no lease runs.
    pub(crate) update_interval: Option<Duration>,
}

impl LimitRule {
    /// `remaining` of the hold at the instant `now`, which is that of the grant.
    pub(crate) fn new(args: &Run, remaining: Duration, now: u64) -> Self {
        let ttl = args.acquire.lease.ttl;
        let drift = args.acquire.lease.drift.unwrap_or_default();
        let margin = (ttl / 20).clamp(KILL_MARGIN.0, KILL_MARGIN.1);
        // A healthy lease is renewed when a third of it has passed. So what lies behind that is never reached unless
        // something is wrong. Of it the command may use two thirds to end, and a look comes in time to pass the
        // renewal on; without a drift these are the last third of the lease and a look per twelfth.
        let early = tenure_core::logic::lease::margin(ttl, drift).saturating_add(margin);
        let behind = ttl.saturating_sub(ttl / 3).saturating_sub(early);
        let own = args
            .acquire
            .lease
            .max_hold
            .map_or(Limits::NONE, |max_hold| {
                let term_at = clock::after(now, max_hold);
                Limits {
                    term_at,
                    kill_at: clock::after(term_at, args.grace),
                }
            });
        Self {
            grace: args.grace.min(ttl / 3).min(behind * 2 / 3),
            margin,
            own,
            update_interval: (remaining != Duration::MAX)
                .then_some((ttl / 12).min(behind / 6).max(SHORTEST_LOOK)),
        }
    }

    /// The limits when `remaining` is left of the hold at the instant `now`.
    pub(crate) fn at(&self, now: u64, remaining: Duration) -> Limits {
        let deadline = if remaining == Duration::MAX {
            NEVER
        } else {
            clock::after(now, remaining)
        };
        let kill_at = clock::before(deadline, self.margin);
        let lease = Limits {
            term_at: clock::before(kill_at, self.grace),
            kill_at,
        };
        lease.min(self.own)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Action, Cli};

    const SECOND: u64 = 1_000_000_000;
    const NOW: u64 = 1_000 * SECOND;

    fn rule(options: &[&str], remaining: Duration) -> LimitRule {
        let arguments = [&["tenure", "run"], options, &["x", "--", "true"]].concat();
        match Cli::try_parse_from(arguments).unwrap().action {
            Action::Run(args) => LimitRule::new(&args, remaining, NOW),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn kill_lands_before_the_deadline_and_term_a_grace_time_earlier() {
        let left = Duration::from_secs(30);
        let limits = rule(&[], left).at(NOW, left);
        assert_eq!(limits.kill_at, NOW + 30 * SECOND - SECOND / 2);
        assert_eq!(limits.term_at, limits.kill_at - 5 * SECOND);
    }

    #[test]
    fn a_healthy_lease_never_reaches_its_term() {
        for (ttl, drift, millis) in [
            ("60ms", "0", 60),
            ("1s", "0", 1_000),
            ("5s", "0", 5_000),
            ("30s", "0", 30_000),
            ("1h", "0", 3_600_000),
            ("60ms", "20ms", 60),
            ("5s", "2500ms", 5_000),
            ("30s", "10s", 30_000),
            ("30s", "15s", 30_000),
            ("1h", "30m", 3_600_000),
        ] {
            let ttl_left = Duration::from_millis(millis);
            let drift_left = crate::duration::parse(drift).unwrap();
            let left = ttl_left - tenure_core::logic::lease::margin(ttl_left, drift_left);
            let options = ["--ttl", ttl, "--drift", drift, "--grace", "1h"];
            let rule = rule(&options, left);
            let limits = rule.at(NOW, left);
            // The renewal comes at a third, and is passed on with the next look.
            let passed_on = clock::after(NOW, ttl_left / 3 + rule.update_interval.unwrap());
            assert!(passed_on < limits.term_at, "{ttl}, {drift}");
            assert!(limits.kill_at < clock::after(NOW, left), "{ttl}, {drift}");
        }
    }

    #[test]
    fn where_no_lease_runs_there_is_no_limit_but_our_own() {
        let none = rule(&[], Duration::MAX);
        assert_eq!(none.at(NOW, Duration::MAX), Limits::NONE);
        assert_eq!(none.update_interval, None);
        let own = rule(&["--max-hold", "1m", "--grace", "2s"], Duration::MAX);
        let limits = own.at(NOW + 50 * SECOND, Duration::MAX);
        assert_eq!(
            limits,
            Limits {
                term_at: NOW + 60 * SECOND,
                kill_at: NOW + 62 * SECOND
            }
        );
    }

    #[test]
    fn a_lost_hold_has_no_time_left() {
        let left = Duration::from_secs(30);
        let limits = rule(&[], left).at(NOW, Duration::ZERO);
        assert!(limits.term_at < NOW && limits.kill_at < NOW);
    }
}
