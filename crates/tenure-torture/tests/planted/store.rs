//! A small lock server inside the test, which can forget everything and answer late.
//!
//! A hold lasts for a lease. A client waits in one of two ways, as clients of real servers do: it listens for the next
//! release, and gets no message when a lease ends; or it is in a queue, and the server hands the lock over to it.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_torture::clock::now;
use tenure_torture::nemesis::Environment;
use tenure_torture::plan::FaultKind;

use tenure_testkit::clock::Clock;

/// A hold of one name.
#[derive(Clone)]
struct StoredHold {
    owner: String,
    until: u64,
    token: u64,
    /// What the leader of an election has published.
    value: String,
}

#[derive(Default)]
struct Data {
    holds: HashMap<String, StoredHold>,
    /// Who led, for each name: the leader or `nobody`, as often as that changed. A replica that lags behind has not the last of
    /// them yet.
    leaders: HashMap<String, Vec<String>>,
    /// The value of the last candidate that was refused, for each name.
    candidates: HashMap<String, String>,
    /// The waiters: name, owner, lease in ms, and the connection for the answer.
    queue: VecDeque<(String, String, u64, TcpStream)>,
    /// The connections that want a message about releases of a name.
    listeners: Vec<(String, TcpStream)>,
    counter: u64,
    down: bool,
    grants: u64,
    /// When the server was started; 0 if it was never killed.
    since: u64,
}

/// The server. It runs as long as the test program.
pub(crate) struct Store {
    pub(crate) address: SocketAddr,
    data: Arc<Mutex<Data>>,
    /// The clock of the workers' machine.
    pub(crate) clock: Clock,
}

impl Store {
    /// Every second granting reply is sent later by `late`.
    pub(crate) fn start(late: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let store = Self {
            address: listener.local_addr().unwrap(),
            data: Arc::default(),
            clock: Clock::make(),
        };
        let data = store.data.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let data = data.clone();
                std::thread::spawn(move || serve(&stream, &data, late));
            }
        });
        store
    }
}

impl Environment for Store {
    fn kinds(&self) -> Vec<FaultKind> {
        vec![FaultKind::ServerKill, FaultKind::Suspend]
    }

    fn begin(&self, kind: FaultKind, _: Duration) {
        if kind == FaultKind::Suspend {
            return self.clock.fall_asleep();
        }
        *self.data.lock().unwrap() = Data {
            down: true,
            ..Data::default()
        };
    }

    fn end(&self, kind: FaultKind) {
        if kind == FaultKind::Suspend {
            return self.clock.wake_up();
        }
        let mut data = self.data.lock().unwrap();
        (data.down, data.since) = (false, now());
    }
}

