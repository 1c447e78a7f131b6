//! Holds that outlive their process.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure::store::{Answer, Detach as _, Hold, Operate as _, Release, Renewal, Store as _};
use tenure::{Client, ErrorKind, LostReason, Mode, OwnerId, file};
use tenure_testkit::clock::Clock;
use tenure_testkit::full_disk::FullDisk;

use crate::support::{
    LockProcess, Scratch, block_on, blocked_on, detached_hold, hold as granted, inspect, is_free,
    list, name, now, open_below, outcome, permits, release, request, start_upgrade, start_waiting,
    take, try_acquire, try_mode, try_upgrade, until, waiting, with,
};

const HOUR: Duration = Duration::from_secs(3600);

/// A lease that ends within a test.
const SHORT: Duration = Duration::from_millis(300);

fn detach(store: &Arc<file::Store>, hold: &Hold) {
    let renewal = now(store.clone().detach(hold.clone()));
    let is_leased = matches!(renewal, Renewal::Renewed { ttl: Some(ttl), .. } if ttl == hold.ttl);
    assert!(is_leased, "{renewal:?}");
}

fn lasting(mut hold: Hold, ttl: Duration) -> Hold {
    hold.ttl = ttl;
    hold
}

/// The hold of a free name, detached for that long.
fn detached(store: &Arc<file::Store>, text: &str, ttl: Duration) -> Hold {
    let hold = lasting(take(store, text), ttl);
    detach(store, &hold);
    hold
}

fn attach(store: &Arc<file::Store>, hold: &Hold) -> &'static str {
    outcome(now(store.clone().attach(hold.clone())))
}

fn renew(store: &Arc<file::Store>, hold: &Hold) -> &'static str {
    let renewals = now(store.clone().renew(vec![hold.clone()]));
    outcome(renewals.into_iter().next().unwrap())
}

/// What is left of the lease of the one hold that the store shows.
fn left(store: &Arc<file::Store>, text: &str) -> Duration {
    let status = inspect(store, text);
    let [hold] = &status.holds[..] else {
        panic!("{status:?}")
    };
    assert_eq!(status.reserved, None);
    hold.ttl_left.unwrap()
}

fn break_it(store: &Arc<file::Store>, text: &str, token: u64) -> bool {
    now(store.clone().break_lock(name(text), token)).unwrap()
}

/// Yields until a process waits behind a detached hold. That one has the kernel lock.
fn until_waiting_behind_the_lease(scratch: &Scratch, text: &str) {
    let file = std::fs::File::open(scratch.locks().join(text)).unwrap();
    until(|| {
        let is_taken = file.try_lock().is_err();
        file.unlock().unwrap();
        is_taken && scratch.locks().join(format!("{text}%l0")).exists()
    });
}

#[test]
fn a_hold_goes_from_process_to_process() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let mut first = LockProcess::start(&scratch.locks());
    let token: u64 = first.ask("try a").parse().unwrap();
    let owner = first.ask("detach 3600000");
    drop(first);
    assert!(!is_free(&store, "a"));
    let mut second = LockProcess::start(&scratch.locks());
    assert_eq!(second.ask(&format!("attach 3600000 {owner} a")), "renewed");
    assert_eq!(second.ask("renew"), "renewed");
    assert!(!is_free(&store, "a"));
    // `kill -9` of an attached process ends nothing.
    drop(second);
    assert!(!is_free(&store, "a"));
    let hold = detached_hold("a", &owner, "3600000");
    assert_eq!(attach(&store, &hold), "renewed");
    release(&store, hold.clone());
    assert_eq!(attach(&store, &hold), "lost");
    let next = take(&store, "a");
    assert!(next.token > token);
    assert_eq!(
        (attach(&store, &hold), renew(&store, &hold)),
        ("lost", "lost")
    );
    assert_eq!(now(store.clone().release(hold)).unwrap(), Release::NotHeld);
    release(&store, next);
}

