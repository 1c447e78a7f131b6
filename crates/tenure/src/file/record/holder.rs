//! The holder as JSON, for people and for `inspect`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::layout::MAX_JSON_LEN;

/// The holder as it is written into the file. Missing fields are empty: others may write these files, too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HolderJson<'a> {
    pub(crate) host: Cow<'a, str>,
    pub(crate) pid: u32,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) label: Cow<'a, str>,
    pub(crate) client: Cow<'a, str>,
    /// A digest of the owner id: the id itself is a capability.
    pub(crate) owner: Cow<'a, str>,
    pub(crate) mode: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<u32>,
    pub(crate) token: u64,
    /// Wall clock, µs.
    pub(crate) since: u64,
    /// What a candidate of an election publishes. `None` for a lock, and for a value that the slot has no room for, which
    /// lies in a side file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<Cow<'a, str>>,
    /// The number of this value within its term; `None` for a lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) number: Option<u64>,
    /// The lease of a hold that was detached from its process; `None` for every other hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detached: Option<LeaseJson>,
}

/// The lease of a detached hold. All times are in µs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LeaseJson {
    /// A digest of the owner id, by which a client is recognized that attaches itself.
    pub(crate) owner: String,
    /// End of the lease on the wall clock.
    pub(crate) until: u64,
    /// End of the lease on the clock that counts from the boot of the machine.
    pub(crate) boot_until: u64,
    /// The boot from which that clock counts; 0 when unknown.
    pub(crate) boot: u64,
    /// Length of the lease when it was written: no clock that shows more can be right.
    pub(crate) span: u64,
    /// End and length of the reservation that came with the grant, as in a head.
    pub(crate) reserved_until: u64,
    pub(crate) reserved_span: u64,
}

impl<'a> HolderJson<'a> {
    /// The same without its value, if the slot has no room for it, and that value.
    pub(crate) fn take_long_value(mut self) -> (Self, Option<Cow<'a, str>>) {
        if self.value.is_none() || self.whole_json().len() <= MAX_JSON_LEN {
            return (self, None);
        }
        let value = self.value.take();
        (self, value)
    }

    fn whole_json(&self) -> Vec<u8> {
        let mut json = Vec::with_capacity(256);
        // Writing numbers and strings to a vector cannot fail.
        let _ = serde_json::to_writer(&mut json, self);
        json
    }

    /// As JSON that fits into a slot. Without a value, only text full of escapes can be too long; its label goes first.
    pub(super) fn to_json(&self) -> Vec<u8> {
        let mut json = self.whole_json();
        if json.len() > MAX_JSON_LEN {
            let short = HolderJson {
                label: Cow::Borrowed("…"),
                ..self.clone()
            };
            json = serde_json::to_vec(&short).unwrap_or_default();
        }
        if json.len() > MAX_JSON_LEN {
            let short = HolderJson {
                pid: self.pid,
                token: self.token,
                since: self.since,
                number: self.number,
                detached: self.detached.clone(),
                ..HolderJson::default()
            };
            json = serde_json::to_vec(&short).unwrap_or_default();
        }
        json
    }
}
