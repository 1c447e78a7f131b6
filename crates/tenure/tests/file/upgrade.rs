//! Upgradable holds, and changing the mode of a hold, with processes that die and programs that know only the file.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure::file;
use tenure::store::{Answer, ChangeMode as _, Operate as _, Release, Renewal, Store as _};
use tenure::{Client, ErrorKind, Mode};

use crate::support::{
    LockProcess, Scratch, Taken, acquire, block_on, blocked_on, hold, inspect, mode_of, name, now,
    open_below, permits, poll, release, request, start_upgrade, start_waiting, try_acquire,
    try_mode, try_upgrade, until, upgrade_of, waiting, with,
};

const MODES: [&str; 4] = ["shared", "permit", "upgradable", "upgrade"];

/// A process that holds `a`; `upgrade`: exclusively, after it was upgradable.
fn start_holder(scratch: &Scratch, verb: &str) -> LockProcess {
    let mut process = LockProcess::start(&scratch.locks());
    match verb {
        "upgrade" => {
            process.ask("upgradable a");
            process.ask("upgrade");
        }
        _ => {
            process.ask(&format!("{verb} a"));
        }
    }
    process
}

fn modes(store: &Arc<file::Store>) -> Vec<Mode> {
    let holds = inspect(store, "a").holds;
    holds.iter().map(|hold| hold.mode).collect()
}

#[test]
fn a_holder_that_is_killed_in_any_mode_frees_the_name_at_once() {
    let scratch = Scratch::new();
    let store = scratch.open();
    for verb in MODES {
        // What waits for the holder: a writer, and what its own mode excludes.
        for waits in ["exclusive", "permit", "upgradable"] {
            if verb == "shared" && waits != "exclusive"
                || waits == "permit" && verb == "upgradable"
                || waits == "upgradable" && verb == "permit"
            {
                continue;
            }
            let mut holder = start_holder(&scratch, verb);
            let mode = mode_of(waits);
            assert!(
                try_mode(&store, "a", mode).is_none(),
                "{waits} beside {verb}"
            );
            let (request, future) = start_waiting(&store, with(waiting("a"), mode));
            holder.kill();
            let (held, _) = hold(&request, block_on(future).unwrap()).unwrap();
            assert_eq!(modes(&store), [mode]);
            release(&store, held);
        }
    }
    assert!(!inspect(&store, "a").is_held());
}

/// The process dies while it waits for the readers: the turnstile ends with it.
#[test]
fn a_process_that_dies_during_its_upgrade_lets_readers_in_again() {
    let scratch = Scratch::new();
    let (store, other) = (scratch.open(), scratch.open());
    let reader = try_mode(&store, "a", Mode::Shared).unwrap().0;
    let mut upgrading = start_holder(&scratch, "upgradable");
    upgrading.send("upgrade");
    until(|| match try_mode(&store, "a", Mode::Shared) {
        None => true,
        Some((hold, _)) => {
            release(&store, hold);
            false
        }
    });
    let (request, future) = start_waiting(&other, with(waiting("a"), Mode::Shared));
    let (alone, writer) = start_waiting(&other, waiting("a"));
    upgrading.kill();
    let (second, _) = hold(&request, block_on(future).unwrap()).unwrap();
    // The kernel closes the files of a dead process one after another.
    let mode = Mode::Upgradable;
    let (upgradable, _) = acquire(&store, with(waiting("a"), mode));
    assert_eq!(modes(&store), [Mode::Shared, Mode::Shared, mode]);
    for (store, hold) in [(&store, reader), (&other, second), (&store, upgradable)] {
        release(store, hold);
    }
    let (held, _) = hold(&alone, block_on(writer).unwrap()).unwrap();
    release(&other, held);
}

#[test]
fn a_reader_that_is_killed_lets_the_upgrade_through() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let upgradable = try_mode(&store, "a", Mode::Upgradable).unwrap().0;
    for verb in ["shared", "permit"] {
        let mut reader = start_holder(&scratch, verb);
        assert!(try_upgrade(&store, &upgradable).is_none());
        let (_request, future) = start_upgrade(&store, &upgradable);
        until(|| blocked_on(&scratch.locks().join(format!("a%{}0", &verb[..1]))) == 1);
        reader.kill();
        assert!(matches!(block_on(future).unwrap(), Answer::Granted(_)));
        assert_eq!(modes(&store), [Mode::Exclusive]);
        let changed = now(store
            .clone()
            .downgrade(upgradable.clone(), Mode::Upgradable));
        assert!(changed.unwrap());
        assert_eq!(modes(&store), [Mode::Upgradable]);
    }
    release(&store, upgradable);
}

