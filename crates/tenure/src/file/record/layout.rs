//! One slot of a lock file as bytes.

/// Length of a slot: a head and a holder whose label has the longest permitted length.
pub(crate) const SLOT_LEN: usize = 1024;
pub(super) const HEAD_LEN: usize = 88;
pub(super) const JSON_AT: usize = 96;
/// Length of the longest JSON in a slot: the last byte of a slot is a newline.
pub(crate) const MAX_JSON_LEN: usize = SLOT_LEN - JSON_AT - 1;
/// Offset of the name, which is in the file when the file name is a hash.
pub(crate) const NAME_AT: u64 = 2 * SLOT_LEN as u64;
pub(super) const MAGIC: &[u8; 8] = b"tenure1\n";

/// How the name was held when the slot was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RecordState {
    /// The name has no holder.
    #[default]
    Free,
    /// Exclusively, by the holder in the JSON.
    Exclusive,
    /// By the holders in the side files that still live.
    Shared,
    /// The same, and the upgradable holder is becoming exclusive, unless it has died: nothing else is granted.
    Upgrading,
}

/// One slot, without the JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// Grows by one with every write.
    pub(crate) seq: u64,
    /// The last token granted.
    pub(crate) token: u64,
    /// No token above this has been granted.
    pub(crate) ceiling: u64,
    /// The boot in which this was written; 0 when unknown.
    pub(crate) boot: u64,
    /// The name stays taken until then, on the wall clock in µs; 0 for no reservation.
    pub(crate) until: u64,
    /// Length of that reservation in µs: no waiter waits longer, whatever the wall clock does.
    pub(crate) span: u64,
    /// How long to reserve the name if this holder dies, in µs.
    pub(crate) delay: u64,
    /// How it is held.
    pub(crate) state: RecordState,
    pub(crate) json_len: usize,
    pub(crate) json_checksum: u64,
}

/// Detects torn writes, and no forgery: multiplies and folds 64-bit words.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    pub(super) const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
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

pub(super) fn encode(head: &Head, json: &[u8]) -> [u8; SLOT_LEN] {
    let mut slot = [b' '; SLOT_LEN];
    let state: u64 = match head.state {
        RecordState::Free => 0,
        RecordState::Exclusive => 1,
        RecordState::Shared => 2,
        RecordState::Upgrading => 3,
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
        checksum(json),
    ];
    for (at, number) in numbers.iter().enumerate() {
        slot[8 + 8 * at..16 + 8 * at].copy_from_slice(&number.to_le_bytes());
    }
    let sum = checksum(&slot[..HEAD_LEN - 8]);
    slot[HEAD_LEN - 8..HEAD_LEN].copy_from_slice(&sum.to_le_bytes());
    slot[JSON_AT..JSON_AT + json.len()].copy_from_slice(json);
    slot[SLOT_LEN - 1] = b'\n';
    slot
}

pub(super) fn decode(slot: &[u8]) -> Option<Head> {
    let head = slot.get(..HEAD_LEN)?;
    let (words, _) = head.as_chunks::<8>();
    let number = |at: usize| u64::from_le_bytes(words[at]);
    if words[0] != *MAGIC || checksum(&head[..HEAD_LEN - 8]) != number(10) {
        return None;
    }
    let state = match number(8) >> 32 {
        0 => RecordState::Free,
        1 => RecordState::Exclusive,
        2 => RecordState::Shared,
        3 => RecordState::Upgrading,
        _ => return None,
    };
    let json_len = usize::try_from(number(8) & 0xffff_ffff)
        .ok()
        .filter(|len| *len <= MAX_JSON_LEN)?;
    Some(Head {
        seq: number(1),
        token: number(2),
        ceiling: number(3),
        boot: number(4),
        until: number(5),
        span: number(6),
        delay: number(7),
        state,
        json_len,
        json_checksum: number(9),
    })
}

/// Whether a file without a good slot was begun by us: it has the magic in one place,
/// or a torn magic and then nothing but the zeros that a file system leaves where a write was lost.
pub(super) fn is_ours(first: &[u8], second: &[u8]) -> bool {
    let common = first.iter().zip(MAGIC).take_while(|(a, b)| a == b).count();
    let zeros = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    common == MAGIC.len() || second.starts_with(MAGIC) || (zeros(&first[common..]) && zeros(second))
}
