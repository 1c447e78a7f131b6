//! Lock clients with one common mistake each, and three clients without a mistake.

use std::cell::Cell;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};

use tenure_torture::clock::{nanos, now};
use tenure_torture::mode::HoldMode;
use tenure_torture::worker::{self, Held, Settings};

use crate::observer::{ObserverMistake, PollingObserver};

/// The mistake of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// No mistake; the client polls.
    None,
    /// No mistake; the client listens for releases, and also polls at a long interval.
    NoneListening,
    /// No mistake; the client waits in a queue, and releases a lock that is granted while the client gives up.
    NoneQueueing,
    /// The client believes that it holds until it releases.
    NoDeadline,
    /// The client counts the lease from the reply, not from before the request was sent.
    DeadlineFromReply,
    /// The client deletes the lock without comparing the owner.
    ReleaseWithoutOwner,
    /// The client renews the lock without comparing the owner.
    RenewWithoutOwner,
    /// The token is a counter, which the server forgets with all its data.
    PlainCounterToken,
    /// The client waits only for the message of a release; a holder that dies sends no message.
    NoPoll,
    /// The client waits in a queue, gives up after a while, and keeps a lock that is granted at that moment.
    NoGiveBack,
    /// The client trusts a server that was started a moment ago, which has forgotten the holders.
    NoRestartGuard,
    /// The client measures its lease on a clock that stands still while the machine sleeps.
    ClockThatSleeps,
    /// The mistake is one of observers.
    Observing(ObserverMistake),
}

impl Mistake {
    /// Whether there is a mistake.
    pub(crate) fn is_one(self) -> bool {
        !matches!(self, Self::None | Self::NoneListening | Self::NoneQueueing)
    }

    pub(crate) const ALL: [Self; 20] = [
        Self::None,
        Self::NoneListening,
        Self::NoneQueueing,
        Self::NoDeadline,
        Self::DeadlineFromReply,
        Self::ReleaseWithoutOwner,
        Self::RenewWithoutOwner,
        Self::PlainCounterToken,
        Self::NoPoll,
        Self::NoGiveBack,
        Self::NoRestartGuard,
        Self::ClockThatSleeps,
        Self::Observing(ObserverMistake::OrderOfArrival),
        Self::Observing(ObserverMistake::NoEndOfTerm),
        Self::Observing(ObserverMistake::NoOrderOfValues),
        Self::Observing(ObserverMistake::EverySighting),
        Self::Observing(ObserverMistake::Candidates),
        Self::Observing(ObserverMistake::ValueOfLastTerm),
        Self::Observing(ObserverMistake::Late),
        Self::Observing(ObserverMistake::Deaf),
    ];
}

/// How long a listening client waits for a message before it polls.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a client waits in the queue before it gives up and enters the queue again; twice as long after each time
/// without an answer, because on a busy machine an answer takes longer than this.
const QUEUE_TIMEOUT: Duration = Duration::from_millis(15);
/// The longest such time.
const MAX_QUEUE_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) struct Locks {
    pub(crate) mistake: Mistake,
    address: String,
    ttl: u64,
    worker: usize,
    life: u64,
    connection: Mutex<Option<BufReader<TcpStream>>>,
    number: Mutex<u64>,
    /// How long the next request waits in the queue.
    queue_timeout: Mutex<Duration>,
    /// The owners whose locks were requested and not released. A client in a queue renews all of them at once, as a
    /// session does.
    owners: Mutex<Vec<String>>,
    began: Instant,
}

impl Locks {
    /// The URL is `MISTAKE ADDRESS`.
    pub(crate) fn new(settings: &Settings) -> Self {
        let (mistake, address) = settings.url.split_once(' ').unwrap();
        let mistake = Mistake::ALL
            .into_iter()
            .find(|it| format!("{it:?}") == mistake);
        Self {
            mistake: mistake.unwrap(),
            address: address.into(),
            ttl: nanos(settings.workload.ttl),
            worker: settings.worker,
            life: settings.life,
            connection: Mutex::default(),
            number: Mutex::default(),
            queue_timeout: Mutex::new(QUEUE_TIMEOUT),
            owners: Mutex::default(),
            began: Instant::now(),
        }
    }

