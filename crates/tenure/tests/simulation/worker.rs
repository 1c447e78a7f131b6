//! The users: they acquire in all ways, work, write, release or do not release, and cancel.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tenure::{Client, Error, ErrorKind, Guard, Lock, Mode, Owner, Renew};
use tenure_core::rt::Flag;
use tokio::runtime::Handle;

use crate::claims::ClaimedName;
use crate::random::Random;
use crate::state::{FaultLevel, NAMES, Simulation};

/// The number of permits of each name.
const PERMITS: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);

pub(crate) struct Worker {
    pub(crate) simulation: Arc<Simulation>,
    pub(crate) number: usize,
    pub(crate) client: Client,
    pub(crate) random: Random,
    pub(crate) network: Handle,
}

/// The options of an acquisition.
struct Attempt {
    lock: Lock,
    mode: Mode,
    owner: Option<Owner>,
    is_try: bool,
    /// Whether the hold ends by its options, without a fault.
    ends_by_itself: bool,
}

impl Worker {
    pub(crate) async fn live(mut self) {
        loop {
            let end = self.simulation.work().await;
            let pause = if self.has_every_fault() {
                40_000
            } else {
                3_000
            };
            let pause = self.random.any_length(pause);
            tokio::select! {
                biased;
                () = end.raised() => {}
                () = self.simulation.sleep(pause) => self.work_once(&end).await,
            }
        }
    }

