//! A worker process: acquires a name in some mode, accesses the register while it believes that it holds, and releases.

use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use rustix::process::getppid;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::clock::{nanos, now};
use crate::event::{Event, Log};
use crate::mode::{HoldMode, Modes};
use crate::random::Random;

/// The environment variable with a worker's [`Settings`]. Arguments are visible to all users, and the URL may hold a
/// password.
pub const VARIABLE: &str = "TENURE_TORTURE_WORKER";

/// How workers use the store.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Workload {
    /// The number of worker processes.
    pub workers: usize,
    /// The number of names that the workers share.
    pub names: usize,
    /// The lease of each lock.
    pub ttl: Duration,
    /// The longest hold of a worker.
    pub hold: Duration,
    /// Workers try again and again, and do not wait. Then a lock that is free by mistake is taken at once.
    pub only_tries: bool,
    /// The modes in which workers hold, in turn.
    pub modes: Modes,
}

/// The settings of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The store.
    pub url: String,
    /// The number of the worker.
    pub worker: usize,
    /// How many processes had this number before.
    pub life: u64,
    /// Names to lock.
    pub names: Vec<String>,
    /// How the store is used.
    pub workload: Workload,
    /// The address of the register.
    pub register: SocketAddr,
    /// The log of events.
    pub events: PathBuf,
    /// The seed for the choices of the worker.
    pub seed: u64,
    /// The pid of the runner. A worker ends with it.
    pub runner: i32,
}

/// The worker of an acquisition.
pub fn worker_of(acquisition: u64) -> usize {
    (acquisition >> 44) as usize
}

/// The lock under test. [`Tenure`] is the real one; those with mistakes are in the tests.
pub trait Locks {
    /// A hold of it.
    type Held: Held;
    /// Acquires `name` in that mode, if necessary after a wait. An error gives the reason of the refusal.
    fn acquire(
        &self,
        name: &str,
        mode: HoldMode,
    ) -> impl Future<Output = Result<Self::Held, String>>;
    /// Ends the client, and leaves nothing in the store.
    fn close(self) -> impl Future<Output = ()>;
}

/// A hold as its owner knows it.
pub trait Held {
    /// The fencing token.
    fn token(&self) -> u64;
    /// Until when the owner believes that it holds; `None` when it knows that it lost.
    fn deadline(&self) -> impl Future<Output = Option<u64>>;
    /// Makes an upgradable hold exclusive; `false` when the hold stays as it is.
    fn upgrade(&self) -> impl Future<Output = bool> {
        std::future::ready(false)
    }
    /// Makes the hold shared; `false` when that failed.
    fn downgrade(&self) -> impl Future<Output = bool> {
        std::future::ready(false)
    }
    /// Releases the lock. The checker judges by the history, so an error is not returned.
    fn release(self) -> impl Future<Output = ()>;
}

/// The library, used through its public API.
pub struct Tenure {
    client: tenure::Client,
    ttl: Duration,
    only_tries: bool,
}

impl Tenure {
    /// Connects.
    ///
    /// # Errors
    /// The errors of [`tenure::connect`].
    pub async fn connect(settings: &Settings) -> Result<Self, tenure::Error> {
        Ok(Self {
            client: tenure::connect(&settings.url).await?,
            ttl: settings.workload.ttl,
            only_tries: settings.workload.only_tries,
        })
    }
}

impl Locks for Tenure {
    type Held = tenure::Guard;

    async fn acquire(&self, name: &str, mode: HoldMode) -> Result<tenure::Guard, String> {
        let lock = self.client.lock(name).ttl(self.ttl).label("torture");
        let lock = mode.applied_to(lock);
        if self.only_tries {
            let tried = lock
                .try_acquire()
                .await
                .map_err(|error| format!("{error:#}"))?;
            return tried.ok_or_else(|| "held".into());
        }
        lock.acquire().await.map_err(|error| format!("{error:#}"))
    }

    async fn close(self) {
        self.client.close().await;
    }
}

impl Held for tenure::Guard {
    fn token(&self) -> u64 {
        self.token().into()
    }

    async fn deadline(&self) -> Option<u64> {
        // The clock is read before the remaining time: if the process is stopped between the two, it claims a shorter
        // time and not a longer one.
        let now = now();
        self.is_held()
            .then(|| now.saturating_add(nanos(self.remaining())))
    }

    async fn upgrade(&self) -> bool {
        Self::upgrade(self).await.is_ok()
    }

    async fn downgrade(&self) -> bool {
        Self::downgrade(self).await.is_ok()
    }

    async fn release(self) {
        // The lock may be lost already, or the outcome is unknown; the checker judges by the history.
        let _ = Self::release(self).await;
    }
}

