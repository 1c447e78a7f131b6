//! The command, as the guardian sees it: how it is started, signalled and reaped.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use crate::{platform, process_tree};

/// Status of a command whose end no process saw: the status of one that SIGKILL ended.
pub(super) const KILLED_STATUS: u8 = 128 + 9;

/// The command and its process.
pub(super) struct Command<'a> {
    argv: &'a [OsString],
    /// Process group that the command joins; 0 makes a new one for it.
    group: i32,
    /// The process, until it is reaped. Until then no other process can get its id.
    pid: Option<Pid>,
    /// How the command ended, as a shell gives it.
    status: Option<u8>,
}

impl<'a> Command<'a> {
    pub(super) fn new(argv: &'a [OsString], group: i32) -> Self {
        Self {
            argv,
            group,
            pid: None,
            status: None,
        }
    }

    pub(super) fn status(&self) -> Option<u8> {
        self.status
    }

    /// Starts the command with these values of `TENURE_NAME`, `TENURE_TOKEN` and `TENURE_OWNER`.
    ///
    /// # Errors
    /// The errno, as a shell reports it.
    pub(super) fn start(&mut self, environment: [String; 3], stdin: OwnedFd) -> Result<Pid, i32> {
        match spawn(self.argv, self.group, environment, stdin) {
            Ok(pid) => {
                self.pid = Some(pid);
                Ok(pid)
            }
            Err(errno) => Err(shell_errno(&self.argv[0], errno)),
        }
    }

    /// Forwards a signal, which `tenure` received, to the command's process group.
    pub(super) fn forward_signal(&self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else {
            return;
        };
        if self.group == 0 {
            self.signal_group(signal);
        } else {
            // The caller's group has other processes too: `tenure` itself, the rest of its pipeline.
            process_tree::signal_descendants(signal, Pid::from_raw(self.group));
        }
    }

    /// Sends a signal to the command's own process group: to all members at once, also while they fork.
    pub(super) fn signal_group(&self, signal: Signal) {
        if self.group == 0
            && let Some(leader) = self.pid
        {
            let _ = kill_process_group(leader, signal);
        }
    }

    /// Reaps dead children. Returns `true` when the whole tree is gone: no child is left and, on systems where orphans do
    /// not become children of the guardian, no process of the command's group either. Orphans count only when the
    /// tree `is_ending`.
    pub(super) fn reap_tree(&mut self, is_ending: bool) -> bool {
        loop {
            match process_tree::reap() {
                Ok(Some((pid, status))) => {
                    if self.pid == Some(pid) && self.status.is_none() {
                        self.status = Some(status);
                        if platform::ADOPTS_ORPHANS {
                            self.pid = None;
                        }
                    }
                }
                Ok(None) => return false,
                Err(_) if platform::ADOPTS_ORPHANS || !is_ending => return true,
                Err(_) => return !self.group_exists() && process_tree::count_orphans() == 0,
            }
        }
    }

    fn group_exists(&self) -> bool {
        let leader = self.pid.filter(|_| self.group == 0);
        leader.is_some_and(|leader| test_kill_process_group(leader).is_ok())
    }
}

/// The errno for which a shell has its message. A search along PATH that found nothing ends with "permission denied" if
/// this user may not read one of the directories; a shell reports "not found" in that case.
fn shell_errno(command: &OsStr, errno: i32) -> i32 {
    if errno == Errno::ACCESS.raw_os_error() && find_in_path(command).is_none() {
        return Errno::NOENT.raw_os_error();
    }
    errno
}

/// Starts the command. As with `execvp`, a file that the kernel does not know how to run is given to the shell.
///
/// # Errors
/// The errno.
fn spawn(
    argv: &[OsString],
    group: i32,
    environment: [String; 3],
    stdin: OwnedFd,
) -> Result<Pid, i32> {
    let [name, token, owner] = environment;
    let start = |program: &OsStr, arguments: &[OsString], stdin: OwnedFd| {
        process::Command::new(program)
            .args(arguments)
            .env("TENURE_NAME", &name)
            .env("TENURE_TOKEN", &token)
            .env("TENURE_OWNER", &owner)
            .stdin(stdin)
            .process_group(group)
            .spawn()
    };
    let Some((program, arguments)) = argv.split_first() else {
        return Err(Errno::NOENT.raw_os_error());
    };
    let stdin_of_shell = stdin.try_clone();
    let child = start(program, arguments, stdin).or_else(|error| {
        if error.raw_os_error() != Some(Errno::NOEXEC.raw_os_error()) {
            return Err(error);
        }
        let script = find_in_path(program).ok_or(error)?;
        let mut with_script = vec![script.into_os_string()];
        with_script.extend_from_slice(arguments);
        start(OsStr::new("/bin/sh"), &with_script, stdin_of_shell?)
    });
    match child {
        // Dropping the handle neither waits for the process nor ends it.
        Ok(child) => Pid::from_raw(child.id().cast_signed()).ok_or(Errno::SRCH.raw_os_error()),
        Err(error) => Err(error.raw_os_error().unwrap_or(match error.kind() {
            ErrorKind::NotFound => Errno::NOENT.raw_os_error(),
            _ => Errno::INVAL.raw_os_error(),
        })),
    }
}

/// The file that the search along PATH finds.
pub(crate) fn find_in_path(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}
