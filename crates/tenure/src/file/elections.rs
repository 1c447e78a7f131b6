//! Elections: what the leader publishes, who leads, and requests to let go.
//!
//! The leader is the exclusive holder of the name. Its value is a part of the holder in the record, which only the holder
//! writes; a value that the slot has no room for lies in a file of the hold (`token_files.rs`).
//!
//! Observers poll, because the kernel reports neither the end of a lock nor its grant. An observer reads the record and tries a
//! shared lock, as `inspect.rs` does. While the leader lives that lock is refused, and disturbs no other process. When the
//! leader has died, or no process leads, the observer has the shared lock for an instant: a candidate that waits gets the
//! lock after it, and one that only tries finds that the lock is a shared one and tries again (`attempt.rs`).

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::holder::{HoldInfo, Holder, PublishedValue};
use tenure_core::leader::Sighting;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::store::Hold;

use super::directory::Directory;
use super::hold::FileHold;
use super::inspect::{detached_hold, is_locked_by_other, reserved};
use super::kernel_lock::{AmbiguityTimer, Kind};
use super::names;
use super::record::{self, Contents, HolderJson, RecordState};
use super::store::Shared;
use super::token_files::{TokenFiles, holder};

/// How often an observer reads the record: a few system calls on a file that is in memory.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// What one look at the record of a name has shown.
enum Look {
    Certain(Sighting),
    /// Another process is changing the record in this moment. The sighting counts if the record stays as it is.
    InChange(Result<Sighting, Error>),
}

/// Replaces the value of the holder. `false`: this client has no such hold any more.
pub(super) fn publish(shared: &Shared, hold: &Hold, holder: &Holder) -> Result<bool, Error> {
    let Some(value) = &holder.value else {
        return Ok(shared.holds.contains(hold.owner));
    };
    let held_locks = shared.hold_count();
    let published = shared
        .holds
        .update(hold.owner, |held| held.publish(value, held_locks));
    published.unwrap_or(Ok(false))
}

impl FileHold {
    fn publish(&mut self, value: &PublishedValue, held_locks: usize) -> Result<bool, Error> {
        if self.mode != Mode::Exclusive {
            let message = "only an exclusive hold leads, and this hold is not exclusive any more";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let is_current = self.is_current().map_err(|err| {
            let message = "could not find out which file is at the path of the lock";
            Error::new(ErrorKind::Store, message).with_source(err)
        });
        if !is_current? {
            return Ok(false);
        }
        let (directory, file) = (&self.directory, &self.lock_path.file);
        let system_error = |what: &str, err| directory.system_error(what, file, err, held_locks);
        let (_, json) =
            record::read_all(self.lock.file()).map_err(|err| system_error("read", err))?;
        let json = json.unwrap_or_default();
        if json.number > Some(value.number) {
            return Ok(true);
        }
        let json = HolderJson {
            token: self.token,
            value: Some(Cow::Borrowed(&*value.text)),
            number: Some(value.number),
            ..json
        };
        let (json, long_value) = json.take_long_value();
        if let Some(text) = long_value {
            // Before the record, which says which value counts.
            self.token_files()
                .write_value(value.number, &text, held_locks)?;
        }
        self.has_token_files = true;
        let published = self.writer.publish(self.lock.file(), &json);
        published
            .map(|()| true)
            .map_err(|err| system_error("write", err))
    }

    /// The files that belong to this hold.
    pub(super) fn token_files(&self) -> TokenFiles<'_> {
        TokenFiles {
            directory: &self.directory,
            file: &self.lock_path.file,
            token: self.token,
        }
    }
}

/// Who leads.
pub(super) fn leader(shared: &Shared, name: &LockName) -> Result<Sighting, Error> {
    let dir = shared.current_directory()?;
    let view = LockFileView {
        dir: &dir,
        file: &names::encode(name),
        held_locks: shared.hold_count(),
    };
    let mut timer = AmbiguityTimer::of_observer();
    loop {
        match view.look()? {
            Look::Certain(sighting) => return Ok(sighting),
            Look::InChange(sighting) => {
                if !timer.pause() {
                    return sighting;
                }
            }
        }
    }
}

