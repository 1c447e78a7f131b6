//! Reading a record, and what its next grant has to write.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::holder::HolderJson;
use super::layout::{
    HEAD_LEN, Head, JSON_AT, NAME_AT, RecordState, SLOT_LEN, checksum, decode, is_ours,
};
use super::write::{Plan, RecordWriter};

/// Tokens (µs) that one sync makes available: a sync in 67 s for a name in use.
/// After a reboot the counter skips what is left of a block, so it runs at most this far ahead of the clock.
pub(super) const TOKEN_BLOCK: u64 = 1 << 26;

/// What is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Nothing: the file was just created.
    Empty,
    /// Something that we did not write.
    Foreign,
    /// A record of ours, of which neither slot is valid.
    Torn,
    /// A record.
    Valid(Record),
}

/// A record with at least one valid slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The newest valid slot.
    pub(crate) head: Head,
    /// The number of that slot.
    slot: usize,
    /// The other slot is valid, too.
    are_both_valid: bool,
    /// The older slot is known to have been synced with the same ceiling.
    is_anchored: bool,
}

/// Reads what matters for a grant: both heads.
pub(crate) fn read(file: &File) -> io::Result<Contents> {
    let mut bytes = [0; SLOT_LEN + HEAD_LEN];
    let len = read_up_to(file, &mut bytes)?;
    Ok(parse(&bytes[..len]))
}

/// The newest record with its holder; the holder is `None` when that part is damaged, or when the name has no holder.
pub(crate) fn read_all(file: &File) -> io::Result<(Contents, Option<HolderJson<'static>>)> {
    let mut bytes = [0; 2 * SLOT_LEN];
    let len = read_up_to(file, &mut bytes)?;
    let contents = parse(&bytes[..len]);
    let Contents::Valid(found) = contents else {
        return Ok((contents, None));
    };
    let start = found.slot * SLOT_LEN + JSON_AT;
    let json = bytes[..len]
        .get(start..start + found.head.json_len)
        .filter(|json| checksum(json) == found.head.json_checksum)
        .and_then(|json| serde_json::from_slice(json).ok());
    Ok((contents, json))
}

/// The name kept in the file, if there is one.
pub(crate) fn read_name(file: &File) -> io::Result<Option<String>> {
    let mut bytes = [0; tenure_core::name::LockName::MAX_LEN];
    let mut len = 0;
    while len < bytes.len() {
        match file.read_at(&mut bytes[len..], NAME_AT + len as u64)? {
            0 => break,
            n => len += n,
        }
    }
    Ok(String::from_utf8(bytes[..len].to_vec())
        .ok()
        .filter(|name| !name.is_empty()))
}

