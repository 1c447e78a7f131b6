//! How a message is delivered: in time, late, twice or not at all.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::rt::Flag;

use crate::random::Random;
use crate::state::{FaultLevel, Simulation};

/// The time limit of a request.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the store keeps a waiter whose connection is gone.
pub(crate) const WAITER_TTL: Duration = Duration::from_secs(3);
/// The longest delay of a message.
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(20);

#[derive(Clone)]
pub(crate) struct Transport {
    pub(crate) simulation: Arc<Simulation>,
    pub(crate) client: usize,
    pub(crate) is_dead: Arc<Flag>,
}

/// The delays of the request and of its reply; `None`: the message is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivery {
    pub(crate) there: Option<Duration>,
    pub(crate) back: Option<Duration>,
    /// The request arrives a second time, this much later.
    pub(crate) again: Option<Duration>,
}

impl Transport {
    pub(crate) fn delivery(&self) -> Delivery {
        let mut state = self.simulation.state();
        let (any_fault, few_losses) = match state.faults.level {
            FaultLevel::Everything => (true, false),
            FaultLevel::FewLosses => (false, true),
            FaultLevel::NoNew | FaultLevel::Nothing => (false, false),
        };
        let mut faults = 0;
        let mut leg = |random: &mut Random| {
            let usual = random.millis(1, 15);
            if few_losses && random.one_in(12) {
                faults += 1;
                return None;
            }
            if !any_fault {
                return Some(usual);
            }
            let delivery = match random.below(60) {
                0 | 1 => None,
                2 | 3 => Some(random.any_length(2_500)),
                4 => Some(random.any_length(MAX_DELAY.as_millis() as u64)),
                _ => return Some(usual),
            };
            faults += 1;
            delivery
        };
        let (there, back) = (leg(&mut state.random), leg(&mut state.random));
        let again = (any_fault && state.random.one_in(40)).then(|| {
            faults += 1;
            state.random.any_length(MAX_DELAY.as_millis() as u64)
        });
        state.counts.messages += 2;
        state.counts.message_faults += faults;
        Delivery { there, back, again }
    }

    pub(crate) fn passes(&self) -> bool {
        let state = self.simulation.state();
        !state.faults.is_down && !state.links[self.client].is_cut
    }

    /// Whether the message arrives.
    pub(crate) async fn travels(&self, leg: Option<Duration>) -> bool {
        let Some(leg) = leg.filter(|_| self.passes()) else {
            return false;
        };
        self.simulation.sleep(leg).await;
        self.passes()
    }

    pub(crate) fn note(&self, what: &'static str, name: &'static str, number: u64) {
        self.simulation.note(self.client, what, name, number);
    }
}
