//! How a message travels: late, twice or not at all.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::rt::Flag;

use crate::random::Random;
use crate::world::{Weather, World};

/// The time limit of a request.
pub(crate) const LIMIT: Duration = Duration::from_secs(1);
/// How long the store keeps the place of a waiter whose connection is gone.
pub(crate) const PLACE: Duration = Duration::from_secs(3);
/// No message takes longer.
pub(crate) const LATEST: Duration = Duration::from_secs(20);

#[derive(Clone)]
pub(crate) struct Way {
    pub(crate) world: Arc<World>,
    pub(crate) client: usize,
    pub(crate) is_dead: Arc<Flag>,
}

/// What becomes of one request: how long each leg takes, `None` if it does not arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    pub(crate) there: Option<Duration>,
    pub(crate) back: Option<Duration>,
    /// It arrives once more, so much later.
    pub(crate) again: Option<Duration>,
}

impl Way {
    pub(crate) fn fate(&self) -> Fate {
        let mut state = self.world.state();
        let (storm, drizzle) = match state.weather {
            Weather::Storm => (true, false),
            Weather::Drizzle => (false, true),
            Weather::Calm | Weather::Fair => (false, false),
        };
        let mut faults = 0;
        let mut leg = |random: &mut Random| {
            let usual = random.millis(1, 15);
            if drizzle && random.one_in(12) {
                faults += 1;
                return None;
            }
            if !storm {
                return Some(usual);
            }
            let fate = match random.below(60) {
                0 | 1 => None,
                2 | 3 => Some(random.any_length(2_500)),
                4 => Some(random.any_length(LATEST.as_millis() as u64)),
                _ => return Some(usual),
            };
            faults += 1;
            fate
        };
        let (there, back) = (leg(&mut state.random), leg(&mut state.random));
        let again = (storm && state.random.one_in(40)).then(|| {
            faults += 1;
            state.random.any_length(LATEST.as_millis() as u64)
        });
        state.counts.messages += 2;
        state.counts.message_faults += faults;
        Fate { there, back, again }
    }

    pub(crate) fn passes(&self) -> bool {
        let state = self.world.state();
        !state.is_down && !state.links[self.client].is_cut
    }

    /// Whether the message arrives.
    pub(crate) async fn travels(&self, leg: Option<Duration>) -> bool {
        let Some(leg) = leg.filter(|_| self.passes()) else {
            return false;
        };
        self.world.sleep(leg).await;
        self.passes()
    }

    pub(crate) fn note(&self, what: &'static str, name: &'static str, number: u64) {
        self.world.note(self.client, what, name, number);
    }
}