/// A worker on the library: the whole life of its process.
///
/// # Errors
/// The reason why the worker could not work; for its log.
pub fn main() -> Result<(), String> {
    run(async |settings: Settings| {
        // A store that does not answer now may answer later.
        let mut wait = Duration::from_millis(20);
        loop {
            match Tenure::connect(&settings).await {
                Ok(locks) => break Ok(locks),
                Err(error) if error.is_retryable() => {
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_millis(500));
                }
                Err(error) => break Err(format!("{error:#}")),
            }
        }
    })
}

/// A worker on the locks that `connect` returns.
///
/// # Errors
/// The reason why the worker could not work; for its log.
pub fn run<L: Locks>(connect: impl AsyncFn(Settings) -> Result<L, String>) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let settings = std::env::var(VARIABLE).map_err(|error| error.to_string())?;
    let settings: Settings = serde_json::from_str(&settings).map_err(|error| error.to_string())?;
    // The worker ends with the runner, also when it is stopped.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| text(error.into()))?;
    if getppid().is_none_or(|parent| parent.as_raw_pid() != settings.runner) {
        return Ok(());
    }
    let stop = end_of_input();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(text)?;
    let done = runtime.block_on(async {
        let mut stopped = stop.clone();
        let locks = tokio::select! {
            locks = connect(settings.clone()) => locks?,
            _ = stopped.changed() => return Ok(()),
        };
        let worked = work(&settings, &locks, stop).await.map_err(text);
        locks.close().await;
        worked
    });
    runtime.shutdown_background();
    done
}

/// Becomes `true` when standard input ends. The runner closes the input to end the worker.
fn end_of_input() -> watch::Receiver<bool> {
    let (sender, receiver) = watch::channel(false);
    std::thread::spawn(move || {
        let mut rest = Vec::new();
        // An error is an end of the input, too.
        let _ = io::stdin().read_to_end(&mut rest);
        sender.send_replace(true);
    });
    receiver
}

/// Acquires, holds and releases until `stop` is set.
async fn work<L: Locks>(
    settings: &Settings,
    locks: &L,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let Settings { worker, life, .. } = *settings;
    let register = TcpStream::connect(settings.register).await?;
    register.set_nodelay(true)?;
    let mut work = Work {
        settings,
        log: Log::open(&settings.events)?,
        register,
        random: Random::new(settings.seed ^ (worker as u64) << 32 ^ life << 48),
        acquisition: (worker as u64) << 44 | life << 24,
    };
    while !*stop.borrow() {
        let name = &settings.names[work.random.number() as usize % settings.names.len()];
        let asked = now();
        let mode = settings.workload.modes.choose(&mut work.random);
        work.log.append(&Event::Asked {
            at: asked,
            worker,
            name: name.clone(),
            mode,
        })?;
        let acquired = tokio::select! {
            acquired = locks.acquire(name, mode) => acquired,
            _ = stop.changed() => break,
        };
        let at = now();
        match acquired {
            Ok(held) => {
                work.hold(name, mode, &held, [asked, at], &stop).await?;
                held.release().await;
                pause(work.random.between(0, 5)).await;
            }
            Err(why) => {
                work.log.append(&Event::Refused {
                    at,
                    worker,
                    name: name.clone(),
                    why,
                })?;
                pause(work.random.between(2, 30)).await;
            }
        }
    }
    Ok(())
}

/// The state of a worker between its acquisitions.
struct Work<'a> {
    settings: &'a Settings,
    log: Log,
    register: TcpStream,
    random: Random,
    /// The number of the last acquisition.
    acquisition: u64,
}

