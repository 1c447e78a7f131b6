//! The files of one hold: a value that its record has no room for, and a request to let go.
//!
//! The token of the hold is a part of their names. So the file of one hold is never taken for that of another one, and only
//! the holder itself writes its value. The holder removes its files before it unlocks the name; the next exclusive holder
//! removes those of a holder that has died, and a sweep the others.
//!
//! ```text
//! 0    the magic `tenurev\n`, then little-endian 64-bit numbers: number of the value, its length, check of both and the value
//! 32   the value
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use tenure_core::error::Error;
use tenure_core::holder::{Holder, PublishedValue};
use tenure_core::support::wall_time;

use super::directory::{Directory, LockPath, OpenOutcome};
use super::errors::refused;
use super::names::{self, SideKind};
use super::record::{HolderJson, checksum};

const MAGIC: &[u8; 8] = b"tenurev\n";
const HEAD_LEN: usize = 32;

/// The files of the hold with one token.
pub(super) struct TokenFiles<'a> {
    pub(super) directory: &'a Directory,
    /// The file of the name.
    pub(super) file: &'a str,
    pub(super) token: u64,
}

impl TokenFiles<'_> {
    /// Writes the value with this number, in place of the last one.
    pub(super) fn write_value(
        &self,
        number: u64,
        text: &str,
        held_locks: usize,
    ) -> Result<(), Error> {
        let value = self.create(SideKind::Value, held_locks)?;
        value.write_all_at(&encode(number, text), 0).map_err(|err| {
            let file = self.name(SideKind::Value);
            self.directory.system_error("write", &file, err, held_locks)
        })
    }

    /// The value with this number. `None`: there is no such value, or it is being written.
    pub(super) fn read_value(
        &self,
        number: u64,
        held_locks: usize,
    ) -> Result<Option<String>, Error> {
        let file = self.name(SideKind::Value);
        let Some((opened, _)) = self.directory.open_existing(&file, held_locks)? else {
            return Ok(None);
        };
        let bytes = read_up_to(&opened, HEAD_LEN + PublishedValue::MAX_LEN)
            .map_err(|err| self.directory.system_error("read", &file, err, held_locks))?;
        Ok(decode(&bytes, number))
    }

    /// Leaves a request to let go. It is there already if another process has asked before.
    pub(super) fn add_request(&self, held_locks: usize) -> Result<(), Error> {
        self.create(SideKind::ReleaseRequest, held_locks).map(drop)
    }

    /// Whether a process of this user has asked the holder to let go.
    pub(super) fn has_request(&self) -> bool {
        let file = self.name(SideKind::ReleaseRequest);
        self.directory.has_file(&file)
    }

    /// Takes the request back, because its holder is gone.
    pub(super) fn remove_request(&self) {
        let _ = self.directory.unlink(&self.name(SideKind::ReleaseRequest));
    }

    /// Removes all files of the hold. What cannot be removed is left to a sweep.
    pub(super) fn remove(&self) {
        let _ = self.directory.unlink(&self.name(SideKind::Value));
        self.remove_request();
    }

    fn name(&self, kind: SideKind) -> String {
        names::side(self.file, kind, self.token)
    }

    fn create(&self, kind: SideKind, held_locks: usize) -> Result<File, Error> {
        let lock_path = LockPath::new(self.directory.path(), self.name(kind));
        match self.directory.open_lock(&lock_path, held_locks)? {
            OpenOutcome::File(file, _) => Ok(file),
            OpenOutcome::Gone => Err(refused(
                self.directory.path(),
                "was removed, or the file in it; nothing was written",
            )),
        }
    }
}

/// The holder as its record describes it. `None`: the record is damaged, or its value is; another process may be about to
/// write it.
pub(super) fn holder(
    json: Option<HolderJson<'static>>,
    files: &TokenFiles<'_>,
    held_locks: usize,
) -> Result<Option<Holder>, Error> {
    let Some(mut json) = json else {
        return Ok(None);
    };
    if let (None, Some(number)) = (&json.value, json.number) {
        let Some(text) = files.read_value(number, held_locks)? else {
            return Ok(None);
        };
        json.value = Some(text.into());
    }
    Ok(Some(holder_without_files(json)))
}

/// The same, without a value that is not in the record.
pub(super) fn holder_without_files(json: HolderJson<'static>) -> Holder {
    let mut holder = Holder::new(json.host, json.pid);
    holder.label = json.label.into_owned();
    holder.client = json.client.into_owned();
    holder.since = wall_time(json.since).filter(|_| json.since > 0);
    holder.value = json
        .number
        .map(|number| PublishedValue::new(json.value.unwrap_or_default(), number));
    holder
}

fn encode(number: u64, text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_LEN + text.len());
    bytes.extend(MAGIC);
    bytes.extend(number.to_le_bytes());
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(check(number, text.as_bytes()).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

fn decode(bytes: &[u8], number: u64) -> Option<String> {
    let (head, rest) = bytes.split_at_checked(HEAD_LEN)?;
    let (words, _) = head.as_chunks::<8>();
    let word = |at: usize| u64::from_le_bytes(words[at]);
    let text = rest.get(..usize::try_from(word(2)).ok()?)?;
    let is_whole = words[0] == *MAGIC && word(1) == number && word(3) == check(number, text);
    is_whole
        .then(|| String::from_utf8(text.to_vec()).ok())
        .flatten()
}

fn check(number: u64, text: &[u8]) -> u64 {
    checksum(&[&number.to_le_bytes(), text].concat())
}

fn read_up_to(file: &File, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    loop {
        // One call: a regular file gives all that was asked for, and the check finds a torn view.
        match file.read_at(&mut bytes, 0) {
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            read => {
                bytes.truncate(read?);
                return Ok(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_as_it_was_written_and_in_no_other_state() {
        let text = "ü".repeat(PublishedValue::MAX_LEN / 2);
        let bytes = encode(7, &text);
        assert_eq!(decode(&bytes, 7).as_deref(), Some(&*text));
        assert_eq!(decode(&bytes, 8), None);
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len], 7), None, "{len}");
        }
        for at in 0..bytes.len() {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            assert_eq!(decode(&torn, 7), None, "{at}");
        }
        // A shorter value is written over a longer one.
        let mut shorter = bytes;
        let short = encode(8, "x");
        shorter[..short.len()].copy_from_slice(&short);
        assert_eq!(decode(&shorter, 8).as_deref(), Some("x"));
    }
}
