//! Renewal of holds. `upkeep` ends those that are not renewed.

use std::sync::Arc;

use futures_util::future;
use futures_util::stream::{self, StreamExt as _};

use tenure_core::error::Error;
use tenure_core::lost::LostReason;
use tenure_core::store::{Hold, Renewal};

use crate::errors::{Refusal, RequestError};
use crate::messages;
use crate::requests::{ask_once, within};
use crate::store::{Lease, State, Store, is_over};

/// So many holds are renewed at the same time.
const PARALLEL: usize = 64;

/// Renews each hold by a heartbeat of its session, and asks whether the hold is there.
pub(crate) async fn renew(store: &Arc<Store>, holds: &[Hold]) -> Vec<Renewal> {
    let renewals = holds.iter().cloned().enumerate();
    let renewals = renewals.map(|(at, hold)| async move { (at, renew_one(store, &hold).await) });
    let answers: Vec<_> = stream::iter(renewals)
        .buffer_unordered(PARALLEL)
        .collect()
        .await;
    Renewal::in_order(holds.len(), answers)
}

async fn renew_one(store: &Arc<Store>, hold: &Hold) -> Renewal {
    let held = |lease: &Lease| matches!(lease.state, State::Held { .. });
    let Some(lease) = store.leases.get(hold.owner).filter(held) else {
        return Renewal::Lost(LostReason::StoreSaysNo);
    };
    let session = &lease.session;
    let call = messages::ownership(lease.target());
    let owner = ask_once(&store.sessions.members, within(&session.group, call));
    let (confirmed, owner) = future::join(store.sessions.heartbeat(session), owner).await;
    match (confirmed, owner) {
        (Err(err), _) | (_, Err(err)) if is_over(&err) => Renewal::Lost(LostReason::SessionGone),
        (_, Err(RequestError::Refused(Refusal::LockDestroyed))) => {
            Renewal::Lost(LostReason::StoreSaysNo)
        }
        (_, Ok(owner)) if owner.endpoint != lease.endpoint() => {
            Renewal::Lost(match owner.is_held() {
                true => LostReason::TakenOver,
                false => LostReason::StoreSaysNo,
            })
        }
        (Err(err), _) | (_, Err(err)) => Renewal::Unknown(Error::from(err)),
        (Ok(sent), Ok(_)) => {
            let ttl = session.lease_for(hold.ttl);
            let until = sent.after(ttl);
            store
                .leases
                .update(hold.owner, |lease| lease.state.extend(until));
            Renewal::Renewed {
                sent,
                ttl: Some(ttl),
            }
        }
    }
}
