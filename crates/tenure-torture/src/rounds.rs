//! The rounds of a worker: it acquires a name in some mode, accesses the register while it believes that it holds, and
//! releases.

use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::clock::{nanos, now};
use crate::event::{Event, Log};
use crate::locks::{Held, Locks};
use crate::mode::HoldMode;
use crate::phase::Phase;
use crate::random::Random;
use crate::receipts::Receipts;
use crate::settings::Settings;

/// The state of a task of a worker between its acquisitions.
pub(crate) struct Work<'a> {
    pub(crate) settings: &'a Settings,
    /// The number of the task.
    task: usize,
    pub(crate) log: Log,
    register: TcpStream,
    pub(crate) random: Random,
    pub(crate) phases: watch::Receiver<Phase>,
    /// The number of the last acquisition.
    pub(crate) acquisition: u64,
    pub(crate) receipts: Receipts,
}

impl<'a> Work<'a> {
    /// Connects to the register, and opens the log.
    pub(crate) async fn begin(
        settings: &'a Settings,
        phases: watch::Receiver<Phase>,
        task: usize,
    ) -> io::Result<Self> {
        let Settings { worker, life, .. } = *settings;
        let own_part = (worker as u64) << 32 ^ (task as u64) << 40 ^ life << 48;
        let register = TcpStream::connect(settings.register).await?;
        register.set_nodelay(true)?;
        Ok(Self {
            settings,
            task,
            log: Log::open(&settings.events)?,
            register,
            random: Random::new(settings.seed ^ own_part),
            phases,
            acquisition: settings.first_number(task),
            receipts: Receipts::open(settings, task)?,
        })
    }

    /// Whether the worker goes on to acquire and to hold.
    pub(crate) fn goes_on(&self) -> bool {
        *self.phases.borrow() == Phase::Work
    }

