//! The owners that a client is attached to: each once at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use crate::fence::{OwnerId, RandomAlready};
use crate::rt::{Flag, lock};

/// The owners of the holds that a client is attached to.
#[derive(Debug, Default)]
pub(super) struct AttachedOwners(Mutex<HashMap<OwnerId, Arc<PlaceEnd>, RandomAlready>>);

impl AttachedOwners {
    /// Adds the owner until the returned value is dropped. `Err`: the owner is there already; the end of its place.
    pub(super) fn add(self: &Arc<Self>, owner: OwnerId) -> Result<AttachedOwner, Arc<PlaceEnd>> {
        let mut owners = lock(&self.0);
        if let Some(end) = owners.get(&owner) {
            return Err(end.clone());
        }
        let end = Arc::<PlaceEnd>::default();
        owners.insert(owner, end.clone());
        Ok(AttachedOwner {
            owners: Arc::downgrade(self),
            owner,
            end,
        })
    }
}

/// How far a place in the list has come to its end.
#[derive(Debug, Default)]
pub(super) struct PlaceEnd {
    /// The last request about the hold is under way, and after its answer the place is free.
    is_ending: Flag,
    is_over: Flag,
}

impl PlaceEnd {
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.is_raised()
    }

    /// Resolves when the place is free. Cancel safe.
    pub(super) async fn over(&self) {
        self.is_over.raised().await;
    }
}

/// The place of one owner in the list; dropping it removes the owner.
#[derive(Debug)]
pub(super) struct AttachedOwner {
    owners: Weak<AttachedOwners>,
    owner: OwnerId,
    end: Arc<PlaceEnd>,
}

impl AttachedOwner {
    /// From now on, a client that wants to attach itself again waits for the end of this place.
    pub(super) fn set_ending(&self) {
        self.end.is_ending.raise();
    }
}

impl Drop for AttachedOwner {
    fn drop(&mut self) {
        if let Some(owners) = self.owners.upgrade() {
            lock(&owners.0).remove(&self.owner);
        }
        self.end.is_over.raise();
    }
}

/// Marks a hold that this client is attached to, until the client has nothing to do with the hold any more.
#[derive(Debug)]
pub(super) struct Attachment(Mutex<Option<Arc<AttachedOwner>>>);

impl Attachment {
    pub(super) fn new(place: Arc<AttachedOwner>) -> Self {
        Self(Mutex::new(Some(place)))
    }

    /// The hold is about to be released, detached or given up.
    pub(super) fn set_ending(&self) {
        if let Some(place) = &*lock(&self.0) {
            place.set_ending();
        }
    }

    /// From now on the client may attach itself again.
    pub(super) fn end(&self) {
        let place = lock(&self.0).take();
        drop(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_there_once_at_a_time() {
        let (owners, owner) = (Arc::<AttachedOwners>::default(), OwnerId::random());
        let place = owners.add(owner).unwrap();
        let end = owners.add(owner).unwrap_err();
        assert!(!end.is_ending() && !end.is_over.is_raised());
        assert!(owners.add(OwnerId::random()).is_ok());
        place.set_ending();
        assert!(end.is_ending() && owners.add(owner).is_err());
        drop(place);
        assert!(end.is_over.is_raised() && owners.add(owner).is_ok());
    }
}
