//! Acquire, release, inspect, break: one hold at a time.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::Duration;

use tenure::guarantees::Fault;
use tenure::store::{Hold, Listed, Operate as _, Release, Renewal, Severity, Store as _};
use tenure::{ErrorKind, LostReason, Mode};

use crate::support::{
    Scratch, inspect, is_free, list, name, now, open_below, poll, release, request, take,
    try_acquire, waiting,
};

#[test]
fn a_free_name_is_taken_and_given_back_in_one_poll_without_a_runtime() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let (hold, grant) = try_acquire(&store, request("a")).unwrap().unwrap();
    assert_eq!(grant.ttl, None);
    assert!(try_acquire(&store, request("a")).unwrap().is_none());
    assert!(is_free(&store, "b"));
    // The same for a request that may wait.
    let other = try_acquire(&store, waiting("c")).unwrap().unwrap().0;
    release(&store, other);
    release(&store, hold);
    let (hold, again) = try_acquire(&store, request("a")).unwrap().unwrap();
    assert!(again.token > grant.token);
    release(&store, hold);
}

#[test]
fn releasing_what_one_does_not_hold_frees_nobody() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    let hold = take(&one, "a");
    let other_owner = Hold::new(&request("a"), 0);
    assert_eq!(
        now(one.clone().release(other_owner)).unwrap(),
        Release::NotHeld
    );
    assert_eq!(
        now(two.clone().release(hold.clone())).unwrap(),
        Release::NotHeld
    );
    assert!(!is_free(&two, "a"));
    release(&one, hold.clone());
    assert_eq!(now(one.clone().release(hold)).unwrap(), Release::NotHeld);
}

#[test]
fn tokens_follow_the_clock_and_grow_when_the_file_is_deleted() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let wall = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        u64::try_from(since.unwrap().as_micros()).unwrap()
    };
    let before = wall();
    let mut last = 0;
    for round in 0..100 {
        let hold = take(&store, "a");
        assert!(hold.token > last, "{} after {last}", hold.token);
        last = hold.token;
        release(&store, hold);
        if round % 10 == 0 {
            std::fs::remove_file(scratch.locks().join("a")).unwrap();
        }
    }
    assert!(before <= last && last <= wall());
}

