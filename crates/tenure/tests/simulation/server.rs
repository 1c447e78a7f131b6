//! The store's side of an acquisition.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::{Answer, Request, Store as _};
use tenure::time::Time;
use tenure::{Error, ErrorKind, LockName, Mode};
use tenure_core::rt::Flag;
use tokio::sync::oneshot;

use crate::state::{Mutant, NAMES, Simulation};
use crate::transport::{Delivery, REQUEST_TIMEOUT, Transport};

/// A request that was sent.
pub(crate) struct PendingAcquire {
    pub(crate) transport: Transport,
    pub(crate) request: Arc<Request>,
    pub(crate) delivery: Delivery,
    /// Whether the client was killed before the request was sent.
    pub(crate) is_dead: bool,
    /// Raised when the client gave up.
    pub(crate) leave: Arc<Flag>,
    /// Raised when the store notices that the connection is gone.
    pub(crate) noticed: Arc<Flag>,
}

impl PendingAcquire {
    /// Delivers the request to the store, waits there for the turn of the client, and delivers the answer, with whether
    /// the lock was granted at once.
    pub(crate) async fn serve(self, reply: oneshot::Sender<Result<(Answer, bool), Error>>) {
        let Self {
            transport,
            request,
            delivery,
            is_dead,
            leave,
            noticed,
        } = self;

        let simulation = &transport.simulation;
        if is_dead || !transport.travels(delivery.there).await {
            transport.note("a request is lost", known(&request.name), 0);
            simulation.sleep(REQUEST_TIMEOUT).await;
            return drop(reply.send(Err(no_answer())));
        }
        let arrival = simulation.clock.now();
        let asked = Arc::new(table_request(&transport, &request, request.wait, arrival));
        transport.note("asks", known(&request.name), u64::from(request.wait));
        let mut answering = simulation.store.clone().acquire(asked.clone());
        let mut is_forgotten = false;
        let answer = tokio::select! {
            biased;
            answer = &mut answering => answer,
            () = leave.raised() => {
                asked.stop.raise();
                answering.await
            }
            () = noticed.raised() => {
                is_forgotten = true;
                asked.stop.raise();
                answering.await
            }
        };
        let mut at_once = false;
        let answer = match answer {
            Ok(Answer::Granted(grant)) => {
                at_once = grant.sent == arrival;
                transport.note("is granted", known(&request.name), grant.token);
                if let Some(name) = index_of(&request.name) {
                    simulation.state().names[name].holder = Some((grant.token, request.owner));
                }
                Ok((Answer::Granted(grant), at_once))
            }
            Ok(_) if is_forgotten => Err(Error::new(ErrorKind::Unreachable, "the place is gone")),
            Ok(answer) => Ok((answer, false)),
            Err(err) => Err(err),
        };
        if transport.travels(delivery.back).await {
            let _ = reply.send(answer);
        } else {
            transport.note(
                "an answer is lost",
                known(&request.name),
                u64::from(at_once),
            );
            simulation.sleep(REQUEST_TIMEOUT).await;
            let _ = reply.send(Err(no_answer()));
        }
        if let Some(later) = delivery.again {
            simulation.sleep(later).await;
            transport.note("asks once more", known(&request.name), 0);
            let asked = Arc::new(table_request(
                &transport,
                &request,
                false,
                simulation.clock.now(),
            ));
            drop(simulation.store.clone().acquire(asked).await);
        }
    }
}

/// The request for the lock table, with a token that the store makes of its clock, so that tokens grow even when the
/// store has forgotten the last token.
fn table_request(transport: &Transport, request: &Request, wait: bool, now: Time) -> Request {
    let simulation = &transport.simulation;
    let mut asked = Request::new(request.name.clone(), request.owner, request.ttl);
    asked.mode = match request.mode {
        Mode::Permits { limit } if simulation.has_mutant(Mutant::PermitTooMany) => Mode::Permits {
            limit: limit.saturating_add(1),
        },
        mode => mode,
    };
    asked.wait = wait;
    asked.fair = request.fair;
    asked.min_hold = request.min_hold;
    asked.lock_delay = request.lock_delay;
    asked.holder = request.holder.clone();
    asked.propose =
        (!simulation.has_mutant(Mutant::TokenRepeats)).then_some(now.as_nanos() / 1_000);
    asked.ttl = lease(simulation, transport.client, request.ttl);
    asked
}

/// The lease of a client's ttl on the store's clock.
pub(crate) fn lease(simulation: &Simulation, client: usize, ttl: Duration) -> Duration {
    if simulation.has_mutant(Mutant::FastStore) {
        ttl * 98 / 100
    } else {
        ttl * simulation.state().links[client].second / 1_000
    }
}

/// Sends a message to each client whose hold was broken. A client that does not get the message learns of the loss by
/// its next renewal.
pub(crate) fn notify_broken_hold(simulation: &Arc<Simulation>, name: usize, token: u64) {
    let Some((_, owner)) = simulation.state().names[name]
        .holder
        .filter(|(newest, _)| *newest == token)
    else {
        return;
    };
    let clients = simulation.state().links.len();
    for client in 0..clients {
        let transport = Transport {
            simulation: simulation.clone(),
            client,
            is_dead: Arc::default(),
        };
        let delivery = transport.delivery();
        tokio::spawn(async move {
            if transport.travels(delivery.back).await
                && let Some(losses) = &transport.simulation.state().links[client].losses
            {
                let _ = losses.send(owner);
            }
        });
    }
}

pub(crate) fn no_answer() -> Error {
    Error::new(ErrorKind::Indeterminate, "no answer in time")
}

pub(crate) fn known(name: &LockName) -> &'static str {
    index_of(name).map_or("", |index_of| NAMES[index_of])
}

pub(crate) fn index_of(name: &LockName) -> Option<usize> {
    NAMES.iter().position(|known| *known == name.as_str())
}
