//! The table that shows to operators which client holds which lock: the server's own locks have no room for that.
//!
//! The table decides nothing. A row counts only while the server says that this session has this key. A row is written
//! a moment after the grant and deleted after the release, in the background and many at a time. Only the row of the leader of
//! an election, which has its value, is written before the grant counts.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::{OwnerId, RandomAlready};
use tenure_core::rt::lock;
use tenure_core::store::Request;
use tenure_core::time::Time;

use super::context::Context;
use super::control::ControlConnection;
use super::holder_row::HolderRow;
use super::key::Key;
use super::requests;
use super::server_info::SessionId;

/// How long changes are collected before they are written: the row of a hold that is over by then is never written.
const WRITE_DELAY: Duration = Duration::from_millis(5);

/// The pause after a statement that failed.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// How often the deletion of the rows of leaders is tried while all statements fail.
const MAX_ATTEMPTS: u32 = 30;

/// Rows in one statement.
const MAX_BATCH: usize = 200;

/// How long a request waits for an old row of the same key to be deleted.
const STALE_ROW_TIMEOUT: Duration = Duration::from_secs(1);

/// How often rows are deleted whose session no longer has the lock.
const SWEEP_INTERVAL: Duration = Duration::from_secs(300);

/// What one client knows of the table.
pub(super) struct HolderTable {
    context: Arc<Context>,
    control: Arc<ControlConnection>,
    is_usable: AtomicBool,
    /// The user was told that labels are not shown.
    has_warned: AtomicBool,
    changes: Mutex<Changes>,
    /// Whether there are stale rows. Every acquisition reads this.
    has_stale: AtomicBool,
    /// Notified when rows were written.
    written: Notify,
}

#[derive(Default)]
struct Changes {
    /// A task writes, or is about to.
    is_writing: bool,
    to_insert: HashMap<OwnerId, HolderRow, RandomAlready>,
    /// Rows that were written, or are being written.
    inserted: HashMap<OwnerId, HolderRow, RandomAlready>,
    to_delete: Vec<HolderRow>,
    /// Keys of which a row may be in the table that no longer counts.
    stale: HashSet<(SessionId, Key)>,
    swept: Option<Time>,
    /// Statements in a row that failed.
    failures: u32,
}

/// What one statement writes.
struct Batch {
    added: Vec<HolderRow>,
    removed: Vec<HolderRow>,
    sweeps: bool,
}

impl Changes {
    /// Takes out the changes that are written next. `None`: there is nothing left to write.
    fn next_batch(&mut self, now: Time) -> Option<Batch> {
        let owners: Vec<_> = self.to_insert.keys().take(MAX_BATCH).copied().collect();
        let mut added = Vec::new();
        for owner in owners {
            if let Some(row) = self.to_insert.remove(&owner) {
                added.push(row.clone());
                self.inserted.insert(owner, row);
            }
        }
        let count = self.to_delete.len().min(MAX_BATCH);
        let removed: Vec<_> = self.to_delete.drain(..count).collect();
        if added.is_empty() && removed.is_empty() {
            self.is_writing = false;
            self.failures = 0;
            return None;
        }
        let sweeps = self
            .swept
            .is_none_or(|swept| swept.after(SWEEP_INTERVAL) <= now);
        if sweeps {
            self.swept = Some(now);
        }
        Some(Batch {
            added,
            removed,
            sweeps,
        })
    }

    /// How long changes wait before they are written.
    fn delay(&self) -> Duration {
        match self.failures {
            0 => WRITE_DELAY,
            _ => RETRY_DELAY,
        }
    }

    /// The statement that deletes these rows failed. The rows of leaders are kept for another one, which also tells observers.
    /// The sweep deletes the others.
    fn failed(&mut self, mut removed: Vec<HolderRow>) {
        self.failures += 1;
        removed.retain(|row| row.value_number().is_some());
        if self.failures < MAX_ATTEMPTS {
            self.to_delete.extend(removed);
        }
    }

