//! Waiting in the queue of the table.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::store::Store;
use crate::backend::{Answer, Request};
use crate::error::{Error, ErrorKind};
use crate::rt::lock;
use crate::time::Time;

/// A place in the queue: receives the token and the time of the grant.
pub(super) struct Queued(pub(super) oneshot::Receiver<(u64, Time)>);

/// Waits until the table grants the name, or the request is stopped.
pub(super) async fn wait(
    store: Arc<Store>,
    request: Arc<Request>,
    queued: Queued,
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
        state
            .table
            .release(&request.name, request.owner, false, now);
        state.holders.remove(&request.owner);
        state.waiting.remove(&request.owner);
    });
    Ok(Answer::Busy)
}
