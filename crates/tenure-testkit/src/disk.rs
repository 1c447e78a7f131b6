//! A disk for one server, of which the test takes the power.

use std::path::{Path, PathBuf};

use super::compiler::preload;
use super::process::{Directory, copy};
use super::tracer;

/// Made by the compiler from `disk.c`, put before libc in the server's process.
pub struct Disk {
    dir: Directory,
}

impl Disk {
    pub fn make() -> Self {
        let dir = Directory::new("disk");
        preload(dir.path(), "disk", include_str!("disk.c"));
        Self { dir }
    }

    /// What stands before the command of a server to give it this disk.
    pub fn command(&self) -> Vec<String> {
        vec![
            "env".into(),
            format!("LD_PRELOAD={}", self.dir.path().join("disk.so").display()),
            self.variable(),
        ]
    }

    /// The same for one that asks the kernel without libc.
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

    /// Everything in the directory of a server, which does not run now, is on the disk. From now on only what it syncs
    /// gets there.
    pub fn begin(&self, server: &Path) {
        copy(server, &self.kept());
    }

    /// The power was gone: the server, which does not run, finds what was on the disk.
    pub fn lose_power(&self, server: &Path) {
        std::fs::remove_dir_all(server).unwrap();
        copy(&self.kept(), server);
    }
}
