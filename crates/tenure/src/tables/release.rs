//! Releasing a hold or a place in the queue, and closing the client.

use futures_util::stream::{self, StreamExt as _};

use tenure_core::error::Error;
use tenure_core::store::{Hold, Release};

use super::requests::HeldRow;
use super::store::Store;

/// How many releases wait for a connection at once when the client is closed: more than there are connections, so that none
/// is idle, and far fewer than the holds that a client may have.
const RELEASES_AT_ONCE: usize = 64;

/// Releases what the owner has: the lock, or a place in the queue.
pub(super) async fn release(store: &Store, hold: &Hold) -> Result<Release, Error> {
    let requests = &store.requests;
    let send = async |entry: Option<&mut HeldRow>| requests.release(hold, entry.as_deref()).await;
    requests.holds.release(hold.owner, send).await
}

/// Releases what is held, lets waiters leave, and ends the connections. A hold that other clients may be attached to stays.
pub(super) async fn close(store: &Store) {
    store.closing.raise();
    // The driver has stopped the waiters, so notifications are not needed any more.
    #[cfg(feature = "postgres")]
    if let Some(listener) = &store.listener {
        listener.stop();
    }
    let now = store.clock.now();
    let holds = store.requests.holds.select(|owner, entry| {
        if entry.outlives_client {
            return None;
        }
        let mut hold = Hold::of(entry.name.clone(), owner);
        // The guard of a hold that has run out may still be there, and then nothing has released the hold.
        hold.unclean = entry.ends <= now;
        Some(hold)
    });
    // What cannot be released ends with its lease.
    let releases = stream::iter(holds).for_each_concurrent(RELEASES_AT_ONCE, async |hold| {
        let _ = release(store, &hold).await;
    });
    releases.await;
    store.acquisitions.all_done().await;
    #[cfg(feature = "postgres")]
    if let Some(listener) = &store.listener {
        listener.ended().await;
        listener.subscribers.observers.all_read().await;
    }
    store.requests.pool.close().await;
}

/// Ends what is left without waiting, also of a node of a majority that was silent before `close` came to it.
pub(super) fn abandon(store: &Store) {
    store.closing.raise();
    #[cfg(feature = "postgres")]
    if let Some(listener) = &store.listener {
        listener.stop();
    }
    store.requests.pool.abandon();
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use std::sync::Arc;

    use tenure_core::fence::OwnerId;
    use tenure_core::rt::Clock;
    use tenure_testkit::postgres::Postgres;
    use tenure_testkit::{needs, until};

    use super::super::settings::Settings;
    use super::*;
    use crate::database::Server;

    /// The connection that listens ends with its client, and not some time after the client.
    /// The clock stands still, so `close` cannot give up before that on a busy machine.
    #[tokio::test(flavor = "multi_thread")]
    async fn close_ends_the_task_that_listens() {
        needs!(postgres);
        let postgres = Postgres::start(&[]);
        let url = format!("{}?mode=table&tls=off", postgres.url());
        let (server, _, url) = Server::parse(&url).unwrap();
        let settings = Settings::of_server(server, url).unwrap();
        let store = Store::with(settings, Clock::virtual_clock().0).await;
        let store = store.unwrap();
        let listener = store.listener.clone().unwrap();
        let _waiter = listener.subscribe("digest".into(), OwnerId::random());
        until("a connection listens", || {
            let listens = "SELECT COUNT(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
            postgres.admin().value(listens) == "1"
        });
        close(&store).await;
        let (of_test, of_store) = (1, 1);
        assert_eq!(Arc::strong_count(&listener), of_test + of_store);
    }
}
