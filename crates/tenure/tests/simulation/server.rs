//! The store's side of an acquisition.

use std::sync::Arc;
use std::time::Duration;

use tenure::backend::{Answer, Backend as _, Request};
use tenure::time::Time;
use tenure::{Error, ErrorKind, LockName, Mode};
use tenure_core::rt::Flag;
use tokio::sync::oneshot;

use crate::way::{Fate, LIMIT, Way};
use crate::world::{NAMES, Plant, World};

/// A request that was sent.
pub(crate) struct Asking {
    pub(crate) way: Way,
    pub(crate) request: Arc<Request>,
    pub(crate) fate: Fate,
    /// Nobody was there any more to send it.
    pub(crate) is_dead: bool,
    /// Raised when the client does not want it any more.
    pub(crate) leave: Arc<Flag>,
    /// Raised when the store notices that the connection is gone.
    pub(crate) noticed: Arc<Flag>,
}

impl Asking {
    /// Brings it to the store, waits there for its turn, and brings the answer back: with it, whether it was granted
    /// at once.
    pub(crate) async fn serve(self, reply: oneshot::Sender<Result<(Answer, bool), Error>>) {
        let Self {
            way,
            request,
            fate,
            is_dead,
            leave,
            noticed,
        } = self;

        let world = &way.world;
        if is_dead || !way.travels(fate.there).await {
            way.note("a request is lost", known(&request.name), 0);
            world.sleep(LIMIT).await;
            return drop(reply.send(Err(no_answer())));
        }
        let arrival = world.clock.now();
        let asked = Arc::new(as_asked(&way, &request, request.wait, arrival));
        way.note("asks", known(&request.name), u64::from(request.wait));
        let mut answering = world.store.acquire(asked.clone());
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
                way.note("is granted", known(&request.name), grant.token);
                if let Some(name) = place(&request.name) {
                    world.state().names[name].holder = Some((grant.token, request.owner));
                }
                Ok((Answer::Granted(grant), at_once))
            }
            Ok(_) if is_forgotten => Err(Error::new(ErrorKind::Unreachable, "the place is gone")),
            Ok(answer) => Ok((answer, false)),
            Err(err) => Err(err),
        };
        if way.travels(fate.back).await {
            let _ = reply.send(answer);
        } else {
            way.note(
                "an answer is lost",
                known(&request.name),
                u64::from(at_once),
            );
            world.sleep(LIMIT).await;
            let _ = reply.send(Err(no_answer()));
        }
        if let Some(later) = fate.again {
            world.sleep(later).await;
            way.note("asks once more", known(&request.name), 0);
            let asked = Arc::new(as_asked(&way, &request, false, world.clock.now()));
            drop(world.store.acquire(asked).await);
        }
    }
}

/// The request as it comes to the table, with a token that a store makes of its clock, so that it grows even when the
/// last one is forgotten.
fn as_asked(way: &Way, request: &Request, wait: bool, now: Time) -> Request {
    let world = &way.world;
    let mut asked = Request::new(request.name.clone(), request.owner, request.ttl);
    asked.mode = match request.mode {
        Mode::Permits { limit } if world.is_planted(Plant::PermitTooMany) => Mode::Permits {
            limit: limit.saturating_add(1),
        },
        mode => mode,
    };
    asked.wait = wait;
    asked.fair = request.fair;
    asked.min_hold = request.min_hold;
    asked.lock_delay = request.lock_delay;
    asked.holder = request.holder.clone();
    asked.propose = (!world.is_planted(Plant::TokenRepeats)).then_some(now.as_nanos() / 1_000);
    asked.ttl = lease(world, way.client, request.ttl);
    asked
}

/// What the store makes of a client's ttl.
pub(crate) fn lease(world: &World, client: usize, ttl: Duration) -> Duration {
    if world.is_planted(Plant::FastStore) {
        ttl * 98 / 100
    } else {
        ttl * world.state().links[client].second / 1_000
    }
}

/// The store tells everybody whose hold was broken; a client that does not get the message learns it from its renewal.
pub(crate) fn tell(world: &Arc<World>, name: usize, token: u64) {
    let Some((_, owner)) = world.state().names[name]
        .holder
        .filter(|(newest, _)| *newest == token)
    else {
        return;
    };
    let clients = world.state().links.len();
    for client in 0..clients {
        let way = Way {
            world: world.clone(),
            client,
            is_dead: Arc::default(),
        };
        let fate = way.fate();
        tokio::spawn(async move {
            if way.travels(fate.back).await
                && let Some(bell) = &way.world.state().links[client].bell
            {
                let _ = bell.send(owner);
            }
        });
    }
}

pub(crate) fn no_answer() -> Error {
    Error::new(ErrorKind::Indeterminate, "no answer in time")
}

pub(crate) fn known(name: &LockName) -> &'static str {
    place(name).map_or("", |place| NAMES[place])
}

pub(crate) fn place(name: &LockName) -> Option<usize> {
    NAMES.iter().position(|known| *known == name.as_str())
}
