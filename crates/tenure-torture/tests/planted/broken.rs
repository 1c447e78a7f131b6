//! Lock clients as people write them, each with one mistake; and one without.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};

use tenure_torture::clock::{nanos, now};
use tenure_torture::worker::{self, Held, Settings};

/// What is wrong with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Nothing; it asks again and again.
    None,
    /// Nothing; it listens for releases, and looks for itself from time to time.
    NoneListening,
    /// Nothing; it stands in a queue, and gives back what it was granted as it gave up.
    NoneQueueing,
    /// Believes that it holds until it releases.
    NoDeadline,
    /// Counts the lease from when the reply came, not from before the request was sent.
    DeadlineFromReply,
    /// Deletes the lock, whosever it is.
    ReleaseWithoutOwner,
    /// Prolongs the lock, whosever it is.
    RenewWithoutOwner,
    /// Its token is a counter, which the server forgets with everything else.
    PlainCounterToken,
    /// Waits until it is told of a release, and for nothing else: a holder that dies tells nobody.
    NoPoll,
    /// Stands in a queue, gives up after a while, and keeps what it was granted at that moment.
    NoGiveBack,
    /// Trusts a server that was started a moment ago to know who holds what.
    NoRestartGuard,
    /// Measures its lease on a clock that stands still while the machine sleeps.
    ClockThatSleeps,
}

impl Bug {
    /// Whether there is a mistake.
    pub(crate) fn is_one(self) -> bool {
        !matches!(self, Self::None | Self::NoneListening | Self::NoneQueueing)
    }

    pub(crate) const ALL: [Self; 12] = [
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
    ];
}

/// How long one waits for a message before it looks for itself.
const POLL: Duration = Duration::from_millis(100);
/// How long one stands in the queue before it gives up and comes again.
const WAIT: Duration = Duration::from_millis(15);

pub(crate) struct Locks {
    bug: Bug,
    address: String,
    ttl: u64,
    worker: usize,
    life: u64,
    connection: Mutex<Option<BufReader<TcpStream>>>,
    number: Mutex<u64>,
    /// What was asked for and not given back; in a queue all of it is kept alive at once, as by a session.
    mine: Mutex<Vec<String>>,
    began: Instant,
}

impl Locks {
    /// The URL is `BUG ADDRESS`.
    pub(crate) fn new(settings: &Settings) -> Self {
        let (bug, address) = settings.url.split_once(' ').unwrap();
        let bug = Bug::ALL.into_iter().find(|it| format!("{it:?}") == bug);
        Self {
            bug: bug.unwrap(),
            address: address.into(),
            ttl: settings.ttl_ms * 1_000_000,
            worker: settings.worker,
            life: settings.life,
            connection: Mutex::default(),
            number: Mutex::default(),
            mine: Mutex::default(),
            began: Instant::now(),
        }
    }

    /// What it measures leases on.
    fn clock(&self) -> u64 {
        match self.bug {
            Bug::ClockThatSleeps => nanos(self.began.elapsed()),
            _ => now(),
        }
    }

