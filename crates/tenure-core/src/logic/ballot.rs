//! One acquisition over several nodes: is there a majority, under which token, what is next.
//!
//! Nodes know nothing of each other. Each one that grants does so under a token greater than all that
//! it has seen: the proposed one, or its last plus one. So two rules make one token of many:
//! - the token is the greatest that a majority granted;
//! - it is used only when a majority *knows* it, having granted or been raised to it.
//!
//! Any later majority shares a node with that one, and what this node grants is greater.
//! `tests/ballot_search.rs` searches small worlds for a way around this.

use super::quorum;

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// Nothing: answers are out.
    Wait,
    /// A majority granted, but too few of them know the token: raise these nodes to it, and report
    /// each through [`Ballot::raised`] or [`Ballot::unclear`].
    Raise {
        /// The token to raise to.
        token: u64,
        /// Nodes that granted a smaller one.
        nodes: Vec<usize>,
    },
    /// The name is ours, under this token. The last word.
    Won {
        /// Known to a majority of nodes, and greater than every token that was used before.
        token: u64,
    },
    /// A majority is out of reach, as things stand.
    Lost,
}

/// What is known of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Seat {
    /// Asked; it may answer at any time.
    Open,
    /// It granted, and knows this token.
    Held(u64),
    /// It definitely has nothing of us.
    Refused,
    /// It may have something of us, or not.
    Unclear,
}

/// The count of one acquisition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ballot {
    seats: Vec<Seat>,
    /// Fixed while there is a majority, so that a straggler with a greater token does not start another round.
    token: Option<u64>,
    won: bool,
}

impl Ballot {
    /// All of `nodes` nodes are being asked.
    pub fn new(nodes: usize) -> Self {
        Self {
            seats: vec![Seat::Open; nodes],
            token: None,
            won: false,
        }
    }

    /// The node granted, under `token`.
    pub fn granted(&mut self, node: usize, token: u64) {
        self.set(node, Seat::Held(token));
    }

    /// The node now knows `token` for our hold.
    pub fn raised(&mut self, node: usize, token: u64) {
        if let Some(Seat::Held(known)) = self.seats.get_mut(node) {
            *known = token.max(*known);
        }
    }

    /// The node definitely has nothing of us: it said no, was never reached, or lost our hold.
    pub fn refused(&mut self, node: usize) {
        self.set(node, Seat::Refused);
    }

    /// No answer, or one that says nothing.
    pub fn unclear(&mut self, node: usize) {
        self.set(node, Seat::Unclear);
    }

    /// The node is asked again, or for the first time since we gave it back.
    pub fn asked(&mut self, node: usize) {
        self.set(node, Seat::Open);
    }

    /// What to do now.
    pub fn verdict(&mut self) -> Next {
        let majority = quorum::majority(self.seats.len());
        if let (true, Some(token)) = (self.won, self.token) {
            return Next::Won { token };
        }
        let held = self.seats.iter().filter_map(|seat| seat.token());
        if held.clone().count() < majority {
            self.token = None;
            let open = |seat: &&Seat| matches!(seat, Seat::Open | Seat::Held(_));
            return if self.seats.iter().filter(open).count() < majority {
                Next::Lost
            } else {
                Next::Wait
            };
        }
        let Some(token) = self.token.or_else(|| quorum::token(held.clone())) else {
            return Next::Lost; // no nodes at all
        };
        self.token = Some(token);
        if held.filter(|known| *known >= token).count() >= majority {
            self.won = true;
            return Next::Won { token };
        }
        let nodes = self.behind(token);
        Next::Raise { token, nodes }
    }

    /// The nodes that granted.
    pub fn held(&self) -> Vec<usize> {
        let nodes = self.seats.iter().zip(0..);
        let held = nodes.filter(|(seat, _)| seat.token().is_some());
        held.map(|(_, node)| node).collect()
    }

    /// The nodes that granted and do not know `token`.
    pub fn behind(&self, token: u64) -> Vec<usize> {
        let nodes = self.seats.iter().zip(0..);
        let behind = nodes.filter(|(seat, _)| seat.token().is_some_and(|known| known < token));
        behind.map(|(_, node)| node).collect()
    }

    /// The nodes where something may have to be undone: all that did not definitely say no.
    pub fn to_release(&self) -> Vec<usize> {
        let nodes = self.seats.iter().zip(0..);
        let some = nodes.filter(|(seat, _)| **seat != Seat::Refused);
        some.map(|(_, node)| node).collect()
    }

    /// All that matters for what it will say, for searches.
    #[cfg(test)]
    pub(super) fn image(&self, image: &mut Vec<u64>) {
        image.extend(self.seats.iter().map(|seat| match seat {
            Seat::Open => 0,
            Seat::Refused => 1,
            Seat::Unclear => 2,
            Seat::Held(token) => 3 + token,
        }));
        image.push(self.token.map_or(0, |token| token + 1));
    }

    fn set(&mut self, node: usize, seat: Seat) {
        if let Some(known) = self.seats.get_mut(node) {
            *known = seat;
        }
    }
}

impl Seat {
    fn token(self) -> Option<u64> {
        match self {
            Self::Held(token) => Some(token),
            _ => None,
        }
    }
}
