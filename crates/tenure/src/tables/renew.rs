//! Renewal of many holds.

use tenure_core::backend::{Hold, Renewal};

use super::store::Store;

/// Holds that are renewed by one request.
const MAX_BATCH: usize = 200;

/// Renews in batches, one after the other.
pub(super) async fn renew(store: &Store, holds: Vec<Hold>) -> Vec<Renewal> {
    let mut renewals = Vec::with_capacity(holds.len());
    for batch in holds.chunks(MAX_BATCH) {
        let entry = |hold: &Hold| (hold.clone(), store.holds.get(hold.owner));
        let batch: Vec<_> = batch.iter().map(entry).collect();
        match store.requests.renew(&batch).await {
            Ok(some) => renewals.extend(some),
            Err(err) => renewals.extend(batch.iter().map(|_| Renewal::Unknown(err.clone()))),
        }
    }
    renewals
}
