//! A hold has no lease: renewal checks that the path still leads to the locked file.

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::lost::LostReason;
use tenure_core::rt::Clock;
use tenure_core::store::{Hold, Renewal};

use super::hold::End;
use super::store::Shared;

pub(super) fn check(shared: &Shared, hold: &Hold) -> Renewal {
    let sent = Clock::system().now();
    match shared.holds.read(hold.owner, |held| held.is_current()) {
        None => Renewal::Lost(LostReason::StoreSaysNo),
        Some(Ok(true)) => Renewal::Renewed { sent, ttl: None },
        Some(Ok(false)) => {
            // The kernel locks that are left keep others out for no reason: a shared holder was broken, for example.
            if let Some(held) = shared.holds.remove(hold.owner) {
                held.release(End::Clean);
            }
            Renewal::Lost(LostReason::TakenOver)
        }
        Some(Err(err)) => {
            let message = "could not find out which file is at the path of the lock";
            Renewal::Unknown(Error::new(ErrorKind::Store, message).with_source(err))
        }
    }
}
