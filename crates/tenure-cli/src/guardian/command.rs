//! How the guardian starts the command.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::Pid;

/// A search along PATH that met a directory closed to us ends with "permission denied" when it found nothing.
/// A shell says "not found" then.
pub(super) fn as_a_shell_says(command: &OsStr, errno: i32) -> i32 {
    if errno == Errno::ACCESS.raw_os_error() && find_in_path(command).is_none() {
        return Errno::NOENT.raw_os_error();
    }
    errno
}

/// Starts the command; its id or an errno. Like `execvp`, a file that the kernel does not know
/// how to run is given to the shell.
pub(super) fn spawn(
    argv: &[OsString],
    group: i32,
    environment: [String; 3],
    stdin: OwnedFd,
) -> Result<Pid, i32> {
    let [name, token, owner] = environment;
    let start = |program: &OsStr, arguments: &[OsString], stdin: OwnedFd| {
        Command::new(program)
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
    let again = stdin.try_clone();
    let child = start(program, arguments, stdin).or_else(|error| {
        if error.raw_os_error() != Some(Errno::NOEXEC.raw_os_error()) {
            return Err(error);
        }
        let script = find_in_path(program).ok_or(error)?;
        let mut with_script = vec![script.into_os_string()];
        with_script.extend_from_slice(arguments);
        start(OsStr::new("/bin/sh"), &with_script, again?)
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

/// The file that PATH leads to.
pub(crate) fn find_in_path(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}
