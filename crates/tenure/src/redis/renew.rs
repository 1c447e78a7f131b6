//! Renewal of many holds, and their verification after a lost connection.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::options::Mode;
use tenure_core::store::{Hold, Renewal};
use tenure_core::support::{RetryBudget, millis_down};
use tenure_core::time::Time;

use super::holds::HeldKey;
use super::requests::{Purpose, RenewItem, RenewKind};
use super::store::Store;

/// Locks that are renewed by one script: the server does nothing else for the time of some 300 commands.
const MAX_RENEWALS: usize = 100;

/// Renews or verifies in batches, all of them at the same time.
pub(super) async fn renew(store: &Store, holds: &[Hold], purpose: Purpose) -> Vec<Renewal> {
    let items: Vec<_> = holds.iter().map(|hold| renew_item(store, hold)).collect();
    // As indexes of `items`.
    let mut batches = Vec::new();
    for kind in RenewKind::ALL {
        let is_such = |at: &usize| items[*at].kind == kind;
        let such: Vec<_> = (0..items.len()).filter(is_such).collect();
        let locks: Vec<_> = such.iter().map(|at| items[*at].keys.lock()).collect();
        for batch in store.connections.batches(&locks, MAX_RENEWALS) {
            batches.push(batch.iter().map(|at| such[*at]).collect::<Vec<_>>());
        }
    }
    let renew_batch = |batch: &Vec<usize>| {
        let items = batch.iter().map(|at| &items[*at]).collect();
        renew_in_time(store, items, purpose)
    };
    let answers = join_all(batches.iter().map(renew_batch)).await;
    let numbers = batches.into_iter().flatten();
    let answers = numbers.zip(answers.into_iter().flatten());
    let answers = answers.map(|(at, answer)| (at, unless_shared_now(store, &items[at], answer)));
    Renewal::in_order(holds.len(), answers)
}

/// A script for an exclusive hold does not find a hold that was made a shared one before the script ran.
fn unless_shared_now(store: &Store, item: &RenewItem, answer: Renewal) -> Renewal {
    let is_shared = |entry: &HeldKey| entry.is_shared_hold;
    match answer {
        Renewal::Lost(_)
            if item.kind != RenewKind::Shared
                && store.holds.read(item.owner, is_shared) == Some(true) =>
        {
            let message = "the mode of the hold was changed while it was renewed";
            Renewal::Unknown(Error::new(ErrorKind::Indeterminate, message))
        }
        answer => answer,
    }
}

fn renew_item(store: &Store, hold: &Hold) -> RenewItem {
    let lease = |is_shared_hold| {
        // Only in Redisson's read-write lock the mode decides about the lease, and there no hold becomes exclusive.
        let mode = match is_shared_hold {
            true => Mode::Shared,
            false => Mode::Exclusive,
        };
        store.requests.lease(mode, hold.ttl)
    };
    let known = |entry: &HeldKey| {
        let ttl = lease(entry.is_shared_hold);
        let live = entry.live(ttl, store.context.now());
        let kind = match (entry.is_shared_hold, entry.reads_requests()) {
            (true, _) => RenewKind::Shared,
            (false, true) => RenewKind::Asked,
            (false, false) => RenewKind::Exclusive,
        };
        (ttl, live, kind)
    };
    let unknown = || {
        let live = millis_down(lease(false));
        (lease(false), live, RenewKind::Exclusive)
    };
    let known = store.holds.read(hold.owner, known);
    let (ttl, live, mut kind) = known.unwrap_or_else(unknown);
    let keys = store.requests.keys(&hold.name);
    if kind == RenewKind::Asked && store.connections.is_moving(keys.lock()) {
        // Mostly there is no request to let go, and so no key. It is looked for later.
        kind = RenewKind::Exclusive;
    }
    RenewItem {
        keys,
        owner: hold.owner,
        ttl,
        live,
        kind,
    }
}

/// A node of a cluster that does not answer must not delay the answers of the others: the driver gets all of them
/// together.
async fn renew_in_time(store: &Store, items: Vec<&RenewItem>, purpose: Purpose) -> Vec<Renewal> {
    let ttls = items.iter().map(|item| item.ttl);
    let shortest = ttls.min().unwrap_or(Duration::ZERO);
    if shortest.is_zero() || !store.connections.is_cluster() {
        return store.requests.renew(&items, purpose).await;
    }
    // Half of the time between two renewals.
    let limit = store.context.now().after(shortest / 6);
    tokio::select! {
        biased;
        renewals = store.requests.renew(&items, purpose) => renewals,
        () = store.context.clock.sleep_until(limit) => {
            let message = "no answer in time from the node that has the lock";
            let late = |_| {
                let err = Error::new(ErrorKind::Indeterminate, message);
                Renewal::Unknown(err.with_timeout())
            };
            items.iter().map(late).collect()
        }
    }
}

/// Verifies all holds after a connection was lost: a server that was restarted may have forgotten them, and the next
/// renewal may be far away.
pub(super) async fn verify_holds(store: Arc<Store>) -> Time {
    let mut budget = RetryBudget::without_limit();
    while store.context.events.take_connection_loss() {
        while !verify_once(&store).await {
            budget.pause(&store.context.clock).await;
        }
    }
    Time::MAX
}

/// Reports lost holds. Returns whether each hold had an answer.
async fn verify_once(store: &Store) -> bool {
    let hold = |owner, entry: &HeldKey| Some(Hold::of(entry.name.clone(), owner));
    let holds = store.holds.select(hold);
    let mut is_complete = true;
    for (hold, answer) in holds
        .iter()
        .zip(renew(store, &holds, Purpose::Verify).await)
    {
        match answer {
            Renewal::Lost(reason) => {
                let is_released = store.holds.read(hold.owner, |entry| entry.is_released);
                match is_released {
                    // The driver stops to send a failed release when the lease has ended.
                    Some(true) => drop(store.holds.remove(hold.owner)),
                    _ => store.context.events.losses.report(hold.owner, reason),
                }
            }
            Renewal::Unknown(_) => is_complete = false,
            _ => {}
        }
    }
    is_complete
}
