//! Writing a record: a new ceiling, a grant, a release.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::holder::HolderJson;
use super::layout::{Head, NAME_AT, RecordState, SLOT_LEN, encode};

/// What the next grant has to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The token to grant.
    pub(crate) token: u64,
    /// A new ceiling must be synced first.
    pub(crate) must_raise: bool,
    pub(super) ceiling: u64,
    pub(super) seq: u64,
    pub(super) slot: usize,
    pub(super) last: u64,
}

/// Writes the record of one hold, from its grant to its release.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecordWriter {
    pub(super) slot: usize,
    pub(super) head: Head,
}

impl Plan {
    /// Writes the new ceiling and syncs it, if the plan says so. `name` is for a file that does not know it yet.
    ///
    /// Nothing is granted by this. `state` is how the name is held meanwhile.
    pub(crate) fn raise(
        &mut self,
        file: &File,
        boot: u64,
        state: RecordState,
        name: Option<&str>,
    ) -> io::Result<()> {
        if !self.must_raise {
            return Ok(());
        }
        self.seq += 1;
        let head = Head {
            seq: self.seq,
            token: self.last,
            ceiling: self.ceiling,
            boot,
            state,
            ..Head::default()
        };
        if let Some(name) = name {
            file.write_all_at(name.as_bytes(), NAME_AT)?;
        }
        file.write_all_at(&encode(&head, b""), (self.slot * SLOT_LEN) as u64)?;
        file.sync_data()?;
        // This slot is the anchor now.
        self.slot = 1 - self.slot;
        self.must_raise = false;
        Ok(())
    }

    /// Writes the grant. The ceiling must have been raised.
    pub(crate) fn grant(
        self,
        file: &File,
        head: Head,
        json: Option<&HolderJson<'_>>,
    ) -> io::Result<RecordWriter> {
        debug_assert!(
            !self.must_raise,
            "a token may only be granted below a synced ceiling"
        );
        let head = Head {
            seq: self.seq + 1,
            token: self.token,
            ceiling: self.ceiling,
            ..head
        };
        let mut writer = RecordWriter {
            slot: self.slot,
            head,
        };
        writer.put(file, json)?;
        Ok(writer)
    }
}

impl RecordWriter {
    pub(super) fn put(&mut self, file: &File, json: Option<&HolderJson<'_>>) -> io::Result<()> {
        let json = json.map(HolderJson::to_json).unwrap_or_default();
        file.write_all_at(&encode(&self.head, &json), (self.slot * SLOT_LEN) as u64)
    }

    /// Writes that the name has no holder, and stays reserved until `until`, for `span`.
    pub(crate) fn free(&mut self, file: &File, until: u64, span: u64) -> io::Result<()> {
        self.head.seq += 1;
        self.head.state = RecordState::Free;
        (self.head.until, self.head.span, self.head.delay) = (until, span, 0);
        self.put(file, None)
    }

    /// Writes that the hold is detached from its process: the JSON has its lease, and until then nothing is granted. This
    /// writer stays that of the process, which goes on with it if the write fails.
    pub(crate) fn detach(
        &mut self,
        file: &File,
        (until, span): (u64, u64),
        json: &HolderJson<'_>,
    ) -> io::Result<()> {
        self.head.seq += 1;
        let head = Head {
            state: RecordState::Free,
            until,
            span,
            ..self.head
        };
        let slot = self.slot;
        Self { slot, head }.put(file, Some(json))
    }

    /// Writes the holder anew, with another value.
    pub(crate) fn publish(&mut self, file: &File, json: &HolderJson<'_>) -> io::Result<()> {
        self.head.seq += 1;
        self.put(file, Some(json))
    }

    /// Writes that the name is held in another way, by holders that are named elsewhere.
    pub(crate) fn set_state(&mut self, file: &File, state: RecordState) -> io::Result<()> {
        self.head.seq += 1;
        self.head.state = state;
        self.put(file, None)
    }

    /// The token that was granted.
    pub(crate) fn token(&self) -> u64 {
        self.head.token
    }

    /// How long to reserve the name if the holder dies, in µs.
    pub(crate) fn delay(&self) -> u64 {
        self.head.delay
    }

    /// The end and the length of the reservation that came with the grant.
    pub(crate) fn reservation(&self) -> (u64, u64) {
        (self.head.until, self.head.span)
    }
}

/// Makes `file` the fresh record of a name without a holder, and syncs the file: tokens start above `last`,
/// and the name stays reserved until `until`, for `span`.
pub(crate) fn create(
    file: &File,
    last: u64,
    (until, span): (u64, u64),
    name: Option<&str>,
) -> io::Result<()> {
    let head = Head {
        seq: 1,
        token: last,
        ceiling: last,
        until,
        span,
        ..Head::default()
    };
    file.write_all_at(&encode(&head, b""), 0)?;
    file.write_all_at(&encode(&Head { seq: 2, ..head }, b""), SLOT_LEN as u64)?;
    if let Some(name) = name {
        file.write_all_at(name.as_bytes(), NAME_AT)?;
    }
    file.sync_data()
}

/// Writes the record of a side file, which counts nothing: holder, state and token in slot 0.
pub(crate) fn write_side(file: &File, token: u64, json: Option<&HolderJson<'_>>) -> io::Result<()> {
    let state = if json.is_some() {
        RecordState::Shared
    } else {
        RecordState::Free
    };
    let head = Head {
        seq: 1,
        token,
        ceiling: token,
        state,
        ..Head::default()
    };
    RecordWriter { slot: 0, head }.put(file, json)
}