    /// Resolves when the worker shall not acquire and hold any more.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + use<> {
        let mut phases = self.phases.clone();
        async move {
            // An error means that the phases have ended.
            let _ = phases.wait_for(|phase| *phase != Phase::Work).await;
        }
    }

    /// One round with a lock: acquires a name in that mode, holds it for a while and releases it.
    pub(crate) async fn lock<L: Locks>(&mut self, locks: &L, mode: HoldMode) -> io::Result<()> {
        let names = &self.settings.names;
        let name = &names[self.random.number() as usize % names.len()];
        let asked = now();
        self.ask(asked, name, mode)?;
        let acquired = tokio::select! {
            acquired = locks.acquire(name, mode) => acquired,
            () = self.stopped() => return self.leave(),
        };
        let at = now();
        match acquired {
            Ok(held) => {
                self.acquisition += 1;
                let ended = self.hold(name, mode, &held, [asked, at]).await?;
                if ended == Ended::InTime && self.detaches(locks, mode) {
                    self.detach(name, mode, held).await?;
                } else {
                    held.release().await;
                }
                pause(self.random.between(0, 5)).await;
            }
            Err(why) => self.refused(at, name, why).await?,
        }
        Ok(())
    }

    /// The worker begins to wait for a name.
    pub(crate) fn ask(&mut self, at: u64, name: &str, mode: HoldMode) -> io::Result<()> {
        self.log.append(&Event::Asked {
            at,
            worker: self.settings.worker,
            task: self.task,
            name: name.to_owned(),
            mode,
        })
    }

    /// The worker does not wait any more.
    pub(crate) fn leave(&mut self) -> io::Result<()> {
        self.log.append(&Event::Left {
            at: now(),
            worker: self.settings.worker,
            task: self.task,
        })
    }

    /// The worker was refused; it pauses before it asks again.
    pub(crate) async fn refused(&mut self, at: u64, name: &str, why: String) -> io::Result<()> {
        self.log.append(&Event::Refused {
            at,
            worker: self.settings.worker,
            task: self.task,
            name: name.to_owned(),
            why,
        })?;
        pause(self.random.between(2, 30)).await;
        Ok(())
    }

    /// One acquisition, from the grant until the release.
    async fn hold<H: Held>(
        &mut self,
        name: &str,
        mode: HoldMode,
        held: &H,
        [asked, at]: [u64; 2],
    ) -> io::Result<Ended> {
        self.claim(name, mode, held, [asked, at], None).await?;
        let mut ended = self.access_for_a_while(name, mode, held).await?;
        if mode == HoldMode::Upgradable && ended == Ended::InTime {
            ended = self.change_modes(name, held).await?;
        }
        self.end_claim(ended)?;
        Ok(ended)
    }

    /// The worker does not believe any more that it holds.
    pub(crate) fn end_claim(&mut self, ended: Ended) -> io::Result<()> {
        self.log.append(&Event::Ended {
            at: now(),
            acquisition: self.acquisition,
            lost: ended == Ended::Lost,
        })
    }

    /// Begins a claim: of a new hold, or of the hold of the acquisition `changes`, whose mode has changed or which was detached. It has the number
    /// of the last acquisition.
    pub(crate) async fn claim<H: Held>(
        &mut self,
        name: &str,
        mode: HoldMode,
        held: &H,
        [asked, at]: [u64; 2],
        changes: Option<u64>,
    ) -> io::Result<()> {
        // A lock that was lost since the grant is a claim without a length.
        let deadline = held.deadline().await.unwrap_or(at);
        self.log.append(&Event::Claimed {
            at,
            worker: self.settings.worker,
            name: name.to_owned(),
            acquisition: self.acquisition,
            mode,
            changes,
            turn: held.turn(),
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
    async fn change_modes<H: Held>(&mut self, name: &str, held: &H) -> io::Result<Ended> {
        let asked = now();
        let give_up_after = match self.random.between(0, 4) {
            0 => self.random.between(0, 20),
            _ => u64::MAX,
        };
        if !self.upgrade(held, give_up_after).await? {
            return self
                .access_for_a_while(name, HoldMode::Upgradable, held)
                .await;
        }
        let at = now();
        let before = self.end_claim_at(at)?;
        let mode = HoldMode::Exclusive;
        self.acquisition += 1;
        self.claim(name, mode, held, [asked, at], Some(before))
            .await?;
        let ended = self.access_for_a_while(name, mode, held).await?;
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
        self.acquisition += 1;
        self.claim(name, mode, held, [asked, now()], Some(before))
            .await?;
        self.access_for_a_while(name, mode, held).await
    }

    /// Whether the upgrade was granted within `give_up_after` ms. Meanwhile the worker believes that its upgradable hold goes
    /// on.
    async fn upgrade<H: Held>(&mut self, held: &H, give_up_after: u64) -> io::Result<bool> {
        let mut stopped = pin!(self.stopped());
        let mut given_up = pin!(pause(give_up_after));
        let mut upgrade = pin!(held.upgrade());
        loop {
            tokio::select! {
                biased;
                granted = &mut upgrade => return Ok(granted),
                () = &mut given_up => return Ok(false),
                () = &mut stopped => return Ok(false),
                () = pause(10) => {}
            }
            self.believes(held).await?;
        }
    }

    /// Records until when the worker believes that it holds. `false`: it knows that it does not hold any more.
    pub(crate) async fn believes<H: Held>(&mut self, held: &H) -> io::Result<bool> {
        let at = now();
        let Some(deadline) = held.deadline().await else {
            return Ok(false);
        };
        self.log.append(&Event::Believed {
            at,
            acquisition: self.acquisition,
            deadline,
        })?;
        Ok(true)
    }

    /// Accesses the register for a while, as long as the worker believes that it holds.
    pub(crate) async fn access_for_a_while<H: Held>(
        &mut self,
        name: &str,
        mode: HoldMode,
        held: &H,
    ) -> io::Result<Ended> {
        // A hold passes on from task to task for some ms, so most holds are far shorter than that.
        if self.settings.workload.tasks > 1 && self.random.between(0, 4) > 0 {
            return self.access_once(name, mode, held).await;
        }
        let longest = nanos(self.settings.workload.hold) / 1_000_000;
        // Three of four holds are short, so that many acquisitions happen; one of four is long enough for renewals.
        let hold = match self.random.between(0, 4) {
            0 => self.random.between(longest / 2, longest),
            _ => self.random.between(5, longest / 10),
        };
        let until = now() + hold * 1_000_000;
        loop {
            let at = now();
            // This is logged before the release too: a client that believes again after its deadline makes a mistake.
            if !self.believes(held).await? {
                return Ok(Ended::Lost);
            }
            if !self.goes_on() {
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

    /// Accesses the register once, if the task believes that it holds.
    async fn access_once<H: Held>(
        &mut self,
        name: &str,
        mode: HoldMode,
        held: &H,
    ) -> io::Result<Ended> {
        if !self.believes(held).await? {
            return Ok(Ended::Lost);
        }
        access(&self.register, name, mode, held.token(), self.acquisition).await?;
        Ok(match self.believes(held).await? {
            true => Ended::InTime,
            false => Ended::Lost,
        })
    }
}

/// How a worker came to the end of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The worker has held for as long as it wanted.
    InTime,
    /// The worker was asked to end.
    Stopped,
    /// The worker noticed that it does not hold any more.
    Lost,
}

pub(crate) async fn pause(millis: u64) {
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
    let kind = match mode.is_exclusive() {
        true => "write",
        false => "read",
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