    /// One request; `None` when nobody knows what became of it. The connection is closed then, or the late answer
    /// would be taken for that of the next request.
    fn ask(&self, line: &str) -> Option<String> {
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

    /// One request that is answered later, over a connection of its own; `None` when that took too long.
    async fn ask_patiently(&self, line: &str, patience: Duration) -> Option<String> {
        let ask = async {
            let stream = tokio::net::TcpStream::connect(&self.address).await.ok()?;
            let mut stream = tokio::io::BufReader::new(stream);
            let line = format!("{line}\n");
            stream.get_mut().write_all(line.as_bytes()).await.ok()?;
            let mut answer = String::new();
            let got = stream.read_line(&mut answer).await.ok()?;
            (got > 0).then(|| answer.trim().to_owned())
        };
        tokio::time::timeout(patience, ask).await.ok().flatten()
    }

    fn deadline(&self, sent: u64) -> u64 {
        let from = match self.bug {
            Bug::DeadlineFromReply => self.clock(),
            _ => sent,
        };
        from + self.ttl - self.ttl / 100 - 2_000_000
    }

    fn new_owner(&self) -> String {
        let mut number = self.number.lock().unwrap();
        *number += 1;
        format!("{}-{}-{number}", self.worker, self.life)
    }

    /// Keeps all alive that this client has asked for.
    fn renew_all(&self, name: &str) {
        let mine = self.mine.lock().unwrap().clone();
        for owner in mine {
            // What is not held is not renewed.
            let ttl = self.ttl / 1_000_000;
            let _ = self.ask(&format!("renew {name} {owner} {ttl}"));
        }
    }

    fn free(&self, name: &str, owner: &str) {
        self.mine.lock().unwrap().retain(|it| it != owner);
        let _ = self.ask(&format!("free {name} {owner}"));
    }

    /// One attempt; the answer of the server to it.
    async fn ask_for(&self, name: &str, owner: &str) -> Result<String, String> {
        let ttl = self.ttl / 1_000_000;
        let is_queueing = matches!(self.bug, Bug::NoneQueueing | Bug::NoGiveBack);
        if is_queueing {
            self.mine.lock().unwrap().push(owner.into());
            self.renew_all(name);
            let line = format!("queue {name} {owner} {ttl}");
            let answer = self.ask_patiently(&line, WAIT).await;
            if answer.is_none() {
                match self.bug {
                    Bug::NoGiveBack => tokio::time::sleep(WAIT).await,
                    _ => self.free(name, owner),
                }
            }
            return Ok(answer.unwrap_or_default());
        }
        let answer = self.ask(&format!("take {name} {owner} {ttl}"));
        answer.ok_or_else(|| "the server is gone".into())
    }

    /// Until it is worth to ask again.
    async fn wait(&self, name: &str) {
        let patience = match self.bug {
            Bug::NoneListening => POLL,
            Bug::NoPoll => Duration::MAX,
            _ => return tokio::time::sleep(Duration::from_millis(5)).await,
        };
        let line = format!("listen {name} -");
        let _ = self.ask_patiently(&line, patience).await;
    }
}

impl worker::Locks for &'static Locks {
    type Held = Hold;

    async fn acquire(&self, name: &str) -> Result<Hold, String> {
        loop {
            let owner = self.new_owner();
            let (asked, sent) = (now(), self.clock());
            let answer = self.ask_for(name, &owner).await?;
            let words: Vec<u64> = answer.split(' ').map_while(|it| it.parse().ok()).collect();
            let &[counter, clock, since] = words.as_slice() else {
                self.wait(name).await;
                continue;
            };
            // Whoever held before the server was started does so no longer than this.
            if self.bug != Bug::NoRestartGuard && asked < since + self.ttl {
                self.free(name, &owner);
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            return Ok(Hold {
                name: name.into(),
                owner,
                token: match self.bug {
                    Bug::PlainCounterToken => counter,
                    _ => clock,
                },
                deadline: self.deadline(sent),
                renewed: sent,
                locks: self,
            });
        }
    }

    async fn close(self) {}
}

pub(crate) struct Hold {
    locks: &'static Locks,
    name: String,
    owner: String,
    token: u64,
    deadline: u64,
    renewed: u64,
}

impl Held for Hold {
    fn token(&self) -> u64 {
        self.token
    }

    async fn deadline(&mut self) -> Option<u64> {
        let bug = self.locks.bug;
        if bug == Bug::NoDeadline {
            return Some(u64::MAX);
        }
        let sent = self.locks.clock();
        let is_due = sent > self.renewed + self.locks.ttl / 3;
        if is_due && (sent < self.deadline || bug == Bug::RenewWithoutOwner) {
            let owner = match bug {
                Bug::RenewWithoutOwner => "*",
                _ => &self.owner,
            };
            let ttl = self.locks.ttl / 1_000_000;
            let answer = self
                .locks
                .ask(&format!("renew {} {owner} {ttl}", self.name));
            match answer.as_deref() {
                Some("yes") => {
                    self.deadline = self.locks.deadline(sent);
                    self.renewed = sent;
                }
                Some(_) => return None,
                // Neither success nor loss: the deadline stays.
                None => {}
            }
        }
        // In this order, so that it claims less and not more should it stand still in between.
        let (at, now) = (now(), self.locks.clock());
        (now < self.deadline).then(|| at + self.deadline - now)
    }

    async fn release(self) {
        let owner = match self.locks.bug {
            Bug::ReleaseWithoutOwner => "*",
            _ => &self.owner,
        };
        self.locks.free(&self.name, owner);
    }
}