/// A blocked thread cannot be called off: the next request uses the thread that is still there.
#[test]
fn upgrades_that_are_given_up_leave_one_thread() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    let reader = try_mode(&two, "a", Mode::Shared).unwrap().0;
    let upgradable = try_mode(&one, "a", Mode::Upgradable).unwrap().0;
    let side = scratch.locks().join("a%s0");
    for is_dropped in [false, true, false, true] {
        let (request, future) = start_upgrade(&one, &upgradable);
        until(|| blocked_on(&side) == 1);
        assert!(try_mode(&two, "a", Mode::Shared).is_none());
        if is_dropped {
            drop(future);
        } else {
            request.stop.raise();
            assert!(matches!(block_on(future).unwrap(), Answer::Busy));
        }
        release(&two, try_mode(&two, "a", Mode::Shared).unwrap().0);
    }
    // The list of locks may lack one that is there while other processes lock and unlock.
    until(|| blocked_on(&side) == 1);
    let (_request, future) = start_upgrade(&one, &upgradable);
    release(&two, reader);
    assert!(matches!(block_on(future).unwrap(), Answer::Granted(_)));
    release(&one, upgradable);
    drop((one, two));
    until(|| open_below(scratch.path()).is_empty());
}

/// As when the guard of a hold is dropped while another task waits for its upgrade.
#[test]
fn a_hold_that_is_released_during_its_upgrade_is_gone() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    let reader = try_mode(&two, "a", Mode::Shared).unwrap().0;
    let upgradable = try_mode(&one, "a", Mode::Upgradable).unwrap().0;
    let (_request, future) = start_upgrade(&one, &upgradable);
    release(&one, upgradable);
    assert_eq!(block_on(future).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(modes(&one), [Mode::Shared]);
    release(&two, reader);
    let (held, _) = try_acquire(&two, request("a")).unwrap().unwrap();
    release(&two, held);
}

/// `flock` and `flock -s` on the file, which know nothing of modes.
#[test]
fn a_foreign_program_excludes_these_holders_and_is_excluded() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    release(&one, try_mode(&one, "a", Mode::Exclusive).unwrap().0);
    let path = scratch.locks().join("a");
    let foreign = File::open(&path).unwrap();
    for mode in [Mode::Shared, Mode::Upgradable, permits(2)] {
        foreign.lock().unwrap();
        assert!(try_mode(&one, "a", mode).is_none(), "{mode}");
        let (request, future) = start_waiting(&one, with(waiting("a"), mode));
        until(|| blocked_on(&path) == 1);
        foreign.unlock().unwrap();
        let (held, _) = hold(&request, block_on(future).unwrap()).unwrap();
        assert!(foreign.try_lock().is_err(), "{mode}");
        release(&one, held);
    }
    // Another program that reads keeps an upgrade waiting, and one that writes does not come in between.
    let upgradable = try_mode(&one, "a", Mode::Upgradable).unwrap().0;
    foreign.lock_shared().unwrap();
    assert!(try_upgrade(&one, &upgradable).is_none());
    let (_request, mut future) = start_upgrade(&one, &upgradable);
    let has_written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let writer = File::open(&path).unwrap();
            writer.lock().unwrap();
            has_written.store(true, Ordering::SeqCst);
        });
        until(|| blocked_on(&path) == 1);
        assert!(poll(&mut future).is_pending());
        assert!(try_mode(&two, "a", Mode::Shared).is_none());
        foreign.unlock().unwrap();
        assert!(matches!(block_on(future).unwrap(), Answer::Granted(_)));
        assert!(
            !has_written.load(Ordering::SeqCst),
            "a writer came in between"
        );
        assert!(foreign.try_lock_shared().is_err());
        release(&one, upgradable);
        writer.join().unwrap();
    });
}

#[test]
fn a_downgrade_wakes_those_that_fit() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    for is_upgraded in [false, true] {
        let first = if is_upgraded {
            Mode::Upgradable
        } else {
            Mode::Exclusive
        };
        let (held, grant) = try_mode(&one, "a", first).unwrap();
        if is_upgraded {
            assert!(try_upgrade(&one, &held).unwrap() > grant.token);
        }
        let readers = [Mode::Shared, permits(1), Mode::Upgradable];
        let waiters: Vec<_> = readers
            .iter()
            .map(|mode| start_waiting(&two, with(waiting("a"), *mode)))
            .collect();
        let (alone, writer) = start_waiting(&two, waiting("a"));
        assert!(now(one.clone().downgrade(held.clone(), Mode::Shared)).unwrap());
        let mut held = vec![(&one, held)];
        for (request, future) in waiters {
            held.push((&two, hold(&request, block_on(future).unwrap()).unwrap().0));
        }
        assert_eq!(modes(&one).len(), 4);
        assert!(!now(one.clone().downgrade(held[0].1.clone(), Mode::Upgradable)).unwrap());
        for (store, hold) in held {
            release(store, hold);
        }
        let (held, _) = hold(&alone, block_on(writer).unwrap()).unwrap();
        release(&two, held);
    }
}

#[test]
fn a_hold_with_a_reservation_stays_exclusive() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let mut kept = request("a");
    kept.lock_delay = std::time::Duration::from_secs(1);
    let held = try_acquire(&store, kept).unwrap().unwrap().0;
    let refused = now(store.clone().downgrade(held.clone(), Mode::Shared)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert_eq!(modes(&store), [Mode::Exclusive]);
    release(&store, held);
}

