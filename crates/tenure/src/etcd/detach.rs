//! Holds that outlive their client, and how a client attaches itself to them.
//!
//! The key of such a hold has a lease that belongs to the hold alone, see `detached_lease`, and its value says so: a client that
//! attaches itself never counts on the lease that locks of another client share, and never revokes it.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::lost::LostReason;
use tenure_core::store::{BoxFuture, Detach, Hold, Renewal};

use super::attached::{self, answer, answer_without_lease};
use super::contenders::{self, Contender, ContenderKind};
use super::detached_lease::{self, ExtendedLease};
use super::release;
use super::renew;
use super::store::{AcquisitionState, ContenderKey, Store};
use super::wire::KeyValue;

impl Detach for Store {
    fn detach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        Box::pin(async move { detach(&self, &hold).await })
    }

    fn attach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        Box::pin(async move { attach(&self, &hold).await })
    }

    fn forget(&self, hold: &Hold) {
        if attached::is_attached(self, hold.owner)
            && let Some(entry) = self.holds.remove(hold.owner)
        {
            entry.lease.gone.raise();
            stop_listening(self, &entry);
        }
    }
}

async fn detach(store: &Arc<Store>, hold: &Hold) -> Renewal {
    let (entry, renewed) = match begin_detach(store, hold.owner) {
        Ok(begun) => begun,
        Err(answer) => return answer,
    };
    match attached::keep(store, &entry, hold).await {
        Ok(Some(kept)) => {
            let renewal = answer(&kept, hold);
            hand_over(store, hold.owner, kept);
            renewal
        }
        ended => {
            // The release that follows finds the hold as it was.
            store.holds.update(hold.owner, |entry| {
                if let AcquisitionState::Detaching = entry.state {
                    entry.state = renewed;
                }
            });
            answer_without_lease(ended)
        }
    }
}

/// From now on the background neither deletes the key nor lets its lease expire. Returns the entry, and its state before.
fn begin_detach(
    store: &Store,
    owner: OwnerId,
) -> Result<(ContenderKey, AcquisitionState), Renewal> {
    let begin = |entry: &mut ContenderKey| {
        if entry.candidate.is_some() {
            return Err(Renewal::Unknown(Error::new(
                ErrorKind::Unsupported,
                "the term of a leader ends with its client and cannot be detached",
            )));
        }
        match entry.state {
            AcquisitionState::Held { .. } if !entry.lease.gone.is_raised() => {
                let before = entry.state;
                entry.state = AcquisitionState::Detaching;
                Ok((entry.clone(), before))
            }
            _ => Err(Renewal::Lost(LostReason::StoreSaysNo)),
        }
    };
    let begun = store.holds.update(owner, begin);
    begun.unwrap_or(Err(Renewal::Lost(LostReason::StoreSaysNo)))
}

/// The hold goes on without this client. The driver may release it still, if the caller has left before the answer or another
/// name of the same guard could not be detached; so the key is remembered until the lease is over.
fn hand_over(store: &Arc<Store>, owner: OwnerId, kept: ExtendedLease) {
    let until = kept.sent.after(kept.left).after(kept.delay);
    let detached = ContenderKey {
        state: AcquisitionState::Detached { until },
        ..ContenderKey::attached(kept)
    };
    let Some(entry) = store
        .holds
        .update(owner, |entry| std::mem::replace(entry, detached))
    else {
        return;
    };
    renew::schedule(store, until);
    stop_listening(store, &entry);
    if entry.attachment.is_some() {
        return;
    }
    // The key may be there for longer. Then an acquisition finds that out, and takes another key.
    let until = until.max(entry.reserved_until());
    store.keys.reserve(&entry.key, until);
    if entry.is_ambiguous && entry.lease.is_shared && !entry.lease.gone.is_raised() {
        // The key has another value by now, so its first value is that of a late request.
        let ContenderKey { key, value, .. } = &entry;
        let second_key = entry.reservation.as_ref().map(|it| &it.second_key);
        release::add_late_puts(store, &entry.lease, (key, value, None), second_key);
    }
}

/// Requests to let go stay in the store, for the clients that are attached.
fn stop_listening(store: &Store, entry: &ContenderKey) {
    let requests = &store.elections.release_requests;
    requests.stop_listening(&entry.key, entry.created);
}

async fn attach(store: &Store, hold: &Hold) -> Renewal {
    let kept = match find(store, hold).await {
        Ok(Some(seen)) => detached_lease::keep(store, seen, hold.ttl, None).await,
        Ok(None) => Ok(None),
        Err(err) => Err(err),
    };
    match kept {
        Ok(Some(kept)) => {
            let renewal = answer(&kept, hold);
            store.holds.insert(hold.owner, ContenderKey::attached(kept));
            renewal
        }
        ended => answer_without_lease(ended),
    }
}

/// The key of the hold in the store, if the hold was detached.
async fn find(store: &Store, hold: &Hold) -> Result<Option<KeyValue>, Error> {
    let directory = store.directory(&hold.name);
    let (contenders, _) = contenders::read(&store.connections, &directory).await?;
    let is_it = |it: &Contender| {
        let is_lock = it.kind == ContenderKind::Lock;
        is_lock && it.is_held && it.record.is_detached() && it.record.is_of(hold.owner)
    };
    let found = contenders.into_iter().find(is_it);
    Ok(found.map(|it| it.kv))
}
