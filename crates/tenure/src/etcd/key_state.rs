//! A key as it is in the store while a hold is there.

use super::wire::{self, KeyValue};

/// What the store has while a hold is there.
#[derive(Clone)]
pub(super) struct KeyState {
    pub(super) key: Vec<u8>,
    /// The revision at which the key was created.
    pub(super) created: i64,
    /// The lease of the key, if the key may stay under another one after the end of the hold (`lock_delay`).
    pub(super) lease: Option<i64>,
    /// The second key of a candidate of an election.
    pub(super) record_key: Option<Vec<u8>>,
}

impl KeyState {
    /// The key that was created at this revision, whatever its lease is.
    pub(super) fn created_at(key: &[u8], created: i64) -> Self {
        Self {
            key: key.to_vec(),
            created,
            lease: None,
            record_key: None,
        }
    }

    /// The condition of a request that must find the key like this.
    pub(super) fn condition(&self) -> wire::Compare {
        match self.lease {
            Some(lease) => wire::Compare::has_lease(&self.key, lease),
            None => wire::Compare::created(&self.key, self.created),
        }
    }

    pub(super) fn is(&self, kv: &KeyValue) -> bool {
        kv.create_revision == self.created && self.lease.is_none_or(|lease| lease == kv.lease)
    }
}
