//! The exit codes.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | done; for `run`: the command's own code, whatever it is |
//! | 1 | `break`: there is no such hold; `leader`, `ask`: nobody leads, or holds the lock alone; `check`: a required guarantee is missing; `torture`: a guarantee was broken |
//! | 2 | wrong usage; nothing was changed |
//! | 69 | the store cannot be reached |
//! | 70 | the store gave an unexpected answer, or the system refused something; `torture`: too little happened |
//! | 75 (`-E N`) | busy: another client holds the lock |
//! | 76 | the lock was lost, or the time of `--max-hold` or of `--renew never` was over; the command was not started, or was ended if it still ran; `renew`, `release`: the hold of the receipt was over before |
//! | 77 | the store denied access |
//! | 126, 127 | the command cannot be run, or was not found |
//! | 128 + n | signal n ended the command, or ended the wait for the lock |

use std::process::ExitCode;

use rustix::process::Signal;
use tenure::ErrorKind;

/// How `tenure` ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The action succeeded.
    Done,
    /// The answer is no: see the table.
    No,
    /// Wrong usage.
    Usage,
    /// The store cannot be reached.
    Unreachable,
    /// Another error.
    Failed,
    /// Another client holds the lock. The user can choose the code.
    Busy(u8),
    /// The lock was lost while it was in use.
    Lost,
    /// The store denied access.
    Denied,
    /// The command is no program, or this user may not run it.
    NotExecutable,
    /// The command does not exist.
    NotFound,
    /// The command ended with this status, as a shell gives it.
    Command(u8),
    /// A signal ended the wait.
    Signal(Signal),
}

impl Exit {
    /// Code for "busy" if the user chose none: EX_TEMPFAIL of sysexits.h, try again later.
    pub(crate) const BUSY: u8 = 75;

    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::No => 1,
            Self::Usage => 2,
            Self::Unreachable => 69,
            Self::Failed => 70,
            Self::Busy(code) | Self::Command(code) => code,
            Self::Lost => 76,
            Self::Denied => 77,
            Self::NotExecutable => 126,
            Self::NotFound => 127,
            Self::Signal(signal) => 128 + signal.as_raw().unsigned_abs() as u8,
        }
    }

    /// How `tenure` ends after an error of the library; `busy` is the code for a lock that another client holds.
    pub(crate) fn of(kind: ErrorKind, busy: u8) -> Self {
        match kind {
            ErrorKind::WaitElapsed => Self::Busy(busy),
            ErrorKind::Lost => Self::Lost,
            ErrorKind::Unreachable => Self::Unreachable,
            ErrorKind::Denied => Self::Denied,
            ErrorKind::Invalid | ErrorKind::Unsupported => Self::Usage,
            _ => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_error_has_its_code() {
        for (kind, code) in [
            (ErrorKind::WaitElapsed, 9),
            (ErrorKind::Lost, 76),
            (ErrorKind::Indeterminate, 70),
            (ErrorKind::Unreachable, 69),
            (ErrorKind::Denied, 77),
            (ErrorKind::Invalid, 2),
            (ErrorKind::Unsupported, 2),
            (ErrorKind::Closed, 70),
            (ErrorKind::Interrupted, 70),
            (ErrorKind::Store, 70),
        ] {
            assert_eq!(Exit::of(kind, 9).code(), code, "{kind:?}");
        }
        assert_eq!(Exit::Signal(Signal::INT).code(), 130);
        assert_eq!(Exit::Signal(Signal::TERM).code(), 143);
    }
}