#[test]
fn a_detached_hold_excludes_each_mode() {
    let scratch = Scratch::new();
    let (store, other) = (scratch.open(), scratch.open());
    let hold = detached(&store, "a", HOUR);
    let modes = [Mode::Exclusive, Mode::Shared, Mode::Upgradable, permits(3)];
    for store in [&store, &other] {
        for mode in modes {
            assert!(try_mode(store, "a", mode).is_none(), "{mode}");
        }
    }
    // The file of the name stays open here.
    release(&store, hold);
    let hold = detached(&store, "a", HOUR);
    assert!(!is_free(&store, "a"));
    for mode in modes {
        let (request, future) = start_waiting(&other, with(waiting("a"), mode));
        until_waiting_behind_the_lease(&scratch, "a");
        assert!(try_mode(&store, "a", mode).is_none(), "{mode}");
        request.stop.raise();
        assert!(matches!(block_on(future).unwrap(), Answer::Busy));
    }
    until(|| {
        let file = std::fs::File::open(scratch.locks().join("a")).unwrap();
        file.try_lock().is_ok()
    });
    for mode in modes {
        let (request, future) = start_waiting(&other, with(waiting("a"), mode));
        until_waiting_behind_the_lease(&scratch, "a");
        // The waiter has the kernel lock, and so the clients that are attached do without it.
        assert_eq!(attach(&store, &hold), "renewed");
        assert!(left(&store, "a") > HOUR / 2);
        request.stop.raise();
        assert!(matches!(block_on(future).unwrap(), Answer::Busy));
    }
    release(&other, hold);
    until(|| is_free(&store, "a"));
}

#[test]
fn the_next_waiter_has_its_turn_when_the_lease_is_over() {
    let scratch = Scratch::new();
    let (store, other) = (scratch.open(), scratch.open());
    let modes = [Mode::Exclusive, Mode::Shared, Mode::Upgradable, permits(1)];
    for mode in modes {
        let start = std::time::Instant::now();
        let hold = detached(&store, "a", SHORT);
        let (request, future) = start_waiting(&other, with(waiting("a"), mode));
        let (next, grant) = granted(&request, block_on(future).unwrap()).unwrap();
        assert!(
            start.elapsed() >= SHORT,
            "{mode} after {:?}",
            start.elapsed()
        );
        assert!(grant.token > hold.token);
        assert_eq!(
            (attach(&store, &hold), renew(&store, &hold)),
            ("lost", "lost")
        );
        assert_eq!(now(store.clone().release(hold)).unwrap(), Release::NotHeld);
        assert!(inspect(&store, "a").is_held());
        release(&other, next);
    }
    // Without a waiter: the next process that asks.
    let hold = detached(&store, "a", SHORT);
    until(|| !inspect(&store, "a").is_held());
    assert_eq!(attach(&store, &hold), "lost");
    assert!(is_free(&other, "a"));
}

#[test]
fn a_waiter_that_was_there_before_has_its_turn_after_the_release() {
    let scratch = Scratch::new();
    let (store, other) = (scratch.open(), scratch.open());
    let mut third = LockProcess::start(&scratch.locks());
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Upgradable, permits(1)] {
        let hold = lasting(take(&store, "a"), HOUR);
        let (request, future) = start_waiting(&other, with(waiting("a"), mode));
        until(|| blocked_on(&scratch.locks().join("a")) == 1);
        detach(&store, &hold);
        until_waiting_behind_the_lease(&scratch, "a");
        let owner = hold.owner.to_hex();
        assert_eq!(third.ask(&format!("attach 3600000 {owner} a")), "renewed");
        assert_eq!(third.ask("release"), "Released");
        let (next, grant) = granted(&request, block_on(future).unwrap()).unwrap();
        assert!(grant.token > hold.token);
        release(&other, next);
    }
}

#[test]
fn waiters_of_several_processes_follow_one_another() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let hold = detached(&store, "a", HOUR);
    let mut others: Vec<_> = (0..3)
        .map(|_| LockProcess::start(&scratch.locks()))
        .collect();
    others.iter_mut().for_each(|other| other.send("lock a"));
    until(|| blocked_on(&scratch.locks().join("a")) == 2);
    until_waiting_behind_the_lease(&scratch, "a");
    release(&store, hold);
    let mut last = 0;
    while !others.is_empty() {
        let mut turn = None;
        until(|| {
            let holds = inspect(&store, "a").holds;
            let pid = holds.first().map(|hold| hold.holder.pid);
            turn = others.iter().position(|other| Some(other.pid()) == pid);
            turn.is_some()
        });
        let mut next = others.remove(turn.unwrap());
        let token: u64 = next.answer().parse().unwrap();
        assert!(token > last);
        last = token;
        assert_eq!(next.ask("release"), "Released");
    }
    assert!(is_free(&store, "a"));
}

