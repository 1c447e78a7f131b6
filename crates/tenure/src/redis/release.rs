//! Releasing a hold or a place in the queue, and closing the client.

use futures_util::future::join_all;

use tenure_core::error::Error;
use tenure_core::store::{Hold, Release};

use super::elections;
use super::holds::HeldKey;
use super::requests::{MAX_PARALLEL, ReleaseKind};
use super::store::Store;

/// Releases what the owner has: the lock, or its place in the queue.
pub(super) async fn release(store: &Store, hold: &Hold) -> Result<Release, Error> {
    let send = async |entry: Option<&mut HeldKey>| send_release(store, hold, entry).await;
    store.holds.release(hold.owner, send).await
}

async fn send_release(
    store: &Store,
    hold: &Hold,
    entry: Option<&mut HeldKey>,
) -> Result<Release, Error> {
    let is_proposed = entry.as_ref().is_none_or(|entry| entry.is_proposed);
    let kind = ReleaseKind {
        is_unclean: hold.unclean,
        // Of an acquisition of unknown outcome the server knows it.
        may_reserve: !hold.unused && entry.as_ref().is_none_or(|it| it.may_reserve()),
        is_shared_hold: entry.as_ref().is_some_and(|it| it.is_shared_hold),
        is_candidate: entry.as_ref().is_some_and(|it| it.is_candidate),
        // Servers that hand the lock over at the same time then agree on a token, without another round of requests.
        next_token: (hold.token > 0 && is_proposed).then_some(hold.token.saturating_add(1)),
    };
    let keys = store.requests.keys(&hold.name);
    let sent = store.context.now();
    let outcome = store.requests.release(&keys, hold.owner, kind).await;
    match entry {
        Some(entry) => {
            entry.is_released = true;
            // The script of a candidate does that, too.
            if entry.is_asked && !entry.is_candidate && outcome.is_ok() {
                elections::end_request(store, &keys, hold.owner).await;
            }
        }
        // The owner may be waiting.
        None if outcome.is_ok() => store.context.events.released(hold.owner, sent),
        None => {}
    }
    outcome
}

/// Releases what is held, and lets waiters leave. A hold that the client is attached to stays.
pub(super) async fn close(store: &Store) {
    store.maintenance.stop();
    let hold = |owner, entry: &HeldKey| {
        let ends = entry.ends_with_client();
        ends.then(|| Hold::of(entry.name.clone(), owner))
    };
    let holds = store.holds.select(hold);
    for some in holds.chunks(MAX_PARALLEL) {
        join_all(some.iter().map(|hold| release(store, hold))).await;
    }
    // The driver has stopped the waiters.
    store.context.operations.all_done().await;
}
