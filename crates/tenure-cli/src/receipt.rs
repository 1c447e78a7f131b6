//! Receipts: where one is read from, and the file in which `take` keeps one.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Mode, flock};
use rustix::io::Errno;
use tenure::{Error, ErrorKind, Receipt};

use crate::text;
use crate::whole_file;

/// An argument that begins with this is a receipt itself.
const BEGINNING: &str = "tenure-receipt-";

/// A longer text is no receipt: this is room for three hundred of the longest names, with all their characters escaped.
const MAX_LEN: u64 = 1 << 20;

/// Many times what another process needs to write a receipt.
const TURN_LIMIT: Duration = Duration::from_secs(1);
const TURN_PAUSE: Duration = Duration::from_millis(10);

/// The receipt that an argument of the command line means: a file, `-` for standard input, or the text itself.
///
/// # Errors
/// `Invalid`: there is no such file, or it has no receipt. `Store`: the operating system refuses to read it.
pub(crate) fn read(argument: &OsStr) -> Result<Receipt, Error> {
    if argument == "-" {
        return parse(read_all(io::stdin().lock()), "standard input");
    }
    if argument.as_bytes().starts_with(BEGINNING.as_bytes()) {
        return argument.to_string_lossy().parse();
    }
    // A pipe is read too, because a shell makes one of `<(command)`.
    let read = File::open(argument).and_then(read_all);
    parse(read, &format!("\"{}\"", text::escaped(argument)))
}

fn read_all(from: impl Read) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    from.take(MAX_LEN).read_to_end(&mut contents)?;
    Ok(contents)
}

/// The receipt in what was read; errors name the place.
fn parse(read: io::Result<Vec<u8>>, place: &str) -> Result<Receipt, Error> {
    let contents = read.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let message = format!(
                "there is no file {place}; RECEIPT is a file that has a receipt, `-`, or the receipt itself"
            );
            Error::new(ErrorKind::Invalid, message)
        }
        _ => Error::new(ErrorKind::Store, format!("cannot read {place}: {error}")),
    })?;
    // Bytes that are no text are in no receipt.
    let receipt = String::from_utf8_lossy(&contents).parse();
    receipt.map_err(|error: Error| Error::new(ErrorKind::Invalid, format!("{place}: {error:#}")))
}

/// The file of `take --receipt FILE`.
///
/// A file that is no receipt is never replaced, and a symbolic link is never followed.
pub(crate) struct ReceiptFile {
    path: PathBuf,
}

impl ReceiptFile {
    /// Checks that a receipt can be written into this file.
    ///
    /// # Errors
    /// `Invalid`: the file is there, and is no receipt, or the path means something else to [`read`]. `Store`: the operating
    /// system refuses to make or to read it.
    pub(crate) fn prepare(path: &Path) -> Result<Self, Error> {
        let argument = path.as_os_str().as_bytes();
        if argument == b"-" || argument.starts_with(BEGINNING.as_bytes()) {
            let shown = text::escaped(path.as_os_str());
            let message = format!(
                "\"{shown}\" is no file for `release`, `renew` and `run`; write ./{shown}, or leave `--receipt` out for standard output"
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let file = Self {
            path: std::path::absolute(path).map_err(|error| cannot_write(path, &error))?,
        };
        file.read()?;
        let written = file.write_beside(BEGINNING.as_bytes());
        written
            .map_err(|error| cannot_write(path, &error))?
            .remove();
        Ok(file)
    }

    /// The receipt in the file. `None`: there is no such file, or it is empty, as one that `mktemp` made.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub(crate) fn read(&self) -> Result<Option<Receipt>, Error> {
        let (kind, contents) = match whole_file::read(&self.path, MAX_LEN) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return parse(Err(error), &self.shown()).map(Some),
        };
        if kind == FileType::RegularFile && contents.is_empty() {
            return Ok(None);
        }
        parse(Ok(contents), &self.shown())
            .map(Some)
            .map_err(|error| {
                let message = format!("{error:#}; name another file, or remove this one");
                Error::new(ErrorKind::Invalid, message)
            })
    }

    /// Writes the receipt, in one step, if the file still has `before`. `false`: it has something else by now.
    ///
    /// When this returns, the receipt is on the disk, and only this user can read it.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare); the file is what it was.
    pub(crate) async fn replace(
        &self,
        before: Option<&Receipt>,
        now: &Receipt,
    ) -> Result<bool, Error> {
        let _turn = self.take_turn().await;
        if self.read()?.as_ref() != before {
            return Ok(false);
        }
        let written = self.write_beside(format!("{now}\n").as_bytes());
        let put = written.and_then(|written| {
            written.sync().inspect_err(|_| written.remove())?;
            match self.path.symlink_metadata() {
                Ok(_) => written.put_in_place_of(&self.path),
                Err(_) => written.put(&self.path),
            }
        });
        match put {
            Ok(()) => {
                self.sync_directory();
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(cannot_write(&self.path, &error)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path in quotes.
    pub(crate) fn shown(&self) -> String {
        format!("\"{}\"", text::escaped(self.path.as_os_str()))
    }

    fn write_beside(&self, contents: &[u8]) -> io::Result<whole_file::Written> {
        whole_file::write_beside(&self.path, contents, Mode::RUSR | Mode::WUSR)
    }

    fn directory(&self) -> io::Result<File> {
        File::open(self.path.parent().unwrap_or(Path::new("/")))
    }

    /// Keeps other processes from writing a receipt between the look at the file and the new one, where the file system has
    /// locks of directories. Another program may keep such a lock for long, so nothing waits for it after [`TURN_LIMIT`].
    async fn take_turn(&self) -> io::Result<File> {
        let directory = self.directory()?;
        let began = Instant::now();
        while let Err(error) = flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK || began.elapsed() > TURN_LIMIT {
                return Err(error.into());
            }
            tokio::time::sleep(TURN_PAUSE).await;
        }
        Ok(directory)
    }

    /// Without this a loss of power could take the name of the file away. Not every file system can do it.
    fn sync_directory(&self) {
        let _ = self.directory().and_then(|directory| directory.sync_all());
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Error {
    let shown = text::escaped(path.as_os_str());
    let message = format!(
        "cannot write the receipt \"{shown}\": {error}; name a file in a directory that this user may write to"
    );
    Error::new(ErrorKind::Store, message)
}
