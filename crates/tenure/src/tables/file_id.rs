//! The identity of a database file.

#![cfg_attr(
    not(feature = "sqlite"),
    allow(dead_code, reason = "only SQLite has files")
)]

#[cfg(feature = "sqlite")]
use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
#[cfg(feature = "sqlite")]
use tenure_core::name::Escaped;

/// Identity of a file: device and inode.
///
/// Empty except on Unix: Windows neither removes nor replaces a file that SQLite has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    #[cfg(unix)]
    device: u64,
    #[cfg(unix)]
    inode: u64,
}

impl FileId {
    /// The file that lies at `path` now. `None`: there is none.
    ///
    /// # Errors
    /// `Indeterminate`: it is unknown whether there is a file.
    #[cfg(feature = "sqlite")]
    pub(super) fn at(path: &std::path::Path) -> Result<Option<Self>, Error> {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        match std::fs::metadata(path) {
            #[cfg(unix)]
            Ok(found) => {
                use std::os::unix::fs::MetadataExt as _;
                Ok(Some(Self {
                    device: found.dev(),
                    inode: found.ino(),
                }))
            }
            #[cfg(not(unix))]
            Ok(_) => Ok(Some(Self {})),
            Err(err) if matches!(err.kind(), NotFound | NotADirectory) => Ok(None),
            Err(err) => {
                let shown = path.display().to_string();
                let text = format!("it cannot be told whether {} is there", Escaped(&shown));
                Err(Error::new(ErrorKind::Indeterminate, text).with_source(err))
            }
        }
    }
}
