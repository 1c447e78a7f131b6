//! A request about a hold that each node answers with yes or no, and what these answers are together.

use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::logic::quorum::{Tally, Verdict};

use super::errors::{no_answer, no_majority};
use super::requests::NodeRequests;
use super::store::Store;

/// What the nodes answered.
pub(super) struct Answers {
    pub(super) tally: Tally,
    /// An error for each node whose answer is unknown.
    pub(super) errors: Vec<Error>,
    nodes: usize,
}

/// Waits until a majority says yes, or all nodes have answered, or as long as a request about a hold with this ttl may take.
/// What is under way then goes on in the background.
pub(super) async fn answers(
    store: &Store,
    ttl: Duration,
    mut requests: NodeRequests<Result<bool, Error>>,
) -> Answers {
    let nodes = store.nodes.len();
    let timeout = store.settings.hold_timeout_for(ttl);
    let until = store.clock.now().after(timeout);
    let mut answers = Answers {
        tally: Tally::new(nodes),
        errors: Vec::new(),
        nodes,
    };
    while answers.tally.verdict() != Verdict::Won
        && let Some((node, answer)) = requests.next_until(&store.clock, until).await
    {
        answers.count(node, answer);
    }
    while let Some((node, answer)) = requests.next_arrived() {
        answers.count(node, answer);
    }
    let silent = (0..nodes).filter(|node| requests.is_open(*node));
    answers.errors.extend(silent.map(|_| no_answer(timeout)));
    requests.finish_in(&store.background);
    answers
}

impl Answers {
    fn count(&mut self, node: usize, answer: Result<bool, Error>) {
        match answer {
            Ok(true) => self.tally.yes(node),
            Ok(false) => self.tally.no(node),
            Err(err) => {
                self.errors.push(err);
                self.tally.unknown(node)
            }
        };
    }

    /// The answer of a majority. `what` says what the nodes did if there is none.
    pub(super) fn outcome(self, what: &str) -> Result<bool, Error> {
        match self.tally.verdict() {
            Verdict::Won => Ok(true),
            _ if self.tally.is_refused() => Ok(false),
            _ => Err(no_majority(self.errors, self.nodes, what)),
        }
    }
}
