//! What lies between a client and the store: a backend whose requests and replies travel.

use std::future::{pending, ready};
use std::sync::Arc;
use std::time::Duration;

use tenure::backend::{
    Alarm, Answer, Backend, BoxFuture, Finding, Grant, Hold, Release, Renewal, Request,
};
use tenure::guarantees::Guarantees;
use tenure::memory;
use tenure::time::Time;
use tenure::{Error, ErrorKind, LockName, LostReason, Status};
use tenure_core::rt::{Clock, Flag};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::server::{Asking, known, lease, no_answer, place, tell};
use crate::way::{LIMIT, PLACE, Way};
use crate::world::{Plant, World};

/// One client's way to the store.
pub(crate) struct Door {
    way: Way,
    /// Messages are brought by tasks of nobody.
    network: Handle,
}

impl Door {
    pub(crate) fn new(world: Arc<World>, client: usize, network: Handle) -> Self {
        let is_dead = world.state().links[client].is_dead.clone();
        Self {
            way: Way {
                world,
                client,
                is_dead,
            },
            network,
        }
    }

    fn now(&self) -> Time {
        self.way.world.clock.now()
    }

    /// A request and its reply, within [`LIMIT`].
    fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        name: &'static str,
        apply: impl Fn(memory::Backend) -> BoxFuture<T> + Send + Sync + 'static,
    ) -> BoxFuture<Result<T, Error>> {
        let (way, fate) = (self.way.clone(), self.way.fate());
        let (sender, receiver) = oneshot::channel();
        let is_dead = way.is_dead.is_raised();
        self.network.spawn(async move {
            if is_dead || !way.travels(fate.there).await {
                return way.note("a request is lost", name, 0);
            }
            way.note(what, name, 0);
            let answer = apply(way.world.store.clone()).await;
            if way.travels(fate.back).await {
                let _ = sender.send(answer);
            }
            if let Some(later) = fate.again {
                way.world.sleep(later).await;
                way.note("once more", name, 0);
                drop(apply(way.world.store.clone()).await);
            }
        });
        let world = self.way.world.clone();
        let limit = self.now().after(LIMIT);
        Box::pin(async move {
            tokio::select! {
                biased;
                answer = arrived(receiver) => Ok(answer),
                () = world.clock.sleep_until(limit) => Err(no_answer()),
            }
        })
    }
}

async fn arrived<T>(receiver: oneshot::Receiver<T>) -> T {
    match receiver.await {
        Ok(answer) => answer,
        Err(_) => pending().await,
    }
}

impl Backend for Door {
    fn guarantees(&self) -> &Guarantees {
        self.way.world.store.guarantees()
    }

    fn clock(&self) -> Clock {
        self.way.world.clock.clone()
    }

    fn attach(&self, alarm: Alarm) {
        let (bell, mut rings) = mpsc::unbounded_channel();
        self.way.world.state().links[self.way.client].bell = Some(bell);
        // In the runtime of the client: while it is stopped it hears nothing.
        tokio::spawn(async move {
            while let Some(owner) = rings.recv().await {
                alarm.lost(owner, LostReason::TakenOver);
            }
        });
    }

    fn acquire(&self, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        let (way, network) = (self.way.clone(), self.network.clone());
        let (fate, farewell) = (way.fate(), way.fate());
        let sent = self.now();
        let leave = Arc::new(Flag::new());
        let (sender, receiver) = oneshot::channel();
        let (noticed, store_notices) = {
            let link = &way.world.state().links[way.client];
            (link.client_notices.clone(), link.store_notices.clone())
        };
        let asking = Asking {
            is_dead: way.is_dead.is_raised(),
            way: way.clone(),
            request: request.clone(),
            fate,
            leave: leave.clone(),
            noticed: store_notices,
        };
        network.spawn(asking.serve(sender));
        Box::pin(async move {
            let world = &way.world;
            let mut receiver = Box::pin(arrived(receiver));
            // The end of a connection, or of a time limit: the store notices some time later.
            let gives_up = || {
                let (world, leave) = (world.clone(), leave.clone());
                network.spawn(async move {
                    world.sleep(PLACE).await;
                    leave.raise();
                });
                Err(no_answer())
            };
            let is_over = async |limit: Option<Time>| match limit {
                Some(limit) => world.clock.sleep_until(limit).await,
                None => pending().await,
            };
            let mut limit = (!request.wait).then(|| sent.after(LIMIT));
            let mut stopped = false;
            loop {
                tokio::select! {
                    biased;
                    answer = &mut receiver => {
                        let (answer, at_once) = answer?;
                        let Answer::Granted(mut grant) = answer else {
                            return Ok(answer);
                        };
                        let now = world.clock.now();
                        world.note(way.client, "hears of its grant", known(&request.name), grant.token);
                        correct(world, &mut grant, at_once.then_some(sent), request.ttl, now);
                        return Ok(Answer::Granted(grant));
                    }
                    () = request.stop.raised(), if !stopped => {
                        if world.is_planted(Plant::CancelSwallowsGrant) {
                            return Ok(Answer::Busy);
                        }
                        stopped = true;
                        limit = Some(world.clock.now().after(LIMIT));
                        let (way, leave) = (way.clone(), leave.clone());
                        network.spawn(async move {
                            if way.travels(farewell.there).await {
                                leave.raise();
                            }
                        });
                    }
                    () = noticed.raised(), if request.wait => return gives_up(),
                    () = is_over(limit) => return gives_up(),
                }
            }
        })
    }

