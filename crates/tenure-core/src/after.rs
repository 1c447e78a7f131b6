//! A lock that is released when the outcome of a transaction is known, and kept until its lease ends when it is not.

use std::error::Error as StdError;
use std::time::Duration;

use crate::error::{Error, ErrorKind, ErrorParts as _};
use crate::guard::Guard;
use crate::lost::LostReason;

impl Guard {
    /// Waits for `end`, which ends a transaction, and releases the lock only then: after COMMIT and never before,
    /// with any database client (`guard.after(tx.commit()).await?`).
    ///
    /// A release before COMMIT loses updates: the next holder reads the old data, and one of the two writes is gone.
    /// A COMMIT that fails or is given up may have been done, or may still be done by a request that is under way.
    /// Therefore the lock is released only when `end` returns `Ok`, which means that the outcome is known. `Err` means
    /// that the outcome is unknown: then the lock is neither released nor renewed, and other clients get it when its
    /// lease ends (in stores without leases: after one ttl). So a late request meets no new holder.
    ///
    /// Some errors of a COMMIT are definite: a constraint that the database checks there, or a conflict of two
    /// transactions. Then the lock need not be kept. Each database client has other errors for this, so the caller
    /// decides, by returning `Ok` with the error in it:
    ///
    /// ```
    /// # struct DbError(bool);
    /// # impl DbError { fn is_definite(&self) -> bool { self.0 } }
    /// # impl std::fmt::Debug for DbError { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("no") } }
    /// # impl std::fmt::Display for DbError { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("no") } }
    /// # impl std::error::Error for DbError {}
    /// # struct Tx;
    /// # impl Tx { async fn commit(self) -> Result<(), DbError> { Err(DbError(true)) } }
    /// # async fn example(guard: tenure::Guard, tx: Tx) -> Result<(), tenure::Error> {
    /// let committed = guard.after(async {
    ///     match tx.commit().await {
    ///         Err(err) if err.is_definite() => Ok(Err(err)), // rolled back: the lock is released
    ///         other => other.map(Ok),                        // done, or unknown
    ///     }
    /// }).await?;
    /// if let Err(err) = committed {
    ///     println!("rolled back: {err}");
    /// }
    /// # Ok(()) }
    /// # async fn whole() -> Result<(), tenure::Error> {
    /// #     let client = tenure::connect("memory:").await?;
    /// #     example(client.lock("a").acquire().await?, Tx).await?;
    /// #     assert!(client.lock("a").try_acquire().await?.is_some());
    /// #     Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(whole()).unwrap();
    /// ```
    ///
    /// With a re-entrant [`Owner`](crate::Owner) an unknown outcome concerns the whole hold: its other guards are lost
    /// when the lease ends, and their `release` says that the lock is kept.
    ///
    /// `Lock::transaction` (feature `sqlx`) does all of this for `sqlx`, and knows which errors are definite.
    ///
    /// # Cancel safety
    /// Dropped before `end` has finished, also when it was never polled, or when `end` panics, the outcome is unknown:
    /// `end` is dropped, and the lock is kept until its lease ends.
    ///
    /// # Errors
    /// - [`Indeterminate`](ErrorKind::Indeterminate): `end` failed. The message says how long the lock is
    ///   kept, and [`source`](std::error::Error::source) and the message have the error of `end`.
    /// - [`Lost`](ErrorKind::Lost): the lock ended before `end` did. The message says whether `end` was done;
    ///   where it was still under way it is dropped, because a caller that is not the holder any more has to learn
    ///   that now.
    pub fn after<T, E>(
        self,
        end: impl Future<Output = Result<T, E>>,
    ) -> impl Future<Output = Result<T, Error>>
    where
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        // Made before the first poll: a request of the transaction may be under way before that.
        let kept = GuardUntilOutcome::new(self);
        async move {
            // Looked at before the first poll: nothing may begin after the deadline. Later `end` comes first, because only
            // `end` knows its outcome.
            if let Some(reason) = kept.loss() {
                return Err(kept.lost_meanwhile(reason));
            }
            let ended = tokio::select! {
                biased;
                ended = end => ended,
                Some(reason) = kept.lost() => return Err(kept.lost_meanwhile(reason)),
            };
            kept.settle(ended).await
        }
    }
}

/// A guard under which a transaction is ending. Dropping it leaves the lock to its lease, because a request of the
/// transaction may still be applied; the lock is released only when the outcome is known.
#[must_use = "a guard that is dropped here is kept until its lease ends"]
pub struct GuardUntilOutcome(Option<Guard>);

impl GuardUntilOutcome {
    /// From here on a request of the transaction may be under way.
    pub fn new(guard: Guard) -> Self {
        Self(Some(guard))
    }

    /// Resolves when the hold has ended; with the reason if it is lost.
    pub async fn lost(&self) -> Option<LostReason> {
        match &self.0 {
            Some(guard) => guard.lost().await,
            None => None,
        }
    }

    fn loss(&self) -> Option<LostReason> {
        self.0.as_ref().and_then(Guard::loss)
    }

    /// The outcome is known: gives back the ordinary guard.
    pub fn into_guard(mut self) -> Option<Guard> {
        self.0.take()
    }

    /// The work that `done` describes was done: releases the lock. An error if the lock had ended by then.
    pub async fn release(self, done: &str) -> Result<(), Error> {
        let Some(guard) = self.into_guard() else {
            return Ok(());
        };
        let held_to_the_end = guard.is_held();
        let explain = guard.explainer();
        match guard.release().await {
            Err(err) if err.is_lost() || !held_to_the_end => {
                let message = format!(
                    "{done}, but the lock had ended by then; the work may have overlapped with that of the next holder"
                );
                Err(explain(
                    Error::new(ErrorKind::Lost, message).with_source(err),
                ))
            }
            // The lock was held to the end of the work; the release is repeated in the background.
            _ => Ok(()),
        }
    }

    /// The outcome is unknown: leaves the lock to its lease, and says so. `doubt` begins the message.
    pub fn keep(mut self, doubt: &str, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        let left = self.abandon();
        let message = format!(
            "{doubt}; so the lock is not released, and kept for another {left:.1?}, until its lease ends"
        );
        Error::new(ErrorKind::Indeterminate, message).with_source(cause)
    }

    fn lost_meanwhile(&self, reason: LostReason) -> Error {
        let message = format!(
            "the lock was lost before the work had ended: {reason}; it is unknown whether the work was done"
        );
        self.explained(Error::new(ErrorKind::Lost, message))
    }

    /// Adds what an error about this hold should name.
    pub fn explained(&self, err: Error) -> Error {
        match &self.0 {
            Some(guard) => guard.explained(err),
            None => err,
        }
    }

    /// Releases after a success, keeps after a failure.
    pub async fn settle<T, E>(self, ended: Result<T, E>) -> Result<T, Error>
    where
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        match ended {
            Ok(value) => self.release("the work was done").await.map(|()| value),
            Err(err) => {
                let explain = self.0.as_ref().map(Guard::explainer);
                let err = self.keep("it is unknown whether the work was done", err);
                Err(match explain {
                    Some(explain) => explain(err),
                    None => err,
                })
            }
        }
    }

    /// How long the lock is kept.
    fn abandon(&mut self) -> Duration {
        self.0.take().map_or(Duration::ZERO, Guard::abandon)
    }
}

impl Drop for GuardUntilOutcome {
    fn drop(&mut self) {
        self.abandon();
    }
}
