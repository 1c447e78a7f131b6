//! Changing the mode of a hold.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::Mode;
use tenure_core::rt::Clock;
use tenure_core::store::{Answer, Grant, Hold, Request};

use super::grant::WonLock;
use super::hold::FileHold;
use super::kernel_lock::AmbiguityTimer;
use super::record::{self, HolderJson, RecordState};
use super::side::{SideFile, SideOutcome};
use super::store::Shared;
use super::upgrade_state::{Upgrade, lost};
use super::upgrading::{Progress, UpgradingHold};
use super::wait::start_thread;

/// What an owner holds when it asks for an upgrade.
enum Found {
    Exclusive(u64),
    Upgradable(Box<UpgradingHold>),
    Other,
    Error(Error),
}

/// Gives up the request when the future of the upgrade ends or is dropped.
struct GiveUp(Arc<Upgrade>);

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// Makes the upgradable hold of the owner exclusive; waits for the other holders if the request waits.
pub(super) async fn upgrade(shared: &Arc<Shared>, request: &Arc<Request>) -> Result<Answer, Error> {
    let sent = Clock::system().now();
    let found = shared.holds.read(request.owner, |held| match held.mode {
        Mode::Exclusive => Found::Exclusive(held.token),
        Mode::Upgradable => match UpgradingHold::new(shared, request.owner, held) {
            Ok(upgrading) => Found::Upgradable(Box::new(upgrading)),
            Err(err) => Found::Error(err),
        },
        _ => Found::Other,
    });
    let granted = |token, sent| Answer::Granted(Grant::new(token, sent, Duration::ZERO, None));
    let upgrading: Arc<UpgradingHold> = match found.ok_or_else(lost)? {
        Found::Exclusive(token) => return Ok(granted(token, sent)),
        Found::Upgradable(upgrading) => Arc::from(upgrading),
        Found::Other => return Ok(Answer::Busy),
        Found::Error(err) => return Err(err),
    };
    let upgrade = &upgrading.upgrade;
    let _give_up = GiveUp(upgrade.clone());
    let number = upgrade.begin(request);
    let progress = upgrading.advance(number, false);
    if let Some(outcome) = upgrade.take_outcome(!request.wait) {
        return outcome.map(|token| granted(token, sent));
    }
    match progress? {
        // Both have an outcome.
        Progress::Granted | Progress::Over => return Err(lost()),
        Progress::Taken if !request.wait => return Ok(Answer::Busy),
        Progress::Taken => start(&upgrading)?,
    }
    let mut stopped = pin!(request.stop.raised());
    let outcome = std::future::poll_fn(|cx| {
        let mut state = upgrade.state();
        if let Some(outcome) = state.outcome.take() {
            return Poll::Ready(outcome.map(Some));
        }
        if stopped.as_mut().poll(cx).is_ready() {
            state.give_up();
            return Poll::Ready(Ok(None));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    });
    // No request was sent in the end, as when a lock is acquired.
    let token = outcome.await?;
    Ok(token.map_or(Answer::Busy, |token| granted(token, Clock::system().now())))
}

/// Starts the thread that works on the requests to upgrade this hold, unless an earlier one is still there.
fn start(upgrading: &Arc<UpgradingHold>) -> Result<(), Error> {
    let mut state = upgrading.upgrade.state();
    if !state.has_thread {
        let upgrading = upgrading.clone();
        start_thread(move || run_thread(&upgrading))?;
        state.has_thread = true;
    }
    Ok(())
}

fn run_thread(upgrading: &UpgradingHold) {
    let upgrade = &upgrading.upgrade;
    loop {
        let number = {
            let mut state = upgrade.state();
            let Some(number) = state.current() else {
                state.has_thread = false;
                return;
            };
            number
        };
        if let Err(err) = upgrading.advance(number, true) {
            upgrade.state().finish(number, Err(err));
        }
    }
}

/// Makes the hold shared, or upgradable again. Never waits. `false`: the owner has no hold that is as strong.
pub(super) fn downgrade(shared: &Shared, hold: &Hold, mode: Mode) -> Result<bool, Error> {
    let held_locks = shared.hold_count();
    // Not under the mutex of the holds: a request that is being granted takes both in the other order.
    let upgrade = shared.holds.read(hold.owner, |held| held.upgrade.clone());
    if let Some(upgrade) = upgrade.flatten() {
        upgrade.give_up();
    }
    let changed = shared
        .holds
        .update(hold.owner, |held| held.downgrade(mode, held_locks));
    changed.unwrap_or(Ok(false))
}

impl FileHold {
    fn downgrade(&mut self, mode: Mode, held_locks: usize) -> Result<bool, Error> {
        match (self.mode, mode) {
            (now, wanted) if now == wanted => return Ok(true),
            (Mode::Exclusive, Mode::Shared | Mode::Upgradable)
            | (Mode::Upgradable, Mode::Shared) => {}
            _ => return Ok(false),
        }
        if self.writer.reservation().1 > 0 || self.writer.delay() > 0 {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a hold of `file:` with `min_hold` or `lock_delay` stays exclusive; leave these options out, or use `redis:`, `etcd:`, `sqlite:` or mode=table",
            ));
        }
        let (directory, lock_path) = (self.directory.clone(), self.lock_path.clone());
        let won = WonLock {
            directory: &directory,
            lock_path: &lock_path,
            id: self.id,
            held_locks,
        };
        let former = match self.new_side(&won, mode)? {
            // The side file of an upgradable hold that became exclusive.
            None => None,
            Some(side) => self.side.replace(side),
        };
        if self.mode == Mode::Exclusive {
            let file = self.lock.file();
            let shared = self.writer.set_state(file, RecordState::Shared);
            shared.map_err(|err| won.system_error("write", err))?;
            let locked = file.try_lock_shared();
            locked.map_err(|err| won.system_error("lock", err.into()))?;
        }
        self.mode = mode;
        self.upgrade = match mode {
            Mode::Upgradable => Some(self.upgrade.take().unwrap_or_default()),
            _ => None,
        };
        if let Some(former) = former {
            former.write(self.token, None, &won.sides())?;
        }
        Ok(true)
    }

    /// Locks the side file for `mode` and writes the holder. `None`: the hold has that side file.
    fn new_side(&self, won: &WonLock<'_>, mode: Mode) -> Result<Option<SideFile>, Error> {
        let sides = won.sides();
        let written_in = match (&self.side, self.mode) {
            (Some(side), Mode::Upgradable) => side.lock.file(),
            _ => self.lock.file(),
        };
        let json = record::read_all(written_in)
            .map_err(|err| won.system_error("read", err))?
            .1;
        let json = HolderJson {
            mode: if mode == Mode::Shared {
                "shared"
            } else {
                "upgradable"
            }
            .into(),
            token: self.token,
            ..json.unwrap_or_default()
        };
        // An exclusive hold has a side file only if it was upgradable.
        if mode == Mode::Upgradable
            && let Some(side) = &self.side
        {
            side.write(self.token, Some(&json), &sides)?;
            return Ok(None);
        }
        let mut timer = AmbiguityTimer::default();
        loop {
            match sides.lock_free(mode)? {
                SideOutcome::Locked(side) => {
                    side.write(self.token, Some(&json), &sides)?;
                    return Ok(Some(side));
                }
                // A waiter tries for it.
                SideOutcome::AllTaken { .. } if timer.pause() => {}
                SideOutcome::AllTaken { .. } => {
                    return Err(Error::new(
                        ErrorKind::Store,
                        "a waiter has the file of the upgradable holder; try again",
                    ));
                }
            }
        }
    }
}