    fn renew(&self, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        let sent = self.now();
        let world = self.way.world.clone();
        let asked: Vec<_> = holds
            .iter()
            .map(|hold| {
                let mut hold = hold.clone();
                hold.ttl = lease(&world, self.way.client, hold.ttl);
                hold
            })
            .collect();
        let renewing = self.call("renews", known(&holds[0].name), move |store| {
            store.renew(asked.clone())
        });
        Box::pin(async move {
            let answers = renewing.await;
            let at = if world.is_planted(Plant::DeadlineFromReply) {
                world.clock.now()
            } else {
                sent
            };
            let yes = |hold: &Hold| Renewal::Renewed {
                sent: at,
                ttl: Some(hold.ttl),
            };
            match answers {
                Ok(answers) => holds
                    .iter()
                    .zip(answers)
                    .map(|(hold, answer)| match answer {
                        Renewal::Renewed { .. } => yes(hold),
                        other => other,
                    })
                    .collect(),
                Err(_) if world.is_planted(Plant::RenewalAlwaysYes) => {
                    holds.iter().map(yes).collect()
                }
                Err(_) => holds
                    .iter()
                    .map(|_| Renewal::Unknown(no_answer()))
                    .collect(),
            }
        })
    }

    fn release(&self, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        let world = self.way.world.clone();
        let releasing = self.call("releases", known(&hold.name), move |store| {
            let mut hold = hold.clone();
            if world.is_planted(Plant::ReleaseByName)
                && let Some(name) = place(&hold.name)
                && let Some((_, owner)) = world.state().names[name].holder
            {
                hold.owner = owner;
            }
            store.release(hold)
        });
        Box::pin(async move { releasing.await? })
    }

    fn inspect(&self, name: LockName) -> BoxFuture<Result<Status, Error>> {
        // At once or not at all: nobody decides anything by what it says.
        if self.way.passes() {
            return self.way.world.store.inspect(name);
        }
        let refused = Error::new(ErrorKind::Unreachable, "the connection was refused");
        Box::pin(ready(Err(refused)))
    }

    fn list(&self, prefix: String) -> BoxFuture<Result<Vec<Status>, Error>> {
        self.way.world.store.list(prefix)
    }

    fn break_lock(&self, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        let (world, client) = (self.way.world.clone(), self.way.client);
        let breaking = self.call("breaks", known(&name), move |store| {
            let (name, world) = (name.clone(), world.clone());
            Box::pin(async move {
                let at = place(&name).unwrap_or_default();
                // Before the store does it: the next in line may have the name at that moment.
                let is_new = world.state().broken.insert((at, token));
                let broken = store.break_lock(name.clone(), token).await?;
                if broken {
                    tell(&world, at, token);
                } else if is_new {
                    world.state().broken.remove(&(at, token));
                }
                world.note(client, "broke", known(&name), token);
                Ok(broken)
            })
        });
        Box::pin(async move { breaking.await? })
    }

    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Error>> {
        self.way.world.store.check()
    }
}

/// Makes the client's grant of the store's. `sent`: when it was asked for, if it was granted at once; one that was
/// handed over counts from the hand-over.
fn correct(world: &World, grant: &mut Grant, sent: Option<Time>, ttl: Duration, now: Time) {
    if let Some(sent) = sent {
        grant.sent = sent;
        grant.round_trip = now.since(sent);
    }
    grant.ttl = Some(ttl);
    if world.is_planted(Plant::DeadlineFromReply) {
        grant.sent = now;
    }
}
