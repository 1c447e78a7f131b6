//! Whether this user may write the files of a database. This is asked before SQLite opens them: for a user who may only
//! read, SQLite makes files beside the database that the owner of the database may not write.
//!
//! The files are not opened to find out: POSIX drops all locks that a process has on a file when the process closes any
//! descriptor of that file.

use std::path::{Path, PathBuf};

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::name::Escaped;

/// Refuses a database that this user may not write, and one with a side file that this user may not write.
///
/// # Errors
/// `Denied`: the message names the file, its owner and the remedy.
pub(super) fn require_write_access(database: &Path, side_files: &[PathBuf]) -> Result<(), Error> {
    if let Some(why) = refusal(database) {
        let remedy = "give the user the right, or run as its owner: the locks of a file are for users who may write the file, also to look at them";
        return Err(denied(database, remedy, why));
    }
    for file in side_files {
        if let Some(why) = refusal(file) {
            let remedy = "chown the file to the owner of the database, or remove it together with the other files beside the database while no process uses the database";
            return Err(denied(file, remedy, why));
        }
    }
    Ok(())
}

fn denied(file: &Path, remedy: &str, why: std::io::Error) -> Error {
    let shown = file.display().to_string();
    let text = format!(
        "{}{} may not be written by this user; {remedy}",
        Escaped(&shown),
        owner(file)
    );
    Error::new(ErrorKind::Denied, text).with_source(why)
}

/// Why this user may not write the file. `None`: the user may, or there is no such file, or only SQLite can tell.
#[cfg(unix)]
fn refusal(file: &Path) -> Option<std::io::Error> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    use rustix::io::Errno;
    let access = Access::READ_OK | Access::WRITE_OK;
    match accessat(CWD, file, access, AtFlags::EACCESS) {
        Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => Some(errno.into()),
        _ => None,
    }
}

/// The owner of the file, as a part of a sentence.
#[cfg(unix)]
fn owner(file: &Path) -> String {
    use std::os::unix::fs::MetadataExt as _;
    match std::fs::metadata(file) {
        Ok(found) => format!(", which belongs to the user with the id {},", found.uid()),
        Err(_) => String::new(),
    }
}

/// On Windows all files of a database have the rights of their directory.
#[cfg(not(unix))]
fn refusal(_: &Path) -> Option<std::io::Error> {
    None
}

#[cfg(not(unix))]
fn owner(_: &Path) -> String {
    String::new()
}
