//! The mode of one hold over a quorum of nodes: what each node has of it at least, what the holder may claim, and what
//! a node should be asked for.
//!
//! A request to a node may be under way, may get lost, and may be carried out late. So a node counts with the weakest
//! mode that it can have: a stronger one after it has answered, and a weaker one from before the request is sent. The
//! holder may claim a mode while a majority of all nodes has that mode at least: an exclusive claim and any other claim
//! then meet in a node that has one of the two alone. `tests/quorum_mode_search.rs` searches for a way around these rules.

use crate::options::Mode;

use super::quorum;

/// What a node should be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repair {
    /// A hold of this mode: the node has none.
    Acquire(Mode),
    /// The hold should become exclusive.
    Upgrade,
    /// The hold should become weaker.
    Downgrade(Mode),
}

/// One hold over several nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuorumMode {
    claimed: Mode,
    /// The weakest mode that was ever claimed: a node that has the hold at all has this mode at least.
    weakest: Mode,
    /// What each node has at least; `None`: perhaps no hold.
    nodes: Vec<Option<Mode>>,
}

impl QuorumMode {
    /// A hold that `nodes` nodes are asked for in the mode `claimed`.
    pub fn new(nodes: usize, claimed: Mode) -> Self {
        Self {
            claimed,
            weakest: claimed,
            nodes: vec![None; nodes],
        }
    }

    /// What the holder claims, or wants to claim.
    pub fn claimed(&self) -> Mode {
        self.claimed
    }

    /// The node has answered that the hold has this mode there.
    pub fn has(&mut self, node: usize, mode: Mode) {
        self.nodes[node] = Some(mode);
    }

    /// The node has answered that the hold is there. Its mode is the weakest that was ever claimed, or a stronger one.
    pub fn found(&mut self, node: usize) {
        self.nodes[node].get_or_insert(self.weakest);
    }

    /// The node has no hold, or may have none.
    pub fn lost(&mut self, node: usize) {
        self.nodes[node] = None;
    }

    /// The node is about to be asked to make the hold weaker.
    pub fn weakens(&mut self, node: usize, mode: Mode) {
        if let Some(known) = &mut self.nodes[node]
            && rank(*known) > rank(mode)
        {
            *known = mode;
        }
    }

    /// What the node has at least.
    pub fn at(&self, node: usize) -> Option<Mode> {
        self.nodes[node]
    }

    /// Whether the node has what the holder claims.
    pub fn supports(&self, node: usize) -> bool {
        self.nodes[node].is_some_and(|mode| rank(mode) >= rank(self.claimed))
    }

    /// Whether the node has no hold, or the mode that the holder claims: nothing is to be repaired where the hold is.
    pub fn is_as_claimed(&self, node: usize) -> bool {
        self.nodes[node].is_none_or(|mode| mode == self.claimed)
    }

    /// Whether the node has what the holder claims, where it is certain that the node has the hold.
    pub fn supports_if_held(&self, node: usize) -> bool {
        rank(self.nodes[node].unwrap_or(self.weakest)) >= rank(self.claimed)
    }

    /// Whether a majority of all nodes has what the holder claims.
    pub fn is_supported(&self) -> bool {
        let nodes = 0..self.nodes.len();
        nodes.filter(|node| self.supports(*node)).count() >= quorum::majority(self.nodes.len())
    }

    /// The holder claims less from now on, which it always may.
    pub fn claim_less(&mut self, mode: Mode) {
        if rank(mode) < rank(self.claimed) {
            (self.claimed, self.weakest) = (mode, mode);
        }
    }

    /// The holder claims the name alone, if a majority of all nodes allows it. Returns whether that is so.
    pub fn claim_alone(&mut self) -> bool {
        let before = std::mem::replace(&mut self.claimed, Mode::Exclusive);
        let is_supported = self.is_supported();
        if !is_supported {
            self.claimed = before;
        }
        is_supported
    }

    /// What the node should be asked for; `None`: it has what is claimed.
    pub fn repair(&self, node: usize) -> Option<Repair> {
        let Some(mode) = self.nodes[node] else {
            return Some(Repair::Acquire(self.claimed));
        };
        match rank(mode).cmp(&rank(self.claimed)) {
            std::cmp::Ordering::Less => Some(Repair::Upgrade),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(Repair::Downgrade(self.claimed)),
        }
    }
}

/// The strongest mode that so many of these have at least; `None` if there are too few.
pub fn common_mode(modes: impl IntoIterator<Item = Mode>, count: usize) -> Option<Mode> {
    let mut modes: Vec<_> = modes.into_iter().collect();
    modes.sort_by_key(|mode| std::cmp::Reverse(rank(*mode)));
    modes.get(count.checked_sub(1)?).copied()
}

/// The strength of a mode: a stronger mode allows fewer other holds. Permits are not counted over several nodes.
fn rank(mode: Mode) -> u8 {
    match mode {
        Mode::Permits { .. } => 0,
        Mode::Shared => 1,
        Mode::Upgradable => 2,
        Mode::Exclusive => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_hold_or_with_the_claimed_mode_needs_no_repair_of_the_mode() {
        let mut mode = QuorumMode::new(2, Mode::Shared);
        mode.has(0, Mode::Shared);
        assert!(mode.is_as_claimed(0) && mode.is_as_claimed(1));
        mode.has(1, Mode::Upgradable);
        assert!(!mode.is_as_claimed(1));
    }

    /// A hold that was upgraded may still be upgradable on a node that did not answer.
    #[test]
    fn a_claim_of_the_same_mode_changes_nothing() {
        let mut mode = QuorumMode::new(3, Mode::Upgradable);
        (0..3).for_each(|node| mode.has(node, Mode::Exclusive));
        assert!(mode.claim_alone());
        mode.claim_less(Mode::Exclusive);
        mode.lost(2);
        mode.found(2);
        assert_eq!(mode.at(2), Some(Mode::Upgradable));
    }

    #[test]
    fn so_many_nodes_have_the_common_mode_at_least() {
        let modes = [Mode::Shared, Mode::Exclusive, Mode::Upgradable];
        assert_eq!(common_mode(modes, 0), None);
        assert_eq!(common_mode(modes, 1), Some(Mode::Exclusive));
        assert_eq!(common_mode(modes, 2), Some(Mode::Upgradable));
        assert_eq!(common_mode(modes, 3), Some(Mode::Shared));
        assert_eq!(common_mode(modes, 4), None);
    }

    #[test]
    fn a_node_whose_grant_was_not_answered_counts_when_a_renewal_finds_the_hold() {
        let mut mode = QuorumMode::new(3, Mode::Exclusive);
        mode.has(0, Mode::Exclusive);
        mode.has(1, Mode::Exclusive);
        mode.found(2);
        mode.lost(1);
        assert!(mode.is_supported());
        // A hold that was weaker once may be so there.
        mode.claim_less(Mode::Shared);
        mode.lost(2);
        mode.found(2);
        assert_eq!(mode.at(2), Some(Mode::Shared));
    }
}
