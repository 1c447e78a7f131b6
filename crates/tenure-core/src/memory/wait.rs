//! Waiting in the queue of the table.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::store::{Shared, StoreState};
use crate::error::{Error, ErrorKind};
use crate::options::Mode;
use crate::rt::lock;
use crate::store::{Answer, Request};
use crate::time::Time;

/// A place in the queue: receives the token and the time of the grant.
pub(super) struct Queued(pub(super) oneshot::Receiver<(u64, Time)>);

/// What a request waits for.
#[derive(Clone, Copy)]
pub(super) enum Wanted {
    /// The lock.
    Lock,
    /// Its hold to become exclusive.
    Upgrade,
}

/// Waits until the table grants what is wanted, or the request is stopped. Then nothing of the request is left in the
/// table.
pub(super) async fn wait(
    store: Arc<Shared>,
    request: Arc<Request>,
    queued: Queued,
    wanted: Wanted,
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
                return Ok(wanted.granted(&store, &request, token, at));
            }
            () = request.stop.raised() => break,
            // Perhaps no other task is there to notice that a lease or a reservation is over.
            () = store.clock.sleep_until(next) => store.with_state(|_, _| ()),
            () = earlier => {}
        }
    }
    store.with_state(|state, now| {
        state.waiting.remove(&request.owner);
        wanted.give_up(state, &request, now);
    });
    Ok(Answer::Busy)
}

impl Wanted {
    /// The answer to a request that the table granted at `at`.
    fn granted(self, store: &Shared, request: &Request, token: u64, at: Time) -> Answer {
        let ttl = request.ttl;
        let began = match self {
            // A place in this queue has no end: the lease begins with the hand-over.
            Self::Lock => Some(at),
            // The hold has the lease of its last renewal.
            Self::Upgrade => store.with_state(|state, now| {
                let (lease, table) = (store.lease(ttl), &mut state.table);
                let is_held = table.renew(&request.name, request.owner, lease, now);
                is_held.then_some(now)
            }),
        };
        match began {
            Some(began) => Answer::Granted(store.grant(token, began, Duration::ZERO, ttl)),
            None => Answer::Busy,
        }
    }

    fn give_up(self, state: &mut StoreState, request: &Request, now: Time) {
        let (name, owner) = (&request.name, request.owner);
        match self {
            // A grant that the request has not read was never used.
            Self::Lock => {
                state.table.give_back(name, owner, now);
                state.holders.remove(&owner);
            }
            Self::Upgrade => {
                state.table.downgrade(name, owner, Mode::Upgradable, now);
            }
        }
    }
}
