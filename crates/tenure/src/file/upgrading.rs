//! How an upgradable hold becomes exclusive.
//!
//! 1. The *turnstile* is locked, and the record says that an upgrade is under way. From now on every process that wants
//!    to hold the name finds both and waits for the turnstile.
//! 2. All side files of shared holders and permits are locked in turn, in shared mode: each one blocks until its holder
//!    has left or died. A process that locked its side file before step 1 is found here; one that comes later reads the
//!    record after it has locked its side file, and so before it touches the file of the name.
//! 3. The shared lock on the file of the name becomes an exclusive one. With no other lock on the file the kernel does
//!    this in one step, so no other program comes in between.
//! 4. The grant is recorded, and the turnstile unlocked.
//!
//! A process that dies frees the turnstile with everything else, and a turnstile that is free means that no upgrade is
//! under way, whatever the record says.

use std::fs::{File, TryLockError};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::options::Mode;
use tenure_core::rt;
use tenure_core::store::Request;

use super::boot::boot_id;
use super::directory::{Directory, FileId, LockPath};
use super::grant::WonLock;
use super::hold::FileHold;
use super::kernel_lock::{AmbiguityTimer, KernelLock, Kind, has_other_locks};
use super::names::{self, SideKind};
use super::record::{self, Contents, Head, RecordState, RecordWriter};
use super::store::Shared;
use super::upgrade_state::{Upgrade, UpgradeState, lost};

/// How often an upgrade tries again while another program has the file in shared mode. Such a program has no side file
/// on which the upgrade could block.
const FOREIGN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// One upgradable hold that is becoming exclusive.
pub(super) struct UpgradingHold {
    shared: Arc<Shared>,
    owner: OwnerId,
    directory: Arc<Directory>,
    lock_path: LockPath,
    id: FileId,
    side_path: LockPath,
    side_id: FileId,
    /// A duplicate of the descriptor that has the lock. Both have the same lock.
    file: File,
    pub(super) upgrade: Arc<Upgrade>,
}

/// How far a request came.
pub(super) enum Progress {
    /// The hold is exclusive, and the request has its outcome.
    Granted,
    /// Others hold.
    Taken,
    /// The request has ended.
    Over,
}

impl UpgradingHold {
    /// For an upgradable hold.
    pub(super) fn new(
        shared: &Arc<Shared>,
        owner: OwnerId,
        held: &FileHold,
    ) -> Result<Self, Error> {
        let (side, upgrade) = (held.side.as_ref(), held.upgrade.clone());
        let (side, upgrade) = side
            .zip(upgrade)
            .expect("an upgradable hold has a side file and its requests");
        let file = held.lock.file().try_clone().map_err(|err| {
            let file = &held.lock_path.file;
            // The number of holds cannot be asked for while one of them is read.
            held.directory.system_error("open", file, err, 1)
        })?;
        Ok(Self {
            shared: shared.clone(),
            owner,
            directory: held.directory.clone(),
            lock_path: held.lock_path.clone(),
            id: held.id,
            side_path: side.lock_path.clone(),
            side_id: side.id,
            file,
            upgrade,
        })
    }

