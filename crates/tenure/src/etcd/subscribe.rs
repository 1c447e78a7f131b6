//! One watch per directory for all of a client that wait there, kept open for a moment after the last of them has left.
//!
//! A server takes a watch that is opened while others write for one that starts in the past, and serves it with a
//! delay of up to a tenth of a second. One that is there already is served at once. So whoever queues listens
//! before it asks, if there is anything to listen to.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{Receiver, Sender, channel};

use tenure_core::rt::{Flag, lock};

use super::errors::RequestError;
use super::names::Directory;
use super::store::Store;
use super::watch::Watch;

/// How long a watch that nobody listens to stays open, at least: longer than it takes to want the lock again.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// Deletions that a listener may be behind.
const EVENT_BUFFER: usize = 256;

/// By directory.
pub(super) type SharedWatches = Mutex<HashMap<Vec<u8>, Arc<SharedWatch>>>;

pub(super) struct SharedWatch {
    news: Sender<(Arc<[u8]>, i64)>,
    /// Somebody began to listen since it was last looked at.
    is_used: AtomicBool,
    ended: Flag,
}

/// One that listens.
pub(super) struct Subscription {
    news: Receiver<(Arc<[u8]>, i64)>,
    ear: Arc<SharedWatch>,
}

/// What a listener hears.
pub(super) enum WatchEvent {
    /// That key was deleted, at that revision.
    KeyDeleted(Arc<[u8]>, i64),
    /// Something.
    Lagged,
    /// There will be no more.
    Closed,
}

impl Subscription {
    fn to(ear: &Arc<SharedWatch>) -> Self {
        ear.is_used.store(true, Ordering::Relaxed);
        Self {
            news: ear.news.subscribe(),
            ear: ear.clone(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.ear.ended.is_raised()
    }

    /// Cancel safe.
    pub(super) async fn next(&mut self) -> WatchEvent {
        tokio::select! {
            biased;
            news = self.news.recv() => match news {
                Ok((key, revision)) => WatchEvent::KeyDeleted(key, revision),
                Err(RecvError::Lagged(_)) => WatchEvent::Lagged,
                Err(RecvError::Closed) => WatchEvent::Closed,
            },
            () = self.ear.ended.raised() => WatchEvent::Closed,
        }
    }
}

impl Store {
    /// To what is there already.
    pub(super) fn listen(&self, directory: &Directory) -> Option<Subscription> {
        let ears = lock(&self.ears);
        let ear = ears.get(directory.start())?;
        (!ear.ended.is_raised()).then(|| Subscription::to(ear))
    }

    /// Also says from which revision on it tells.
    pub(super) async fn listen_anew(
        self: &Arc<Self>,
        directory: &Directory,
    ) -> Result<(Subscription, i64), RequestError> {
        let watch = self.watch(directory, None).await?;
        let after = watch.after;
        let ear = Arc::new(SharedWatch {
            news: channel(EVENT_BUFFER).0,
            is_used: AtomicBool::new(true),
            ended: Flag::new(),
        });
        let listening = Subscription::to(&ear);
        let key = directory.start().to_vec();
        lock(&self.ears).insert(key.clone(), ear.clone());
        self.spawner.spawn(hear(self.clone(), key, watch, ear));
        Ok((listening, after))
    }

    /// Forgets it, unless somebody began to listen: then `false`.
    fn closes(&self, key: &[u8], ear: &Arc<SharedWatch>, even_if_used: bool) -> bool {
        let mut ears = lock(&self.ears);
        let is_used = ear.is_used.swap(false, Ordering::Relaxed) || ear.news.receiver_count() > 0;
        if is_used && !even_if_used {
            return false;
        }
        if ears.get(key).is_some_and(|known| Arc::ptr_eq(known, ear)) {
            ears.remove(key);
        }
        ear.ended.raise();
        true
    }
}

/// Passes on what the watch tells, until it ends, or nobody has listened for a while.
async fn hear(store: Arc<Store>, key: Vec<u8>, mut watch: Watch, ear: Arc<SharedWatch>) {
    let line = watch.line.clone();
    let mut look = store.clock.now().after(IDLE_TIMEOUT);
    loop {
        let told = tokio::select! {
            biased;
            told = store.told(&mut watch) => told,
            () = line.ended.raised() => break,
            () = store.closing.raised() => break,
            () = store.clock.sleep_until(look) => {
                if store.closes(&key, &ear, false) {
                    return;
                }
                look = store.clock.now().after(IDLE_TIMEOUT);
                continue;
            }
        };
        let Ok(told) = told else { break };
        for (key, revision) in told.deleted {
            // Nobody may be listening just now.
            let _ = ear.news.send((key.into(), revision));
        }
    }
    store.closes(&key, &ear, true);
}
