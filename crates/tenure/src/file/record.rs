//! What lies in a lock file: the token counter, and who holds the name.
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
//! In the boot in which it was written the last token itself counts (the page cache loses nothing when a process dies),
//! after a reboot, or when a slot is damaged, `ceiling` takes its place.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use serde::{Deserialize, Serialize};

/// Length of a slot: a head and a holder whose label has the longest permitted length.
pub(super) const SLOT: usize = 1024;
const HEAD: usize = 88;
const BODY: usize = 96;
/// Most bytes of JSON in a slot: the last byte is a newline.
pub(super) const MAX_BODY: usize = SLOT - BODY - 1;
/// Where the name lies when the file name does not tell it.
pub(super) const NAME_AT: u64 = 2 * SLOT as u64;
const MAGIC: &[u8; 8] = b"tenure1\n";
/// Tokens (µs) that one sync makes available: a sync in 67 s for a name in use.
/// After a reboot the counter skips what is left of a block, so it runs at most this far ahead of the clock.
const BLOCK: u64 = 1 << 26;

/// How the name was held when the slot was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// By nobody.
    #[default]
    Free,
    /// By the one in the JSON, exclusively.
    Exclusive,
    /// By those in the side files, if they still live.
    Shared,
}

/// One slot, without the JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// Grows by one with every write.
    pub(super) seq: u64,
    /// The last token granted.
    pub(super) token: u64,
    /// No token above this has been granted.
    pub(super) ceiling: u64,
    /// The boot in which this was written; 0 when unknown.
    pub(super) boot: u64,
    /// The name stays taken until then, on the wall clock in µs; 0 for no reservation.
    pub(super) until: u64,
    /// Length of that reservation in µs: nobody waits longer, whatever the wall clock does.
    pub(super) span: u64,
    /// How long to reserve the name if this holder dies, in µs.
    pub(super) delay: u64,
    /// How it is held.
    pub(super) state: State,
    pub(super) body_len: usize,
    pub(super) body_check: u64,
}

/// What a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    /// Nothing: it was just created.
    Empty,
    /// Something that is not ours.
    Foreign,
    /// Ours, but neither slot can be trusted.
    Torn,
    /// A record.
    Valid(Found),
}

/// A record with at least one good slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The newest good slot.
    pub(super) head: Head,
    /// Which one that is.
    slot: usize,
    /// The other slot is good, too.
    whole: bool,
    /// The older slot is known to have been synced with the same ceiling.
    anchored: bool,
}

/// What the next grant has to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The token to grant.
    pub(super) token: u64,
    /// A new ceiling must be synced first.
    pub(super) raise: bool,
    ceiling: u64,
    seq: u64,
    slot: usize,
    last: u64,
}

/// The writer's place in the file, from a grant to its release.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecordWriter {
    slot: usize,
    head: Head,
}

/// The holder as it is written into the file. Missing fields are empty: others may write these files, too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Body<'a> {
    pub(super) host: Cow<'a, str>,
    pub(super) pid: u32,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) label: Cow<'a, str>,
    pub(super) client: Cow<'a, str>,
    /// A digest of the owner id: the id itself is a capability.
    pub(super) owner: Cow<'a, str>,
    pub(super) mode: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<u32>,
    pub(super) token: u64,
    /// Wall clock, µs.
    pub(super) since: u64,
}

impl Body<'_> {
    /// As JSON that fits into a slot. Only text full of escapes can be too long; its label goes first.
    fn to_json(&self) -> Vec<u8> {
        let mut json = Vec::with_capacity(256);
        // Writing numbers and strings to a vector cannot fail.
        let _ = serde_json::to_writer(&mut json, self);
        if json.len() > MAX_BODY {
            let short = Body {
                label: Cow::Borrowed("…"),
                ..self.clone()
            };
            json = serde_json::to_vec(&short).unwrap_or_default();
        }
        if json.len() > MAX_BODY {
            let short = Body {
                pid: self.pid,
                token: self.token,
                since: self.since,
                ..Body::default()
            };
            json = serde_json::to_vec(&short).unwrap_or_default();
        }
        json
    }
}

