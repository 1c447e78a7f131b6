//! What errors of the operating system mean, and the remedy.

use std::io;
use std::path::Path;

use rustix::io::Errno;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};

/// The refusal to use the file or directory at `path`.
pub(super) fn refused(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Denied, format!("{} {why}", path.display()))
}

/// An error of the operating system, with the remedy. `held_locks` is the number of locks that this client holds.
pub(super) fn system_error(what: &str, path: &Path, err: io::Error, held_locks: usize) -> Error {
    let errno = Errno::from_io_error(&err);
    let (kind, remedy) = match errno {
        Some(Errno::MFILE) => (
            ErrorKind::Store,
            format!(
                "this process has no file descriptor left; this client holds {held_locks} locks with at least one each: \
                 raise `ulimit -n`"
            ),
        ),
        Some(Errno::NFILE) => (
            ErrorKind::Store,
            "the system has no file left: raise `fs.file-max`".to_owned(),
        ),
        Some(Errno::NOSPC | Errno::DQUOT) => (
            ErrorKind::Store,
            "no space or no inodes left: make room there".to_owned(),
        ),
        Some(Errno::ROFS) => (
            ErrorKind::Denied,
            "the file system is read-only: use another directory".to_owned(),
        ),
        Some(Errno::ACCESS | Errno::PERM) => (
            ErrorKind::Denied,
            "we may not: check owner and mode of the path and its parents".to_owned(),
        ),
        Some(Errno::LOOP) => (
            ErrorKind::Denied,
            "it is a symbolic link: remove it".to_owned(),
        ),
        Some(Errno::ISDIR) => (ErrorKind::Denied, "it is a directory: remove it".to_owned()),
        Some(Errno::NOLCK | Errno::OPNOTSUPP) => (
            ErrorKind::Unsupported,
            "locks do not work on this file system: use a directory on a local disk".to_owned(),
        ),
        _ => (ErrorKind::Store, "look at the file system".to_owned()),
    };
    Error::new(
        kind,
        format!("could not {what} {}: {remedy}", path.display()),
    )
    .with_source(err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_names_the_path_and_its_cure() {
        let table = [
            (Errno::MFILE, ErrorKind::Store, "holds 7 locks"),
            (Errno::MFILE, ErrorKind::Store, "ulimit -n"),
            (Errno::NFILE, ErrorKind::Store, "fs.file-max"),
            (Errno::NOSPC, ErrorKind::Store, "make room"),
            (Errno::DQUOT, ErrorKind::Store, "make room"),
            (Errno::ROFS, ErrorKind::Denied, "read-only"),
            (Errno::ACCESS, ErrorKind::Denied, "owner and mode"),
            (Errno::PERM, ErrorKind::Denied, "owner and mode"),
            (Errno::LOOP, ErrorKind::Denied, "symbolic link"),
            (Errno::ISDIR, ErrorKind::Denied, "directory: remove it"),
            (Errno::NOLCK, ErrorKind::Unsupported, "local disk"),
            (Errno::OPNOTSUPP, ErrorKind::Unsupported, "local disk"),
            (Errno::IO, ErrorKind::Store, "look at the file system"),
        ];
        for (errno, kind, remedy) in table {
            let error = system_error("open the lock file", Path::new("/locks/a"), errno.into(), 7);
            let text = error.to_string();
            assert_eq!(error.kind(), kind, "{text}");
            assert!(text.contains("/locks/a") && text.contains(remedy), "{text}");
        }
    }
}
