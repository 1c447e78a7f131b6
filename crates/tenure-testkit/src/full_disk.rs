//! A disk that a test fills up and empties, for one process.

use std::ffi::OsString;

use super::compiler::preload;
use super::process::Directory;

/// The disk of one process. The process loads a library made of `full_disk.c` before libc.
pub struct FullDisk {
    dir: Directory,
}

impl FullDisk {
    /// A disk with room.
    pub fn make() -> Self {
        let dir = Directory::new("full-disk");
        preload(dir.path(), "full_disk", include_str!("full_disk.c"));
        Self { dir }
    }

    /// The environment of the process.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let dir = self.dir.path();
        vec![
            ("LD_PRELOAD".into(), dir.join("full_disk.so").into()),
            ("TENURE_TEST_FULL_DISK".into(), dir.into()),
        ]
    }

    /// From now on calls of this kind fail: `write` or `sync`.
    pub fn fill(&self, kind: &str) {
        std::fs::write(self.dir.path().join(kind), "").unwrap();
    }

    /// From now on calls of this kind succeed again.
    pub fn empty(&self, kind: &str) {
        std::fs::remove_file(self.dir.path().join(kind)).unwrap();
    }
}
