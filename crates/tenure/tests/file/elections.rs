//! Elections: the value of a leader, who leads, and requests to let go, as they lie in the directory.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::file;
use tenure::holder::PublishedValue;
use tenure::leader::Sighting;
use tenure::store::{Elections as _, Hold, LossListener, LossNotifier, Request, Store as _};
use tenure::{ErrorKind, Holder, LostReason, Mode, OwnerId};

use crate::support::{
    LockProcess, Scratch, inspect, name, now, release, request, take, try_acquire, try_mode,
};

/// Far longer than a holder takes to look for a request.
const ASKED_WITHIN: Duration = Duration::from_secs(60);

fn holder(value: &str, number: u64) -> Arc<Holder> {
    let mut holder = Holder::new("here", std::process::id());
    holder.label = "test".into();
    holder.value = Some(PublishedValue::new(value, number));
    Arc::new(holder)
}

fn candidate(text: &str, value: &str) -> Request {
    let mut request = request(text);
    request.holder = holder(value, 0);
    request
}

fn campaign(store: &Arc<file::Store>, text: &str, value: &str) -> Hold {
    let taken = try_acquire(store, candidate(text, value)).unwrap();
    taken.expect("the name is free").0
}

fn sighting(store: &Arc<file::Store>, text: &str) -> Sighting {
    now(store.clone().leader(name(text))).unwrap()
}

/// Token and value of the leader.
fn leader(store: &Arc<file::Store>, text: &str) -> Option<(u64, String)> {
    let leader = sighting(store, text).leader?;
    let value = leader.value().unwrap_or_default().to_owned();
    Some((leader.token.map_or(0, u64::from), value))
}

fn publish(store: &Arc<file::Store>, hold: &Hold, value: &str, number: u64) -> bool {
    let publishing = store.clone().publish(hold.clone(), holder(value, number));
    now(publishing).unwrap()
}

fn ask(store: &Arc<file::Store>, text: &str, token: u64) -> bool {
    now(store.clone().ask_to_release(name(text), token)).unwrap()
}

/// The side files in the directory.
fn side_files(scratch: &Scratch) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(scratch.locks()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_side = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().contains("%");
    paths.filter(is_side).collect()
}

/// A driver that is told who was asked.
struct Driver(Mutex<Sender<OwnerId>>);

impl LossListener for Driver {
    fn lost(&self, _: OwnerId, _: LostReason) {}
    fn all_lost(&self, _: LostReason) {}
    fn asked_to_release(&self, owner: OwnerId) {
        let _ = self.0.lock().unwrap().send(owner);
    }
}

/// A store whose driver says which owners were asked, for as long as the driver lives.
fn heard(scratch: &Scratch) -> (Arc<file::Store>, Arc<Driver>, Receiver<OwnerId>) {
    let (sender, asked) = channel();
    let (store, driver) = (scratch.open(), Arc::new(Driver(Mutex::new(sender))));
    store.attach(LossNotifier::new(Arc::<Driver>::downgrade(&driver)));
    (store, driver, asked)
}

