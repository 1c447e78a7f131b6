//! Elections: the value of a leader, what observers are told, and requests to let go.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::fence::OwnerId;
use tenure_core::holder::{Holder, LockStatus};
use tenure_core::leader::Sighting;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::store::{BoxFuture, DEFAULT_POLL_INTERVAL, Elections, Hold, Sightings};

#[cfg(feature = "postgres")]
use tenure_core::support::closed;

use super::holder_text;
use super::inspect::add_row;
use super::sql::Dialect;
use super::store::Store;

/// The pace of observers of a file: a read takes a fraction of a millisecond, and no server has to serve it.
const FILE_POLL_INTERVAL: Duration = Duration::from_millis(250);

impl Elections for Store {
    fn publish(self: Arc<Self>, hold: Hold, holder: Arc<Holder>) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { self.requests.publish(&hold, &holder).await })
    }

    fn leader(self: Arc<Self>, name: LockName) -> BoxFuture<Result<Sighting, Error>> {
        #[cfg(feature = "postgres")]
        if let Some(listener) = &self.listener
            && let Some(answer) = listener.subscribers.observers.read_now(&name)
        {
            return answer;
        }
        Box::pin(async move { leader(&self, &name).await })
    }

    fn watch(self: Arc<Self>, name: LockName) -> Option<Sightings> {
        #[cfg(feature = "postgres")]
        if let Some(listener) = &self.listener {
            let channel = self.requests.own.channel(&self.requests.encode(&name))?;
            let (store, observed) = (Arc::downgrade(&self), name.clone());
            let read = move || -> BoxFuture<_> {
                let (store, name) = (store.clone(), observed.clone());
                Box::pin(async move {
                    let store = store.upgrade().ok_or_else(closed)?;
                    leader(&store, &name).await
                })
            };
            return listener.observe(name, channel, Box::new(read));
        }
        let _ = name;
        None
    }

    fn poll_interval(&self) -> Duration {
        match self.requests.own.dialect {
            Dialect::Sqlite => FILE_POLL_INTERVAL,
            _ => DEFAULT_POLL_INTERVAL,
        }
    }

    fn ask_to_release(
        self: Arc<Self>,
        name: LockName,
        token: u64,
    ) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move {
            // No token of ours is greater, and no column has room for a greater one.
            match i64::try_from(token) {
                Ok(_) => self.requests.ask_to_release(&name, token).await,
                Err(_) => Ok(false),
            }
        })
    }

    fn listen_for_requests(self: Arc<Self>, hold: Hold) {
        let is_renewed = self.requests.holds.update(hold.owner, |entry| {
            entry.finds_requests = true;
            entry.is_renewed
        });
        if is_renewed == Some(false) {
            let spawner = self.spawner.clone();
            let store = Arc::downgrade(&self);
            spawner.spawn(look_for_requests(store, hold));
        }
    }
}

/// Who leads: the exclusive holder.
pub(super) async fn leader(store: &Store, name: &LockName) -> Result<Sighting, Error> {
    let Some(rows) = store.requests.leader(name).await? else {
        return Ok(Sighting::of_nobody(0));
    };
    let mut status = LockStatus::free(name.clone());
    add_row(&mut status, Mode::Exclusive, &rows.lock, rows.now);
    Ok(Sighting::of_status(status, rows.lock.token))
}

/// Looks each third of the ttl whether the holder of a hold that is not renewed is asked to let go, until the holder is asked
/// or the hold has ended.
async fn look_for_requests(store: Weak<Store>, hold: Hold) {
    loop {
        let Some(pause) = look(&store, &hold).await else {
            return;
        };
        pause.await;
    }
}

/// One look. Returns the pause until the next one, during which the store may end; `None`: there is no further look.
async fn look(store: &Weak<Store>, hold: &Hold) -> Option<BoxFuture<()>> {
    let store = store.upgrade()?;
    if !has_lease(&store, hold.owner) {
        return None;
    }
    // After an error the next look may succeed.
    if let Ok(rows) = store.requests.leader(&hold.name).await {
        let lock = rows.map(|rows| rows.lock);
        let lock = lock.filter(|lock| lock.owner == hold.owner.to_hex());
        if lock.is_some_and(|lock| holder_text::is_asked(&lock.holder)) {
            store.losses.asked_to_release(hold.owner);
            return None;
        }
    }
    let (clock, closing) = (store.clock.clone(), store.closing.clone());
    let next = clock.now().after(hold.ttl / 3);
    Some(Box::pin(async move {
        tokio::select! {
            () = closing.raised() => {}
            () = clock.sleep_until(next) => {}
        }
    }))
}

/// Whether this client counts the hold as held.
fn has_lease(store: &Store, owner: OwnerId) -> bool {
    let now = store.clock.now();
    let has_lease = store.requests.holds.read(owner, |entry| entry.ends > now);
    has_lease == Some(true) && !store.closing.is_raised()
}