fn serve(stream: &TcpStream, data: &Mutex<Data>, late: Duration) {
    stream.set_nodelay(true).unwrap();
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let (answer, is_late) = {
            let mut data = data.lock().unwrap();
            if data.down {
                return;
            }
            let Some(answer) = act(&mut data, &line, stream) else {
                continue;
            };
            (answer, data.grants % 2 == 1)
        };
        if is_late && answer != "no\n" {
            std::thread::sleep(late);
        }
        if (&mut &*stream).write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Serves one of `take NAME OWNER MS [VALUE]`, `renew NAME OWNER MS`, `free NAME OWNER`; `*` is any owner. `queue` is a `take`
/// that is answered when the lock is granted; `listen NAME -` is answered when the lock is released; `publish NAME OWNER VALUE`
/// replaces the value of a leader. `None`: the answer comes later.
///
/// `leader NAME -` is answered with `TOKEN VALUE` or `nobody`; `lagging NAME COUNT` with the answer before the last changes, and
/// `candidate NAME -` with a candidate that was refused, as if it led.
fn act(data: &mut Data, line: &str, stream: &TcpStream) -> Option<String> {
    let words: Vec<_> = line.split(' ').collect();
    let (verb, name, owner) = (words[0], words[1], words[2]);
    let lease = words.get(3).map_or(0, |ms| ms.parse().unwrap_or(0));
    let value = words.get(4).copied().unwrap_or_default();
    let until = now() + lease * 1_000_000;
    hand_over(data);
    if let Some(answer) = observe(data, verb, name, owner) {
        return Some(answer);
    }
    let is_owner = |hold: &StoredHold| owner == "*" || hold.owner == owner;
    let hold = data.holds.get(name);
    match verb {
        "take" | "queue" if hold.is_none() => {
            return Some(grant(data, name, owner, lease, value));
        }
        "take" if !value.is_empty() => {
            data.candidates.insert(name.into(), value.into());
            return Some("no\n".into());
        }
        "publish" if hold.is_some_and(is_owner) => {
            let mut hold = hold.unwrap().clone();
            hold.value = words[3].into();
            data.holds.insert(name.into(), hold);
            note_leader(data, name);
        }
        "queue" => {
            let stream = stream.try_clone().unwrap();
            let place = (name.into(), owner.into(), lease, stream);
            data.queue.push_back(place);
            return None;
        }
        "listen" => {
            let listener = (name.into(), stream.try_clone().unwrap());
            data.listeners.push(listener);
            return None;
        }
        "renew" if hold.is_some_and(is_owner) => {
            let hold = StoredHold {
                until,
                ..hold.unwrap().clone()
            };
            data.holds.insert(name.into(), hold);
        }
        // A renewal without an owner also renews a lock that is free.
        "renew" if owner == "*" => {
            let hold = StoredHold {
                owner: owner.into(),
                until,
                token: now(),
                value: String::new(),
            };
            data.holds.insert(name.into(), hold);
        }
        "free" => {
            data.queue.retain(|waiter| waiter.1 != owner);
            if !hold.is_some_and(is_owner) {
                return Some("no\n".into());
            }
            data.holds.remove(name);
            note_leader(data, name);
            hand_over(data);
            data.listeners.retain(|(wanted, listener)| {
                let is_it = wanted == name;
                // A listener that is gone is ignored.
                let _ = is_it.then(|| (&mut &*listener).write_all(b"freed\n"));
                !is_it
            });
        }
        _ => return Some("no\n".into()),
    }
    Some("yes\n".into())
}

/// Answers an observer.
fn observe(data: &Data, verb: &str, name: &str, lag: &str) -> Option<String> {
    let nobody = || "nobody".to_owned();
    let leaders = data.leaders.get(name).map_or(&[][..], Vec::as_slice);
    let answer = match verb {
        "leader" => leaders.last().cloned().unwrap_or_else(nobody),
        "lagging" => {
            let lag: usize = lag.parse().unwrap();
            let before = leaders.len().saturating_sub(1 + lag);
            leaders.get(before).cloned().unwrap_or_else(nobody)
        }
        "candidate" => match data.candidates.get(name) {
            Some(value) => format!("{} {value}", now()),
            None => nobody(),
        },
        _ => return None,
    };
    Some(answer + "\n")
}

/// Adds the leader of now to those of before.
fn note_leader(data: &mut Data, name: &str) {
    let leader = match data.holds.get(name) {
        Some(hold) if !hold.value.is_empty() => format!("{} {}", hold.token, hold.value),
        _ => "nobody".to_owned(),
    };
    let leaders = data.leaders.entry(name.to_owned()).or_default();
    if leaders.last() != Some(&leader) {
        leaders.push(leader);
    }
}

/// Ends leases, and grants each free lock to its first waiter.
fn hand_over(data: &mut Data) {
    let now = now();
    let over = data.holds.iter().filter(|(_, hold)| hold.until <= now);
    let over: Vec<String> = over.map(|(name, _)| name.clone()).collect();
    for name in over {
        data.holds.remove(&name);
        note_leader(data, &name);
    }
    let mut rest = VecDeque::new();
    while let Some((name, owner, lease, stream)) = data.queue.pop_front() {
        if data.holds.contains_key(&name) {
            rest.push_back((name, owner, lease, stream));
            continue;
        }
        let answer = grant(data, &name, &owner, lease, "");
        // The waiter may be gone; the server learns that when the lease has ended.
        let _ = (&mut &stream).write_all(answer.as_bytes());
    }
    data.queue = rest;
}

/// Grants the lock. The answer has a plain counter, a token that grows even after the loss of all data, and the start
/// of the server.
fn grant(data: &mut Data, name: &str, owner: &str, lease: u64, value: &str) -> String {
    let now = now();
    let hold = StoredHold {
        owner: owner.into(),
        until: now + lease * 1_000_000,
        token: now,
        value: value.into(),
    };
    data.holds.insert(name.into(), hold);
    note_leader(data, name);
    data.counter += 1;
    data.grants += 1;
    format!("{} {now} {}\n", data.counter, data.since)
}