#[test]
fn the_value_is_in_the_record_of_a_candidate_and_of_no_lock() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let record = || {
        let bytes = std::fs::read(scratch.locks().join("a")).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let hold = take(&store, "a");
    assert!(!record().contains("value") && !record().contains("number"));
    assert_eq!(leader(&store, "a"), Some((hold.token, String::new())));
    release(&store, hold);
    let hold = campaign(&store, "a", "http://10.0.0.7:8080");
    assert!(record().contains(r#""value":"http://10.0.0.7:8080","number":0}"#));
    let first = (hold.token, "http://10.0.0.7:8080".to_owned());
    assert_eq!(leader(&store, "a"), Some(first));
    let since = inspect(&store, "a").holds[0].holder.since;
    assert!(publish(&store, &hold, "b", 2));
    // A request that was late.
    assert!(publish(&store, &hold, "late", 1));
    assert_eq!(leader(&store, "a"), Some((hold.token, "b".into())));
    let shown = inspect(&store, "a").holds.pop().unwrap().holder;
    assert_eq!(shown.value, Some(PublishedValue::new("b", 2)));
    assert_eq!(
        (shown.label.as_str(), shown.since, shown.pid),
        ("test", since, std::process::id())
    );
    assert!(side_files(&scratch).is_empty());
    let token = hold.token;
    release(&store, hold.clone());
    let seen = sighting(&store, "a");
    assert_eq!((seen.leader, seen.last_token), (None, token));
    assert!(!publish(&store, &hold, "c", 3), "there is no such hold");
    let next = take(&store, "a");
    assert!(!record().contains("value"), "{}", record());
    release(&store, next);
}

#[test]
fn a_long_value_lies_in_a_file_of_its_own_that_ends_with_the_hold() {
    let scratch = Scratch::new();
    let store = scratch.open();
    // Each of these characters takes six bytes in JSON.
    let long = "\u{1}".repeat(PublishedValue::MAX_LEN);
    let hold = campaign(&store, "ü 🦀", &long);
    assert_eq!(leader(&store, "ü 🦀"), Some((hold.token, long.clone())));
    let shown = inspect(&store, "ü 🦀").holds.pop().unwrap().holder;
    assert_eq!(shown.value, Some(PublishedValue::new(long, 0)));
    let value = format!("%c3%bc%20%f0%9f%a6%80%v{}", hold.token);
    assert!(scratch.locks().join(value).exists());
    let other = "x".repeat(PublishedValue::MAX_LEN - 1);
    assert!(publish(&store, &hold, &other, 1));
    assert_eq!(leader(&store, "ü 🦀"), Some((hold.token, other)));
    assert!(publish(&store, &hold, "short", 2));
    assert_eq!(leader(&store, "ü 🦀"), Some((hold.token, "short".into())));
    release(&store, hold);
    assert!(
        !side_files(&scratch)
            .iter()
            .any(|path| path.to_string_lossy().contains("%v")),
        "{:?}",
        side_files(&scratch)
    );
}

#[test]
fn a_value_whose_file_is_gone_is_an_error_and_no_other_value() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let long = "x".repeat(PublishedValue::MAX_LEN);
    let hold = campaign(&store, "a", &long);
    std::fs::remove_file(side_files(&scratch).pop().unwrap()).unwrap();
    let missing = now(store.clone().leader(name("a"))).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Store);
    assert!(missing.to_string().contains("value"), "{missing}");
    // Who holds is known all the same.
    assert_eq!(inspect(&store, "a").holds[0].holder.label, "test");
    assert!(publish(&store, &hold, &long, 1));
    assert_eq!(leader(&store, "a"), Some((hold.token, long)));
    release(&store, hold);
}

#[test]
fn who_leads_is_what_the_kernel_says() {
    let scratch = Scratch::new();
    let store = scratch.open();
    assert_eq!(sighting(&store, "a"), Sighting::of_nobody(0));
    assert!(
        !scratch.locks().join("a").exists(),
        "an observer makes nothing"
    );
    let mut other = LockProcess::start(&scratch.locks());
    let token: u64 = other.ask("try a").parse().unwrap();
    let seen = sighting(&store, "a");
    assert_eq!(seen.last_token, token);
    assert_eq!(seen.leader.unwrap().holder.pid, other.pid());
    drop(other);
    assert_eq!(sighting(&store, "a"), Sighting::of_nobody(token));
    // A program that writes no record, as flock(1).
    release(&store, take(&store, "a"));
    let foreign = std::fs::File::open(scratch.locks().join("a")).unwrap();
    foreign.lock().unwrap();
    let leader = sighting(&store, "a").leader.unwrap();
    assert_eq!((leader.token, leader.holder.host), (None, String::new()));
    drop(foreign);
    assert_eq!(sighting(&store, "a").leader, None);
    // Holders that are not alone do not lead.
    let (shared, _) = try_mode(&store, "a", Mode::Shared).unwrap();
    assert_eq!(sighting(&store, "a").leader, None);
    release(&store, shared);
}