#[test]
fn the_holder_is_visible_and_gone_when_it_is() {
    let scratch = Scratch::new();
    let (store, other) = (scratch.open(), scratch.open());
    assert!(!inspect(&other, "jobs/1").is_held());
    let hold = take(&store, "jobs/1");
    let status = inspect(&other, "jobs/1");
    let [held] = &status.holds[..] else {
        panic!("{status:?}")
    };
    assert_eq!(
        (held.holder.pid, &*held.holder.label),
        (std::process::id(), "test")
    );
    assert_eq!(held.mode, Mode::Exclusive);
    assert_eq!(held.token.unwrap().get(), hold.token);
    assert!(held.holder.since.unwrap().elapsed().unwrap() < Duration::from_secs(60));
    assert_eq!(status.queue, None);

    let _second = take(&other, "jobs/2");
    let _third = take(&other, "mail");
    let long = "ü".repeat(400);
    let _fourth = take(&other, &long);
    let list = |prefix: &str| {
        let list = list(&store, prefix);
        list.iter()
            .map(|status| status.name.as_str().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(list("jobs/"), ["jobs/1", "jobs/2"]);
    assert_eq!(list(""), ["jobs/1", "jobs/2", "mail", &long]);
    release(&store, hold);
    assert_eq!(list("jobs/"), ["jobs/2"]);
    assert!(!inspect(&other, "jobs/1").is_held());
}

/// A process that knows an owner id can release the hold, so the owner id must not be in a file that others may read.
#[test]
fn the_owner_id_is_not_in_the_file() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let hold = take(&store, "a");
    let file = std::fs::read(scratch.locks().join("a")).unwrap();
    let text = String::from_utf8_lossy(&file);
    assert!(text.contains("\"pid\""), "{text}");
    assert!(!text.contains(&hold.owner.to_hex()));
    assert!(
        !file
            .windows(16)
            .any(|window| window == hold.owner.as_bytes())
    );
}

#[test]
fn break_ends_that_very_hold_and_no_other() {
    let scratch = Scratch::new();
    let (holder, breaker) = (scratch.open(), scratch.open());
    let break_it = |token| now(breaker.clone().break_lock(name("a"), token)).unwrap();
    assert!(!break_it(1));
    let hold = take(&holder, "a");
    assert!(!break_it(hold.token - 1) && !break_it(hold.token + 1));
    let renew = |hold: &Hold| now(holder.clone().renew(vec![hold.clone()])).pop().unwrap();
    assert!(matches!(renew(&hold), Renewal::Renewed { ttl: None, .. }));
    assert!(break_it(hold.token));
    assert!(!break_it(hold.token));
    assert!(matches!(renew(&hold), Renewal::Lost(LostReason::TakenOver)));
    let next = take(&breaker, "a");
    assert!(next.token > hold.token);
    assert_eq!(
        now(holder.clone().release(hold.clone())).unwrap(),
        Release::NotHeld
    );
    assert!(matches!(
        renew(&hold),
        Renewal::Lost(LostReason::StoreSaysNo)
    ));
    assert!(!is_free(&holder, "a"));
    release(&breaker, next);
    assert!(is_free(&holder, "a"));
    let left: Vec<_> = std::fs::read_dir(scratch.locks())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|file| !matches!(file.as_str(), "a" | ".mutex" | ".probe"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_name_stays_reserved_for_min_hold_and_after_an_unclean_end_for_lock_delay() {
    let scratch = Scratch::new();
    let (store, other) = (scratch.open(), scratch.open());
    let hour = Duration::from_secs(3600);
    let mut kept = request("kept");
    kept.min_hold = hour;
    let (hold, _) = try_acquire(&store, kept).unwrap().unwrap();
    release(&store, hold);
    assert!(!is_free(&other, "kept"));
    let status = inspect(&other, "kept");
    let left = status.reserved.unwrap();
    assert!(
        !status.is_held() && left <= hour && left > hour / 2,
        "{status:?}"
    );

    let delayed = || {
        let mut delayed = request("delayed");
        delayed.lock_delay = hour;
        try_acquire(&store, delayed).unwrap().unwrap().0
    };
    release(&store, delayed());
    let mut hold = delayed();
    hold.unclean = true;
    release(&store, hold);
    assert!(!is_free(&other, "delayed"));
    assert!(inspect(&other, "delayed").reserved.unwrap() > hour / 2);
}

#[test]
fn a_broken_hold_leaves_its_lock_delay() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let mut delayed = request("a");
    delayed.lock_delay = Duration::from_secs(3600);
    let (hold, _) = try_acquire(&store, delayed).unwrap().unwrap();
    assert!(now(store.clone().break_lock(name("a"), hold.token)).unwrap());
    assert!(!is_free(&store, "a"));
    assert!(inspect(&store, "a").reserved.is_some());
}

/// After the clock was set back an hour, the reservation begins once more, and lasts no longer than it was set for.
#[test]
fn a_reservation_from_the_future_lasts_its_length_at_most() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let mut kept = request("a");
    kept.min_hold = Duration::from_millis(1);
    let (hold, _) = try_acquire(&store, kept).unwrap().unwrap();
    release(&store, hold);
    // `until` is the fifth number of a head, the checksum the tenth. Both slots get an end in the year 2100.
    let path = scratch.locks().join("a");
    let before = std::fs::read(&path).unwrap();
    let mut bytes = before.clone();
    let far = 4_102_444_800_000_000_u64.to_le_bytes();
    for slot in [0, 1024] {
        bytes[slot + 40..slot + 48].copy_from_slice(&far);
        let sum = check(&bytes[slot..slot + 80]);
        bytes[slot + 80..slot + 88].copy_from_slice(&sum.to_le_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    let request = std::sync::Arc::new(waiting("a"));
    let answer = crate::support::block_on(store.clone().acquire(request.clone())).unwrap();
    assert!(crate::support::hold(&request, answer).is_some());
}

/// The checksum of a head, written a second time from the documentation of the format.
fn check(bytes: &[u8]) -> u64 {
    let odd = 0x9e37_79b9_7f4a_7c15_u64;
    let mut sum = bytes.len() as u64 ^ odd;
    let mut words: Vec<[u8; 8]> = bytes
        .chunks(8)
        .map(|word| word.try_into().unwrap())
        .collect();
    words.push([0; 8]);
    for word in words {
        sum = (sum ^ u64::from_le_bytes(word)).wrapping_mul(odd);
        sum ^= sum >> 32;
    }
    sum
}

#[test]
fn close_gives_everything_back_and_leaves_no_descriptor() {
    let scratch = Scratch::new();
    let (store, other) = (scratch.open(), scratch.open());
    for i in 0..10 {
        take(&store, &format!("n{i}"));
    }
    now(store.clone().close());
    assert!(is_free(&other, "n3"));
    let closed = try_acquire(&store, request("a")).unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Closed);
    drop((store, other));
    let open = open_below(scratch.path());
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn files_are_private() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let _hold = take(&store, "a");
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&scratch.locks()) & 0o7777, 0o700);
    for entry in std::fs::read_dir(scratch.locks()).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path) & 0o7777, 0o600, "{path:?}");
        assert_eq!(std::fs::metadata(&path).unwrap().nlink(), 1);
    }
}

#[test]
fn the_guarantees_fill_the_table() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let guarantees = store.guarantees();
    assert_eq!(guarantees.scheme, "file");
    for fault in Fault::ALL {
        assert!(
            guarantees
                .cell(fault)
                .is_some_and(|cell| !cell.note.is_empty()),
            "{fault:?}"
        );
        assert!(guarantees.survives(fault));
    }
    let findings = now(store.clone().check()).unwrap();
    assert!(findings.len() >= 4, "{findings:?}");
    assert!(
        findings
            .iter()
            .all(|finding| finding.severity != Severity::Bad),
        "{findings:?}"
    );
}

#[test]
fn a_request_that_was_stopped_takes_nothing() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let stopped = waiting("a");
    stopped.stop.raise();
    assert!(try_acquire(&store, stopped).unwrap().is_none());
    let mut list = store.clone().list(String::new());
    assert!(
        matches!(poll(&mut list), std::task::Poll::Ready(Ok(Listed::Statuses(list))) if list.is_empty())
    );
}
