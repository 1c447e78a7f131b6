//! A hold has no lease: renewal checks that the path still leads to the locked file. A detached hold has one.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::lost::LostReason;
use tenure_core::rt::Clock;
use tenure_core::store::{Hold, Renewal};

use super::blocking::blocking;
use super::detach;
use super::hold::End;
use super::store::Shared;

pub(super) async fn renew(shared: &Arc<Shared>, hold: Hold) -> Renewal {
    if let Some(renewal) = check(shared, &hold) {
        return renewal;
    }
    let shared = shared.clone();
    let extended = blocking(move || Ok(detach::extend(&shared, &hold)));
    extended.await.unwrap_or_else(Renewal::Unknown)
}

/// `None`: this client itself does not hold the name, but may be attached to a detached hold.
fn check(shared: &Shared, hold: &Hold) -> Option<Renewal> {
    let sent = Clock::system().now();
    let is_current = shared.holds.read(hold.owner, |held| held.is_current())?;
    Some(match is_current {
        Ok(true) => Renewal::Renewed { sent, ttl: None },
        Ok(false) => {
            // The kernel locks that are left keep others out for no reason: a shared holder was broken, for example.
            if let Some(held) = shared.holds.remove(hold.owner) {
                held.release(End::Clean);
            }
            Renewal::Lost(LostReason::TakenOver)
        }
        Err(err) => {
            let message = "could not find out which file is at the path of the lock";
            Renewal::Unknown(Error::new(ErrorKind::Store, message).with_source(err))
        }
    })
}