/// The lock file of a name, for a process that only looks at it.
struct LockFileView<'a> {
    dir: &'a Directory,
    file: &'a str,
    held_locks: usize,
}

impl LockFileView<'_> {
    fn look(&self) -> Result<Look, Error> {
        let Some((opened, _)) = self.dir.open_existing(self.file, self.held_locks)? else {
            return Ok(Look::Certain(Sighting::of_nobody(self.floor()?)));
        };
        let (contents, json) = record::read_all(&opened).map_err(|err| self.error("read", err))?;
        if let Some(hold) = detached_hold(&contents, json.clone()) {
            return Ok(Look::Certain(Sighting::of_hold(hold)));
        }
        let (token, state) = match (contents.head(), contents) {
            (Some(head), _) => (head.token, head.state),
            (None, Contents::Empty) => (self.floor()?, RecordState::Free),
            (None, _) => (0, RecordState::Free),
        };
        let nobody = Sighting::of_nobody(token);
        let may_be_led = match state {
            RecordState::Exclusive => true,
            // A process that waits for the end of the reservation may have the kernel lock.
            RecordState::Free => reserved(&contents).is_none(),
            RecordState::Shared | RecordState::Upgrading => false,
        };
        if !may_be_led || !self.is_locked(&opened)? {
            return Ok(Look::Certain(nobody));
        }
        if state == RecordState::Exclusive {
            return self.look_at_leader(&opened, &contents, token, json);
        }
        // A program that writes no record, such as flock(1).
        let foreign = HoldInfo::new(Holder::default(), Mode::Exclusive, None, None);
        Ok(Look::InChange(Ok(match contents.is_being_granted() {
            true => nobody,
            false => Sighting::of_hold(foreign),
        })))
    }

    fn look_at_leader(
        &self,
        opened: &File,
        contents: &Contents,
        token: u64,
        json: Option<HolderJson<'static>>,
    ) -> Result<Look, Error> {
        let files = TokenFiles {
            directory: self.dir,
            file: self.file,
            token,
        };
        let sighting =
            |holder| Sighting::of_hold(HoldInfo::new(holder, Mode::Exclusive, Some(token), None));
        let is_damaged = json.is_none();
        Ok(match holder(json, &files, self.held_locks)? {
            Some(holder) => {
                let now = record::read(opened).map_err(|err| self.error("read", err))?;
                match now == *contents {
                    true => Look::Certain(sighting(holder)),
                    // The lock may be that of the next leader, whose record was not there yet.
                    false => Look::InChange(Ok(sighting(holder))),
                }
            }
            None if is_damaged => Look::InChange(Ok(sighting(Holder::default()))),
            None => Look::InChange(Err(Error::new(
                ErrorKind::Store,
                "the value of the leader is missing in the lock directory, or damaged",
            ))),
        })
    }

    /// Whether a process that lives holds the name exclusively, under this token, or a detached hold does.
    fn is_held_exclusively(&self, token: u64) -> Result<bool, Error> {
        let mut timer = AmbiguityTimer::default();
        loop {
            let Some((opened, _)) = self.dir.open_existing(self.file, self.held_locks)? else {
                return Ok(false);
            };
            let (contents, json) =
                record::read_all(&opened).map_err(|err| self.error("read", err))?;
            if let Some(hold) = detached_hold(&contents, json) {
                return Ok(hold.token.is_some_and(|it| it.get() == token));
            }
            if !self.is_locked(&opened)? {
                return Ok(false);
            }
            match contents.exclusive_holder() {
                Some(holder) => return Ok(holder == token),
                None if timer.pause() => {}
                None => return Ok(false),
            }
        }
    }

    /// Whether another process has the kernel lock exclusively.
    fn is_locked(&self, opened: &File) -> Result<bool, Error> {
        is_locked_by_other(self.dir, self.file, opened, Kind::Shared, self.held_locks)
    }

    /// The greatest token that may have been granted while there is no record.
    fn floor(&self) -> Result<u64, Error> {
        let floor = self.dir.floor();
        floor.map_err(|err| self.error("read the floor of tokens for", err))
    }

    fn error(&self, what: &str, err: io::Error) -> Error {
        self.dir.system_error(what, self.file, err, self.held_locks)
    }
}

