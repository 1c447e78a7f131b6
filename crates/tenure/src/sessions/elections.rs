//! Elections: the value of a leader, what observers are told, and requests to let go. All of that is in the table of holders.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenure_core::error::Error;
use tenure_core::holder::Holder;
use tenure_core::leader::Sighting;
use tenure_core::name::LockName;
#[cfg(feature = "postgres")]
use tenure_core::store::one_sighting;
use tenure_core::store::{BoxFuture, Elections, Hold, Sightings};
#[cfg(feature = "postgres")]
use tenure_core::support::closed;

use super::errors;
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
        Box::pin(async move {
            let sighting = inspect::leader(&self, &name).await?;
            #[cfg(feature = "postgres")]
            if let Some(listener) = &self.listener {
                listener.subscribers.observers.tell(&name, &sighting);
            }
            Ok(sighting)
        })
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
    let session = store.holds.get(hold.owner);
    if session.is_none_or(|session| session.is_ended()) {
        return Ok(false);
    }
    if !store.holder_table.is_usable() {
        return Err(errors::no_room_for_values(&store.context.settings.server));
    }
    store.holder_table.publish(hold.owner, holder).await
}
