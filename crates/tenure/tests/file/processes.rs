//! Several processes, and what they leave behind when they die.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tenure::store::Store as _;

use crate::support::{
    LockProcess, Scratch, block_on, hold, inspect, is_free, list, release, start_waiting, take,
    waiting,
};

#[test]
fn a_dead_holder_is_not_shown() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let mut other = LockProcess::start(&scratch.locks());
    other.ask("try a");
    assert!(inspect(&store, "a").is_held());
    drop(other);
    assert!(!inspect(&store, "a").is_held());
    assert!(list(&store, "").is_empty());
    assert!(is_free(&store, "a"));
}

#[test]
fn a_holder_that_died_leaves_its_lock_delay() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let mut other = LockProcess::start(&scratch.locks());
    other.ask("delayed a");
    drop(other);
    assert!(!is_free(&store, "a"));
    assert!(inspect(&store, "a").reserved.is_some());
}

#[test]
fn four_processes_lose_no_count() {
    let scratch = Scratch::new();
    let counter = scratch.path().join("counter");
    std::fs::write(&counter, "0\n").unwrap();
    let mut others: Vec<_> = (0..4)
        .map(|_| LockProcess::start(&scratch.locks()))
        .collect();
    for other in &mut others {
        other.send(&format!("count 100 {}", counter.display()));
    }
    for other in &mut others {
        assert_eq!(other.answer(), "done");
    }
    assert_eq!(std::fs::read_to_string(&counter).unwrap().trim(), "400");
}

/// `flock(1)` of util-linux, as shell scripts use it.
#[test]
fn flock_of_a_shell_and_we_exclude_each_other() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let path = scratch.locks().join("nightly-report");
    let flock = |how: &str| {
        let mut flock = Command::new("flock");
        flock
            .args([how, "-E", "75"])
            .arg(&path)
            .args(["sh", "-c", "echo in; read line"]);
        flock
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped());
        flock.spawn().unwrap()
    };
    let enter = |how: &str| {
        let mut inside = flock(how);
        let mut line = String::new();
        let mut out = std::io::BufReader::new(inside.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        assert_eq!(line, "in\n");
        inside
    };
    // The shell is first: its file is empty, so the holder is unknown.
    let mut inside = enter("-n");
    assert!(!is_free(&store, "nightly-report"));
    let status = inspect(&store, "nightly-report");
    assert_eq!((status.holds.len(), status.holds[0].token), (1, None));
    assert_eq!(list(&store, ""), [status]);
    let (request, future) = start_waiting(&store, waiting("nightly-report"));
    drop(inside.stdin.take());
    inside.wait().unwrap();
    let (held, _) = hold(&request, block_on(future).unwrap()).unwrap();
    // Then this process is first.
    assert_eq!(flock("-n").wait().unwrap().code(), Some(75));
    release(&store, held);
    let mut inside = enter("-n");
    assert!(!is_free(&store, "nightly-report"));
    drop(inside.stdin.take());
    inside.wait().unwrap();
    assert!(is_free(&store, "nightly-report"));
}

#[test]
fn running_out_of_descriptors_says_what_to_raise() {
    let scratch = Scratch::new();
    let mut other = LockProcess::start(&scratch.locks());
    assert_eq!(other.ask("limit 20"), "ok");
    let mut held = 0;
    let error = loop {
        match other.ask(&format!("try n{held}")) {
            answer if answer.starts_with("error") => break answer,
            _ => held += 1,
        }
    };
    assert!(held > 5, "{held}");
    assert!(error.contains(&format!("holds {held} locks")), "{error}");
    assert!(error.contains("ulimit -n"), "{error}");
    assert_eq!(other.ask("release"), "Released");
    assert!(other.ask("try again").parse::<u64>().is_ok());
}

#[test]
fn a_child_process_inherits_no_lock() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let held = take(&store, "a");
    let mut child = Command::new("sh")
        .args(["-c", "ls -l /proc/self/fd; read line"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The name is free although the child lives.
    release(&store, held);
    assert!(is_free(&scratch.open(), "a"));
    drop(child.stdin.take());
    let out = child.wait_with_output().unwrap();
    let listing = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        !listing.contains(scratch.path().to_str().unwrap()),
        "{listing}"
    );
}

/// A stopped process keeps its lock: there is no lease that could run out.
#[test]
fn a_paused_holder_still_holds() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let mut other = LockProcess::start(&scratch.locks());
    other.ask("try a");
    other.stop();
    assert!(!is_free(&store, "a"));
    let request = Arc::new(waiting("a"));
    let mut future = store.clone().acquire(request.clone());
    assert!(crate::support::poll(&mut future).is_pending());
    other.resume();
    assert_eq!(other.ask("release"), "Released");
    let (held, _) = hold(&request, block_on(future).unwrap()).unwrap();
    release(&store, held);
}

/// Another process is stopped in the section for holders that go together: the other tasks of a thread go on while a
/// request waits for that process.
#[tokio::test]
async fn a_process_that_is_stopped_in_the_mutex_stops_no_other_task() {
    let scratch = Scratch::new();
    let client = tenure::Client::from_dyn_store(scratch.open()).unwrap();
    let lock = client.lock("x").shared();
    lock.acquire().await.unwrap().release().await.unwrap();
    let mutex = std::fs::File::open(scratch.locks().join(".mutex")).unwrap();
    mutex.lock().unwrap();
    let ticker = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        mutex.unlock().unwrap();
    };
    let (guard, ()) = tokio::join!(lock.acquire(), ticker);
    guard
        .expect("the other task could not end the stop")
        .release()
        .await
        .unwrap();
}

/// What reads the whole directory does so on a thread that may block.
#[tokio::test]
async fn looking_at_all_locks_stops_no_other_task() {
    let scratch = Scratch::new();
    let client = tenure::Client::from_dyn_store(scratch.open()).unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    let mut list = std::pin::pin!(client.list(""));
    let first = std::future::poll_fn(|cx| std::task::Poll::Ready(list.as_mut().poll(cx))).await;
    assert!(first.is_pending(), "the directory was read by this thread");
    assert_eq!(list.await.unwrap().len(), 1);
    let mut check = std::pin::pin!(client.check());
    let first = std::future::poll_fn(|cx| std::task::Poll::Ready(check.as_mut().poll(cx))).await;
    assert!(first.is_pending(), "the directory was read by this thread");
    check.await.unwrap();
    guard.release().await.unwrap();
}
