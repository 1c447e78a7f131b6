//! Whether a directory is fit for locks, for `tenure check`.

use std::io;
use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::rt::{self, Clock};
use tenure_core::store::Finding;

use super::boot::boot_id;
use super::directory::Directory;
use super::file_system::{FileSystem, FileSystemKind};
use super::record;
use super::store::Shared;

/// Below this much free space there is a warning: a lock file takes a block, its name a few bytes.
const LOW_SPACE: u64 = 16 << 20;
/// Below this many free inodes there is a warning: each name takes one.
const LOW_FILES: u64 = 1_000;
/// Below this many open files that a process may have there is a warning: 1,024 is the usual limit.
const LOW_DESCRIPTORS: u64 = 1_024;
/// A clock that shows less was never set: 2020-01-01 in µs.
const UNSET_CLOCK: u64 = 1_577_836_800_000_000;

/// What to do on Linux about a missing boot id. Other systems offer no remedy.
const MOUNT_PROC: &str = if cfg!(target_os = "linux") {
    "; mount /proc"
} else {
    ""
};

/// What weakens or voids the guarantees here.
pub(super) fn check(shared: &Shared) -> Result<Vec<Finding>, Error> {
    let directory = shared.current_directory()?;
    let shown = directory.path().display();
    let mut findings = vec![
        Finding::good(format!(
            "{shown} is ours alone, and locks in it exclude each other"
        )),
        check_file_system(directory.file_system()),
        check_sync(&directory),
    ];
    findings.extend(check_space(&directory));
    findings.extend(check_descriptors());
    if rt::wall_micros() < UNSET_CLOCK {
        findings.push(Finding::bad(
            "the wall clock is not set: a token could repeat when a lock file is lost; set it",
        ));
    }
    if boot_id() == 0 {
        findings.push(Finding::warning(format!(
            "the system does not tell one boot from another, so every acquisition waits for a sync{MOUNT_PROC}"
        )));
    }
    Ok(findings)
}

fn check_file_system(found: Option<FileSystem>) -> Finding {
    let Some(FileSystem { name, kind }) = found else {
        return Finding::warning(
            "the kind of file system is unknown; what is promised holds for local disks",
        );
    };
    match kind {
        FileSystemKind::Local => Finding::good(format!("the file system is local: {name}")),
        FileSystemKind::Memory => Finding::warning(format!(
            "the file system is in memory ({name}): after a restart of the machine tokens follow the clock alone; \
             use a directory on a disk"
        )),
        #[cfg(not(target_vendor = "apple"))]
        FileSystemKind::Overlay => Finding::warning(format!(
            "the file system is a container's own layer ({name}): other containers do not see these locks; \
             mount a directory of the host"
        )),
        FileSystemKind::Remote => Finding::bad(format!(
            "the file system may be a server's ({name}): it can free a lock whose holder lives; \
             use a directory on a local disk"
        )),
    }
}

fn check_sync(directory: &Directory) -> Finding {
    match measure_sync(directory) {
        Ok(took) => Finding::good(format!(
            "a sync works and took {took:.1?}; it is due about once a minute per name"
        )),
        Err(err) => Finding::bad(format!(
            "a sync fails ({err:#}): tokens could go backward after a power loss; use another disk"
        )),
    }
}

fn measure_sync(directory: &Directory) -> io::Result<Duration> {
    let start = Clock::system().now();
    let file = format!(".check-{:016x}", rand::random::<u64>());
    let opened = directory.create_new(&file, 0).map_err(io::Error::other)?;
    let synced = record::create(&opened, 0, (0, 0), None).and_then(|()| directory.sync());
    directory.unlink(&file)?;
    synced?;
    Ok(Clock::system().now().since(start))
}

fn check_space(directory: &Directory) -> Option<Finding> {
    let (bytes, files) = directory.free_space()?;
    let is_enough = bytes >= LOW_SPACE && files >= LOW_FILES;
    let files = match files {
        u64::MAX => "any number of".to_owned(),
        files => files.to_string(),
    };
    let free = format!("{} MiB and {files} files are free", bytes >> 20);
    Some(match is_enough {
        true => Finding::good(free),
        false => Finding::warning(format!(
            "{free}; a name needs 4 KiB and an inode: make room"
        )),
    })
}

fn check_descriptors() -> Option<Finding> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current?;
    let text = format!(
        "this process may have {limit} open files; a hold needs one, a shared or upgradable hold two, a permit three"
    );
    Some(match limit < LOW_DESCRIPTORS {
        true => Finding::warning(text),
        false => Finding::good(text),
    })
}
