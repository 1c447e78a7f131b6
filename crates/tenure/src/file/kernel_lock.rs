//! Locks of the operating system's kernel, `flock(2)`.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::time::Duration;

use tenure_core::options::Mode;
use tenure_core::rt::{self, Clock};
use tenure_core::time::Time;

/// For how long a try believes that a lock is held only for a moment, when the lock is taken and the record says that
/// the name is free: another process inspects the name, or is about to write the record, or a thread without a waiter
/// is about to unlock. Such moments take microseconds.
const AMBIGUITY_TIMEOUT: Duration = Duration::from_millis(2);

/// How often the kernel's list of locks has to show another lock before it is believed.
const READINGS: u32 = 5;

/// The kernel's two kinds of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Exclusive,
    Shared,
}

impl Kind {
    pub(super) fn of(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            _ => Self::Shared,
        }
    }

    pub(super) fn try_lock(self, file: &File) -> Result<(), TryLockError> {
        match self {
            Self::Exclusive => file.try_lock(),
            Self::Shared => file.try_lock_shared(),
        }
    }

    /// Blocks until the lock is ours.
    pub(super) fn lock(self, file: &File) -> io::Result<()> {
        loop {
            let locked = match self {
                Self::Exclusive => file.lock(),
                Self::Shared => file.lock_shared(),
            };
            match locked {
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }
}

/// A kernel lock, which ends with an explicit unlock.
///
/// Closing the file is not enough: a child process between fork and exec shares the open file and would keep the lock.
#[derive(Debug)]
pub(super) struct KernelLock(Option<File>);

impl KernelLock {
    /// Takes over the lock that was acquired on `file`.
    pub(super) fn new(file: File) -> Self {
        Self(Some(file))
    }

    pub(super) fn file(&self) -> &File {
        self.0
            .as_ref()
            .expect("BUG: the file is taken out by `unlock` only")
    }

    /// Unlocks, and keeps the file open for the next time.
    pub(super) fn unlock(mut self) -> Option<File> {
        let file = self.0.take()?;
        file.unlock().is_ok().then_some(file)
    }
}

impl Drop for KernelLock {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            // There is nothing to be done about an error, and closing is about to do the same.
            let _ = file.unlock();
        }
    }
}

/// Whether another open file has a lock on `file`, on which this one has a lock. `false` also where the system does not
/// tell: the kernel decides.
pub(super) fn has_other_locks(file: &File) -> bool {
    use std::os::fd::AsRawFd as _;

    // `lock: 1: FLOCK  ADVISORY  READ 4711 fe:01:1234 0 EOF`, and in the list of all locks the same without the first word.
    let key = |line: &str| line.split_whitespace().nth_back(2).map(str::to_owned);
    let own = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()));
    let own = own.unwrap_or_default();
    let Some(own) = own
        .lines()
        .find(|line| line.contains(" FLOCK "))
        .and_then(key)
    else {
        return false;
    };
    let granted = |line: &&str| line.contains(" FLOCK ") && !line.contains("->");
    let is_shown = || {
        let all = std::fs::read_to_string("/proc/locks").unwrap_or_default();
        let same = all
            .lines()
            .filter(granted)
            .filter(|line| key(line).as_ref() == Some(&own));
        same.count() > 1
    };
    // A long list is read in pieces, so an entry may appear twice when others change meanwhile.
    (0..READINGS).all(|_| is_shown())
}

/// The same for an observer, whose answer is not waited for: on a busy machine the process that is about to write may be
/// suspended in between, and an observer must not see a leader that there never was.
const OBSERVER_TIMEOUT: Duration = Duration::from_millis(250);

/// Measures how long another process has the lock without a record that says so, from its first pause on.
pub(super) struct AmbiguityTimer {
    limit: Duration,
    since: Option<Time>,
    pause: Duration,
}

impl Default for AmbiguityTimer {
    fn default() -> Self {
        Self {
            limit: AMBIGUITY_TIMEOUT,
            since: None,
            pause: Duration::ZERO,
        }
    }
}

impl AmbiguityTimer {
    /// For a thread that may sleep.
    pub(super) fn of_observer() -> Self {
        Self {
            limit: OBSERVER_TIMEOUT,
            ..Self::default()
        }
    }

    /// Pauses for a moment. `false`: the time is over.
    pub(super) fn pause(&mut self) -> bool {
        let now = Clock::system().now();
        let waited = now.since(*self.since.get_or_insert(now));
        if waited >= self.limit {
            return false;
        }
        // Such moments are rare and short, so a timer of the runtime is not worth it. Longer waits have longer pauses.
        let longest = Duration::from_micros(500).max(waited / 2);
        self.pause = (self.pause * 2).clamp(Duration::from_micros(20), longest);
        rt::nap(self.pause);
        true
    }
}
