use std::borrow::Cow;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::read::{TOKEN_BLOCK, parse};
use super::*;

struct Scratch(std::path::PathBuf, File);

impl Scratch {
    fn new(test: &str) -> Self {
        let unique = format!("tenure-record-{}-{test}", std::process::id());
        let path = std::env::temp_dir().join(unique);
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        Self(path, file)
    }

    fn fill(&self, bytes: &[u8]) -> &File {
        self.1.set_len(0).unwrap();
        self.1.write_all_at(bytes, 0).unwrap();
        &self.1
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn body(token: u64) -> HolderJson<'static> {
    HolderJson {
        host: "h".into(),
        pid: 7,
        token,
        ..HolderJson::default()
    }
}

/// Grants as the store does, with a wall clock that was never set: only the counter keeps tokens growing.
fn grant(file: &File, boot: u64) -> RecordWriter {
    let mut plan = read(file).unwrap().plan(0, boot, || Ok(0)).unwrap();
    plan.raise(file, boot, RecordState::Free, None).unwrap();
    let head = Head {
        boot,
        state: RecordState::Exclusive,
        ..Head::default()
    };
    plan.grant(file, head, Some(&body(plan.token))).unwrap()
}

/// The layout is read by other versions of us: a change needs a new magic.
#[test]
fn golden_layout() {
    let scratch = Scratch::new("golden");
    let head = Head {
        boot: 5,
        state: RecordState::Exclusive,
        until: 6,
        span: 7,
        delay: 8,
        ..Head::default()
    };
    let mut plan = Contents::Empty.plan(1_000_000, 5, || Ok(0)).unwrap();
    plan.raise(&scratch.1, 5, RecordState::Free, Some("name"))
        .unwrap();
    plan.grant(&scratch.1, head, Some(&body(1_000_000)))
        .unwrap();
    let bytes = scratch.bytes();
    let hex: String = bytes[1024..1112]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let numbers = [
        "74656e757265310a", // magic
        "0200000000000000", // sequence
        "40420f0000000000", // token
        "40420f0400000000", // ceiling
        "0500000000000000", // boot
        "0600000000000000", // until
        "0700000000000000", // span
        "0800000000000000", // delay
        "4f00000001000000", // length, state
        "d131a17a5035fc3d", // check of the JSON
        "33cfb70ae1401f2a", // check of the head
    ];
    assert_eq!(hex, numbers.concat());
    let json = r#"{"host":"h","pid":7,"client":"","owner":"","mode":"","token":1000000,"since":0}"#;
    assert_eq!(&bytes[1120..1120 + json.len()], json.as_bytes());
    assert_eq!(&bytes[2048..], b"name");
    assert_eq!(read_name(&scratch.1).unwrap().unwrap(), "name");
    let (contents, holder) = read_all(&scratch.1).unwrap();
    assert_eq!(contents.head().unwrap().token, 1_000_000);
    assert_eq!(holder.unwrap(), body(1_000_000));
}

#[test]
fn tokens_grow_within_a_boot_and_across_boots() {
    let scratch = Scratch::new("grow");
    let mut last = 0;
    let mut syncs = 0;
    for boot in [1, 1, 2, 3, 3, 0, 0, 1] {
        for _ in 0..20 {
            let before = read(&scratch.1).unwrap().plan(0, boot, || Ok(0)).unwrap();
            syncs += u32::from(before.must_raise);
            let mut writer = grant(&scratch.1, boot);
            assert!(writer.token() > last, "{} after {last}", writer.token());
            last = writer.token();
            writer.free(&scratch.1, 0, 0).unwrap();
        }
    }
    // One for each new boot, and one for each grant without a boot id.
    assert_eq!(syncs, 4 + 40);
}

/// A disk that may keep any unsynced write or lose it, whole or in part, at every byte: after the power is back
/// (with a wall clock that was never set) the next token is above all that were granted.
#[test]
fn no_torn_or_lost_write_brings_a_token_back() {
    let scratch = Scratch::new("torn");
    // What is on the disk for certain, what was written since, and the greatest token granted.
    let mut synced: Vec<u8> = Vec::new();
    let mut granted = 0;
    let mut current = Vec::new();
    let mut crashes = 0_u32;
    for step in 0..24_u64 {
        // The block is used up now and then, so that raises come at different points.
        let now = if step % 5 == 4 {
            granted + 2 * TOKEN_BLOCK
        } else {
            0
        };
        let boot = 1 + step / 9;
        let mut plan = parse(&current).plan(now, boot, || Ok(0)).unwrap();
        let mut writes = Vec::new();
        if plan.must_raise {
            let before = current.clone();
            scratch.fill(&current);
            plan.raise(&scratch.1, boot, RecordState::Free, None)
                .unwrap();
            current = scratch.bytes();
            // Torn while it was being written: nothing was granted by it yet.
            crash(&before, &current, granted, &mut crashes);
            synced.clone_from(&current);
        }
        scratch.fill(&current);
        let head = Head {
            boot,
            state: RecordState::Exclusive,
            ..Head::default()
        };
        let mut writer = plan
            .grant(&scratch.1, head, Some(&body(plan.token)))
            .unwrap();
        assert!(writer.token() > granted);
        granted = writer.token();
        writes.push(scratch.bytes());
        writer.free(&scratch.1, 0, 0).unwrap();
        writes.push(scratch.bytes());
        for after in &writes {
            crash(&synced, after, granted, &mut crashes);
            crash(&current, after, granted, &mut crashes);
            current.clone_from(after);
        }
    }
    assert!(crashes > 10_000, "{crashes}");
}

/// Loses power while `after` replaces `before`, at every byte that differs.
fn crash(before: &[u8], after: &[u8], granted: u64, crashes: &mut u32) {
    let mut before = before.to_vec();
    before.resize(after.len().max(before.len()), 0);
    for at in 0..=after.len() {
        if at > 0 && at < after.len() && before[at - 1] == after[at - 1] {
            continue;
        }
        let image = [&after[..at], &before[at..]].concat();
        // A file that was never synced may also come back empty.
        let found = parse(&image);
        assert_ne!(found, Contents::Foreign, "our own file, torn at {at}");
        if granted == 0 {
            continue;
        }
        let plan = found.plan(0, 99, || Ok(0)).unwrap();
        assert!(
            plan.token > granted,
            "torn at {at}: {} after {granted}",
            plan.token
        );
        *crashes += 1;
    }
}

/// Not a power loss but a process that died in the middle of its write: same boot, and the other slot is good.
#[test]
fn a_record_torn_in_the_same_boot_does_not_bring_a_token_back() {
    let scratch = Scratch::new("same-boot");
    grant(&scratch.1, 1).free(&scratch.1, 0, 0).unwrap();
    let before = scratch.bytes();
    let writer = grant(&scratch.1, 1);
    let after = scratch.bytes();
    for at in 0..after.len() {
        let torn = [&after[..at], &before[at..]].concat();
        let plan = parse(&torn).plan(0, 1, || Ok(0)).unwrap();
        // Unless nothing of it was written, and so nothing granted.
        assert!(
            plan.token > writer.token() || torn == before,
            "torn at {at}"
        );
    }
}

#[test]
fn what_is_not_ours_is_foreign_and_what_is_torn_is_not() {
    for foreign in ["x", "some notes\n", "tenure2\n and more", "tenur"] {
        let padded = format!("{foreign}{}", "y".repeat(2_000));
        assert_eq!(
            parse(&padded.as_bytes()[..1_112]),
            Contents::Foreign,
            "{foreign}"
        );
    }
    for torn in [
        &b"tenure1\n"[..],
        b"tenure1\nxyz",
        b"ten",
        b"ten\0\0\0\0\0\0\0",
        b"\0\0\0",
    ] {
        assert_eq!(parse(torn), Contents::Torn, "{torn:?}");
    }
    assert_eq!(parse(b""), Contents::Empty);
}

#[test]
fn a_raise_that_was_not_finished_is_repeated() {
    let scratch = Scratch::new("unfinished");
    grant(&scratch.1, 1).free(&scratch.1, 0, 0).unwrap();
    let mut plan = read(&scratch.1)
        .unwrap()
        .plan(TOKEN_BLOCK * 2, 1, || Ok(0))
        .unwrap();
    assert!(plan.must_raise);
    // The process dies after the write of the raise, perhaps before its sync.
    plan.raise(&scratch.1, 1, RecordState::Free, None).unwrap();
    let again = read(&scratch.1)
        .unwrap()
        .plan(TOKEN_BLOCK * 2, 1, || Ok(0))
        .unwrap();
    assert!(
        again.must_raise,
        "nobody knows whether the ceiling is on the disk"
    );
}

#[test]
fn a_holder_made_of_escapes_still_fits() {
    let scratch = Scratch::new("escapes");
    let lease = LeaseJson {
        owner: "f".repeat(32),
        until: u64::MAX,
        boot_until: u64::MAX,
        boot: u64::MAX,
        span: u64::MAX,
        reserved_until: u64::MAX,
        reserved_span: u64::MAX,
    };
    for (host, label) in [
        ("h".into(), "\0".repeat(200)),
        ("\0".repeat(200), "\0".repeat(200)),
    ] {
        let body = HolderJson {
            host: Cow::Owned(host),
            label: Cow::Owned(label),
            pid: 7,
            detached: Some(lease.clone()),
            ..HolderJson::default()
        };
        write_side(&scratch.1, 9, Some(&body)).unwrap();
        let read = read_all(&scratch.1).unwrap().1.unwrap();
        assert_eq!((read.pid, read.detached), (7, Some(lease.clone())));
    }
    let body = HolderJson {
        label: "é".repeat(100).into(),
        host: "h".repeat(255).into(),
        detached: Some(lease),
        ..body(9)
    };
    write_side(&scratch.1, 9, Some(&body)).unwrap();
    assert_eq!(read_all(&scratch.1).unwrap().1.unwrap(), body);
}

/// A dead holder's record, repaired when the other slot was torn, is an anchor that can be trusted.
#[test]
fn burying_the_dead_keeps_the_counter() {
    let scratch = Scratch::new("bury");
    let writer = grant(&scratch.1, 1);
    let Contents::Valid(found) = read(&scratch.1).unwrap() else {
        panic!("no record")
    };
    found.free(&scratch.1, 50, 40).unwrap();
    let head = *read(&scratch.1).unwrap().head().unwrap();
    assert_eq!(
        (head.state, head.until, head.span, head.delay),
        (RecordState::Free, 50, 40, 0)
    );
    assert!(grant(&scratch.1, 1).token() > writer.token());
    assert!(grant(&scratch.1, 2).token() > writer.token());
}

/// Other versions read the lease of a detached hold; one that does not know it reads a reservation.
#[test]
fn a_detached_hold_is_a_reservation_with_a_holder() {
    let scratch = Scratch::new("detached");
    let mut writer = grant(&scratch.1, 1);
    assert!(!read(&scratch.1).unwrap().is_detached());
    let lease = LeaseJson {
        owner: "ab".into(),
        until: 1,
        boot_until: 2,
        boot: 3,
        span: 4,
        reserved_until: 5,
        reserved_span: 6,
    };
    let json = HolderJson {
        detached: Some(lease),
        ..body(writer.token())
    };
    writer.detach(&scratch.1, (50, 40), &json).unwrap();
    let (contents, found) = read_all(&scratch.1).unwrap();
    let head = *contents.head().unwrap();
    assert!(contents.is_detached() && !contents.has_holder() && !contents.is_half());
    assert_eq!(
        (head.until, head.span, head.token),
        (50, 40, writer.token())
    );
    assert_eq!(found.unwrap(), json);
    let text = r#","detached":{"owner":"ab","until":1,"boot_until":2,"boot":3,"span":4,"reserved_until":5,"reserved_span":6}}"#;
    let bytes = scratch.bytes();
    assert!(bytes.windows(text.len()).any(|it| it == text.as_bytes()));
    // The process goes on with its hold if the disk is full.
    assert_eq!(writer.reservation(), (0, 0));
    writer.free(&scratch.1, 0, 0).unwrap();
    assert!(!read(&scratch.1).unwrap().is_detached());
    assert!(grant(&scratch.1, 1).token() > writer.token());
}
