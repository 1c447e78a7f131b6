//! Tests of the logic, and of nothing else: no clock, no runtime, no file but the scenarios.

mod claims;
mod explore;
mod hand_over_search;
mod handoff;
mod handoff_search;
mod message;
mod mode_search;
mod model;
mod moves;
mod properties;
mod queue_search;
mod queue_upgrade_search;
mod quorum_acquisition_search;
mod quorum_mode_search;
mod scenario;
mod selection_search;
mod split_search;
mod table_model;
mod together;

use crate::fence::OwnerId;
use crate::name::LockName;

/// Owner number `n`.
fn owner(n: u8) -> OwnerId {
    OwnerId::from_bytes([n; 16])
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}