/// Guards against torn writes, not against forgers: multiply and fold over 64-bit words.
pub(super) fn check(bytes: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut sum = bytes.len() as u64 ^ ODD;
    let mut mix = |word: u64| {
        sum = (sum ^ word).wrapping_mul(ODD);
        sum ^= sum >> 32;
    };
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().for_each(|word| mix(u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(u64::from_le_bytes(last));
    sum
}

fn encode(head: &Head, json: &[u8]) -> [u8; SLOT] {
    let mut slot = [b' '; SLOT];
    let state: u64 = match head.state {
        State::Free => 0,
        State::Exclusive => 1,
        State::Shared => 2,
    };
    slot[..8].copy_from_slice(MAGIC);
    let numbers = [
        head.seq,
        head.token,
        head.ceiling,
        head.boot,
        head.until,
        head.span,
        head.delay,
        state << 32 | json.len() as u64,
        check(json),
    ];
    for (at, number) in numbers.iter().enumerate() {
        slot[8 + 8 * at..16 + 8 * at].copy_from_slice(&number.to_le_bytes());
    }
    let sum = check(&slot[..HEAD - 8]);
    slot[HEAD - 8..HEAD].copy_from_slice(&sum.to_le_bytes());
    slot[BODY..BODY + json.len()].copy_from_slice(json);
    slot[SLOT - 1] = b'\n';
    slot
}

fn decode(slot: &[u8]) -> Option<Head> {
    let head = slot.get(..HEAD)?;
    let (words, _) = head.as_chunks::<8>();
    let number = |at: usize| u64::from_le_bytes(words[at]);
    if words[0] != *MAGIC || check(&head[..HEAD - 8]) != number(10) {
        return None;
    }
    let state = match number(8) >> 32 {
        0 => State::Free,
        1 => State::Exclusive,
        2 => State::Shared,
        _ => return None,
    };
    let body_len = usize::try_from(number(8) & 0xffff_ffff)
        .ok()
        .filter(|len| *len <= MAX_BODY)?;
    Some(Head {
        seq: number(1),
        token: number(2),
        ceiling: number(3),
        boot: number(4),
        until: number(5),
        span: number(6),
        delay: number(7),
        state,
        body_len,
        body_check: number(9),
    })
}

/// Whether a file without a good slot was begun by us: it has the magic in one place,
/// or a torn magic and then nothing but the zeros that a file system leaves where a write was lost.
fn is_ours(first: &[u8], second: &[u8]) -> bool {
    let common = first.iter().zip(MAGIC).take_while(|(a, b)| a == b).count();
    let zeros = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    common == MAGIC.len() || second.starts_with(MAGIC) || (zeros(&first[common..]) && zeros(second))
}

/// Reads what matters for a grant: both heads.
pub(super) fn read(file: &File) -> io::Result<Contents> {
    let mut bytes = [0; SLOT + HEAD];
    let len = read_up_to(file, &mut bytes)?;
    Ok(parse(&bytes[..len]))
}

/// The newest record with its holder; the holder is `None` when that part is damaged or nobody holds.
pub(super) fn read_all(file: &File) -> io::Result<(Contents, Option<Body<'static>>)> {
    let mut bytes = [0; 2 * SLOT];
    let len = read_up_to(file, &mut bytes)?;
    let contents = parse(&bytes[..len]);
    let Contents::Valid(found) = contents else {
        return Ok((contents, None));
    };
    let start = found.slot * SLOT + BODY;
    let json = bytes[..len]
        .get(start..start + found.head.body_len)
        .filter(|json| check(json) == found.head.body_check)
        .and_then(|json| serde_json::from_slice(json).ok());
    Ok((contents, json))
}

/// The name kept in the file, if there is one.
pub(super) fn read_name(file: &File) -> io::Result<Option<String>> {
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
        // One call: a regular file gives all it has, and a torn view is caught by the checks.
        match file.read_at(bytes, 0) {
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

fn parse(bytes: &[u8]) -> Contents {
    if bytes.is_empty() {
        return Contents::Empty;
    }
    let (first, second) = bytes.split_at(bytes.len().min(SLOT));
    let heads = [decode(first), decode(second)];
    match heads {
        [Some(a), Some(b)] => {
            let slot = usize::from(b.seq > a.seq);
            let head = if slot == 1 { b } else { a };
            let anchored = a.ceiling == b.ceiling;
            Contents::Valid(Found {
                head,
                slot,
                whole: true,
                anchored,
            })
        }
        [Some(head), None] => Contents::Valid(Found {
            head,
            slot: 0,
            whole: false,
            anchored: false,
        }),
        [None, Some(head)] => Contents::Valid(Found {
            head,
            slot: 1,
            whole: false,
            anchored: false,
        }),
        [None, None] if is_ours(first, second) => Contents::Torn,
        [None, None] => Contents::Foreign,
    }
}

impl Contents {
    /// The newest head, if there is a record.
    pub(super) fn head(&self) -> Option<&Head> {
        match self {
            Self::Valid(found) => Some(&found.head),
            _ => None,
        }
    }

    /// Whether both slots are good: the file was synced under its name at least once.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self, Self::Valid(found) if found.whole)
    }

    /// How to grant the next token at wall clock `now` (µs) in boot `boot`.
    /// `floor` is asked only when the file does not know the last token.
    pub(super) fn plan(
        &self,
        now: u64,
        boot: u64,
        floor: impl FnOnce() -> io::Result<u64>,
    ) -> io::Result<Plan> {
        // Without a boot id nobody knows whether the page cache was lost: every grant is synced then.
        let block = if boot == 0 { 0 } else { BLOCK };
        let Self::Valid(found) = self else {
            let token = now.max(floor()?.saturating_add(1));
            let ceiling = token.saturating_add(block);
            return Ok(Plan {
                token,
                raise: true,
                ceiling,
                seq: 0,
                slot: 0,
                last: 0,
            });
        };
        let head = &found.head;
        let trusted = found.whole && boot != 0 && head.boot == boot;
        let last = if trusted { head.token } else { head.ceiling };
        let token = now.max(last.saturating_add(1));
        let raise = !found.anchored || token > head.ceiling;
        let ceiling = if raise {
            token.saturating_add(block).max(head.ceiling)
        } else {
            head.ceiling
        };
        let slot = if found.whole {
            found.slot
        } else {
            1 - found.slot
        };
        Ok(Plan {
            token,
            raise,
            ceiling,
            seq: head.seq,
            slot,
            last,
        })
    }
}

impl Plan {
    /// Writes the new ceiling and syncs it, if the plan says so. `name` is for a file that does not know it yet.
    ///
    /// Nothing is granted by this. `state` is how the name is held meanwhile.
    pub(super) fn raise(
        &mut self,
        file: &File,
        boot: u64,
        state: State,
        name: Option<&str>,
    ) -> io::Result<()> {
        if !self.raise {
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
        file.write_all_at(&encode(&head, b""), (self.slot * SLOT) as u64)?;
        file.sync_data()?;
        // This slot is the anchor now.
        self.slot = 1 - self.slot;
        self.raise = false;
        Ok(())
    }

    /// Writes the grant. The ceiling must have been raised.
    pub(super) fn grant(
        self,
        file: &File,
        head: Head,
        body: Option<&Body<'_>>,
    ) -> io::Result<RecordWriter> {
        debug_assert!(
            !self.raise,
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
        writer.put(file, body)?;
        Ok(writer)
    }
}

impl RecordWriter {
    fn put(&mut self, file: &File, body: Option<&Body<'_>>) -> io::Result<()> {
        let json = body.map(Body::to_json).unwrap_or_default();
        file.write_all_at(&encode(&self.head, &json), (self.slot * SLOT) as u64)
    }

    /// Writes that nobody holds the name, reserved as `head` says.
    pub(super) fn free(&mut self, file: &File, until: u64, span: u64) -> io::Result<()> {
        self.head.seq += 1;
        self.head.state = State::Free;
        (self.head.until, self.head.span, self.head.delay) = (until, span, 0);
        self.put(file, None)
    }

    /// The token that was granted.
    pub(super) fn token(&self) -> u64 {
        self.head.token
    }

    /// The end and the length of the reservation that came with the grant.
    pub(super) fn reservation(&self) -> (u64, u64) {
        (self.head.until, self.head.span)
    }
}

impl Found {
    /// Turns the record of a dead holder into one of a free name, reserved until `until`.
    pub(super) fn free_after_death(&self, file: &File, until: u64, span: u64) -> io::Result<()> {
        let slot = if self.whole { self.slot } else { 1 - self.slot };
        RecordWriter {
            slot,
            head: self.head,
        }
        .free(file, until, span)?;
        // The repaired slot makes the other one look like an anchor, so it has to be one.
        if self.whole { Ok(()) } else { file.sync_data() }
    }
}

/// Makes `file` the fresh record of a name that nobody holds, and syncs it: tokens start above `last`,
/// and the name stays reserved until `until`, for `span`.
pub(super) fn create(
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
    file.write_all_at(&encode(&Head { seq: 2, ..head }, b""), SLOT as u64)?;
    if let Some(name) = name {
        file.write_all_at(name.as_bytes(), NAME_AT)?;
    }
    file.sync_data()
}

/// Writes the record of a side file, which counts nothing: holder, state and token in slot 0.
pub(super) fn write_side(file: &File, token: u64, body: Option<&Body<'_>>) -> io::Result<()> {
    let state = if body.is_some() {
        State::Shared
    } else {
        State::Free
    };
    let head = Head {
        seq: 1,
        token,
        ceiling: token,
        state,
        ..Head::default()
    };
    RecordWriter { slot: 0, head }.put(file, body)
}

/// For [`crate::fuzzing`]: a file that says this. Whatever it says, the next token is greater than the last one that
/// can be known, also when the write of it was torn anywhere.
#[cfg(feature = "_fuzzing")]
pub(crate) fn fuzz(data: &[u8]) {
    let contents = parse(&data[..data.len().min(SLOT + HEAD)]);
    if let Some(head) = contents.head() {
        for boot in [0, head.boot, head.boot ^ 1] {
            let plan = contents.plan(0, boot, || Ok(0));
            let plan = plan.expect("nothing was asked");
            assert!(plan.token > head.token || head.token == u64::MAX || head.ceiling < head.token);
            assert!(plan.ceiling >= plan.token || plan.token == u64::MAX);
        }
    }
    // A record that was being replaced by the next one when the power went, after so many bytes.
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
    let cut = usize::from(data.get(5).copied().unwrap_or(0)) % (HEAD + 8);
    let mut bytes = [encode(&old, b""), encode(&oldest, b"")].concat();
    bytes[SLOT..SLOT + cut].copy_from_slice(&encode(&new, b"")[..cut]);
    let contents = parse(&bytes[..SLOT + HEAD]);
    let head = contents.head().expect("one slot is good");
    let is = |one: &Head| (head.seq, head.token) == (one.seq, one.token);
    assert!(is(&old) || is(&new), "{head:?} was never written");
    let plan = contents.plan(0, old.boot, || Ok(0));
    let token = plan.expect("nothing was asked").token;
    let is_new = cut >= HEAD || is(&new);
    assert!(token > old.token && (!is_new || token > new.token));
    let start = data.get(BODY..).unwrap_or_default();
    if let Ok(body) = serde_json::from_slice::<Body<'_>>(start) {
        assert!(format!("{body:?}").len() < 16 * (data.len() + 64));
    }
}

#[cfg(test)]
mod tests;
