//! One acquisition over a quorum of nodes: whether there is a majority, under which token, and what to do next.
//!
//! Nodes know nothing of each other. A node that grants does so under a token greater than all tokens that the node has
//! seen: the proposed token, or its last one plus one. Two rules make one token of many:
//! - the token of the acquisition is the greatest that a majority granted;
//! - the token is used only when a majority *knows* it, because those nodes granted it or were raised to it.
//!
//! Any later majority shares a node with this majority, and that node grants greater tokens.
//!
//! Holds that are not exclusive need a third rule, because two of them can be on one node while each of them agrees on its
//! token: a node knows the token only if that is the token of the hold on that node, and no node gives a token to
//! two holds. Two majorities share a node, so no two holders have the same token. A node that cannot give the chosen
//! token to the hold gives it a greater one, and the next token is greater than all of them.
//! `tests/quorum_acquisition_search.rs` searches small models for a way around these rules.

use super::quorum;

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// Nothing: answers are missing.
    Wait,
    /// A majority granted, but too few nodes know the token: raise these nodes to the token, and report each outcome
    /// through [`QuorumAcquisition::raised`] or [`QuorumAcquisition::unclear`].
    Raise {
        /// The token to raise to.
        token: u64,
        /// Nodes that granted a smaller one.
        nodes: Vec<usize>,
    },
    /// We hold the name under this token. This decision is final.
    Won {
        /// Known to a majority of nodes, and greater than every token that was used before.
        token: u64,
    },
    /// No majority is possible unless nodes that failed or refused grant later.
    Lost,
}

/// What is known of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum NodeAnswer {
    /// The node was asked, and may answer at any time.
    Pending,
    /// The node granted, and knows this token.
    Held(u64),
    /// The node definitely has nothing of this acquisition.
    Refused,
    /// The node may have something of this acquisition.
    Unclear,
}

/// The state of one acquisition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuorumAcquisition {
    answers: Vec<NodeAnswer>,
    /// Fixed while there is a majority, so that a late answer with a greater token does not start another round.
    token: Option<u64>,
    won: bool,
    /// Other acquisitions may be granted on the same node at the same time.
    is_shared_hold: bool,
}

impl QuorumAcquisition {
    /// All of `nodes` nodes are being asked for an exclusive hold.
    pub fn new(nodes: usize) -> Self {
        Self {
            answers: vec![NodeAnswer::Pending; nodes],
            token: None,
            won: false,
            is_shared_hold: false,
        }
    }

    /// All of `nodes` nodes are being asked for a hold that is not exclusive.
    pub fn shared(nodes: usize) -> Self {
        Self {
            is_shared_hold: true,
            ..Self::new(nodes)
        }
    }

    /// The node granted, under `token`.
    pub fn granted(&mut self, node: usize, token: u64) {
        self.set(node, NodeAnswer::Held(token));
    }

    /// The node now knows `token` for our hold.
    pub fn raised(&mut self, node: usize, token: u64) {
        if let Some(NodeAnswer::Held(known)) = self.answers.get_mut(node) {
            *known = token.max(*known);
        }
    }

    /// The node definitely has nothing of this acquisition: it said no, was never reached, or lost our hold.
    pub fn refused(&mut self, node: usize) {
        self.set(node, NodeAnswer::Refused);
    }

    /// The node did not answer, or its answer leaves open what it did.
    pub fn unclear(&mut self, node: usize) {
        self.set(node, NodeAnswer::Unclear);
    }

    /// The node is asked again, also after we gave it back.
    pub fn asked(&mut self, node: usize) {
        self.set(node, NodeAnswer::Pending);
    }

