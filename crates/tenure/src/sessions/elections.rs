//! Elections: the value of a leader, what observers are told, and requests to let go. All of that is in the table of holders.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenure_core::error::Error;
use tenure_core::holder::Holder;
use tenure_core::leader::Sighting;
use tenure_core::name::LockName;
use tenure_core::rt::lock;
#[cfg(feature = "postgres")]
use tenure_core::store::one_sighting;
use tenure_core::store::{BoxFuture, Elections, Hold, Sightings};
#[cfg(feature = "postgres")]
use tenure_core::support::closed;

use super::acquisitions::AcquisitionState;
use super::holder_row::HolderRow;
use super::inspect;
#[cfg(feature = "postgres")]
use super::names::KeySource;
#[cfg(feature = "postgres")]
use super::postgres::channel_of;
use super::store::Store;

impl Elections for Store {
    fn publish(self: Arc<Self>, hold: Hold, holder: Arc<Holder>) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { publish(&self, &hold, holder).await })
    }

    fn leader(self: Arc<Self>, name: LockName) -> BoxFuture<Result<Sighting, Error>> {
        #[cfg(feature = "postgres")]
        if let Some(listener) = &self.listener
            && let Some(answer) = listener.subscribers.observers.read_now(&name)
        {
            return answer;
        }
        Box::pin(async move { inspect::leader(&self, &name).await })
    }

    fn watch(self: Arc<Self>, name: LockName) -> Option<Sightings> {
        #[cfg(feature = "postgres")]
        if let Some(listener) = &self.listener {
            // A key that the server has to be asked for is known after the first read; the observer asks again.
            let Ok(KeySource::Computed(key)) = self.keys.find(&name) else {
                return Some(one_sighting(self.clone().leader(name)));
            };
            let (store, observed) = (Arc::downgrade(&self), name.clone());
            let read = move || -> BoxFuture<_> {
                let (store, name) = (store.clone(), observed.clone());
                Box::pin(async move {
                    let store = store.upgrade().ok_or_else(closed)?;
                    inspect::leader(&store, &name).await
                })
            };
            return listener.observe(name, channel_of(&key), Box::new(read));
        }
        let _ = name;
        None
    }

    fn ask_to_release(
        self: Arc<Self>,
        name: LockName,
        token: u64,
    ) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { inspect::ask_to_release(&self, &name, token).await })
    }

    fn listen_for_requests(self: Arc<Self>, hold: Hold) {
        if let Some(session) = self.holds.get(hold.owner) {
            session.finds_requests.store(true, Ordering::SeqCst);
        }
    }
}

/// Replaces what the row of the leader says about it. `false`: there is no such hold.
async fn publish(store: &Store, hold: &Hold, holder: Arc<Holder>) -> Result<bool, Error> {
    inspect::require_room_for_values(store).await?;
    let Some(session) = store.holds.get(hold.owner) else {
        return Ok(false);
    };
    let row = {
        // Under the lock: a release that begins later deletes the row.
        let acquisitions = lock(&session.acquisitions);
        let acquisition = acquisitions.get(&hold.owner);
        let Some(acquisition) = acquisition.filter(|_| !session.is_ended()) else {
            return Ok(false);
        };
        let AcquisitionState::Held { token, .. } = acquisition.state else {
            return Ok(false);
        };
        let of = (session.server_info.session, session.lifetime.ttl);
        let row = HolderRow::of_leader(of, acquisition.key.clone(), token, hold, holder);
        store.holder_table.note_leader(hold.owner, row.clone());
        row
    };
    store.holder_table.publish(&row).await
}
