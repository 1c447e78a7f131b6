//! Lock clients as people write them, each with one mistake; and one without.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::Duration;

use tenure_torture::clock::now;
use tenure_torture::worker::{self, Held, Settings};

/// What is wrong with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    None,
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
}

impl Bug {
    pub(crate) const ALL: [Self; 6] = [
        Self::None,
        Self::NoDeadline,
        Self::DeadlineFromReply,
        Self::ReleaseWithoutOwner,
        Self::RenewWithoutOwner,
        Self::PlainCounterToken,
    ];
}

pub(crate) struct Locks {
    bug: Bug,
    address: String,
    ttl: u64,
    worker: usize,
    life: u64,
    connection: Mutex<Option<BufReader<TcpStream>>>,
    number: Mutex<u64>,
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

    fn deadline(&self, sent: u64) -> u64 {
        let from = match self.bug {
            Bug::DeadlineFromReply => now(),
            _ => sent,
        };
        from + self.ttl - self.ttl / 100 - 2_000_000
    }
}

impl worker::Locks for &'static Locks {
    type Held = Hold;

    async fn acquire(&self, name: &str) -> Result<Hold, String> {
        loop {
            let number = {
                let mut number = self.number.lock().unwrap();
                *number += 1;
                *number
            };
            let owner = format!("{}-{}-{number}", self.worker, self.life);
            let sent = now();
            let answer = self.ask(&format!("take {name} {owner} {}", self.ttl / 1_000_000));
            let answer = answer.ok_or("the server is gone")?;
            if let Some((counter, clock)) = answer.split_once(' ') {
                let token = match self.bug {
                    Bug::PlainCounterToken => counter,
                    _ => clock,
                };
                return Ok(Hold {
                    name: name.into(),
                    owner,
                    token: token.parse().unwrap(),
                    deadline: self.deadline(sent),
                    renewed: sent,
                    locks: self,
                });
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
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
        let sent = now();
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
        (now() < self.deadline).then_some(self.deadline)
    }

    async fn release(self) {
        let owner = match self.locks.bug {
            Bug::ReleaseWithoutOwner => "*",
            _ => &self.owner,
        };
        let _ = self.locks.ask(&format!("free {} {owner}", self.name));
    }
}