    /// What to do now. `proposal` is called if no token that a node knows can be agreed on any more.
    pub fn verdict(&mut self, proposal: impl FnOnce() -> u64) -> Next {
        let majority = quorum::majority(self.answers.len());
        if let (true, Some(token)) = (self.won, self.token) {
            return Next::Won { token };
        }
        let held = self.answers.iter().filter_map(|answer| answer.token());
        if held.clone().count() < majority {
            self.token = None;
            let may_grant =
                |answer: &&NodeAnswer| matches!(answer, NodeAnswer::Pending | NodeAnswer::Held(_));
            return if self.answers.iter().filter(may_grant).count() < majority {
                Next::Lost
            } else {
                Next::Wait
            };
        }
        let Some(greatest) = quorum::token(held.clone()) else {
            return Next::Lost; // there are no nodes
        };
        let can_have = |token: u64| held.clone().filter(|known| *known <= token).count();
        let token = match self.token {
            None => greatest,
            Some(token) if !self.is_shared_hold || can_have(token) >= majority => token,
            Some(_) => proposal().max(greatest + 1),
        };
        self.token = Some(token);
        let knows = |known: &u64| match self.is_shared_hold {
            true => *known == token,
            false => *known >= token,
        };
        if held.filter(knows).count() >= majority {
            self.won = true;
            return Next::Won { token };
        }
        let nodes = self.behind(token);
        Next::Raise { token, nodes }
    }

    /// The nodes that granted.
    pub fn held(&self) -> Vec<usize> {
        let nodes = self.answers.iter().zip(0..);
        let held = nodes.filter(|(answer, _)| answer.token().is_some());
        held.map(|(_, node)| node).collect()
    }

    /// The nodes that granted and do not know `token`.
    pub fn behind(&self, token: u64) -> Vec<usize> {
        let nodes = self.answers.iter().zip(0..);
        let behind = nodes.filter(|(answer, _)| answer.token().is_some_and(|known| known < token));
        behind.map(|(_, node)| node).collect()
    }

    /// The nodes where something may have to be undone: all nodes that did not definitely say no.
    pub fn to_release(&self) -> Vec<usize> {
        let nodes = self.answers.iter().zip(0..);
        let some = nodes.filter(|(answer, _)| **answer != NodeAnswer::Refused);
        some.map(|(_, node)| node).collect()
    }

    /// Everything that later decisions depend on, for searches.
    #[cfg(test)]
    pub(super) fn image(&self, image: &mut Vec<u64>) {
        image.extend(self.answers.iter().map(|answer| match answer {
            NodeAnswer::Pending => 0,
            NodeAnswer::Refused => 1,
            NodeAnswer::Unclear => 2,
            NodeAnswer::Held(token) => 3 + token,
        }));
        image.push(self.token.map_or(0, |token| token + 1));
    }

    fn set(&mut self, node: usize, answer: NodeAnswer) {
        if let Some(known) = self.answers.get_mut(node) {
            *known = answer;
        }
    }
}

impl NodeAnswer {
    fn token(self) -> Option<u64> {
        match self {
            Self::Held(token) => Some(token),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acquisition_is_lost_when_the_other_nodes_refuse_or_are_unclear() {
        let answers: [fn(&mut QuorumAcquisition, usize); 2] =
            [QuorumAcquisition::refused, QuorumAcquisition::unclear];
        for answer in answers {
            let mut acquisition = QuorumAcquisition::new(3);
            acquisition.granted(0, 1);
            answer(&mut acquisition, 1);
            assert_eq!(acquisition.verdict(|| 2), Next::Wait);
            answer(&mut acquisition, 2);
            assert_eq!(acquisition.verdict(|| 2), Next::Lost);
            // One of them may grant when it is asked again.
            acquisition.asked(2);
            assert_eq!(acquisition.verdict(|| 2), Next::Wait);
        }
    }

    /// A node could not have the chosen token, because another hold there has a greater one.
    #[test]
    fn the_next_choice_of_a_token_is_greater_than_all_that_are_known() {
        let mut acquisition = QuorumAcquisition::shared(3);
        acquisition.granted(0, 1);
        acquisition.granted(1, 2);
        let raise = |token, nodes| Next::Raise { token, nodes };
        assert_eq!(acquisition.verdict(|| 0), raise(2, vec![0]));
        acquisition.raised(0, 5);
        assert_eq!(acquisition.verdict(|| 0), raise(6, vec![0, 1]));
    }
}