    /// The clock on which the client measures leases.
    fn clock(&self) -> u64 {
        match self.mistake {
            Mistake::ClockThatSleeps => nanos(self.began.elapsed()),
            _ => now(),
        }
    }

    /// One request; `None` when its outcome is unknown. Then the connection is closed, because the late answer would be
    /// taken for the answer to the next request.
    pub(crate) fn ask(&self, line: &str) -> Option<String> {
        let mut slot = self.connection.lock().unwrap();
        let mut connection = match slot.take() {
            Some(connection) => connection,
            None => {
                let stream = TcpStream::connect(&self.address).ok()?;
                stream.set_nodelay(true).ok()?;
                BufReader::new(stream)
            }
        };
        let mut answer = String::new();
        let line = format!("{line}\n");
        connection.get_mut().write_all(line.as_bytes()).ok()?;
        let got = connection.read_line(&mut answer).ok()?;
        (got > 0).then(|| {
            *slot = Some(connection);
            answer.trim().to_owned()
        })
    }

    /// One request that is answered later, over a connection of its own; `None` after `timeout`.
    async fn ask_with_timeout(&self, line: &str, timeout: Duration) -> Option<String> {
        let ask = async {
            let stream = tokio::net::TcpStream::connect(&self.address).await.ok()?;
            let mut stream = tokio::io::BufReader::new(stream);
            let line = format!("{line}\n");
            stream.get_mut().write_all(line.as_bytes()).await.ok()?;
            let mut answer = String::new();
            let got = stream.read_line(&mut answer).await.ok()?;
            (got > 0).then(|| answer.trim().to_owned())
        };
        tokio::time::timeout(timeout, ask).await.ok().flatten()
    }

    fn deadline(&self, sent: u64) -> u64 {
        let from = match self.mistake {
            Mistake::DeadlineFromReply => self.clock(),
            _ => sent,
        };
        from + self.ttl - self.ttl / 100 - 2_000_000
    }

    fn new_owner(&self) -> String {
        let mut number = self.number.lock().unwrap();
        *number += 1;
        format!("{}-{}-{number}", self.worker, self.life)
    }

    /// Renews all locks that this client has requested.
    fn renew_all(&self, name: &str) {
        let owners = self.owners.lock().unwrap().clone();
        for owner in owners {
            // The server renews only what is held.
            let ttl = self.ttl / 1_000_000;
            let _ = self.ask(&format!("renew {name} {owner} {ttl}"));
        }
    }

    fn free(&self, name: &str, owner: &str) {
        self.owners.lock().unwrap().retain(|it| it != owner);
        let _ = self.ask(&format!("free {name} {owner}"));
    }

    /// Sends one attempt and returns the answer of the server.
    async fn ask_for(&self, name: &str, owner: &str, value: &str) -> Result<String, String> {
        let ttl = self.ttl / 1_000_000;
        let is_queueing = matches!(self.mistake, Mistake::NoneQueueing | Mistake::NoGiveBack);
        if is_queueing {
            self.owners.lock().unwrap().push(owner.into());
            self.renew_all(name);
            let line = format!("queue {name} {owner} {ttl}");
            let timeout = *self.queue_timeout.lock().unwrap();
            let answer = self.ask_with_timeout(&line, timeout).await;
            *self.queue_timeout.lock().unwrap() = match answer {
                Some(_) => QUEUE_TIMEOUT,
                None => (timeout * 2).min(MAX_QUEUE_TIMEOUT),
            };
            if answer.is_none() {
                match self.mistake {
                    Mistake::NoGiveBack => tokio::time::sleep(timeout).await,
                    _ => self.free(name, owner),
                }
            }
            return Ok(answer.unwrap_or_default());
        }
        let answer = self.ask(&format!("take {name} {owner} {ttl} {value}"));
        answer.ok_or_else(|| "the server is gone".into())
    }