fn read_up_to(file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        // One call: a regular file gives all that was asked for, and the checksums find a torn view.
        match file.read_at(bytes, 0) {
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

pub(super) fn parse(bytes: &[u8]) -> Contents {
    if bytes.is_empty() {
        return Contents::Empty;
    }
    let (first, second) = bytes.split_at(bytes.len().min(SLOT_LEN));
    let heads = [decode(first), decode(second)];
    match heads {
        [Some(a), Some(b)] => {
            let slot = usize::from(b.seq > a.seq);
            let head = if slot == 1 { b } else { a };
            let is_anchored = a.ceiling == b.ceiling;
            Contents::Valid(Record {
                head,
                slot,
                are_both_valid: true,
                is_anchored,
            })
        }
        [Some(head), None] => Contents::Valid(Record {
            head,
            slot: 0,
            are_both_valid: false,
            is_anchored: false,
        }),
        [None, Some(head)] => Contents::Valid(Record {
            head,
            slot: 1,
            are_both_valid: false,
            is_anchored: false,
        }),
        [None, None] if is_ours(first, second) => Contents::Torn,
        [None, None] => Contents::Foreign,
    }
}

impl Contents {
    /// The newest head, if there is a record.
    pub(crate) fn head(&self) -> Option<&Head> {
        match self {
            Self::Valid(found) => Some(&found.head),
            _ => None,
        }
    }

    /// The token of the exclusive holder, which may have died.
    pub(crate) fn exclusive_holder(&self) -> Option<u64> {
        let head = self.head()?;
        (head.state == RecordState::Exclusive).then_some(head.token)
    }

    /// Whether the record names a holder.
    pub(crate) fn has_holder(&self) -> bool {
        self.head()
            .is_some_and(|head| head.state != RecordState::Free)
    }

    /// Whether the record is that of a hold that was detached from its process; its lease may be over.
    pub(crate) fn is_detached(&self) -> bool {
        self.head()
            .is_some_and(|head| head.state == RecordState::Free && head.json_len > 0)
    }

    /// Whether one slot is damaged, or is being written at this moment.
    pub(crate) fn is_half(&self) -> bool {
        matches!(self, Self::Valid(found) if !found.are_both_valid)
    }

    /// Whether a process has raised the ceiling and has not granted its token yet.
    pub(crate) fn is_being_granted(&self) -> bool {
        matches!(self, Self::Valid(found) if found.head.state == RecordState::Free && !found.is_anchored)
    }

    /// Whether both slots are valid: the file was synced under its name at least once.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self, Self::Valid(found) if found.are_both_valid)
    }

    /// How to grant the next token at wall clock `now` (µs) in boot `boot`.
    /// `floor` is asked only when the file does not know the last token.
    pub(crate) fn plan(
        &self,
        now: u64,
        boot: u64,
        floor: impl FnOnce() -> io::Result<u64>,
    ) -> io::Result<Plan> {
        // Without a boot id it is unknown whether the page cache was lost, so every grant is synced.
        let block = if boot == 0 { 0 } else { TOKEN_BLOCK };
        let Self::Valid(found) = self else {
            let token = now.max(floor()?.saturating_add(1));
            let ceiling = token.saturating_add(block);
            return Ok(Plan {
                token,
                must_raise: true,
                ceiling,
                seq: 0,
                slot: 0,
                last: 0,
            });
        };
        let head = &found.head;
        let trusted = found.are_both_valid && boot != 0 && head.boot == boot;
        let last = if trusted { head.token } else { head.ceiling };
        let token = now.max(last.saturating_add(1));
        let must_raise = !found.is_anchored || token > head.ceiling;
        let ceiling = if must_raise {
            token.saturating_add(block).max(head.ceiling)
        } else {
            head.ceiling
        };
        let slot = if found.are_both_valid {
            found.slot
        } else {
            1 - found.slot
        };
        Ok(Plan {
            token,
            must_raise,
            ceiling,
            seq: head.seq,
            slot,
            last,
        })
    }
}

impl Record {
    /// Turns the record of a dead holder, or of a detached hold, into one of a free name, reserved until `until`.
    pub(crate) fn free(&self, file: &File, until: u64, span: u64) -> io::Result<()> {
        self.rewrite(file, |writer| writer.free(file, until, span))
    }

    /// Writes the holder and the lease of a detached hold anew.
    pub(crate) fn set_lease(
        &self,
        file: &File,
        reservation: (u64, u64),
        json: &HolderJson<'_>,
    ) -> io::Result<()> {
        self.rewrite(file, |writer| writer.detach(file, reservation, json))
    }

    /// Writes that the name is held in another way, and grants nothing.
    pub(crate) fn set_state(&self, file: &File, state: RecordState) -> io::Result<()> {
        self.rewrite(file, |writer| writer.set_state(file, state))
    }

    fn rewrite(
        &self,
        file: &File,
        write: impl FnOnce(&mut RecordWriter) -> io::Result<()>,
    ) -> io::Result<()> {
        let slot = if self.are_both_valid {
            self.slot
        } else {
            1 - self.slot
        };
        let head = self.head;
        write(&mut RecordWriter { slot, head })?;
        // The repaired slot makes the other one look like an anchor, so it has to be one.
        if self.are_both_valid {
            Ok(())
        } else {
            file.sync_data()
        }
    }
}
