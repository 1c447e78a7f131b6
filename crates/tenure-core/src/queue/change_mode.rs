//! Upgrade and downgrade: the entry of the hold stays where it is, and says what has changed.

use super::interface::{HoldMode, ModeChange, Replaced, retry_limit};
use super::wait::{Waited, wait};
use crate::error::{Error, ErrorKind, ErrorParts as _};
use crate::options::Mode;
use crate::store::Answer;
use crate::support::RetryBudget;
use crate::time::Time;

/// Makes an upgradable hold exclusive; see [`ChangeMode::upgrade`](crate::store::ChangeMode::upgrade).
///
/// # Errors
/// `Lost`: the entry of the hold is gone. Otherwise what the store says.
pub async fn upgrade<Q: ModeChange>(queue: &Q) -> Result<Answer, Error> {
    let (request, clock) = queue.context();
    let mut retries = RetryBudget::without_limit();
    let (mut is_announced, mut limit) = (false, retry_limit(request, clock));
    loop {
        let err = match attempt(queue, &mut is_announced, &mut limit).await {
            Ok(Some(answer)) => return Ok(answer),
            // Another request has changed the entry: what the entry says by now is read, after a pause, because another
            // program may go on to change the entry.
            Ok(None) => {
                let _ = request.unless_stopped(retries.pause(clock)).await;
                continue;
            }
            Err(err) => err,
        };
        match err.kind() {
            ErrorKind::Lost => return Err(err),
            ErrorKind::Indeterminate => {}
            _ if is_announced => return Err(take_back(queue, err).await),
            _ => return Err(err),
        }
        let is_over = clock.now() >= limit;
        if !Q::BEGINS_ANEW || !request.wait || request.stop.is_raised() || is_over {
            return Err(err);
        }
        let _ = request.unless_stopped(retries.pause(clock)).await;
    }
}

/// From what the entry says by now to an exclusive hold, or back to an upgradable one if the request gives up. `None`:
/// another request has changed the entry meanwhile. An announcement is made again after an error.
async fn attempt<Q: ModeChange>(
    queue: &Q,
    is_announced: &mut bool,
    limit: &mut Time,
) -> Result<Option<Answer>, Error> {
    let (request, _) = queue.context();
    let mut own = queue.read_own().await?.ok_or_else(lost)?;
    // An exclusive entry: an earlier request was applied, and its reply lost.
    if !queue.is_exclusive(&own) {
        if let Some(answer) = queue.upgrade_at_once(&mut own).await? {
            return Ok(Some(answer));
        }
        *is_announced = true;
        let announcement = HoldMode::Upgrading { last_holder: None };
        if done(queue.replace(&mut own, announcement).await?)?.is_none() {
            return Ok(None);
        }
        if let Some(others) = queue.others(&mut own).await? {
            if !request.wait || request.stop.is_raised() {
                return give_up(queue, own).await;
            }
            let last_holder = Some(others.last_holder);
            let upgrading = HoldMode::Upgrading { last_holder };
            if done(queue.replace(&mut own, upgrading).await?)?.is_none() {
                return Ok(None);
            }
            match wait(queue, &others.entry, others.position, limit).await? {
                Waited::Held { .. } => {}
                Waited::EntryLost => return Err(lost()),
                Waited::Stopped => return give_up(queue, own).await,
            }
        }
    }
    let granted = done(queue.become_exclusive(&mut own).await?)?;
    Ok(granted.map(Answer::Granted))
}

/// `None`: another request has changed the entry meanwhile.
fn done<T>(replaced: Replaced<T>) -> Result<Option<T>, Error> {
    match replaced {
        Replaced::Done(done) => Ok(Some(done)),
        Replaced::Refused => Ok(None),
        Replaced::Gone => Err(lost()),
    }
}

/// Lets the others in again.
async fn give_up<Q: ModeChange>(queue: &Q, mut own: Q::Own) -> Result<Option<Answer>, Error> {
    let written = done(queue.replace(&mut own, HoldMode::Upgradable).await?)?;
    Ok(written.map(|()| Answer::Busy))
}

/// Makes the hold upgradable again after `err`, and returns the error for the user.
async fn take_back<Q: ModeChange>(queue: &Q, err: Error) -> Error {
    match downgrade(queue, Mode::Upgradable).await {
        Ok(true) => err,
        Ok(false) => lost(),
        Err(_) => Error::new(
            ErrorKind::Indeterminate,
            "the request to upgrade was refused, and may be announced still",
        )
        .with_source(err),
    }
}

/// The error of a change of a hold whose entry is gone.
pub fn lost() -> Error {
    Error::new(
        ErrorKind::Lost,
        "the store has no entry of this hold; the lock was lost",
    )
}

/// Makes the hold shared, or upgradable again; see [`ChangeMode::downgrade`](crate::store::ChangeMode::downgrade).
///
/// The entry is replaced even if it says this mode already: then a late request to upgrade is refused.
///
/// # Errors
/// What the store says.
pub async fn downgrade<Q: ModeChange>(queue: &Q, mode: Mode) -> Result<bool, Error> {
    let mode = match mode {
        Mode::Upgradable => HoldMode::Upgradable,
        _ => HoldMode::Shared,
    };
    let (_, clock) = queue.context();
    let mut retries = RetryBudget::without_limit();
    loop {
        let Some(mut own) = queue.read_own().await? else {
            return Ok(false);
        };
        match queue.replace(&mut own, mode).await? {
            Replaced::Done(()) => return Ok(true),
            Replaced::Gone => return Ok(false),
            // A late request, or another program, has changed the entry since it was read.
            Replaced::Refused => retries.pause(clock).await,
        }
    }
}
