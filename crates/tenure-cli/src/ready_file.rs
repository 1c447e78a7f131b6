//! The file of `tenure run --standby --ready-file PATH`: it exists only while this process leads and the command may run.
//!
//! `tenure` makes the file after the grant and before the command starts. It removes the file as soon as the command is to
//! end; the guardian does so too, for a `tenure` that was killed or stopped. A file of another program is never replaced
//! and never removed, and a symbolic link is never followed.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode};
use tenure::Guard;

use crate::text;
use crate::whole_file::{self, Written};

/// How each of these files begins.
const PREFIX: &str = "tenure leads ";

/// A longer file is not ours: this is room for the longest name, with all its characters escaped.
const MAX_LEN: u64 = 16 * 1024;

/// The path of such a file.
pub(crate) struct ReadyFile {
    /// Absolute, because the guardian removes the file too.
    path: PathBuf,
}

/// A file that this process has made. It is removed when this is dropped.
pub(crate) struct Mark {
    pub(crate) path: PathBuf,
    /// The contents, which no other term has.
    pub(crate) text: String,
}

impl Drop for Mark {
    fn drop(&mut self) {
        remove_mark(&self.path, self.text.as_bytes());
    }
}

impl ReadyFile {
    /// Checks that the file can be made, and removes one that an earlier `tenure` has left.
    ///
    /// # Errors
    /// A message that says what is wrong with the path.
    pub(crate) fn prepare(path: &Path) -> Result<Self, String> {
        let path = std::path::absolute(path).map_err(|error| explain(path, &error))?;
        let ready_file = Self { path };
        ready_file.remove_leftover()?;
        ready_file
            .check()
            .map_err(|error| explain(&ready_file.path, &error))?;
        Ok(ready_file)
    }

    /// Makes the file, for the term of this guard.
    ///
    /// # Errors
    /// A message that says why there is no such file.
    pub(crate) fn create(&self, guard: &Guard) -> Result<Mark, String> {
        let (name, token) = (guard.name(), guard.token());
        let process = std::process::id();
        let text = format!("{PREFIX}{name} with token {token} as process {process}\n");
        self.put_in_place_of_leftover(text.as_bytes())?;
        Ok(Mark {
            path: self.path.clone(),
            text,
        })
    }

    fn put_in_place_of_leftover(&self, contents: &[u8]) -> Result<(), String> {
        let put = || self.write_beside(contents)?.put(&self.path);
        let mut done = put();
        if matches!(&done, Err(error) if error.kind() == io::ErrorKind::AlreadyExists) {
            self.remove_leftover()?;
            done = put();
        }
        done.map_err(|error| explain(&self.path, &error))
    }

    /// Removes a file of an earlier `tenure`, if there is one.
    fn remove_leftover(&self) -> Result<(), String> {
        let path = &self.path;
        let (mode, contents) = match whole_file::read(path, MAX_LEN) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(explain(path, &error)),
        };
        // An empty file is one whose contents a failure of the machine has lost.
        let is_ours = contents.is_empty() || contents.starts_with(PREFIX.as_bytes());
        if mode != FileType::RegularFile || !is_ours {
            let shown = text::escaped(path.as_os_str());
            return Err(format!(
                "the ready file \"{shown}\" exists, and tenure did not make it; name another path, or remove it"
            ));
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(explain(path, &error)),
            _ => Ok(()),
        }
    }

    /// Shows that a file can be made in that directory.
    fn check(&self) -> io::Result<()> {
        self.write_beside(PREFIX.as_bytes())?.remove();
        Ok(())
    }

    fn write_beside(&self, contents: &[u8]) -> io::Result<Written> {
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        whole_file::write_beside(&self.path, contents, mode)
    }
}

/// Removes the file if it has these contents, and nothing else.
pub(crate) fn remove_mark(path: &Path, text: &[u8]) {
    let read = whole_file::read(path, MAX_LEN);
    if matches!(read, Ok((FileType::RegularFile, contents)) if contents == text) {
        // There is nobody to tell: the guardian has no terminal, and the command is about to end.
        let _ = std::fs::remove_file(path);
    }
}

fn explain(path: &Path, error: &io::Error) -> String {
    let shown = text::escaped(path.as_os_str());
    format!(
        "cannot make the ready file \"{shown}\": {error}; name a path in a directory that this user may write to"
    )
}
