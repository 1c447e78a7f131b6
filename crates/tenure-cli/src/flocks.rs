//! The kernel locks that this process holds, as descriptors that can be given away.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{ForeignRawFd, PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// A duplicate of every descriptor of this process that carries a `flock`.
///
/// The library has no door to its files, and needs none: the kernel says which descriptors carry a lock
/// (a `lock:` line in `fdinfo`), and hands out duplicates of our own. A duplicate shares the lock, which lasts until
/// it is given back explicitly or the last duplicate is closed.
///
/// # Errors
/// What the kernel, or a sandbox around us, has against it.
pub(crate) fn held() -> io::Result<Vec<OwnedFd>> {
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    let mut held = Vec::new();
    for entry in fs::read_dir("/proc/self/fdinfo")? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(number) = name
            .to_str()
            .and_then(|name| name.parse::<ForeignRawFd>().ok())
        else {
            continue;
        };
        // The descriptor of this very directory is gone when we read it later; others come and go, too.
        let Ok(info) = fs::read_to_string(entry.path()) else {
            continue;
        };
        let locked = info
            .lines()
            .any(|line| line.starts_with("lock:") && line.contains("FLOCK"));
        if locked && number > 2 {
            held.push(pidfd_getfd(&this, number, PidfdGetfdFlags::empty())?);
        }
    }
    Ok(held)
}
