//! Renewal of many holds.

use tenure_core::options::Mode;
use tenure_core::store::{Hold, Renewal};
use tenure_core::time::Time;

use super::errors;
use super::requests::RenewalKind;
use super::store::Store;

/// Holds that are renewed by one request.
const MAX_BATCH: usize = 200;

/// Renews in batches, one after the other. Holds that may be shared are in batches of their own, and so are those whose
/// renewal finds out that the holder is asked to let go.
///
/// A hold that became shared during the first round was taken for lost, because its owner no longer stood in the row of the
/// name. Such holds are asked for again in the second round.
pub(super) async fn renew(store: &Store, holds: Vec<Hold>) -> Vec<Renewal> {
    let requests = &store.requests;
    let is_shared = |hold: &Hold| {
        let may_be_shared = requests.holds.read(hold.owner, |it| it.is_shared_hold);
        hold.mode != Mode::Exclusive || may_be_shared == Some(true)
    };
    let finds_requests =
        |hold: &Hold| requests.holds.read(hold.owner, |it| it.finds_requests) == Some(true);
    let mut renewals: Vec<_> = holds.iter().map(|_| None).collect();
    for wants_shared in [false, true] {
        let is_due = |at: &usize| match &renewals[*at] {
            None => is_shared(&holds[*at]) == wants_shared,
            Some(Renewal::Lost(_)) => is_shared(&holds[*at]),
            Some(_) => false,
        };
        let places: Vec<_> = (0..holds.len()).filter(is_due).collect();
        let (plain, asked): (Vec<usize>, Vec<usize>) = places
            .into_iter()
            .partition(|at| !finds_requests(&holds[*at]));
        for (places, find_requests) in [(plain, false), (asked, true)] {
            let kind = RenewalKind {
                are_shared: wants_shared,
                find_requests,
            };
            for places in places.chunks(MAX_BATCH) {
                renew_batch(store, &holds, places, kind, &mut renewals).await;
            }
        }
    }
    let now = store.clock.now();
    let all = holds.iter().zip(renewals).map(|(hold, renewal)| {
        let renewal = renewal.unwrap_or_else(|| Renewal::Unknown(errors::unexpected_reply()));
        requests.holds.update(hold.owner, |entry| match &renewal {
            Renewal::Renewed { sent, ttl } => entry.extend(*sent, *ttl, now),
            Renewal::Lost(_) => entry.ends = Time::ZERO,
            // The outcome is unknown: the end stays the earlier one.
            _ => {}
        });
        renewal
    });
    all.collect()
}

/// Renews the holds at these places with one request.
async fn renew_batch(
    store: &Store,
    holds: &[Hold],
    places: &[usize],
    kind: RenewalKind,
    renewals: &mut [Option<Renewal>],
) {
    let batch: Vec<_> = places.iter().map(|at| &holds[*at]).collect();
    // A hold without an answer of its own stays unknown.
    let some = store.requests.renew(&batch, kind).await;
    let some = some.unwrap_or_else(|err| {
        let unknown = |_| (Renewal::Unknown(err.clone()), false);
        batch.iter().map(unknown).collect()
    });
    for (at, (renewal, is_asked)) in places.iter().zip(some) {
        if is_asked {
            store.losses.asked_to_release(holds[*at].owner);
        }
        renewals[*at] = Some(renewal);
    }
}