/// The guard says what the store says: the refusal is final, and is not repeated in the background.
#[tokio::test]
async fn a_refused_downgrade_changes_no_guard() {
    let scratch = Scratch::new();
    let client = Client::from_dyn_store(scratch.open()).unwrap();
    let lock = client.lock("a").min_hold(std::time::Duration::from_secs(1));
    let guard = lock.acquire().await.unwrap();
    for _ in 0..2 {
        let refused = guard.downgrade().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(guard.mode() == Mode::Exclusive && guard.is_held());
    }
    guard.release().await.unwrap();
}

#[test]
fn break_ends_an_upgradable_hold_in_each_of_its_states() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    let reader = try_mode(&two, "a", Mode::Shared).unwrap().0;
    // Beside a reader, and during its upgrade: others are granted at once, although the process has not noticed.
    for is_upgrading in [false, true] {
        let (held, grant) = try_mode(&one, "a", Mode::Upgradable).unwrap();
        let upgrading = is_upgrading.then(|| start_upgrade(&one, &held));
        assert!(now(two.clone().break_lock(name("a"), grant.token)).unwrap());
        assert_eq!(modes(&two), [Mode::Shared]);
        let next = try_mode(&two, "a", Mode::Upgradable).unwrap().0;
        release(&two, try_mode(&two, "a", Mode::Shared).unwrap().0);
        release(&two, next);
        let checked = block_on(one.clone().renew(vec![held.clone()]));
        assert!(matches!(checked[..], [Renewal::Lost(_)]));
        if let Some((_, future)) = upgrading {
            assert_eq!(block_on(future).unwrap_err().kind(), ErrorKind::Lost);
        }
        assert_eq!(now(one.clone().release(held)).unwrap(), Release::NotHeld);
    }
    release(&two, reader);
    // Exclusive, with waiters that are blocked on the file that is replaced.
    let held = try_mode(&one, "a", Mode::Upgradable).unwrap().0;
    let token = try_upgrade(&one, &held).unwrap();
    let path = scratch.locks().join("a");
    let _blocked = start_waiting(&one, with(waiting("a"), Mode::Shared));
    until(|| blocked_on(&path) == 1);
    assert!(now(two.clone().break_lock(name("a"), token)).unwrap());
    let next = try_mode(&two, "a", Mode::Upgradable).unwrap().0;
    assert!(try_upgrade(&two, &next).unwrap() > token);
    assert_eq!(modes(&one), [Mode::Exclusive]);
    assert_eq!(now(one.clone().release(held)).unwrap(), Release::NotHeld);
    release(&two, next);
}

/// Two numbers that are equal while no client writes.
struct Pair(std::path::PathBuf);

impl Pair {
    fn read(&self) -> u64 {
        let text = std::fs::read_to_string(&self.0).unwrap();
        let (a, b) = text.split_once(' ').unwrap();
        assert_eq!(a, b, "a writer is inside");
        a.parse().unwrap()
    }

    fn write(&self, next: u64) {
        std::fs::write(&self.0, format!("{next} {}", next - 1)).unwrap();
        std::thread::yield_now();
        std::fs::write(&self.0, format!("{next} {next}")).unwrap();
    }

    /// Reads, and writes the next number if the hold becomes exclusive. `is_given_up`: the request is, at some moment.
    fn read_and_write(&self, store: &Arc<file::Store>, (held, grant): &Taken, is_given_up: bool) {
        let before = self.read();
        let request = upgrade_of(held, true);
        let answer = std::thread::scope(|scope| {
            if is_given_up {
                scope.spawn(|| request.stop.raise());
            }
            block_on(store.clone().upgrade(held.clone(), request.clone())).unwrap()
        });
        assert_eq!(self.read(), before, "a writer came in between");
        if let Answer::Granted(later) = answer {
            assert!(later.token > grant.token);
            self.write(before + 1);
            assert!(now(store.clone().downgrade(held.clone(), Mode::Shared)).unwrap());
            assert_eq!(self.read(), before + 1);
        }
    }
}

/// Clients that read, upgrade and write, beside readers and writers: what was read is still true after the upgrade.
#[test]
fn nothing_is_written_between_reading_and_writing() {
    let scratch = Scratch::new();
    let pair = Pair(scratch.path().join("pair"));
    pair.write(1);
    std::thread::scope(|scope| {
        for worker in 0..6 {
            let (store, pair) = (scratch.open(), &pair);
            scope.spawn(move || {
                let mode = match worker {
                    0 | 1 => Mode::Upgradable,
                    2 => Mode::Exclusive,
                    3 => permits(1),
                    _ => Mode::Shared,
                };
                for round in 0..60 {
                    let taken = acquire(&store, with(waiting("a"), mode));
                    let before = pair.read();
                    match mode {
                        Mode::Exclusive => pair.write(before + 1),
                        Mode::Upgradable => pair.read_and_write(&store, &taken, round % 3 == 0),
                        _ => {}
                    }
                    release(&store, taken.0);
                }
            });
        }
    });
}
