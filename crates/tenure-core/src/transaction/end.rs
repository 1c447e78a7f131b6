//! How a transaction under locks ends: COMMIT or ROLLBACK first, and then the release.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use sqlx::Transaction;

use super::database::SqlDatabase;
use super::outcome::{Operation, explain, named};
use crate::after::GuardUntilOutcome;
use crate::error::{Error, ErrorKind, ErrorParts as _};
use crate::guard::Guard;
use crate::lost::LostReason;
use crate::rt::Clock;

/// How long the answer to a ROLLBACK is waited for. Without one the transaction is never committed either; only
/// the locks of its rows last until the database has noticed.
const ROLLBACK_LIMIT: Duration = Duration::from_secs(2);

pub(super) const ROLLED_BACK: &str = "it was rolled back";
const UNKNOWN: &str = "COMMIT was under way, and it is unknown whether it was done";

/// Commits and releases all guards, in this order. The transaction is rolled back if one of the locks is lost before
/// COMMIT is sent; all locks are kept until their leases end if the outcome of COMMIT is unknown.
///
/// # Cancel safety
/// Dropped before COMMIT is sent, the transaction is rolled back and the locks are released. Dropped while COMMIT is
/// under way, the outcome is unknown.
///
/// # Errors
/// The errors of [`Lock::transaction`](crate::Lock::transaction) after its body.
pub async fn commit_and_release<DB: SqlDatabase>(
    mut tx: Transaction<'static, DB>,
    guards: Vec<Guard>,
) -> Result<(), Error> {
    let probed = tokio::select! {
        biased;
        _ = first_loss(guards.iter().map(Guard::lost)) => Ok(()),
        probed = DB::probe(&mut tx) => probed,
    };
    if let Err(err) = probed {
        let err = explain::<DB>(err, operation(guards.first()));
        roll_back_and_release(tx, guards).await;
        return Err(err);
    }
    // The answer may have taken longer than a lease.
    let first_lost = guards.iter().find_map(|guard| Some((guard, guard.loss()?)));
    if let Some((guard, reason)) = first_lost {
        roll_back(tx).await;
        return Err(guard.explained(lost(reason, ROLLED_BACK)));
    }
    commit_under(tx, guards).await
}

/// The part of [`commit_and_release`] that sends COMMIT.
async fn commit_under<DB: SqlDatabase>(
    tx: Transaction<'static, DB>,
    guards: Vec<Guard>,
) -> Result<(), Error> {
    let name = guards.first().map(|guard| guard.name().clone());
    let operation = name
        .as_ref()
        .map_or(Operation::Unlocked, Operation::Transaction);
    // From here on COMMIT may be applied: a dropped guard is not released any more.
    let committing: Vec<_> = guards.into_iter().map(GuardUntilOutcome::new).collect();
    let committed = tokio::select! {
        biased;
        committed = tx.commit() => committed,
        (index, reason) = first_loss(committing.iter().map(GuardUntilOutcome::lost)) => {
            let err = lost(reason, UNKNOWN);
            return Err(match committing.get(index) {
                Some(guard) => guard.explained(err),
                None => err,
            });
        }
    };
    match committed {
        Ok(()) => {
            // All at once, so that a dropped call leaves none of them to its lease.
            let release = |guard: GuardUntilOutcome| guard.release("the transaction was committed");
            let released = join_all(committing.into_iter().map(release)).await;
            released.into_iter().collect()
        }
        Err(sqlx::Error::Database(said)) if DB::is_no(&*said) => {
            release(
                committing
                    .into_iter()
                    .filter_map(GuardUntilOutcome::into_guard),
            )
            .await;
            Err(explain::<DB>(sqlx::Error::Database(said), operation))
        }
        Err(err) => {
            let doubt = "it is unknown whether the transaction was committed";
            // Dropping the others keeps them in the same way.
            let err = match committing.into_iter().next() {
                Some(first) => first.keep(doubt, err),
                None => Error::new(ErrorKind::Indeterminate, doubt).with_source(err),
            };
            Err(named::<DB>(err, operation))
        }
    }
}

fn operation(first: Option<&Guard>) -> Operation<'_> {
    first.map_or(Operation::Unlocked, |guard| {
        Operation::Transaction(guard.name())
    })
}

/// Rolls back and releases all guards, in this order. After an error, too, the transaction is never committed.
///
/// # Cancel safety
/// Dropped, it does the same in the background.
pub async fn roll_back_and_release<DB: SqlDatabase>(
    tx: Transaction<'static, DB>,
    guards: impl IntoIterator<Item = Guard>,
) {
    roll_back(tx).await;
    release(guards).await;
}

pub(super) async fn roll_back<DB: SqlDatabase>(tx: Transaction<'static, DB>) {
    let clock = Clock::system();
    tokio::select! {
        biased;
        _ = tx.rollback() => {}
        () = clock.sleep_until(clock.now().after(ROLLBACK_LIMIT)) => {}
    }
}

/// Releases when the outcome is an error already. A release that fails is repeated in the background.
pub(super) async fn release(guards: impl IntoIterator<Item = Guard>) {
    let _ = join_all(guards.into_iter().map(Guard::release)).await;
}

pub(super) fn lost(reason: LostReason, what: &str) -> Error {
    let message = format!("the lock was lost while the transaction ran: {reason}; {what}");
    Error::new(ErrorKind::Lost, message)
}

/// The first of these holds that is lost. Never resolves for an empty list, or when all holds end in another way.
async fn first_loss<F>(holds: impl Iterator<Item = F>) -> (usize, LostReason)
where
    F: Future<Output = Option<LostReason>>,
{
    let mut holds: Vec<_> = holds.map(Box::pin).enumerate().collect();
    poll_fn(|cx| {
        let mut first = None;
        holds.retain_mut(|(index, hold)| match hold.as_mut().poll(cx) {
            Poll::Pending => true,
            Poll::Ready(reason) => {
                first = first.or(reason.map(|reason| (*index, reason)));
                false
            }
        });
        first.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}
