//! Detached holds in a history: the times in which no worker claims a hold, and the store has to keep it.

use std::collections::HashMap;

use crate::claim::Claim;
use crate::event::Event;

/// A hold that was detached, from then on until it may end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetachedHold {
    /// The claim that its worker had before, for the time of the detached hold: it starts when the detach had succeeded, and
    /// ends with the lease that was asked for, or when an attached worker was about to release the hold.
    pub claim: Claim,
    /// The end of the lease that was asked for. The store may keep the hold until a little later.
    pub leased_until: u64,
}

/// The first acquisition of each hold: a hold that is attached has other acquisitions, too.
#[derive(Clone, Debug, Default)]
pub struct Holds(HashMap<u64, u64>);

impl Holds {
    /// The first acquisition of the hold that `acquisition` claims.
    pub fn first_of(&self, acquisition: u64) -> u64 {
        self.0.get(&acquisition).copied().unwrap_or(acquisition)
    }

    fn add(&mut self, acquisition: u64, attached_to: u64) {
        let first = self.first_of(attached_to);
        self.0.insert(acquisition, first);
    }
}

/// The detached holds of a run.
#[derive(Clone, Debug, Default)]
pub struct DetachedHistory {
    /// In the order in which they were detached.
    pub holds: Vec<DetachedHold>,
    first: Holds,
    /// The index of each of them, by its acquisition.
    by_acquisition: HashMap<u64, usize>,
    /// The indices of those of one hold, by its first acquisition.
    of_hold: HashMap<u64, Vec<usize>>,
}

impl PartialEq for DetachedHistory {
    fn eq(&self, other: &Self) -> bool {
        self.holds == other.holds
    }
}

impl Eq for DetachedHistory {}

impl DetachedHistory {
    /// The hold that is claimed, by its first acquisition.
    pub fn hold_of(&self, claim: &Claim) -> u64 {
        self.first.first_of(claim.acquisition)
    }

    /// Whether both claims are of one hold, which was detached and attached in between.
    pub fn is_same_hold(&self, one: &Claim, other: &Claim) -> bool {
        self.hold_of(one) == self.hold_of(other)
    }

    /// The detached hold that the worker of this claim was attached to. `None`: it was acquired, or its mode was changed.
    pub fn attached_to(&self, claim: &Claim) -> Option<&DetachedHold> {
        let index = self.by_acquisition.get(&claim.changes?)?;
        self.holds.get(*index)
    }

    /// Adds what happens to a hold: `claims` are those before the event.
    pub(crate) fn add(&mut self, event: &Event, claims: &[Claim]) {
        match event {
            Event::Detached {
                at,
                acquisition,
                until,
            } => {
                let mut before = claims.iter().rev();
                if let Some(claim) = before.find(|it| it.acquisition == *acquisition) {
                    let claim = Claim {
                        start: *at,
                        end: *until,
                        ..claim.clone()
                    };
                    let index = self.holds.len();
                    self.by_acquisition.insert(*acquisition, index);
                    let first = self.first.first_of(*acquisition);
                    self.of_hold.entry(first).or_default().push(index);
                    self.holds.push(DetachedHold {
                        claim,
                        leased_until: *until,
                    });
                }
            }
            Event::Claimed {
                acquisition,
                changes: Some(before),
                ..
            } if self.by_acquisition.contains_key(before) => {
                self.first.add(*acquisition, *before);
            }
            // A worker is about to release, or to detach again.
            Event::Ended {
                at,
                acquisition,
                lost: false,
            } => {
                let first = self.first.first_of(*acquisition);
                for index in self.of_hold.get(&first).into_iter().flatten() {
                    let claim = &mut self.holds[*index].claim;
                    claim.end = claim.end.min(*at);
                }
            }
            _ => {}
        }
    }
}