#[test]
fn no_request_shortens_the_lease() {
    let scratch = Scratch::new();
    let (store, other) = (scratch.open(), scratch.open());
    let long = detached(&store, "a", HOUR);
    let short = lasting(long.clone(), SHORT);
    assert_eq!(attach(&other, &short), "renewed");
    assert_eq!(renew(&other, &short), "renewed");
    detach(&other, &short);
    let before = left(&store, "a");
    assert!(before > HOUR / 2 && before <= HOUR, "{before:?}");
    let longer = lasting(long.clone(), 3 * HOUR);
    assert_eq!(renew(&other, &longer), "renewed");
    assert_eq!(attach(&store, &long), "renewed");
    assert!(left(&store, "a") > 2 * HOUR);
    release(&store, long);
}

#[test]
fn a_receipt_of_another_owner_changes_nothing() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let hold = detached(&store, "a", HOUR);
    let before = std::fs::read(scratch.locks().join("a")).unwrap();
    let mut wrong = lasting(hold.clone(), 3 * HOUR);
    wrong.owner = OwnerId::random();
    assert_eq!(
        (attach(&store, &wrong), renew(&store, &wrong)),
        ("lost", "lost")
    );
    assert_eq!(now(store.clone().release(wrong)).unwrap(), Release::NotHeld);
    let mut elsewhere = hold.clone();
    elsewhere.name = name("b");
    assert_eq!(attach(&store, &elsewhere), "lost");
    assert!(!scratch.locks().join("b").exists(), "attach makes nothing");
    assert_eq!(std::fs::read(scratch.locks().join("a")).unwrap(), before);
    // The file has no identity that releases the hold.
    assert!(!String::from_utf8_lossy(&before).contains(&hold.owner.to_hex()));
    assert!(!before.windows(16).any(|part| part == hold.owner.as_bytes()));
    release(&store, hold);
}

#[test]
fn a_detached_hold_is_shown_and_broken() {
    let scratch = Scratch::new();
    let (store, other) = (scratch.open(), scratch.open());
    let long = "ü".repeat(400);
    let hold = detached(&store, &long, HOUR);
    now(store.clone().close());
    let status = inspect(&other, &long);
    assert_eq!(list(&other, "ü").len(), 1);
    let [shown] = &status.holds[..] else {
        panic!("{status:?}")
    };
    assert_eq!(
        (&*shown.holder.label, shown.holder.pid),
        ("test", std::process::id())
    );
    assert_eq!(shown.token.unwrap().get(), hold.token);
    assert_eq!(shown.mode, Mode::Exclusive);
    assert!(left(&other, &long) > HOUR / 2);

    assert!(!break_it(&other, &long, hold.token + 1));
    assert!(!is_free(&other, &long));
    let (request, future) = start_waiting(&other, waiting(&long));
    assert!(break_it(&other, &long, hold.token));
    assert!(!break_it(&other, &long, hold.token));
    let (next, _) = granted(&request, block_on(future).unwrap()).unwrap();
    assert_eq!(
        (attach(&other, &hold), renew(&other, &hold)),
        ("lost", "lost")
    );
    assert_eq!(now(other.clone().release(hold)).unwrap(), Release::NotHeld);
    release(&other, next);
}

/// A client that was closed, or dropped, ends its own holds and no detached one.
#[test]
fn the_end_of_a_client_ends_no_detached_hold() {
    let scratch = Scratch::new();
    let (store, other) = (scratch.open(), scratch.open());
    let hold = detached(&store, "a", HOUR);
    let _own = take(&store, "b");
    assert_eq!(attach(&other, &hold), "renewed");
    other.forget(&hold);
    now(other.clone().close());
    drop(other);
    drop(store);
    let store = scratch.open();
    assert!(!is_free(&store, "a") && is_free(&store, "b"));
    let open = open_below(&scratch.path().join("locks/a"));
    assert!(open.is_empty(), "{open:?}");
    release(&store, hold);
}

