//! What others see of those that hold or wait.

use std::collections::HashMap;
use std::sync::Arc;

use super::name_table::NameTable;
use crate::fence::{OwnerId, RandomAlready};
use crate::holder::Holder;
use crate::name::LockName;

/// Holders and waiters, by owner. A client removes its own, also when its hold has ended by itself; those of detached holds
/// have no client that could.
#[derive(Debug, Default)]
pub(super) struct Holders {
    by_owner: HashMap<OwnerId, Arc<Holder>, RandomAlready>,
    /// The holds that are or were detached.
    detached: HashMap<OwnerId, LockName, RandomAlready>,
}

impl Holders {
    pub(super) fn insert(&mut self, owner: OwnerId, holder: Arc<Holder>) {
        self.by_owner.insert(owner, holder);
    }

    pub(super) fn get(&self, owner: &OwnerId) -> Option<&Arc<Holder>> {
        self.by_owner.get(owner)
    }

    pub(super) fn remove(&mut self, owner: &OwnerId) {
        self.by_owner.remove(owner);
        if !self.detached.is_empty() {
            self.detached.remove(owner);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_owner.is_empty()
    }

    /// The hold of this owner is detached.
    pub(super) fn set_detached(&mut self, owner: OwnerId, name: &LockName) {
        self.detached.insert(owner, name.clone());
    }

    /// Removes those whose detached hold is over by now.
    pub(super) fn remove_ended(&mut self, table: &NameTable) {
        let by_owner = &mut self.by_owner;
        self.detached.retain(|owner, name| {
            let is_held = table.is_leased(name, *owner);
            if !is_held {
                by_owner.remove(owner);
            }
            is_held
        });
    }
}
