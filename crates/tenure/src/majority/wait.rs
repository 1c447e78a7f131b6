//! The waiter's side: when a waiter that has some nodes and no majority gives them back, and when it asks a node again.
//!
//! Each node hands the name over in the order of its own queue. Where those orders differ, several contenders have some
//! nodes each and none has a majority. Then the contender with the first node that answers comes next: it keeps its nodes
//! for long, and the others give theirs back after a short, random time. Contenders that cannot reach the same nodes may
//! disagree on the first one; in their random times, too, one of them soon gets its majority.
//! (`logic/tests/split_search.rs`: there is a way out of every state.)

use std::time::Duration;

use tenure_core::logic::pace;
use tenure_core::rt::Clock;
use tenure_core::time::Time;

/// How long a node is not asked after it was given back or has refused us, as a share of the ttl: a holder that lost
/// this node renews every third of its ttl, and gets the chance to be granted the node again.
const NODE_COOLDOWN_DIVISOR: u32 = 8;

/// The longest of these pauses, so that a node that is back is noticed soon.
const MAX_NODE_COOLDOWN: Duration = Duration::from_secs(2);

/// How long an acquisition keeps nodes that are no majority.
#[derive(Default)]
pub(super) struct Shortage {
    /// The longest round trip seen.
    round_trip: Duration,
    /// Since when there are some nodes and no majority, and what chance says about how long that may last.
    since: Option<(Time, u32)>,
}

impl Shortage {
    pub(super) fn note_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = self.round_trip.max(round_trip);
    }

    pub(super) fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// There are some nodes and no majority: the other nodes have to grant soon.
    pub(super) fn begin(&mut self, clock: &Clock) {
        if self.since.is_none() {
            self.since = Some((clock.now(), clock.random()));
        }
    }

    /// There is no node that another contender could need.
    pub(super) fn end(&mut self) {
        self.since = None;
    }

    /// When `held` nodes are given back: the more nodes, the later. `has_first`: the first node is one of them.
    pub(super) fn give_back_at(&self, held: usize, has_first: bool, ttl: Duration) -> Time {
        let held = u32::try_from(held).unwrap_or(u32::MAX);
        self.since.map_or(Time::MAX, |(since, random)| {
            let pause = pace::give_back_pause(has_first, random, self.round_trip, ttl);
            since.after(pause.saturating_mul(held))
        })
    }
}

/// When a node that was given back or has refused us is asked again.
pub(super) fn ask_again_at(clock: &Clock, ttl: Duration) -> Time {
    let longest = (ttl / NODE_COOLDOWN_DIVISOR).min(MAX_NODE_COOLDOWN);
    let cooldown = longest / 2 + pace::fraction(longest / 2, clock.random());
    clock.now().after(cooldown)
}

/// Never resolves for [`Time::MAX`].
pub(super) async fn sleep_until(clock: &Clock, at: Time) {
    if at == Time::MAX {
        std::future::pending::<()>().await;
    }
    clock.sleep_until(at).await;
}
