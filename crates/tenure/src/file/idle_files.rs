//! Open files of names that are not held: opening and checking a file is the slowest part of an acquisition.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Mutex;

use tenure_core::name::LockName;
use tenure_core::rt::lock;

use super::directory::{FileId, LockPath};

/// Files that a client keeps open at most for names that it does not hold.
const MAX_IDLE: usize = 32;

/// The open file of a name that is not held.
#[derive(Debug)]
pub(super) struct IdleFile {
    pub(super) lock_path: LockPath,
    pub(super) file: File,
    pub(super) id: FileId,
}

/// The files of the names that were held lately.
#[derive(Debug, Default)]
pub(super) struct IdleFiles(Mutex<HashMap<LockName, IdleFile>>);

impl IdleFiles {
    pub(super) fn take(&self, name: &LockName) -> Option<IdleFile> {
        lock(&self.0).remove(name)
    }

    pub(super) fn put(&self, name: &LockName, idle_file: IdleFile) {
        let mut files = lock(&self.0);
        if files.len() >= MAX_IDLE {
            // An arbitrary one: a program that uses more names than this gains nothing from open files.
            if let Some(other) = files.keys().next().cloned() {
                files.remove(&other);
            }
        }
        files.insert(name.clone(), idle_file);
    }

    /// Closes all files, and returns whether there were any.
    pub(super) fn clear(&self) -> bool {
        let files = std::mem::take(&mut *lock(&self.0));
        !files.is_empty()
    }
}
