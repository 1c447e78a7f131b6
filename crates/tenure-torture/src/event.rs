//! The events of a run, one JSON line each, which all processes of the run append to one file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::mode::HoldMode;
use crate::plan::FaultKind;

/// One event, a line of the log. All instants are those of [`crate::clock::now`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The run began.
    Began {
        /// When.
        at: u64,
    },
    /// A task of a worker asks for a name, and waits.
    Asked {
        /// When.
        at: u64,
        /// Which worker.
        worker: usize,
        /// Which of its tasks.
        #[serde(default)]
        task: usize,
        /// The name.
        name: String,
        /// How the worker wants to hold.
        #[serde(default)]
        mode: HoldMode,
    },
    /// The request of a task was refused, or failed.
    Refused {
        /// When.
        at: u64,
        /// Which worker.
        worker: usize,
        /// Which of its tasks.
        #[serde(default)]
        task: usize,
        /// The name.
        name: String,
        /// Why.
        why: String,
    },
    /// A task does not wait for the name any more: it gave up, or the run is about to end.
    Left {
        /// When.
        at: u64,
        /// Which worker.
        worker: usize,
        /// Which of its tasks.
        #[serde(default)]
        task: usize,
    },
    /// A task of a worker got the name, and believes that it holds.
    Claimed {
        /// When `acquire` had returned.
        at: u64,
        /// Which worker.
        worker: usize,
        /// The name.
        name: String,
        /// The number of this acquisition, unique in the run. The task is part of it: [`crate::settings::task_of`].
        acquisition: u64,
        /// How the worker holds.
        #[serde(default)]
        mode: HoldMode,
        /// The acquisition whose hold has this mode from now on, or whose detached hold this worker is attached to; none: the
        /// hold is a new one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        changes: Option<u64>,
        /// The number of the hold in the store: tasks that pass a hold on among themselves have the same one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<u64>,
        /// Its fencing token.
        token: u64,
        /// When the worker had asked.
        asked: u64,
        /// Until when the worker believes that it holds, if nothing else happens.
        deadline: u64,
    },
    /// The holder checked its guard, and still believes that it holds.
    Believed {
        /// When.
        at: u64,
        /// Which acquisition.
        acquisition: u64,
        /// Until when the holder believes now.
        deadline: u64,
    },
    /// The holder does not believe any more that it holds: it is about to release, or it noticed a loss.
    Ended {
        /// When.
        at: u64,
        /// Which acquisition.
        acquisition: u64,
        /// Whether the holder lost the lock; otherwise it releases.
        lost: bool,
    },
    /// The store has confirmed that a hold is detached: it lasts without its worker, whose claim has ended before.
    Detached {
        /// When.
        at: u64,
        /// Which acquisition. A worker that is attached later claims a hold that `changes` this acquisition.
        acquisition: u64,
        /// The end of the lease that was asked for, counted as holders do.
        until: u64,
    },
    /// A candidate campaigns with this value, or a leader proclaims it: the request is sent after this.
    Publishing {
        /// When.
        at: u64,
        /// Which acquisition.
        acquisition: u64,
        /// The value, which no other acquisition publishes.
        value: String,
    },
    /// The store has confirmed the last value that this leader proclaimed.
    Published {
        /// When.
        at: u64,
        /// Which acquisition.
        acquisition: u64,
    },
    /// An observer of an election begins.
    Observing {
        /// When.
        at: u64,
        /// Its number, unique in the run.
        observer: u64,
        /// The worker that observes.
        worker: usize,
        /// The name of the election.
        name: String,
    },
    /// An observer was told something.
    Saw {
        /// When.
        at: u64,
        /// Which observer.
        observer: u64,
        /// What the observer was told.
        sight: Sight,
    },
    /// A write, or the read of a holder that is not exclusive, reached the register.
    Wrote {
        /// When.
        at: u64,
        /// Which acquisition.
        acquisition: u64,
        /// Whether the fenced side accepted the access.
        accepted: bool,
    },
    /// A worker is about to be killed.
    Killed {
        /// When.
        at: u64,
        /// Which worker.
        worker: usize,
    },
    /// A fault that is over.
    Fault {
        /// When it began.
        at: u64,
        /// When it ended.
        until: u64,
        /// The kind of the fault.
        kind: FaultKind,
        /// The worker that had the fault; `None`: all workers, by a fault of servers or clocks.
        worker: Option<usize>,
    },
    /// The monitor got no answer from the store, maybe because of a fault of the plan.
    Away {
        /// Since when.
        at: u64,
        /// Until when.
        until: u64,
        /// The error that the monitor got.
        why: String,
    },
    /// The store has changed since the start of the run.
    Noticed {
        /// When that was seen.
        at: u64,
        /// What `tenure check` says.
        what: String,
    },
    /// A worker process ended by itself.
    Vanished {
        /// When that was noticed.
        at: u64,
        /// Which worker.
        worker: usize,
    },
    /// Workers were asked to end.
    Over {
        /// When.
        at: u64,
    },
}

/// What an observer of an election is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sight {
    /// Somebody leads.
    Leader {
        /// The number of the term; `None` if the leader has none.
        token: Option<u64>,
        /// What the leader has published.
        value: Option<String>,
    },
    /// Nobody leads.
    Nobody,
    /// The store does not answer, so it is unknown who leads.
    Unsure(String),
    /// The observer has ended, for this reason.
    GaveUp(String),
}

/// The log file, opened for appending.
#[derive(Debug)]
pub struct Log(File);

impl Log {
    /// Opens the log at `path`, which [`Log::create`] has created.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().append(true).open(path).map(Self)
    }

    /// Creates a new log at `path`.
    ///
    /// # Errors
    /// The errors of the file, which must not be there yet.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.append(true).create_new(true).open(path).map(Self)
    }

    /// Another handle to the same file.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Appends one line by one system call, so that a process that is killed loses no line, and lines of several
    /// processes do not mix.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn append(&mut self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }
}

/// Reads a log, also while it is written: a last line without an end is ignored.
///
/// # Errors
/// The errors of the file, and a line that is no event: a log that cannot be read completely must not be judged.
pub fn read(path: &Path) -> io::Result<Vec<Event>> {
    let text = std::fs::read_to_string(path)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| Ok(serde_json::from_str(line)?))
        .collect()
}