/// Passes a request to let go to the holder with this token, as a file. `false`: there is no such holder.
pub(super) fn ask_to_release(shared: &Shared, name: &LockName, token: u64) -> Result<bool, Error> {
    let (dir, held_locks) = (shared.current_directory()?, shared.hold_count());
    let file = names::encode(name);
    if !is_held_exclusively(&dir, &file, token, held_locks)? {
        return Ok(false);
    }
    remove_older_files(&dir, &file, token)?;
    let files = TokenFiles {
        directory: &dir,
        file: &file,
        token,
    };
    files.add_request(held_locks)?;
    // The holder removes the request before it unlocks the name. If it has unlocked the name meanwhile, the request may have
    // come after that.
    let is_held = is_held_exclusively(&dir, &file, token, held_locks);
    if !matches!(is_held, Ok(true)) {
        files.remove_request();
    }
    is_held
}

/// From now on the driver hears of requests to let go of this hold, also of those that were made before. The hold may be a
/// detached one.
pub(super) fn listen(shared: &Arc<Shared>, hold: &Hold) {
    shared
        .holds
        .update(hold.owner, |held| held.has_token_files = true);
    shared.requests.add(hold, || {
        let thread = std::thread::Builder::new().name("tenure-file-ask".into());
        let shared = shared.clone();
        thread.spawn(move || look_for_requests(&shared)).map(drop)
    });
}

/// The thread.
fn look_for_requests(shared: &Shared) {
    while let Some(holds) = shared.requests.holds() {
        for hold in holds {
            let is_asked = shared
                .holds
                .read(hold.owner, |held| held.token_files().has_request());
            let is_asked = is_asked.or_else(|| is_asked_detached(shared, &hold));
            if is_asked != Some(false) {
                shared.requests.remove(hold.owner);
            }
            if is_asked == Some(true) {
                shared.report_request(hold.owner);
            }
        }
        shared.requests.pause();
    }
}

/// Whether a process asks the detached hold to let go. `None`: there is no such hold.
fn is_asked_detached(shared: &Shared, hold: &Hold) -> Option<bool> {
    let (directory, file) = (shared.directory(), names::encode(&hold.name));
    let files = TokenFiles {
        directory: &directory,
        file: &file,
        token: hold.token,
    };
    match is_held_exclusively(&directory, &file, hold.token, shared.hold_count()) {
        Ok(false) => None,
        // After an error the thread looks again.
        is_held => Some(is_held.is_ok() && files.has_request()),
    }
}

/// Removes the files of former holders of the name, which have died.
fn remove_older_files(dir: &Directory, file: &str, token: u64) -> Result<(), Error> {
    for entry in dir.entries()? {
        let is_older = names::token_of(&entry).is_some_and(|(of, it)| of == file && it < token);
        if is_older {
            // Another process may have removed the file.
            let _ = dir.unlink(&entry);
        }
    }
    Ok(())
}

/// Whether a process that lives holds the name exclusively, under this token, or a detached hold does.
pub(super) fn is_held_exclusively(
    dir: &Directory,
    file: &str,
    token: u64,
    held_locks: usize,
) -> Result<bool, Error> {
    let view = LockFileView {
        dir,
        file,
        held_locks,
    };
    view.is_held_exclusively(token)
}
