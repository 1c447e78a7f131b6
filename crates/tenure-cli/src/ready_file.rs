//! The file of `tenure run --standby --ready-file PATH`: it exists only while this process leads and the command may run.
//!
//! `tenure` makes the file after the grant and before the command starts. It removes the file as soon as the command is to
//! end; the guardian does so too, for a `tenure` that was killed or stopped. A file of another program is never replaced
//! and never removed, and a symbolic link is never followed.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use tenure::Guard;

use crate::text;

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
        let written = self.write_beside(text.as_bytes());
        let written = written.map_err(|error| explain(&self.path, &error))?;
        let put = self.put_in_place_of_leftover(&written);
        if put.is_err() {
            let _ = std::fs::remove_file(&written);
        }
        put.map(|()| Mark {
            path: self.path.clone(),
            text,
        })
    }

    fn put_in_place_of_leftover(&self, written: &Path) -> Result<(), String> {
        let mut put = self.put_in_place(written);
        if matches!(&put, Err(error) if error.kind() == io::ErrorKind::AlreadyExists) {
            self.remove_leftover()?;
            put = self.put_in_place(written);
        }
        put.map_err(|error| explain(&self.path, &error))
    }

    /// Removes a file of an earlier `tenure`, if there is one.
    fn remove_leftover(&self) -> Result<(), String> {
        let path = &self.path;
        let (mode, contents) = match open(path) {
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
        std::fs::remove_file(self.write_beside(PREFIX.as_bytes())?)
    }

    /// Writes the contents to a file with another name in the same directory, and returns its path.
    fn write_beside(&self, contents: &[u8]) -> io::Result<PathBuf> {
        let Some(name) = self.path.file_name() else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        let mut beside = std::ffi::OsString::from(".");
        beside.push(name);
        beside.push(format!(".tenure-{}", std::process::id()));
        let beside = self.path.with_file_name(beside);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        let open = || rustix::fs::open(&beside, flags, mode);
        let file = match open() {
            // An earlier process with the same id was killed while it wrote.
            Err(Errno::EXIST) => std::fs::remove_file(&beside).and_then(|()| Ok(open()?)),
            opened => opened.map_err(io::Error::from),
        };
        let written = File::from(file?).write_all(contents);
        if written.is_err() {
            let _ = std::fs::remove_file(&beside);
        }
        written.map(|()| beside)
    }

    /// Gives the file its name, in one step, unless there is a file of that name.
    fn put_in_place(&self, written: &Path) -> io::Result<()> {
        let no_replace = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(CWD, written, CWD, &self.path, no_replace) {
            // Not every file system has that.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                std::fs::hard_link(written, &self.path)?;
                std::fs::remove_file(written)
            }
            renamed => Ok(renamed?),
        }
    }
}

/// Removes the file if it has these contents, and nothing else.
pub(crate) fn remove_mark(path: &Path, text: &[u8]) {
    if matches!(open(path), Ok((FileType::RegularFile, contents)) if contents == text) {
        // There is nobody to tell: the guardian has no terminal, and the command is about to end.
        let _ = std::fs::remove_file(path);
    }
}

/// The type of the file at this path, and its contents. A symbolic link is not followed, and its contents are not read.
fn open(path: &Path) -> io::Result<(FileType, Vec<u8>)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NXIO) => return Ok((FileType::Unknown, Vec::new())),
        opened => opened?,
    };
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    let mut contents = Vec::new();
    if kind == FileType::RegularFile {
        File::from(file).take(MAX_LEN).read_to_end(&mut contents)?;
    }
    Ok((kind, contents))
}

fn explain(path: &Path, error: &io::Error) -> String {
    let shown = text::escaped(path.as_os_str());
    format!(
        "cannot make the ready file \"{shown}\": {error}; name a path in a directory that this user may write to"
    )
}
