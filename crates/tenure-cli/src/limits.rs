//! Until when the command may run: the guardian's limits follow from the time that is left of the hold.

use std::time::Duration;

use crate::args::Run;
use crate::clock;
use crate::clock::NEVER;
use crate::guardian::protocol::Limits;

/// Bounds of the margin between SIGKILL and the deadline. In this time, on an overloaded machine, the guardian wakes up
/// and walks through the tree, and the tree ends. The margin is a twentieth of the lease: a hundredth was sometimes too
/// little for a lease of two seconds. It is larger when SIGTERM was late.
const KILL_MARGIN: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(500));

/// The resolution of the runtime's timers.
const MIN_UPDATE_INTERVAL: Duration = Duration::from_millis(1);

/// How limits for the command follow from what is left of the hold.
pub(crate) struct LimitRule {
    /// Time between SIGTERM and SIGKILL at the end of a lease.
    grace: Duration,
    /// Time between SIGKILL and the deadline.
    pub(crate) margin: Duration,
    /// From `--max-hold`.
    pub(crate) own: Limits,
    /// How often the limits are updated, because a renewal extends them; `None` for a hold without a lease.
    pub(crate) update_interval: Option<Duration>,
}

impl LimitRule {
    /// `remaining` is the time that is left of the hold at the instant `now`, directly after the grant.
    pub(crate) fn new(args: &Run, remaining: Duration, now: u64) -> Self {
        let ttl = args.acquire.lease.ttl;
        let drift = args.acquire.lease.drift.unwrap_or_default();
        let margin = (ttl / 20).clamp(KILL_MARGIN.0, KILL_MARGIN.1);
        // A healthy lease is renewed when a third of it has passed, so the time after that third is only reached when
        // renewals fail. The command may use two thirds of this time to end, and the updates are frequent enough to send
        // the renewed limits before that. Without a drift, these are the last third and a twelfth of the lease.
        let early = tenure_core::logic::lease::margin(ttl, drift).saturating_add(margin);
        let after_renewal = ttl.saturating_sub(ttl / 3).saturating_sub(early);
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
            grace: args.grace.min(ttl / 3).min(after_renewal * 2 / 3),
            margin,
            own,
            update_interval: (remaining != Duration::MAX)
                .then_some((ttl / 12).min(after_renewal / 6).max(MIN_UPDATE_INTERVAL)),
        }
    }

    /// The limits if `remaining` is left of the hold at the instant `now`.
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
            // The renewal comes at a third, and the guardian gets it with the next update.
            let passed_on = clock::after(NOW, ttl_left / 3 + rule.update_interval.unwrap());
            assert!(passed_on < limits.term_at, "{ttl}, {drift}");
            assert!(limits.kill_at < clock::after(NOW, left), "{ttl}, {drift}");
        }
    }

    #[test]
    fn without_a_lease_the_only_limit_is_max_hold() {
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
