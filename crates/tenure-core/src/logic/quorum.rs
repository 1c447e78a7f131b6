//! Counting the answers of independent nodes.

use std::time::Duration;

/// Where a vote stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Both outcomes are still possible.
    Pending,
    /// A majority said yes.
    Won,
    /// A majority of yes is out of reach.
    Lost,
}

/// What is known of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Answer {
    None,
    Yes,
    No,
    /// Asked, and it cannot be told whether the request was carried out.
    Unknown,
}

/// The running count of one vote.
///
/// A verdict, once reached, never changes, whatever comes in later. The first definite answer of a node
/// counts, so a repeated or duplicated one is harmless; an unknown may still become definite.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tally {
    answers: Vec<Answer>,
    verdict: Verdict,
}

impl Tally {
    /// No answer yet from any of `nodes` nodes. With none at all the vote is lost.
    pub fn new(nodes: usize) -> Self {
        let verdict = if nodes == 0 {
            Verdict::Lost
        } else {
            Verdict::Pending
        };
        Self {
            answers: vec![Answer::None; nodes],
            verdict,
        }
    }

    /// How many must say yes: more than half of all nodes, reachable or not.
    pub fn majority(&self) -> usize {
        majority(self.answers.len())
    }

    /// Whether so many nodes definitely said no that no majority can have done it: it is known,
    /// and not just feared, that the vote is lost.
    pub fn is_refused(&self) -> bool {
        let no = |answer: &&Answer| **answer == Answer::No;
        self.answers.iter().filter(no).count() > self.answers.len() - self.majority()
    }

    /// Where the vote stands.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// The node did what was asked. An index out of range is ignored.
    pub fn yes(&mut self, node: usize) -> Verdict {
        self.answer(node, Answer::Yes)
    }

    /// The node definitely did not do it.
    pub fn no(&mut self, node: usize) -> Verdict {
        self.answer(node, Answer::No)
    }

    /// No reply, or an error after which the node may have done it. Counts like a no for the verdict,
    /// and like a yes for [`Tally::to_release`].
    pub fn unknown(&mut self, node: usize) -> Verdict {
        self.answer(node, Answer::Unknown)
    }

    /// Whether the node said yes.
    pub fn said_yes(&self, node: usize) -> bool {
        self.answers.get(node) == Some(&Answer::Yes)
    }

    /// The nodes where something may have to be undone: all that did not definitely say no.
    pub fn to_release(&self) -> Vec<usize> {
        (0..self.answers.len())
            .filter(|node| self.answers[*node] != Answer::No)
            .collect()
    }

    fn answer(&mut self, node: usize, answer: Answer) -> Verdict {
        if let Some(known @ (Answer::None | Answer::Unknown)) = self.answers.get_mut(node) {
            *known = answer;
        }
        if self.verdict == Verdict::Pending {
            let count = |answer| {
                self.answers
                    .iter()
                    .filter(|known| **known == answer)
                    .count()
            };
            let yes = count(Answer::Yes);
            if yes >= self.majority() {
                self.verdict = Verdict::Won;
            } else if yes + count(Answer::None) < self.majority() {
                self.verdict = Verdict::Lost;
            }
        }
        self.verdict
    }
}

/// More than half of all nodes, reachable or not.
pub fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// What is left of a lease of `ttl` that was asked for `elapsed` ago: `ttl − elapsed − drift`, where the clocks
/// of client and nodes drift apart by less than [`lease::margin`](super::lease::margin).
/// `None` when that is nothing.
pub fn validity(ttl: Duration, elapsed: Duration, drift: Duration) -> Option<Duration> {
    ttl.checked_sub(elapsed)?
        .checked_sub(drift)
        .filter(|left| !left.is_zero())
}

/// The token to agree on, given what each node of a majority proposes (the greater of its last token
/// plus one and its clock in µs): the greatest.
///
/// It has to be raised on a majority before it is used. Any later majority shares a node with that
/// one, so every later proposal is greater. `None` without proposals.
pub fn token(proposals: impl IntoIterator<Item = u64>) -> Option<u64> {
    proposals.into_iter().max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vote_is_refused_when_too_few_nodes_are_left_for_a_majority() {
        for (nodes, refusals) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
            let mut tally = Tally::new(nodes);
            for node in 0..nodes {
                assert_eq!(tally.is_refused(), node >= refusals, "{node} of {nodes}");
                tally.no(node);
            }
            assert!(tally.is_refused());
        }
    }
}