    /// Waits until the next attempt.
    async fn wait(&self, name: &str) {
        let timeout = match self.mistake {
            Mistake::NoneListening => POLL_INTERVAL,
            Mistake::NoPoll => Duration::MAX,
            _ => return tokio::time::sleep(Duration::from_millis(5)).await,
        };
        let line = format!("listen {name} -");
        let _ = self.ask_with_timeout(&line, timeout).await;
    }

    /// Acquires a lock, or becomes the leader who publishes `value`.
    async fn acquire(&'static self, name: &str, value: &str) -> Result<Hold, String> {
        loop {
            let owner = self.new_owner();
            let (asked, sent) = (now(), self.clock());
            let answer = self.ask_for(name, &owner, value).await?;
            let words: Vec<u64> = answer.split(' ').map_while(|it| it.parse().ok()).collect();
            let &[counter, clock, since] = words.as_slice() else {
                self.wait(name).await;
                continue;
            };
            // A lock that was held before the server was started ends within one ttl after the start.
            if self.mistake != Mistake::NoRestartGuard && asked < since + self.ttl {
                self.free(name, &owner);
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            return Ok(Hold {
                name: name.into(),
                owner,
                token: match self.mistake {
                    Mistake::PlainCounterToken => counter,
                    _ => clock,
                },
                deadline: Cell::new(self.deadline(sent)),
                renewed: Cell::new(sent),
                locks: self,
            });
        }
    }
}

impl worker::Locks for &'static Locks {
    type Held = Hold;
    type Observer = PollingObserver;

    async fn acquire(&self, name: &str, _: HoldMode) -> Result<Hold, String> {
        Locks::acquire(self, name, "").await
    }

    async fn campaign(&self, name: &str, value: &str) -> Result<Hold, String> {
        Locks::acquire(self, name, value).await
    }

    async fn ask_to_resign(&self, _: &str) {}

    fn observe(&self, name: &str) -> PollingObserver {
        PollingObserver::new(self, name)
    }

    async fn close(self) {}
}

pub(crate) struct Hold {
    locks: &'static Locks,
    name: String,
    owner: String,
    token: u64,
    deadline: Cell<u64>,
    renewed: Cell<u64>,
}

impl Held for Hold {
    fn token(&self) -> u64 {
        self.token
    }

    async fn deadline(&self) -> Option<u64> {
        let mistake = self.locks.mistake;
        if mistake == Mistake::NoDeadline {
            return Some(u64::MAX);
        }
        let sent = self.locks.clock();
        let is_due = sent > self.renewed.get() + self.locks.ttl / 3;
        if is_due && (sent < self.deadline.get() || mistake == Mistake::RenewWithoutOwner) {
            let owner = match mistake {
                Mistake::RenewWithoutOwner => "*",
                _ => &self.owner,
            };
            let ttl = self.locks.ttl / 1_000_000;
            let answer = self
                .locks
                .ask(&format!("renew {} {owner} {ttl}", self.name));
            match answer.as_deref() {
                Some("yes") => {
                    self.deadline.set(self.locks.deadline(sent));
                    self.renewed.set(sent);
                }
                Some(_) => return None,
                // No answer is neither a success nor a loss: the deadline stays.
                None => {}
            }
        }
        // In this order, so that the client claims a shorter time if the process is stopped between the two.
        let (at, now) = (now(), self.locks.clock());
        let deadline = self.deadline.get();
        (now < deadline).then(|| at + deadline - now)
    }

    async fn proclaim(&self, value: &str) -> bool {
        let (name, owner) = (&self.name, &self.owner);
        let answer = self.locks.ask(&format!("publish {name} {owner} {value}"));
        answer.as_deref() == Some("yes")
    }

    async fn release(self) {
        let owner = match self.locks.mistake {
            Mistake::ReleaseWithoutOwner => "*",
            _ => &self.owner,
        };
        self.locks.free(&self.name, owner);
    }
}