#[test]
fn min_hold_and_lock_delay_follow_a_detached_hold() {
    let scratch = Scratch::new();
    let (store, other) = (scratch.open(), scratch.open());
    let taken = |text: &str, min_hold, lock_delay, ttl| {
        let mut request = request(text);
        (request.min_hold, request.lock_delay) = (min_hold, lock_delay);
        let hold = lasting(try_acquire(&store, request).unwrap().unwrap().0, ttl);
        detach(&store, &hold);
        hold
    };
    let none = Duration::ZERO;
    let reserved = |text: &str| inspect(&other, text).reserved;

    let hold = taken("released", HOUR, none, SHORT);
    assert!(left(&other, "released") <= SHORT);
    assert_eq!(attach(&other, &hold), "renewed");
    release(&other, hold);
    assert!(!is_free(&other, "released") && reserved("released").unwrap() > HOUR / 2);

    let hold = taken("over", none, HOUR, SHORT);
    until(|| !inspect(&other, "over").is_held());
    assert_eq!(attach(&other, &hold), "lost");
    assert!(!is_free(&other, "over") && reserved("over").unwrap() > HOUR / 2);

    let hold = taken("clean", none, HOUR, HOUR);
    release(&other, hold);
    assert!(is_free(&other, "clean"));

    let hold = taken("unclean", none, HOUR, HOUR);
    let mut unclean = hold;
    unclean.unclean = true;
    release(&other, unclean);
    assert!(!is_free(&other, "unclean"));

    let hold = taken("broken", none, HOUR, HOUR);
    assert!(break_it(&other, "broken", hold.token));
    assert!(!is_free(&other, "broken") && reserved("broken").is_some());

    let hold = taken("unused", HOUR, HOUR, HOUR);
    release(&other, hold.unused());
    assert!(is_free(&other, "unused"));
}

#[test]
fn a_hold_that_was_lost_or_is_not_exclusive_is_not_detached() {
    let scratch = Scratch::new();
    let (store, other) = (scratch.open(), scratch.open());
    let broken = take(&store, "a");
    assert!(break_it(&other, "a", broken.token));
    let renewal = now(store.clone().detach(broken));
    assert!(
        matches!(renewal, Renewal::Lost(LostReason::TakenOver)),
        "{renewal:?}"
    );
    assert!(is_free(&store, "a"));
    let (shared, _) = try_mode(&store, "a", Mode::Shared).unwrap();
    let Renewal::Unknown(err) = now(store.clone().detach(shared.clone())) else {
        panic!("a shared hold was detached");
    };
    assert_eq!(err.kind(), ErrorKind::Unsupported);
    // The store still finds the hold, and releases it.
    release(&store, shared);
    assert!(is_free(&other, "a"));
    let renewal = now(store.clone().detach(Hold::of(name("a"), OwnerId::random())));
    assert!(matches!(renewal, Renewal::Lost(_)), "{renewal:?}");
}

#[test]
fn a_hold_that_became_exclusive_is_detached() {
    let scratch = Scratch::new();
    let (store, other) = (scratch.open(), scratch.open());
    let (hold, _) = try_mode(&store, "a", Mode::Upgradable).unwrap();
    try_upgrade(&store, &hold).unwrap();
    detach(&store, &hold);
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Upgradable, permits(2)] {
        assert!(try_mode(&other, "a", mode).is_none(), "{mode}");
    }
    assert_eq!(inspect(&other, "a").holds.len(), 1);
    release(&other, hold);
    // Nothing of the upgrade is left.
    let (hold, _) = try_mode(&other, "a", Mode::Upgradable).unwrap();
    let (reader, _) = try_mode(&store, "a", Mode::Shared).unwrap();
    let (_, upgrade) = start_upgrade(&other, &hold);
    release(&store, reader);
    assert!(matches!(block_on(upgrade).unwrap(), Answer::Granted(_)));
    release(&other, hold);
}

/// A hold ends with its file, as each hold of this store does. A waiter notices that within a second.
#[test]
fn without_its_file_a_hold_is_lost() {
    let scratch = Scratch::new();
    let (store, other) = (scratch.open(), scratch.open());
    let hold = detached(&store, "a", HOUR);
    let (request, future) = start_waiting(&other, waiting("a"));
    until_waiting_behind_the_lease(&scratch, "a");
    std::fs::remove_file(scratch.locks().join("a")).unwrap();
    let (next, grant) = granted(&request, block_on(future).unwrap()).unwrap();
    assert!(grant.token > hold.token);
    assert_eq!(
        (attach(&store, &hold), renew(&store, &hold)),
        ("lost", "lost")
    );
    release(&other, next);

    let hold = detached(&store, "a", HOUR);
    std::fs::remove_dir_all(scratch.locks()).unwrap();
    assert_eq!(
        (attach(&store, &hold), renew(&store, &hold)),
        ("lost", "lost")
    );
    assert!(is_free(&store, "a") && is_free(&other, "a"));
}