#[test]
fn a_request_reaches_the_holder_it_is_for_and_ends_with_it() {
    let scratch = Scratch::new();
    let (store, _driver, asked) = heard(&scratch);
    let other = scratch.open();
    assert!(!ask(&other, "a", 1), "nobody holds");
    let early = campaign(&store, "a", "early");
    assert!(!ask(&other, "a", early.token + 1), "another token");
    assert!(ask(&other, "a", early.token) && ask(&other, "a", early.token));
    assert_eq!(side_files(&scratch).len(), 1);
    // The request came before the guard waits for it.
    store.clone().listen_for_requests(early.clone());
    assert_eq!(asked.recv_timeout(ASKED_WITHIN), Ok(early.owner));
    release(&store, early.clone());
    assert!(side_files(&scratch).is_empty());
    assert!(!ask(&other, "a", early.token), "its hold is over");
    let second = campaign(&store, "a", "second");
    store.clone().listen_for_requests(second.clone());
    let third = take(&store, "b");
    store.clone().listen_for_requests(third.clone());
    assert!(ask(&other, "b", third.token));
    assert_eq!(asked.recv_timeout(ASKED_WITHIN), Ok(third.owner));
    assert!(ask(&other, "a", second.token));
    assert_eq!(asked.recv_timeout(ASKED_WITHIN), Ok(second.owner));
    release(&store, second);
    release(&store, third);
    assert!(side_files(&scratch).is_empty());
    assert!(asked.try_recv().is_err(), "each request is told once");
}

#[test]
fn what_a_dead_leader_leaves_is_removed_by_the_next_one() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let mut other = LockProcess::start(&scratch.locks());
    let token: u64 = other.ask("try a").parse().unwrap();
    assert!(ask(&store, "a", token));
    let value = scratch.locks().join(format!("a%v{token}"));
    std::fs::write(&value, "as if it had published something long").unwrap();
    drop(other);
    assert!(!ask(&store, "a", token), "a dead holder cannot be asked");
    release(&store, take(&store, "a"));
    assert!(
        side_files(&scratch).is_empty(),
        "{:?}",
        side_files(&scratch)
    );
    // A holder that is asked and does not listen leaves its request to the next process that asks.
    let deaf = take(&store, "a");
    assert!(ask(&store, "a", deaf.token));
    release(&store, deaf);
    let next = campaign(&store, "a", "");
    assert_eq!(side_files(&scratch).len(), 1);
    assert!(ask(&store, "a", next.token));
    assert_eq!(side_files(&scratch).len(), 1);
    release(&store, next);
    assert!(side_files(&scratch).is_empty());
}

#[test]
fn a_broken_leader_publishes_nothing_any_more() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    let old = campaign(&one, "a", "old");
    let store = two.clone().as_operate().unwrap();
    assert!(now(store.break_lock(name("a"), old.token)).unwrap());
    let new = campaign(&two, "a", "new");
    assert!(!publish(
        &one,
        &old,
        &"x".repeat(PublishedValue::MAX_LEN),
        7
    ));
    assert_eq!(leader(&one, "a"), Some((new.token, "new".into())));
    assert!(!ask(&one, "a", old.token));
    release(&two, new);
}

/// What cannot be written is an error that names the file and the remedy, and the hold goes on.
#[test]
fn a_request_that_cannot_be_left_is_an_error() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let hold = campaign(&store, "a", "v");
    let in_the_way = scratch.locks().join(format!("a%r{}", hold.token));
    std::fs::create_dir(&in_the_way).unwrap();
    let refused = now(store.clone().ask_to_release(name("a"), hold.token)).unwrap_err();
    let text = format!("{refused:#}");
    assert_eq!(refused.kind(), ErrorKind::Denied, "{text}");
    assert!(text.contains("%r") && text.contains("directory"), "{text}");
    std::fs::remove_dir(&in_the_way).unwrap();
    std::os::unix::fs::symlink(scratch.path().join("elsewhere"), &in_the_way).unwrap();
    let refused = now(store.clone().ask_to_release(name("a"), hold.token)).unwrap_err();
    assert!(refused.to_string().contains("symbolic link"), "{refused}");
    assert!(!scratch.path().join("elsewhere").exists());
    assert!(leader(&store, "a").is_some());
    release(&store, hold);
}