impl Work<'_> {
    /// One acquisition, from the grant until the release.
    async fn hold<H: Held>(
        &mut self,
        name: &str,
        mode: HoldMode,
        held: &H,
        [asked, at]: [u64; 2],
        stop: &watch::Receiver<bool>,
    ) -> io::Result<()> {
        self.claim(name, mode, held, [asked, at], None).await?;
        let mut ended = self.access_for_a_while(name, mode, held, stop).await?;
        if mode == HoldMode::Upgradable && ended == Ended::InTime {
            ended = self.change_modes(name, held, stop).await?;
        }
        self.log.append(&Event::Ended {
            at: now(),
            acquisition: self.acquisition,
            lost: ended == Ended::Lost,
        })
    }

    /// Begins a claim: of a new hold, or of the hold of the acquisition `changes`, whose mode has changed.
    async fn claim<H: Held>(
        &mut self,
        name: &str,
        mode: HoldMode,
        held: &H,
        [asked, at]: [u64; 2],
        changes: Option<u64>,
    ) -> io::Result<()> {
        self.acquisition += 1;
        // A lock that was lost since the grant is a claim without a length.
        let deadline = held.deadline().await.unwrap_or(at);
        self.log.append(&Event::Claimed {
            at,
            worker: self.settings.worker,
            name: name.to_owned(),
            acquisition: self.acquisition,
            mode,
            changes,
            token: held.token(),
            asked,
            deadline,
        })
    }

    /// Ends a claim whose hold goes on in another mode; returns its acquisition.
    fn end_claim_at(&mut self, at: u64) -> io::Result<u64> {
        let acquisition = self.acquisition;
        self.log.append(&Event::Ended {
            at,
            acquisition,
            lost: false,
        })?;
        Ok(acquisition)
    }

    /// Upgrades the hold, and downgrades it after a while. One of four upgrades is given up soon.
    async fn change_modes<H: Held>(
        &mut self,
        name: &str,
        held: &H,
        stop: &watch::Receiver<bool>,
    ) -> io::Result<Ended> {
        let asked = now();
        let give_up_after = match self.random.between(0, 4) {
            0 => self.random.between(0, 20),
            _ => u64::MAX,
        };
        if !self.upgrade(held, give_up_after, stop).await? {
            return self
                .access_for_a_while(name, HoldMode::Upgradable, held, stop)
                .await;
        }
        let at = now();
        let before = self.end_claim_at(at)?;
        let mode = HoldMode::Exclusive;
        self.claim(name, mode, held, [asked, at], Some(before))
            .await?;
        let ended = self.access_for_a_while(name, mode, held, stop).await?;
        if ended != Ended::InTime || self.random.between(0, 2) == 0 {
            return Ok(ended);
        }
        // The store lets readers in before the worker has the answer.
        let asked = now();
        let before = self.end_claim_at(asked)?;
        if !held.downgrade().await {
            return Ok(Ended::Lost);
        }
        let mode = HoldMode::Shared;
        self.claim(name, mode, held, [asked, now()], Some(before))
            .await?;
        self.access_for_a_while(name, mode, held, stop).await
    }

    /// Whether the upgrade was granted within `give_up_after` ms. Meanwhile the worker believes that its upgradable hold goes
    /// on.
    async fn upgrade<H: Held>(
        &mut self,
        held: &H,
        give_up_after: u64,
        stop: &watch::Receiver<bool>,
    ) -> io::Result<bool> {
        let mut stopped = stop.clone();
        let mut given_up = pin!(pause(give_up_after));
        let mut upgrade = pin!(held.upgrade());
        loop {
            tokio::select! {
                biased;
                granted = &mut upgrade => return Ok(granted),
                () = &mut given_up => return Ok(false),
                _ = stopped.changed() => return Ok(false),
                () = pause(10) => {}
            }
            let at = now();
            if let Some(deadline) = held.deadline().await {
                self.log.append(&Event::Believed {
                    at,
                    acquisition: self.acquisition,
                    deadline,
                })?;
            }
        }
    }

    /// Accesses the register for a while, as long as the worker believes that it holds.
    async fn access_for_a_while<H: Held>(
        &mut self,
        name: &str,
        mode: HoldMode,
        held: &H,
        stop: &watch::Receiver<bool>,
    ) -> io::Result<Ended> {
        let longest = nanos(self.settings.workload.hold) / 1_000_000;
        // Three of four holds are short, so that many acquisitions happen; one of four is long enough for renewals.
        let hold = match self.random.between(0, 4) {
            0 => self.random.between(longest / 2, longest),
            _ => self.random.between(5, longest / 10),
        };
        let until = now() + hold * 1_000_000;
        loop {
            let at = now();
            let Some(deadline) = held.deadline().await else {
                return Ok(Ended::Lost);
            };
            // This is logged before the release too: a client that believes again after its deadline makes a mistake.
            self.log.append(&Event::Believed {
                at,
                acquisition: self.acquisition,
                deadline,
            })?;
            if *stop.borrow() {
                return Ok(Ended::Stopped);
            }
            if at >= until {
                return Ok(Ended::InTime);
            }
            // The worker waits between the check and the access, so that a pause can fall between the two.
            pause(self.random.between(0, 6)).await;
            access(&self.register, name, mode, held.token(), self.acquisition).await?;
            pause(self.random.between(1, 6)).await;
        }
    }
}

/// How a worker came to the end of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The worker has held for as long as it wanted.
    InTime,
    /// The worker was asked to end.
    Stopped,
    /// The worker noticed that it does not hold any more.
    Lost,
}

async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// One access to the register, and its answer: a write of an exclusive holder, or a read. The message is sent by one system
/// call: the second part of a message would wait for an acknowledgement of the first part.
async fn access(
    register: &TcpStream,
    name: &str,
    mode: HoldMode,
    token: u64,
    acquisition: u64,
) -> io::Result<()> {
    let kind = match mode {
        HoldMode::Exclusive => "write",
        _ => "read",
    };
    let line = format!("{name} {token} {acquisition} {kind}\n");
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        register.writable().await?;
        match register.try_write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let mut answer = [0; 4];
    let mut got = 0;
    while !answer[..got].ends_with(b"\n") {
        register.readable().await?;
        match register.try_read(&mut answer[got..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => got += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