/// Both slots are damaged: nothing says any more that the name is held.
#[test]
fn a_damaged_record_of_a_detached_hold_is_a_lost_hold() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let hold = detached(&store, "a", HOUR);
    let path = scratch.locks().join("a");
    let whole = std::fs::read(&path).unwrap();
    let damage = |at: &[usize]| {
        let mut bytes = whole.clone();
        at.iter().for_each(|at| bytes[*at] ^= 1);
        std::fs::write(&path, bytes).unwrap();
    };
    damage(&[20, 1044]);
    assert_eq!(attach(&store, &hold), "lost");
    let next = take(&store, "a");
    assert!(next.token > hold.token);
    release(&store, next);
    // Only the part that names the holder: the name stays reserved, and no receipt fits.
    damage(&[110, 1134]);
    assert_eq!(attach(&store, &hold), "lost");
    assert!(!is_free(&store, "a"));
    assert!(inspect(&store, "a").reserved.unwrap() > HOUR / 2);
}

/// Whatever is full: the hold is there, or the process still holds and can release.
#[test]
fn on_a_full_disk_a_hold_is_not_detached() {
    tenure_testkit::needs!("cc");
    let scratch = Scratch::new();
    let (store, disk) = (scratch.open(), FullDisk::make());
    let mut holder = LockProcess::start_with(&scratch.locks(), disk.environment());
    for kind in ["write", "sync"] {
        holder.ask("try a");
        disk.fill(kind);
        let failed = holder.ask("detach 3600000");
        assert!(
            failed.contains("Unknown") && failed.contains("make room"),
            "{failed}"
        );
        assert!(!is_free(&store, "a"), "{kind}");
        // The release frees the name although the record cannot be written.
        assert_eq!(holder.ask("release"), "Released");
        disk.empty(kind);
        if kind == "sync" {
            assert!(is_free(&store, "a"));
        } else {
            until(|| is_free(&store, "a"));
        }
    }
    holder.ask("try a");
    let owner = holder.ask("detach 3600000");
    disk.fill("write");
    let attach = format!("attach 3600000 {owner} a");
    assert_eq!(holder.ask(&attach), "unknown");
    disk.empty("write");
    assert_eq!(holder.ask("renew"), "renewed");
    assert_eq!(holder.ask("release"), "Released");
    assert!(is_free(&store, "a"));
}

/// The process is killed at many points between the acquisition and the receipt: a process that has read a receipt has the hold, and
/// nothing else stays held for longer than the lease.
#[test]
fn a_process_that_is_killed_while_it_detaches_leaves_a_hold_or_a_free_name() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let (mut with_receipt, mut without) = (0, 0);
    for round in 0..60 {
        let mut other = LockProcess::start(&scratch.locks());
        let text = format!("n{round}");
        other.ask(&format!("try {text}"));
        other.send("detach 3600000");
        if round % 3 == 0 {
            let owner = other.answer();
            drop(other);
            let hold = detached_hold(&text, &owner, "1000");
            assert_eq!(attach(&store, &hold), "renewed");
            with_receipt += 1;
            continue;
        }
        (0..round * 1_000).for_each(|_| std::hint::spin_loop());
        drop(other);
        let status = inspect(&store, &text);
        match status.holds.first() {
            Some(hold) => {
                assert!(hold.ttl_left.unwrap() <= HOUR, "{status:?}");
                assert!(break_it(&store, &text, hold.token.unwrap().get()));
            }
            None => without += 1,
        }
        assert!(is_free(&store, &text), "{status:?}");
    }
    println!("killed after the receipt: {with_receipt}, before the record: {without}");
}

