//! Holds that go on without their process, and clients that attach themselves to them.
//!
//! # How a hold is detached
//!
//! 1. The section of the directory is entered, and the path still leads to the file of the hold.
//! 2. The record of a detached hold takes the place of that of the holder: in one write.
//! 3. The file is synced.
//! 4. The kernel lock is unlocked.
//!
//! A process that dies before step 2 ends the hold, and no caller has a receipt. One that dies after it leaves a detached hold
//! to its lease. The name is never free in between: the kernel lock ends after the record is there.
//! If step 2 or 3 fails, the process still holds the name, and the driver releases it.
//!
//! # Attached clients
//!
//! A client remembers nothing of a hold that it is attached to: each request finds the record by the name and the owner. So all
//! requests for an owner that this client does not hold itself look for a detached hold.

use std::fs::File;
use std::io;
use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::lost::LostReason;
use tenure_core::options::Mode;
use tenure_core::rt::Clock;
use tenure_core::store::{Hold, Release, Renewal};

use super::detached_record::{ClocksNow, DetachedRecord};
use super::directory::{Directory, LockPath};
use super::hold::{End, FileHold};
use super::names;
use super::record::{self, HolderJson, LeaseJson};
use super::store::Shared;
use super::token_files::TokenFiles;

/// Detaches the hold from this process.
pub(super) fn detach(shared: &Shared, hold: &Hold) -> Renewal {
    let sent = Clock::system().now();
    let Some(mut held) = shared.holds.remove(hold.owner) else {
        // This client is attached to it.
        return extend(shared, hold);
    };
    match held.detach(hold, shared.hold_count() + 1) {
        Ok(true) => {
            drop(held);
            let ttl = Some(hold.ttl);
            Renewal::Renewed { sent, ttl }
        }
        Ok(false) => {
            held.release(End::Clean);
            Renewal::Lost(LostReason::TakenOver)
        }
        Err(err) => {
            shared.restore(hold.owner, held);
            Renewal::Unknown(err)
        }
    }
}

