//! The contents of a lock file: the token counter, and who holds the name.
//!
//! ```text
//! 0      slot 0: head (88 bytes), at 96 the holder as one line of JSON, blanks, newline
//! 1024   slot 1: the same
//! 2048   the name itself, when the file name is a hash of it
//! ```
//!
//! A head is, in this order: the magic `tenure1\n`, then little-endian 64-bit numbers: sequence, last token, ceiling, boot id,
//! end of the reservation (wall clock, µs), its length (µs), lock delay (µs), state and length of the JSON,
//! check of the JSON, check of the head up to here.
//!
//! # Why two slots, and when which is written
//!
//! No token is granted above `ceiling`, and a ceiling counts only once it has been synced to the disk.
//! So whatever was torn or lost, `ceiling + 1` of the last synced slot is greater than every token granted.
//! The slot whose ceiling was synced is the *anchor* and is not written to until the other one has been synced with a
//! higher ceiling; all writes in between go to the other slot, unsynced. A torn write can only damage that other slot.
//!
//! | on disk | anchor | next write goes to |
//! | --- | --- | --- |
//! | both valid, equal ceilings | the older | the newer |
//! | both valid, the newer has the higher ceiling: raised, perhaps not synced | the older | the newer, and it raises |
//! | one valid | that one | the other, and it raises |
//! | none | | slot 0, and it raises |
//!
//! After a raise was synced, that slot is the anchor and the grant itself is written to the other one.
//! A record without a holder has no JSON, unless the hold was detached from its process: then the JSON is that of the
//! holder, with its lease, and the reservation is what other holders have to wait for at most (`detached_record.rs`).
//!
//! In the boot in which it was written the last token itself counts (the page cache loses nothing when a process dies),
//! after a reboot, or when a slot is damaged, `ceiling` takes its place.

mod holder;
mod layout;
mod read;
mod write;

pub(super) use self::holder::{HolderJson, LeaseJson};
pub(super) use self::layout::{Head, RecordState, checksum};
pub(super) use self::read::{Contents, Record, read, read_all, read_name};
pub(super) use self::write::{RecordWriter, create, write_side};

/// For [`crate::fuzzing`]: reads `data` as a lock file. Whatever the file says, the next token is greater than the last
/// one that can be known, also when its write was torn anywhere.
#[cfg(feature = "_fuzzing")]
pub(crate) fn fuzz(data: &[u8]) {
    use self::layout::{HEAD_LEN, JSON_AT, SLOT_LEN, encode};
    use self::read::parse;

    let contents = parse(&data[..data.len().min(SLOT_LEN + HEAD_LEN)]);
    if let Some(head) = contents.head() {
        for boot in [0, head.boot, head.boot ^ 1] {
            let plan = contents.plan(0, boot, || Ok(0));
            let plan = plan.expect("nothing was asked");
            assert!(plan.token > head.token || head.token == u64::MAX || head.ceiling < head.token);
            assert!(plan.ceiling >= plan.token || plan.token == u64::MAX);
        }
    }
    // A record that was being replaced by the next one when the power failed, after so many bytes.
    let number = |at: usize| u64::from(data.get(at).copied().unwrap_or(0));
    let old = Head {
        seq: 1 + number(0),
        token: 1 + number(1),
        ceiling: 1 + number(1) + number(2),
        boot: number(3) % 3,
        ..Head::default()
    };
    let new = Head {
        seq: old.seq + 1,
        token: old.ceiling.min(old.token + 1 + number(4)),
        ..old
    };
    let oldest = Head {
        seq: old.seq - 1,
        token: 1,
        ..old
    };
    let cut = usize::from(data.get(5).copied().unwrap_or(0)) % (HEAD_LEN + 8);
    let mut bytes = [encode(&old, b""), encode(&oldest, b"")].concat();
    bytes[SLOT_LEN..SLOT_LEN + cut].copy_from_slice(&encode(&new, b"")[..cut]);
    let contents = parse(&bytes[..SLOT_LEN + HEAD_LEN]);
    let head = contents.head().expect("one slot is good");
    let is = |one: &Head| (head.seq, head.token) == (one.seq, one.token);
    assert!(is(&old) || is(&new), "{head:?} was never written");
    let plan = contents.plan(0, old.boot, || Ok(0));
    let token = plan.expect("nothing was asked").token;
    let is_new = cut >= HEAD_LEN || is(&new);
    assert!(token > old.token && (!is_new || token > new.token));
    let start = data.get(JSON_AT..).unwrap_or_default();
    if let Ok(body) = serde_json::from_slice::<HolderJson<'_>>(start) {
        assert!(format!("{body:?}").len() < 16 * (data.len() + 64));
    }
}

#[cfg(test)]
mod tests;
