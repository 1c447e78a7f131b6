//! The disk of one server: a loss of power loses what the server did not sync.

use std::path::{Path, PathBuf};

use super::compiler::preload;
use super::process::{Directory, copy};
use super::tracer;

/// The disk of one server. The server loads a library made of `disk.c` before libc.
pub struct Disk {
    dir: Directory,
}

impl Disk {
    pub fn make() -> Self {
        let dir = Directory::new("disk");
        preload(dir.path(), "disk", include_str!("disk.c"));
        Self { dir }
    }

    /// The words before the command of a server that give it this disk.
    pub fn command(&self) -> Vec<String> {
        vec![
            "env".into(),
            format!("LD_PRELOAD={}", self.dir.path().join("disk.so").display()),
            self.variable(),
        ]
    }

    /// The words for a program that makes system calls without libc.
    pub fn traced_command(&self) -> Vec<String> {
        vec![
            "env".into(),
            self.variable(),
            tracer::build(self.dir.path()),
        ]
    }

    fn variable(&self) -> String {
        format!("TENURE_TEST_DISK={}", self.kept().display())
    }

    fn kept(&self) -> PathBuf {
        self.dir.path().join("kept")
    }

    /// Stores the directory of a server that does not run on the disk. From now on only data that the server syncs gets
    /// to the disk.
    pub fn begin(&self, server: &Path) {
        copy(server, &self.kept());
    }

    /// Simulates a loss of power: the directory of the server, which does not run, gets the content of the disk.
    pub fn lose_power(&self, server: &Path) {
        std::fs::remove_dir_all(server).unwrap();
        copy(&self.kept(), server);
    }
}