    async fn work_once(&mut self, end: &Flag) {
        if self.random.one_in(40) {
            return self.inspect().await;
        }
        let attempt = self.attempt();
        let floors = self.simulation.floors();
        let outcome = {
            let acquiring = async {
                if attempt.is_try {
                    attempt.lock.try_acquire().await
                } else {
                    attempt.lock.acquire().await.map(Some)
                }
            };
            // The cancellation comes during a message as often as during a long wait.
            let delay = match self.random.below(8) {
                0 => Some(self.random.millis(0, 40)),
                1 => Some(self.random.any_length(20_000)),
                _ => None,
            };
            let loses_interest = async {
                match delay {
                    Some(delay) => self.simulation.sleep(delay).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                outcome = acquiring => Some(outcome),
                () = loses_interest => None,
            }
        };
        match outcome {
            None => {
                self.simulation.state().counts.cancelled += 1;
                self.simulation.note(self.number, "loses interest", "", 0);
            }
            Some(Ok(Some(guard))) => self.hold(guard, &floors, &attempt, end).await,
            Some(Ok(None)) => {}
            Some(Err(err)) => self.check(&err, attempt.ends_by_itself),
        }
    }

    fn attempt(&mut self) -> Attempt {
        let has_every_fault = self.has_every_fault();
        let random = &mut self.random;
        let name = random.pick(&NAMES);
        let mut owner = None;
        let mut lock = match random.below(14) {
            0 => self.client.lock_all([name, random.pick(&NAMES)]),
            1 => self.client.lock_any(NAMES),
            2 => {
                let new = Owner::new();
                let lock = self.client.lock(name).owner(&new);
                owner = Some(new);
                lock
            }
            3 => self.client.lock(name).k_of(NAMES, 2),
            _ => self.client.lock(name),
        };
        let ttl = if has_every_fault {
            random.pick(&[3, 6, 10])
        } else {
            60
        };
        lock = lock.ttl(Duration::from_secs(ttl));
        let mut mode = Mode::Exclusive;
        match random.below(8) {
            0 => {
                mode = Mode::Shared;
                lock = lock.shared();
            }
            1 => {
                mode = Mode::Permits { limit: PERMITS };
                lock = lock.permits(PERMITS.get());
            }
            _ => {}
        }
        let mut ends_by_itself = false;
        match random.below(10) {
            0 => {
                lock = lock.renew(Renew::Never);
                ends_by_itself = true;
            }
            1 => {
                lock = lock.max_hold(random.millis(2_000, 15_000));
                ends_by_itself = true;
            }
            _ => {}
        }
        if random.one_in(3) {
            lock = lock.wait(random.any_length(15_000));
        }
        let is_try = random.one_in(6);
        Attempt {
            lock,
            mode,
            owner,
            is_try,
            ends_by_itself,
        }
    }

    async fn hold(
        &mut self,
        guard: Guard,
        floors: &[u64; NAMES.len()],
        attempt: &Attempt,
        end: &Flag,
    ) {
        let mut lost = Box::pin(guard.lost());
        let (claim, guard, parts) =
            self.simulation
                .claim(self.number, guard, attempt.mode, Some(floors));
        let looks = self.random.below(4);
        for _ in 0..looks {
            let pause = self.random.any_length(8_000);
            tokio::select! {
                biased;
                Some(reason) = &mut lost => {
                    self.simulation.state().counts.lost += 1;
                    self.simulation.note(self.number, "lost", NAMES[parts[0].name], reason as u64);
                    if !attempt.ends_by_itself && self.is_without_faults() {
                        self.simulation.violated(format!("lost without a fault: {reason}"));
                    }
                    break;
                }
                () = end.raised() => break,
                () = self.simulation.sleep(pause) => {}
            }
            // A shared holder only reads.
            if guard.is_held() && attempt.mode == Mode::Exclusive {
                self.write(&parts);
            }
            if attempt.owner.is_some() && self.random.one_in(2) {
                self.enter_again(attempt, &parts).await;
            }
        }
        let guard = self.simulation.end_claim(claim, guard);
        self.simulation
            .note(self.number, "ends", NAMES[parts[0].name], parts[0].token);
        match self.random.below(8) {
            0 | 1 => drop(guard),
            2 => {
                let pause = self.random.any_length(40);
                tokio::select! {
                    biased;
                    _ = guard.release() => {}
                    () = self.simulation.sleep(pause) => {}
                }
            }
            _ => {
                if let Err(err) = guard.release().await {
                    self.check(&err, attempt.ends_by_itself);
                }
            }
        }
        if self.random.one_in(8) && attempt.mode == Mode::Exclusive {
            // A program that does not check its guard: only the fence can stop its writes.
            self.write(&parts);
        }
    }

    async fn enter_again(&mut self, attempt: &Attempt, outer: &[ClaimedName]) {
        match attempt.lock.acquire().await {
            Ok(guard) => {
                if guard.token().get() != outer[0].token {
                    self.simulation
                        .violated("an entrance has a token of its own".into());
                }
                let (claim, guard, _) =
                    self.simulation
                        .claim(self.number, guard, attempt.mode, None);
                let pause = self.random.any_length(1_000);
                self.simulation.sleep(pause).await;
                drop(self.simulation.end_claim(claim, guard));
            }
            Err(err) => self.check(&err, attempt.ends_by_itself),
        }
    }

    async fn inspect(&mut self) {
        let name = self.random.pick(&NAMES);
        let Ok(status) = self.client.inspect(name).await else {
            return;
        };
        let token = status.holds.first().and_then(|hold| hold.token);
        if let Some(token) = token
            && self.random.one_in(2)
            && self.has_every_fault()
        {
            let _ = self.client.break_lock(name, token).await;
        }
    }

    /// Writes to the resource use another connection than requests to the store, and may be late.
    fn write(&mut self, parts: &[ClaimedName]) {
        let mut delay = self.random.millis(1, 15);
        if self.random.one_in(8) && self.has_every_fault() {
            delay = self.random.any_length(20_000);
        }
        let (simulation, part) = (self.simulation.clone(), self.random.pick(parts));
        self.network.spawn(async move {
            simulation.sleep(delay).await;
            simulation.write(part);
        });
    }

    fn has_every_fault(&self) -> bool {
        self.simulation.state().faults.level == FaultLevel::Everything
    }

    fn is_without_faults(&self) -> bool {
        self.simulation.state().faults.level == FaultLevel::Nothing
    }

    fn check(&self, err: &Error, ends_by_itself: bool) {
        let kind = err.kind();
        self.simulation.note(self.number, "fails", "", kind as u64);
        // A wait may be shorter than the way to the store and back.
        let is_short = kind == ErrorKind::Unreachable && format!("{err:#}").contains("within");
        let is_elapsed = kind == ErrorKind::WaitElapsed || is_short;
        let expected = is_elapsed || ends_by_itself && kind == ErrorKind::Lost;
        if self.is_without_faults() && !expected {
            self.simulation
                .violated(format!("fails without a fault: {err}"));
        }
    }
}
