//! Files that appear with all their contents, in one step. A symbolic link is never followed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// A file in the same directory that has the contents, and not the name yet.
pub(crate) struct Written {
    path: PathBuf,
    file: File,
}

/// Writes the contents to a file with another name, in the directory of `path`.
pub(crate) fn write_beside(path: &Path, contents: &[u8], mode: Mode) -> io::Result<Written> {
    let Some(name) = path.file_name() else {
        return Err(io::ErrorKind::IsADirectory.into());
    };
    let mut beside = OsString::from(".");
    beside.push(name);
    beside.push(format!(".tenure-{}", std::process::id()));
    let beside = path.with_file_name(beside);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let open = || rustix::fs::open(&beside, flags, mode);
    let file = match open() {
        // An earlier process with the same id was killed while it wrote.
        Err(Errno::EXIST) => std::fs::remove_file(&beside).and_then(|()| Ok(open()?)),
        opened => opened.map_err(io::Error::from),
    };
    let mut written = Written {
        file: File::from(file?),
        path: beside,
    };
    match written.file.write_all(contents) {
        Ok(()) => Ok(written),
        Err(error) => {
            written.remove();
            Err(error)
        }
    }
}

impl Written {
    /// Waits until the contents are on the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Gives the file its name, in one step, unless there is a file of that name. After an error there is nothing of it.
    pub(crate) fn put(self, path: &Path) -> io::Result<()> {
        let no_replace = RenameFlags::NOREPLACE;
        let put = match rustix::fs::renameat_with(CWD, &self.path, CWD, path, no_replace) {
            // Not every file system has that.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                std::fs::hard_link(&self.path, path).and_then(|()| std::fs::remove_file(&self.path))
            }
            renamed => renamed.map_err(io::Error::from),
        };
        put.inspect_err(|_| self.remove())
    }

    /// The same, in the place of the file that has that name.
    pub(crate) fn put_in_place_of(self, path: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, path).inspect_err(|_| self.remove())
    }

    /// Removes the file again. An error leaves a file that no program looks for.
    pub(crate) fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The type of the file at this path, and at most `most` bytes of its contents; of a file that is no regular one, none.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<(FileType, Vec<u8>)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NXIO) => return Ok((FileType::Unknown, Vec::new())),
        opened => opened?,
    };
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    let mut contents = Vec::new();
    if kind == FileType::RegularFile {
        File::from(file).take(most).read_to_end(&mut contents)?;
    }
    Ok((kind, contents))
}