    /// These rows are deleted, or are not waited for any more.
    fn deleted(&mut self, removed: &[HolderRow]) {
        for row in removed {
            // A later row of the same key may have been inserted meanwhile, and have to be deleted.
            let is_to_delete = |it: &HolderRow| it.session == row.session && it.key == row.key;
            if !self.to_delete.iter().any(is_to_delete) {
                self.stale.remove(&(row.session, row.key.clone()));
            }
        }
    }
}

impl HolderTable {
    pub(super) fn new(context: Arc<Context>, control: Arc<ControlConnection>) -> Self {
        Self {
            context,
            control,
            is_usable: AtomicBool::new(false),
            has_warned: AtomicBool::new(false),
            changes: Mutex::default(),
            has_stale: AtomicBool::new(false),
            written: Notify::new(),
        }
    }

    /// Whether the table is there and may be used.
    pub(super) fn is_usable(&self) -> bool {
        self.is_usable.load(Ordering::SeqCst)
    }

    /// Uses the table from now on if it is there.
    pub(super) async fn find(&self) -> Result<(), Error> {
        requests::find_holder_table(&self.control).await?;
        self.is_usable.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Stops using the table, because the server refuses it. Locks work without it.
    pub(super) fn disable(&self) {
        if self.is_usable.swap(false, Ordering::SeqCst) {
            tracing::warn!(
                "the table tenure_holders cannot be used any more; list, break and elections do not work without it"
            );
        }
        let mut changes = lock(&self.changes);
        *changes = Changes::default();
        self.has_stale.store(false, Ordering::SeqCst);
        drop(changes);
        self.written.notify_waiters();
    }

    /// Says once that labels are not shown, because there is no table.
    pub(super) fn warn_of_hidden_label(&self, request: &Request) {
        if request.holder.label.is_empty() || self.has_warned.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::warn!(
            name = %request.name,
            "the label is not shown to others: {} has no table tenure_holders; `tenure check --init` makes it",
            self.context.settings.server
        );
    }

    /// Inserts a row soon.
    pub(super) fn add(self: &Arc<Self>, owner: OwnerId, row: HolderRow) {
        if self.is_usable() {
            let mut changes = lock(&self.changes);
            changes.to_insert.insert(owner, row);
            self.start_writing(&mut changes);
        }
    }

    /// Tokens up to `last` are reserved for the hold of that owner: its row says so soon.
    pub(super) fn reserve(self: &Arc<Self>, owner: OwnerId, last: u64) {
        let mut changes = lock(&self.changes);
        let row = changes.to_insert.get(&owner);
        if let Some(row) = row.or(changes.inserted.get(&owner)) {
            let row = row.with_reserved(last);
            changes.to_insert.insert(owner, row);
            self.start_writing(&mut changes);
        }
    }

    /// The row of a leader is about to be [published](Self::publish), and will be deleted with the others.
    pub(super) fn note_leader(&self, owner: OwnerId, row: HolderRow) {
        lock(&self.changes).inserted.insert(owner, row);
    }

    /// Writes the row of a leader at once. `false`: the session has not got the lock any more.
    pub(super) async fn publish(&self, row: &HolderRow) -> Result<bool, Error> {
        requests::publish(&self.control, row).await
    }

    /// Writes the row of a candidate that the server has granted the lock just now, and whose session is asked at the same time.
    /// Observers are [told](Self::tell_observers) when it leads.
    pub(super) async fn publish_grant(&self, row: &HolderRow) -> Result<bool, Error> {
        requests::publish_grant(&self.control, row).await
    }

    /// Tells observers soon that there is a new leader. They look by themselves, too, if that fails.
    pub(super) fn tell_observers(&self, key: Key) {
        let control = self.control.clone();
        self.context.spawn(async move {
            if let Err(err) = requests::tell_observers(&control, &key).await {
                tracing::debug!(
                    err = format_args!("{err:#}"),
                    "observers are not told of a leader"
                );
            }
        });
    }

    /// Whether that owner is the leader of an election.
    pub(super) fn is_leader(&self, owner: OwnerId) -> bool {
        let changes = lock(&self.changes);
        let row = changes.inserted.get(&owner);
        row.is_some_and(|row| row.value_number().is_some())
    }

    /// The row of a leader will be [removed](Self::remove) when the lock is free. Until then no hold of the same session and key
    /// begins.
    pub(super) fn begin_removal(&self, owner: OwnerId) {
        let mut changes = lock(&self.changes);
        if let Some(row) = changes.inserted.get(&owner) {
            let stale = (row.session, row.key.clone());
            changes.stale.insert(stale);
            self.has_stale.store(true, Ordering::SeqCst);
        }
    }

    /// Deletes the row of that owner soon, or does not insert it.
    pub(super) fn remove(self: &Arc<Self>, owner: OwnerId) {
        let mut changes = lock(&self.changes);
        changes.to_insert.remove(&owner);
        if let Some(row) = changes.inserted.remove(&owner) {
            changes.stale.insert((row.session, row.key.clone()));
            self.has_stale.store(true, Ordering::SeqCst);
            changes.to_delete.push(row);
            self.start_writing(&mut changes);
        }
    }

    /// Deletes all rows of the client, which is closing. Resolves when that is done.
    pub(super) async fn clear(self: &Arc<Self>) {
        let owners: Vec<_> = {
            let changes = lock(&self.changes);
            let owners = changes.to_insert.keys().chain(changes.inserted.keys());
            owners.copied().collect()
        };
        for owner in owners {
            self.remove(owner);
        }
        loop {
            let written = self.written.notified();
            if !lock(&self.changes).is_writing {
                return;
            }
            written.await;
        }
    }

    /// Waits until the table has no stale row of that session and key. The same session is about to take the same key, so
    /// operators would take a stale row for the row of the next holder.
    pub(super) async fn stale_row_deleted(&self, session: SessionId, key: &Key) {
        if !self.has_stale.load(Ordering::SeqCst) {
            return;
        }
        let limit = self.context.clock.now().after(STALE_ROW_TIMEOUT);
        let row = (session, key.clone());
        loop {
            let written = self.written.notified();
            if !lock(&self.changes).stale.contains(&row) {
                return;
            }
            tokio::select! {
                () = written => {}
                () = self.context.clock.sleep_until(limit) => return,
            }
        }
    }

    /// Starts the task that writes, unless it runs.
    fn start_writing(self: &Arc<Self>, changes: &mut Changes) {
        if std::mem::replace(&mut changes.is_writing, true) {
            return;
        }
        let table = Arc::downgrade(self);
        self.context.spawn(async move {
            while let Some(table) = table.upgrade() {
                let context = &table.context;
                let delay = lock(&table.changes).delay();
                let at = context.clock.now().after(delay);
                tokio::select! {
                    () = context.clock.sleep_until(at) => {}
                    () = context.closing.raised() => {}
                }
                if !table.write().await {
                    return;
                }
            }
        });
    }

    /// Writes changes to the table; `false`: there were none.
    async fn write(&self) -> bool {
        let now = self.context.clock.now();
        let Some(batch) = lock(&self.changes).next_batch(now) else {
            self.written.notify_waiters();
            return false;
        };
        let written = requests::write_holder_table(&self.control, &batch.added, &batch.removed);
        let written = written.await;
        if written.is_ok() && batch.sweeps {
            // The next sweep deletes what this one does not.
            let _ = requests::sweep_holder_table(&self.control).await;
        }
        if let Err(err) = &written {
            tracing::debug!(
                err = format_args!("{err:#}"),
                "the table tenure_holders cannot be written"
            );
            if self.control.is_refused_statement(err) {
                self.disable();
            }
        }
        let mut changes = lock(&self.changes);
        changes.deleted(&batch.removed);
        match written {
            Ok(()) => changes.failures = 0,
            Err(err) if err.kind() == ErrorKind::Denied => {}
            Err(_) if self.context.closing.is_raised() => {}
            Err(_) => changes.failed(batch.removed),
        }
        let has_stale = !changes.stale.is_empty();
        self.has_stale.store(has_stale, Ordering::SeqCst);
        drop(changes);
        self.written.notify_waiters();
        true
    }
}
