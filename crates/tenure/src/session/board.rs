//! The board: a table on which we say who holds, for people to read. The server's locks have no room for it.
//!
//! Nothing is decided by it. A note counts only while the server says that this session has this key; written a
//! moment after the grant and taken down after the release, in the background and many at a time.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use tenure_core::backend::Request;
use tenure_core::fence::{OwnerId, RandomAlready};
use tenure_core::holder::Holder;
use tenure_core::name::LockName;
use tenure_core::rt::{Clock, lock};
use tenure_core::support::HolderRecord;
use tenure_core::time::Time;

use super::dialect::SessionId;
use super::hold::Store;
use super::link::Link;
use super::names::Key;

/// How long notes are gathered before they are written: a hold that is over by then is never written at all.
const GATHER: Duration = Duration::from_millis(5);

/// Notes in one statement.
const BATCH: usize = 200;

/// How long a request waits for an old note of the same key to be taken down.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often notes are looked for that nobody stands for.
const SWEEP: Duration = Duration::from_secs(300);

/// Who holds.
#[derive(Clone, Debug)]
pub(super) struct Note {
    pub(super) session: SessionId,
    pub(super) key: Key,
    pub(super) token: u64,
    pub(super) name: LockName,
    is_shared: bool,
    holder: Arc<Holder>,
    pub(super) ttl: Duration,
}

impl Note {
    pub(super) fn new(link: &Link, key: Key, token: u64, request: &Request) -> Self {
        Self {
            session: link.facts.session,
            key,
            token,
            name: request.name.clone(),
            is_shared: request.mode == tenure_core::options::Mode::Shared,
            holder: request.holder.clone(),
            ttl: link.ttl,
        }
    }

    /// What others may know of the holder. Most notes are never written.
    pub(super) fn holder(&self) -> String {
        HolderRecord::from(&*self.holder).to_json()
    }

    pub(super) fn mode(&self) -> &'static str {
        if self.is_shared {
            "shared"
        } else {
            "exclusive"
        }
    }
}

/// What of the board one client has to know.
#[derive(Default)]
pub(super) struct Board {
    is_there: AtomicBool,
    work: Mutex<Work>,
    /// There are stale notes, as every request asks.
    has_stale: AtomicBool,
    /// Wakes those who wait for a note to be taken down.
    done: Notify,
}

#[derive(Default)]
struct Work {
    is_under_way: bool,
    to_put_up: HashMap<OwnerId, Note, RandomAlready>,
    /// Written, or about to be.
    up: HashMap<OwnerId, Note, RandomAlready>,
    to_take_down: Vec<Note>,
    /// Keys of which a note may be there that no longer counts.
    stale: HashSet<(SessionId, Key)>,
    swept: Option<Time>,
}

impl Board {
    pub(super) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::SeqCst)
    }

    pub(super) fn found(&self) {
        self.is_there.store(true, Ordering::SeqCst);
    }

    /// It cannot be used (any more). Locks do without.
    pub(super) fn is_gone(&self) {
        if self.is_there.swap(false, Ordering::SeqCst) {
            tracing::warn!(
                "the table tenure_holders cannot be used any more; list and break do not work without it"
            );
        }
        let mut work = lock(&self.work);
        *work = Work::default();
        self.has_stale.store(false, Ordering::SeqCst);
        drop(work);
        self.done.notify_waiters();
    }

    pub(super) fn put_up(&self, store: &Arc<Store>, owner: OwnerId, note: Note) {
        if self.is_there() {
            let mut work = lock(&self.work);
            work.to_put_up.insert(owner, note);
            start(store, &mut work);
        }
    }

    pub(super) fn take_down(&self, store: &Arc<Store>, owner: OwnerId) {
        let mut work = lock(&self.work);
        if work.to_put_up.remove(&owner).is_some() {
            return;
        }
        if let Some(note) = work.up.remove(&owner) {
            work.stale.insert((note.session, note.key.clone()));
            self.has_stale.store(true, Ordering::SeqCst);
            work.to_take_down.push(note);
            start(store, &mut work);
        }
    }

    /// Takes down whatever is up, and resolves when that is done. The client is closing.
    pub(super) async fn clear(&self, store: &Arc<Store>) {
        let owners: Vec<_> = {
            let work = lock(&self.work);
            work.to_put_up
                .keys()
                .chain(work.up.keys())
                .copied()
                .collect()
        };
        for owner in owners {
            self.take_down(store, owner);
        }
        loop {
            let done = self.done.notified();
            if !lock(&self.work).is_under_way {
                return;
            }
            done.await;
        }
    }

    /// Waits until no note is there that would be taken for that of the next holder: the same session is about to
    /// take the same key.
    pub(super) async fn settled(&self, clock: &Clock, link: &Link, key: &Key) {
        if !self.has_stale.load(Ordering::SeqCst) {
            return;
        }
        let limit = clock.now().after(PATIENCE);
        loop {
            let done = self.done.notified();
            let place = (link.facts.session, key.clone());
            if !lock(&self.work).stale.contains(&place) {
                return;
            }
            tokio::select! {
                () = done => {}
                () = clock.sleep_until(limit) => return,
            }
        }
    }
}

fn start(store: &Arc<Store>, work: &mut Work) {
    if !std::mem::replace(&mut work.is_under_way, true) {
        let weak = Arc::downgrade(store);
        store.spawner.spawn(async move {
            while let Some(store) = weak.upgrade() {
                let at = store.clock.now().after(GATHER);
                tokio::select! {
                    () = store.clock.sleep_until(at) => {}
                    () = store.closing.raised() => {}
                }
                if !write(&store).await {
                    return;
                }
            }
        });
    }
}

/// Brings the board up to date; `false` when there is nothing left to do.
async fn write(store: &Arc<Store>) -> bool {
    let board = &store.board;
    let (put_up, taken_down, sweeps) = {
        let mut work = lock(&board.work);
        let now = store.clock.now();
        let owners: Vec<_> = work.to_put_up.keys().take(BATCH).copied().collect();
        let mut put_up = Vec::new();
        for owner in owners {
            if let Some(note) = work.to_put_up.remove(&owner) {
                put_up.push(note.clone());
                work.up.insert(owner, note);
            }
        }
        let count = work.to_take_down.len().min(BATCH);
        let taken_down: Vec<_> = work.to_take_down.drain(..count).collect();
        if put_up.is_empty() && taken_down.is_empty() {
            work.is_under_way = false;
            board.done.notify_waiters();
            return false;
        }
        let sweeps = work.swept.is_none_or(|swept| swept.after(SWEEP) <= now);
        if sweeps {
            work.swept = Some(now);
        }
        (put_up, taken_down, sweeps)
    };
    let written = store
        .look(store.dialect.write_board(&put_up, &taken_down))
        .await;
    if let Err(err) = &written {
        tracing::debug!(%err, "the board cannot be written");
        if err.kind() == tenure_core::error::ErrorKind::Denied {
            board.is_gone();
        }
    } else if sweeps {
        let _ = store.look(store.dialect.sweep_board()).await;
    }
    let mut work = lock(&board.work);
    for note in taken_down {
        // Another one of the same key may have been put up and be to take down by now.
        let is_again = work
            .to_take_down
            .iter()
            .any(|it| it.session == note.session && it.key == note.key);
        if !is_again {
            work.stale.remove(&(note.session, note.key));
        }
    }
    let has_stale = !work.stale.is_empty();
    board.has_stale.store(has_stale, Ordering::SeqCst);
    drop(work);
    board.done.notify_waiters();
    true
}