impl FileHold {
    /// Steps 1 to 3. `false`: the path does not lead to what we hold.
    fn detach(&mut self, hold: &Hold, held_locks: usize) -> Result<bool, Error> {
        let (directory, file) = (self.directory.clone(), &self.lock_path.file);
        let system_error = |what: &str, err| directory.system_error(what, file, err, held_locks);
        if self.mode != Mode::Exclusive {
            let message = "only an exclusive hold of `file:` can be detached";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let section = directory.enter(held_locks)?;
        let leads_here = self.leads_here().map_err(|err| {
            let message = "could not find out which file is at the path of the lock";
            Error::new(ErrorKind::Store, message).with_source(err)
        });
        if !leads_here? {
            return Ok(false);
        }
        let (_, json) =
            record::read_all(self.lock.file()).map_err(|err| system_error("read", err))?;
        let now = ClocksNow::read();
        let lease = LeaseJson::new(hold.owner, hold.ttl, self.writer.reservation(), now);
        let reservation = lease.reservation(self.writer.delay(), now);
        let json = HolderJson {
            token: self.token,
            detached: Some(lease),
            ..json.unwrap_or_default()
        };
        let written = self.writer.detach(self.lock.file(), reservation, &json);
        drop(section);
        let synced = written.and_then(|()| self.lock.file().sync_data());
        synced.map_err(|err| system_error("write", err))?;
        if let Some(side) = &self.side {
            // The record of an upgradable hold that became exclusive. Without its lock the record means nothing.
            let _ = record::write_side(side.lock.file(), self.token, None);
        }
        Ok(true)
    }
}

/// Lets the detached hold of `hold.owner` last `hold.ttl` from now on at least, durably.
pub(super) fn extend(shared: &Shared, hold: &Hold) -> Renewal {
    let sent = Clock::system().now();
    let extended = change(shared, hold, |found, file, now| {
        found.extend(file, hold.ttl, now)
    });
    let synced = extended.and_then(|changed| match changed {
        None => Ok(false),
        Some((changed, _)) => changed.sync().map(|()| true),
    });
    match synced {
        Ok(true) => {
            let ttl = Some(hold.ttl);
            Renewal::Renewed { sent, ttl }
        }
        Ok(false) => Renewal::Lost(LostReason::StoreSaysNo),
        Err(err) => Renewal::Unknown(err),
    }
}

/// Ends the detached hold of `hold.owner`, and wakes a waiter.
pub(super) fn release(shared: &Shared, hold: &Hold) -> Result<Release, Error> {
    let end = End::of(hold);
    let freed = change(shared, hold, |found, file, now| found.free(file, end, now))?;
    let Some((freed, token)) = freed else {
        return Ok(Release::NotHeld);
    };
    freed.end_hold(token);
    Ok(Release::Released)
}

/// Ends the detached hold under `token`. The caller is in the section.
pub(super) fn break_hold(
    directory: &Arc<Directory>,
    file: &str,
    token: u64,
    held_locks: usize,
) -> Result<bool, Error> {
    let Some((opened, _)) = directory.open_to_change(file, held_locks)? else {
        return Ok(false);
    };
    let file = ChangedFile {
        directory: directory.clone(),
        file: file.to_owned(),
        opened,
        held_locks,
    };
    let is_it = |found: &DetachedRecord| found.token() == token;
    let freed = file.change(is_it, |found, file, now| found.break_off(file, now))?;
    if freed.is_some() {
        file.end_hold(token);
    }
    Ok(freed.is_some())
}

/// Changes the record of the detached hold of `hold.owner`, and returns its file and token. `None`: there is no such hold.
fn change(
    shared: &Shared,
    hold: &Hold,
    change: impl FnOnce(&DetachedRecord, &File, ClocksNow) -> io::Result<()>,
) -> Result<Option<(ChangedFile, u64)>, Error> {
    let (directory, held_locks) = (shared.directory_to_look_in()?, shared.hold_count());
    let lock_path = LockPath::new(directory.path(), names::encode(&hold.name));
    let Some((opened, id)) = directory.open_to_change(&lock_path.file, held_locks)? else {
        return Ok(None);
    };
    let file = ChangedFile {
        directory,
        file: lock_path.file,
        opened,
        held_locks,
    };
    let contents = record::read(&file.opened).map_err(|err| file.error("read", err))?;
    if !contents.is_detached() && !contents.is_half() {
        return Ok(None);
    }
    let _section = file.directory.enter(held_locks)?;
    let changed = file.change(|found| found.is_of(hold.owner), change)?;
    // Asked after the write: a file that is not at the path holds no name.
    let token = changed.filter(|_| id.is_at(&lock_path.path));
    Ok(token.map(|token| (file, token)))
}

/// The file of a name, open to change the record of a detached hold.
struct ChangedFile {
    directory: Arc<Directory>,
    file: String,
    opened: File,
    held_locks: usize,
}

impl ChangedFile {
    /// Changes the record if it is the right one and its lease is not over, and returns its token. The caller is in the section.
    fn change(
        &self,
        is_it: impl FnOnce(&DetachedRecord) -> bool,
        change: impl FnOnce(&DetachedRecord, &File, ClocksNow) -> io::Result<()>,
    ) -> Result<Option<u64>, Error> {
        // A version that does not know detached holds grants the name under the kernel lock alone, so that lock is taken, too,
        // if no waiter has it.
        let is_locked = self.opened.try_lock().is_ok();
        let now = ClocksNow::read();
        let changed = DetachedRecord::read(&self.opened).and_then(|found| {
            match found.filter(|found| is_it(found) && found.left(now).is_some()) {
                Some(found) => change(&found, &self.opened, now).map(|()| Some(found.token())),
                None => Ok(None),
            }
        });
        if is_locked {
            // There is nothing to be done about an error, and closing the file is about to do the same.
            let _ = self.opened.unlock();
        }
        changed.map_err(|err| self.error("write", err))
    }

    fn sync(&self) -> Result<(), Error> {
        let synced = self.opened.sync_data();
        synced.map_err(|err| self.error("sync", err))
    }

    /// After the end of the hold: removes its files, and wakes a waiter.
    fn end_hold(&self, token: u64) {
        let files = TokenFiles {
            directory: &self.directory,
            file: &self.file,
            token,
        };
        files.remove();
        self.directory.end_pipe(&names::lease_pipe(&self.file));
        if let Err(err) = self.sync() {
            // The hold is over all the same. After a loss of power it would be there again, until its lease ends.
            tracing::warn!(file = %self.file, error = format_args!("{err:#}"), "could not sync the end of a detached hold");
        }
    }

    fn error(&self, what: &str, err: io::Error) -> Error {
        self.directory
            .system_error(what, &self.file, err, self.held_locks)
    }
}