/// The wall clock of one process is an hour ahead, and that of another one an hour behind.
#[test]
fn a_wall_clock_that_was_set_neither_ends_a_lease_nor_keeps_it() {
    tenure_testkit::needs!("cc");
    let scratch = Scratch::new();
    let (store, clock) = (scratch.open(), Clock::make());
    let mut other = LockProcess::start_with(&scratch.locks(), clock.environment());
    for seconds in [3_600, -3_600] {
        clock.set(seconds);
        let hold = detached(&store, "a", Duration::from_secs(60));
        assert_eq!(other.ask("try a"), "busy", "{seconds}");
        let owner = hold.owner.to_hex();
        assert_eq!(other.ask(&format!("attach 120000 {owner} a")), "renewed");
        assert!(!is_free(&store, "a"), "{seconds}");
        let left = left(&store, "a");
        assert!(left > Duration::from_secs(60) && left <= Duration::from_secs(120));
        assert_eq!(other.ask("release"), "Released");
        assert!(is_free(&store, "a"), "{seconds}");
        let hold = detached(&store, "a", SHORT);
        until(|| other.ask("try a") != "busy");
        assert_eq!(attach(&store, &hold), "lost");
        assert_eq!(other.ask("release"), "Released");
    }
}

/// What an older version reads: a name without a holder that is reserved until the lease ends.
#[test]
fn to_older_versions_a_detached_hold_is_a_reservation() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let hold = detached(&store, "a", HOUR);
    let number =
        |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().unwrap());
    let wall = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        u64::try_from(since.as_micros()).unwrap()
    };
    let reservation = || {
        let bytes = std::fs::read(scratch.locks().join("a")).unwrap();
        let slots = [&bytes[..1024], &bytes[1024..2048]];
        let newest = slots
            .into_iter()
            .max_by_key(|slot| number(slot, 1))
            .unwrap();
        let (until, span, state) = (
            number(newest, 5),
            number(newest, 6),
            number(newest, 8) >> 32,
        );
        assert_eq!((number(newest, 2), state), (hold.token, 0));
        (until.saturating_sub(wall()), span)
    };
    let hour = u64::try_from(HOUR.as_micros()).unwrap();
    let (left, span) = reservation();
    assert!(
        left > hour / 2 && left <= hour && span == hour,
        "{left} {span}"
    );
    let longer = lasting(hold.clone(), 2 * HOUR);
    assert_eq!(attach(&store, &longer), "renewed");
    let (left, span) = reservation();
    assert!(left > hour && span == 2 * hour, "{left} {span}");
    release(&store, hold.clone());
    assert_eq!(reservation(), (0, 0));
}

/// A request to let go reaches the client that is attached, and observers see who holds.
#[tokio::test]
async fn a_client_uses_an_attached_hold_as_its_own() {
    let scratch = Scratch::new();
    let client = || Client::from_dyn_store(scratch.open()).unwrap();
    let (one, two) = (client(), client());
    let lock = one.lock("a").ttl(HOUR);
    let receipt = lock.acquire().await.unwrap().detach().await.unwrap();
    let guard = two.attach(&receipt).await.unwrap();
    let election = one.election("a");
    let asked = election.ask_to_resign().await.unwrap();
    assert_eq!(asked.map(|it| it.token), Some(Some(receipt.token())));
    assert!(guard.asked_to_release().await);
    let leader = election.leader().await.unwrap();
    assert_eq!(leader.map(|it| it.token), Some(Some(receipt.token())));
    guard.release().await.unwrap();
    assert!(one.lock("a").try_acquire().await.unwrap().is_some());
}

/// Another process is stopped in the section in which records of detached holds are changed.
#[tokio::test]
async fn a_process_that_is_stopped_in_the_mutex_stops_no_other_task() {
    let scratch = Scratch::new();
    let client = Client::from_dyn_store(scratch.open()).unwrap();
    let lock = client.lock("x").ttl(SHORT);
    let receipt = lock.acquire().await.unwrap().detach().await.unwrap();
    let mutex = std::fs::File::open(scratch.locks().join(".mutex")).unwrap();
    let ticker = async || {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        mutex.unlock().unwrap();
    };
    mutex.lock().unwrap();
    let (attached, ()) = tokio::join!(client.attach(&receipt), ticker());
    let guard = attached.expect("the other task could not end the stop");
    mutex.lock().unwrap();
    let (detached, ()) = tokio::join!(guard.detach(), ticker());
    detached.expect("the other task could not end the stop");
    while client.inspect("x").await.unwrap().is_held() {
        tokio::task::yield_now().await;
    }
    mutex.lock().unwrap();
    let (next, ()) = tokio::join!(lock.try_acquire(), ticker());
    let next = next.expect("the other task could not end the stop");
    next.expect("the lease is over").release().await.unwrap();
}
