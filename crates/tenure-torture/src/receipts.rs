//! Receipts of detached holds: files in the directory of the run, which one worker writes and another one takes.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::mode::HoldMode;
use crate::random::Random;
use crate::settings::Settings;

/// A hold that a worker has detached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WrittenReceipt {
    /// The receipt.
    pub(crate) text: String,
    pub(crate) name: String,
    pub(crate) mode: HoldMode,
    /// The acquisition that was detached.
    pub(crate) acquisition: u64,
}

/// A receipt that this worker has taken: no other worker has it.
pub(crate) struct TakenReceipt {
    pub(crate) written: WrittenReceipt,
    /// Where it was.
    free: PathBuf,
    taken: PathBuf,
}

/// The receipts of a run.
pub(crate) struct Receipts {
    dir: PathBuf,
    /// The end of the name of what this process has taken.
    own: String,
    /// For what a worker does with receipts alone: the other choices of a seed are the same on a store without them.
    pub(crate) random: Random,
}

/// The end of the name of a receipt that each worker may take.
const FREE: &str = "receipt";

impl Receipts {
    /// Opens the directory. What a former process of this worker had taken is free again: it was killed.
    pub(crate) fn open(settings: &Settings, task: usize) -> io::Result<Self> {
        let dir = settings.events.with_file_name("receipts");
        std::fs::create_dir_all(&dir)?;
        let own = |life: u64| format!("worker-{}-{life}", settings.worker);
        let former: Vec<_> = (0..settings.life).map(own).collect();
        for path in files(&dir)? {
            let is_former = |own: &String| path.extension().is_some_and(|it| *it == *own.as_str());
            if former.iter().any(is_former) {
                std::fs::rename(&path, path.with_extension(FREE))?;
            }
        }
        let random = Random::new(settings.seed ^ settings.first_number(task) ^ u64::MAX);
        let own = own(settings.life);
        Ok(Self { dir, own, random })
    }

    /// Lets another worker take the receipt.
    pub(crate) fn write(&self, written: &WrittenReceipt) -> io::Result<()> {
        let path = self.dir.join(written.acquisition.to_string());
        let unfinished = path.with_extension("unfinished");
        std::fs::write(&unfinished, serde_json::to_vec(written)?)?;
        std::fs::rename(unfinished, path.with_extension(FREE))
    }

    /// Takes one of the receipts. Of two workers that take the same one, one gets it.
    pub(crate) fn take(&mut self) -> io::Result<Option<TakenReceipt>> {
        let mut free = files(&self.dir)?;
        free.retain(|path| path.extension().is_some_and(|it| it == FREE));
        free.sort();
        if free.is_empty() {
            return Ok(None);
        }
        let free = free.swap_remove(self.random.number() as usize % free.len());
        let taken = free.with_extension(&self.own);
        match std::fs::rename(&free, &taken) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
        let written = serde_json::from_slice(&std::fs::read(&taken)?)?;
        Ok(Some(TakenReceipt {
            written,
            free,
            taken,
        }))
    }
}

impl TakenReceipt {
    /// Another worker may take it: the hold may be there.
    pub(crate) fn give_back(self) -> io::Result<()> {
        std::fs::rename(self.taken, self.free)
    }

    /// The hold is over, or has another receipt.
    pub(crate) fn remove(self) -> io::Result<()> {
        std::fs::remove_file(self.taken)
    }
}

fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir)?;
    entries.map(|entry| entry.map(|it| it.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipts(dir: &Path, own: &str) -> Receipts {
        let (dir, own) = (dir.to_owned(), own.to_owned());
        let random = Random::new(1);
        Receipts { dir, own, random }
    }

    #[test]
    fn one_worker_takes_a_receipt_until_it_is_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let [mut one, mut other] =
            ["worker-0-0", "worker-1-0"].map(|own| receipts(dir.path(), own));
        assert!(one.take().unwrap().is_none());
        let written = WrittenReceipt {
            text: "secret".into(),
            name: "n".into(),
            mode: HoldMode::Shared,
            acquisition: 7,
        };
        one.write(&written).unwrap();
        let taken = other.take().unwrap().unwrap();
        assert_eq!(taken.written.text, "secret");
        assert!(one.take().unwrap().is_none());
        taken.give_back().unwrap();
        let taken = one.take().unwrap().unwrap();
        assert_eq!(
            (taken.written.acquisition, taken.written.mode),
            (7, HoldMode::Shared)
        );
        taken.remove().unwrap();
        assert!(other.take().unwrap().is_none());
        assert!(files(dir.path()).unwrap().is_empty());
    }
}
