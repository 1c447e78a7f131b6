//! What is remembered of directories in which we held a lock, so that acquiring that lock again costs a single request.
//!
//! The number that a directory gives to a new child counts the children that were ever made in it. A client that
//! held under number `n`, has deleted that node, and is given `n + 1`, knows without a request that no other
//! contender came in between; and all nodes with smaller numbers were gone when `n` held. So the client holds.
//!
//! That is true only while the directory is the same one: an empty container is collected, and in the container
//! that takes its place the numbers begin again. So a watch is set on the directory before the first of the two nodes
//! is deleted. A server sends what a watch has seen before the answer to a later write on
//! the same connection, the client library passes both on in that order, and after a new connection it asks
//! what has happened since (`SetWatches`) before it sends any other request of ours.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Mutex;

use zookeeper_client::{OneshotWatcher, WatchedEvent};

use tenure_core::rt::{self, lock};

/// How many directories are remembered.
const CACHE_CAPACITY: usize = 1024;

/// What is known of one directory.
struct CachedDirectory {
    watch: Pin<Box<dyn Future<Output = WatchedEvent> + Send>>,
    /// The number of the node that held last, was alone at the front, and is gone.
    last_holder: Option<i32>,
}

/// What the cache knows about a node that was just made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheAnswer {
    /// No contender came between the last holder, which was ours, and this node.
    IsNext,
    /// The directory is watched; the contenders in front of the node have to be read.
    IsWatched,
    /// The directory is not watched.
    Unknown,
}

/// The directories that one session watches, by path.
#[derive(Default)]
pub(super) struct DirectoryCache(Mutex<HashMap<String, CachedDirectory>>);

impl DirectoryCache {
    /// What is known about the new node with that number in `dir`. The last holder is forgotten.
    pub(super) fn look_up(&self, dir: &str, number: i32) -> CacheAnswer {
        let mut directories = lock(&self.0);
        let Some(known) = directories.get_mut(dir) else {
            return CacheAnswer::Unknown;
        };
        if rt::poll_now(known.watch.as_mut()).is_ok() {
            // The directory has changed.
            directories.remove(dir);
            return CacheAnswer::Unknown;
        }
        let last_holder = known.last_holder.take();
        match last_holder.is_some_and(|last| last.wrapping_add(1) == number) {
            true => CacheAnswer::IsNext,
            false => CacheAnswer::IsWatched,
        }
    }

    /// Remembers that `dir` is watched.
    pub(super) fn insert(&self, dir: &str, watcher: OneshotWatcher) {
        let mut directories = lock(&self.0);
        if directories.len() >= CACHE_CAPACITY {
            // Evict an arbitrary entry; use is not tracked.
            if let Some(other) = directories.keys().next().cloned() {
                directories.remove(&other);
            }
        }
        let known = CachedDirectory {
            watch: Box::pin(watcher.changed()),
            last_holder: None,
        };
        directories.insert(dir.to_owned(), known);
    }

    /// A node of ours in `dir` was deleted. `last_holder`: its number, if the node held exclusively.
    pub(super) fn node_deleted(&self, dir: &str, last_holder: Option<i32>) {
        if let Some(known) = lock(&self.0).get_mut(dir) {
            known.last_holder = last_holder;
        }
    }
}
