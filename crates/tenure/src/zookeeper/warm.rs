//! What is remembered of locks that were held, so that taking one again costs a single request.
//!
//! The number that a directory gives to a new child counts the children that were ever made in it. Who
//! held under number `n`, has deleted that node, and is given `n + 1`, knows without looking that nobody came in
//! between; and all with smaller numbers were gone when `n` held. So it holds.
//!
//! That counts only while the directory is the same one: an empty container is collected, and in the one
//! that takes its place the numbers begin again. So a watch lies on the directory from before the first
//! of the two nodes was deleted. A server sends what a watch has seen before the answer to a later write on
//! the same connection, the client library passes both on in that order, and after a new connection it asks
//! what has happened since (`SetWatches`) before it sends anything else of ours.

use std::collections::HashMap;
use std::pin::Pin;

use zookeeper_client::{OneshotWatcher, WatchedEvent};

use tenure_core::rt;

/// Directories that are remembered, at most.
const MOST: usize = 1024;

/// A watch on a directory.
pub(super) struct Watch(Pin<Box<dyn Future<Output = WatchedEvent> + Send>>);

impl Watch {
    pub(super) fn new(watcher: OneshotWatcher) -> Self {
        Self(Box::pin(watcher.changed()))
    }

    /// Unless it has seen something.
    fn still(self) -> Option<Self> {
        rt::poll_now(self.0).err().map(Self)
    }
}

/// What is known of a directory.
pub(super) struct Known {
    watch: Watch,
    /// Of the node that held last, was alone at the front, and is gone.
    number: Option<i32>,
}

impl Known {
    pub(super) fn watched(watch: Watch) -> Self {
        Self {
            watch,
            number: None,
        }
    }

    /// Whether a node with that number, which was just made, holds. The rest is still known, if anything is.
    pub(super) fn follows(self, number: i32) -> (bool, Option<Self>) {
        let Some(watch) = self.watch.still() else {
            return (false, None);
        };
        let is_next = self
            .number
            .is_some_and(|last| last.wrapping_add(1) == number);
        (is_next, Some(Self::watched(watch)))
    }
}

/// By directory; of one session, whose watches they are.
#[derive(Default)]
pub(super) struct Warm {
    known: HashMap<String, Known>,
}

impl Warm {
    /// Takes it out: whoever uses it puts it back.
    pub(super) fn take(&mut self, dir: &str) -> Option<Known> {
        self.known.remove(dir)
    }

    /// `number`: of the node that held exclusively and is gone.
    pub(super) fn put(&mut self, dir: &str, known: Known, number: Option<i32>) {
        if self.known.len() >= MOST {
            // Any: all of them are as good as each other.
            if let Some(other) = self.known.keys().next().cloned() {
                self.known.remove(&other);
            }
        }
        self.known.insert(dir.to_owned(), Known { number, ..known });
    }
}