    fn name_file(&self) -> WonLock<'_> {
        WonLock {
            directory: &self.directory,
            lock_path: &self.lock_path,
            id: self.id,
            held_locks: self.shared.hold_count(),
        }
    }

    /// Does what the request needs. `may_block`: on a thread of its own, until the end.
    pub(super) fn advance(&self, number: u64, may_block: bool) -> Result<Progress, Error> {
        loop {
            match self.lock_turnstile(number)? {
                Progress::Taken if may_block => rt::nap(FOREIGN_POLL_INTERVAL),
                Progress::Granted => break,
                end => return Ok(end),
            }
        }
        if !self.wait_for_others(may_block)? {
            return Ok(Progress::Taken);
        }
        loop {
            match self.make_exclusive(number)? {
                Progress::Taken if may_block => rt::nap(FOREIGN_POLL_INTERVAL),
                end => return Ok(end),
            }
        }
    }

    /// Step 1. `Granted`: nothing is granted to others any more.
    fn lock_turnstile(&self, number: u64) -> Result<Progress, Error> {
        let won = self.name_file();
        let sides = won.sides();
        let mut timer = AmbiguityTimer::default();
        loop {
            let mut state = self.upgrade.state();
            if state.request(number).is_none() {
                return Ok(Progress::Over);
            }
            if state.turnstile.is_some() {
                self.announce(&mut state, &won)?;
                return Ok(Progress::Granted);
            }
            let Some(turnstile) = sides.open(SideKind::Turnstile, 0)? else {
                continue;
            };
            match turnstile.file.try_lock() {
                Ok(()) => state.turnstile = sides.locked(turnstile).map(|side| side.lock),
                // A process that waited for an earlier upgrade has it for a moment.
                Err(TryLockError::WouldBlock) => {
                    drop(state);
                    if !timer.pause() {
                        return Ok(Progress::Taken);
                    }
                }
                Err(TryLockError::Error(err)) => return Err(won.system_error("lock", err)),
            }
        }
    }

    fn announce(&self, state: &mut UpgradeState, won: &WonLock<'_>) -> Result<(), Error> {
        if state.is_announced {
            return Ok(());
        }
        let _section = self.directory.enter(won.held_locks)?;
        let Contents::Valid(found) = won.read(&self.file)? else {
            return Err(Error::new(
                ErrorKind::Store,
                "the lock file is damaged, so the hold cannot become exclusive; release the lock and acquire it again",
            ));
        };
        if found.head.state != RecordState::Upgrading {
            let written = found.set_state(&self.file, RecordState::Upgrading);
            written.map_err(|err| won.system_error("write", err))?;
        }
        state.is_announced = true;
        Ok(())
    }

    /// Step 2. `false`: there are other holders.
    fn wait_for_others(&self, may_block: bool) -> Result<bool, Error> {
        let held_locks = self.shared.hold_count();
        let mut timer = AmbiguityTimer::default();
        for entry in self.directory.entries()? {
            let kind = names::side_of(&entry, &self.lock_path.file);
            if !matches!(kind, Some((SideKind::Shared | SideKind::Permit, _))) {
                continue;
            }
            let Some((side, _)) = self.directory.open_existing(&entry, held_locks)? else {
                continue;
            };
            loop {
                match side.try_lock_shared() {
                    Ok(()) => break,
                    Err(TryLockError::WouldBlock) => {}
                    Err(TryLockError::Error(err)) => {
                        return Err(self.directory.system_error("lock", &entry, err, held_locks));
                    }
                }
                // A process that is refused a hold has a side file for a moment.
                let is_held = record::read(&side).map_or(true, |contents| contents.has_holder());
                if !is_held && timer.pause() {
                    continue;
                }
                if !may_block {
                    return Ok(false);
                }
                Kind::Shared
                    .lock(&side)
                    .map_err(|err| self.directory.system_error("lock", &entry, err, held_locks))?;
                break;
            }
            drop(KernelLock::new(side));
        }
        Ok(true)
    }

    /// Steps 3 and 4. The request cannot be given up meanwhile.
    fn make_exclusive(&self, number: u64) -> Result<Progress, Error> {
        let won = self.name_file();
        let mut state = self.upgrade.state();
        let Some(request) = state.request(number).cloned() else {
            return Ok(Progress::Over);
        };
        if has_other_locks(&self.file) {
            return Ok(Progress::Taken);
        }
        match self.file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return self.lock_shared_again(&won),
            Err(TryLockError::Error(err)) => return Err(won.system_error("lock", err)),
        }
        let granted = self.grant(&won, &request);
        let Ok(Some(writer)) = granted else {
            // Cannot fail: the exclusive lock is ours.
            let _ = self.file.try_lock_shared();
            return granted.and(Err(lost()));
        };
        let token = writer.token();
        let known = self.shared.holds.update(self.owner, |held| {
            (held.token, held.writer, held.mode) = (token, writer, Mode::Exclusive);
        });
        if known.is_none() {
            return Ok(Progress::Over);
        }
        state.finish(number, Ok(token));
        Ok(Progress::Granted)
    }

    /// Another program came with a shared lock in that moment, and Linux has given up ours.
    fn lock_shared_again(&self, won: &WonLock<'_>) -> Result<Progress, Error> {
        match self.file.try_lock_shared() {
            Ok(()) => Ok(Progress::Taken),
            Err(TryLockError::Error(err)) => Err(won.system_error("lock", err)),
            Err(TryLockError::WouldBlock) => {
                // A program without our record has the file exclusively.
                drop(self.shared.holds.remove(self.owner));
                Err(lost())
            }
        }
    }

    /// `None`: the hold was broken.
    fn grant(&self, won: &WonLock<'_>, request: &Request) -> Result<Option<RecordWriter>, Error> {
        let contents = won.read(&self.file)?;
        let head = Head {
            boot: boot_id(),
            state: RecordState::Exclusive,
            ..Head::default()
        };
        let mut writer = won.grant(request, &self.file, &contents, head)?;
        if !self.id.is_at(&self.lock_path.path) || !self.side_id.is_at(&self.side_path.path) {
            let _ = writer.free(&self.file, 0, 0);
            return Ok(None);
        }
        Ok(Some(writer))
    }
}
