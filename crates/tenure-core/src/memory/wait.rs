//! Waiting in the queue of the table.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::store::{State, Store};
use crate::backend::{Answer, Request};
use crate::error::{Error, ErrorKind};
use crate::options::Mode;
use crate::rt::lock;
use crate::time::Time;

/// A place in the queue: receives the token and the time of the grant.
pub(super) struct Queued(pub(super) oneshot::Receiver<(u64, Time)>);

/// Waits until the table grants the name, or the request is stopped. Then `leave` undoes what the request has left in
/// the table.
pub(super) async fn wait(
    store: Arc<Store>,
    request: Arc<Request>,
    queued: Queued,
    leave: fn(&mut State, &Request, Time),
) -> Result<Answer, Error> {
    let Queued(mut receiver) = queued;
    loop {
        let mut earlier = pin!(store.earlier.notified());
        earlier.as_mut().enable();
        let next = lock(&store.state).table.next();
        tokio::select! {
            biased;
            granted = &mut receiver => {
                let (token, at) = granted.map_err(|_| {
                    Error::new(ErrorKind::Unreachable, "the place in the queue is gone")
                })?;
                // A place in this queue needs no sign of life: the lease begins with the hand-over.
                // A hold that becomes exclusive has a lease, and is renewed all the time.
                let grant = store.grant(token, at, Duration::ZERO, request.ttl);
                return Ok(Answer::Granted(grant));
            }
            () = request.stop.raised() => break,
            // Perhaps no other task is there to notice that a lease or a reservation is over.
            () = store.clock.sleep_until(next) => store.with_state(|_, _| ()),
            () = earlier => {}
        }
    }
    store.with_state(|state, now| {
        state.waiting.remove(&request.owner);
        leave(state, &request, now);
    });
    Ok(Answer::Busy)
}

/// Leaves the queue.
pub(super) fn leave_queue(state: &mut State, request: &Request, now: Time) {
    let (name, owner) = (&request.name, request.owner);
    state.table.release(name, owner, false, now);
    state.holders.remove(&owner);
}

/// Gives up an upgrade: the hold is upgradable again.
pub(super) fn stay_upgradable(state: &mut State, request: &Request, now: Time) {
    let (name, owner) = (&request.name, request.owner);
    state.table.downgrade(name, owner, Mode::Upgradable, now);
}
