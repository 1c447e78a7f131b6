//! The tokens of the claims before a claim, and whether its own token is right after them.

use std::collections::{HashMap, HashSet};

use crate::claim::Claim;

/// The tokens of the claims of one name so far.
#[derive(Default)]
pub(crate) struct EarlierTokens {
    /// When each claim started, and the greatest token up to then.
    greatest: Vec<(u64, u64)>,
    /// The greatest token of each turn.
    of_turns: HashMap<u64, u64>,
    /// The tokens of exclusive holds.
    exclusive: HashSet<u64>,
}

impl EarlierTokens {
    /// Whether the token of `claim` is greater than those that were granted before its request, and those of its turn, and no
    /// other exclusive hold has it.
    pub(crate) fn allow(&self, claim: &Claim) -> bool {
        let count = self.greatest.partition_point(|it| it.0 < claim.asked);
        let granted = self.greatest[..count].last().map(|it| it.1);
        let of_turn = claim
            .turn
            .and_then(|turn| self.of_turns.get(&turn).copied());
        let is_twice = claim.mode.is_exclusive() && self.exclusive.contains(&claim.token);
        Some(claim.token) > granted.max(of_turn) && !is_twice
    }

    /// Adds the claim that starts next.
    pub(crate) fn add(&mut self, claim: &Claim) {
        let token = claim.token;
        let before = self.greatest.last().map_or(0, |it| it.1);
        self.greatest.push((claim.start, token.max(before)));
        if let Some(turn) = claim.turn {
            let of_turn = self.of_turns.entry(turn).or_default();
            *of_turn = token.max(*of_turn);
        }
        if claim.mode.is_exclusive() {
            self.exclusive.insert(token);
        }
    }
}
