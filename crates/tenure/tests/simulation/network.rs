//! The network between a client and the store: a store that delivers requests and replies as messages.

use std::future::{pending, ready};
use std::sync::Arc;
use std::time::Duration;

use tenure::guarantees::Guarantees;
use tenure::memory;
use tenure::store::{
    Answer, BoxFuture, Finding, Grant, Hold, Listed, LossNotifier, Operate, Release, Renewal,
    Request, Store,
};
use tenure::time::Time;
use tenure::{Error, ErrorKind, LockName, LockStatus, LostReason};
use tenure_core::rt::{Clock, Flag};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::server::{PendingAcquire, index_of, known, lease, no_answer, notify_broken_hold};
use crate::state::{Mutant, Simulation};
use crate::transport::{REQUEST_TIMEOUT, Transport, WAITER_TTL};

/// The store of one client.
pub(crate) struct SimulatedStore {
    transport: Transport,
    /// The runtime of the tasks that deliver messages, which belong to no client.
    network: Handle,
}

impl SimulatedStore {
    pub(crate) fn new(simulation: Arc<Simulation>, client: usize, network: Handle) -> Self {
        let is_dead = simulation.state().links[client].is_dead.clone();
        Self {
            transport: Transport {
                simulation,
                client,
                is_dead,
            },
            network,
        }
    }

    fn now(&self) -> Time {
        self.transport.simulation.clock.now()
    }

    /// A request and its reply, within [`LIMIT`].
    fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        name: &'static str,
        apply: impl Fn(Arc<memory::Store>) -> BoxFuture<T> + Send + Sync + 'static,
    ) -> BoxFuture<Result<T, Error>> {
        let (transport, delivery) = (self.transport.clone(), self.transport.delivery());
        let (sender, receiver) = oneshot::channel();
        let is_dead = transport.is_dead.is_raised();
        self.network.spawn(async move {
            if is_dead || !transport.travels(delivery.there).await {
                return transport.note("a request is lost", name, 0);
            }
            transport.note(what, name, 0);
            let answer = apply(transport.simulation.store.clone()).await;
            if transport.travels(delivery.back).await {
                let _ = sender.send(answer);
            }
            if let Some(later) = delivery.again {
                transport.simulation.sleep(later).await;
                transport.note("once more", name, 0);
                drop(apply(transport.simulation.store.clone()).await);
            }
        });
        let simulation = self.transport.simulation.clone();
        let limit = self.now().after(REQUEST_TIMEOUT);
        Box::pin(async move {
            tokio::select! {
                biased;
                answer = arrived(receiver) => Ok(answer),
                () = simulation.clock.sleep_until(limit) => Err(no_answer()),
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

impl Store for SimulatedStore {
    fn guarantees(&self) -> &Guarantees {
        self.transport.simulation.store.guarantees()
    }

    fn clock(&self) -> Clock {
        self.transport.simulation.clock.clone()
    }

    /// Requests run in the runtime of the network. In which order a runtime drops its tasks differs from run to run, so
    /// nothing may depend on whether it is gone.
    fn needs_runtime(&self) -> bool {
        false
    }

    fn attach(&self, loss_notifier: LossNotifier) {
        let (losses, mut rings) = mpsc::unbounded_channel();
        self.transport.simulation.state().links[self.transport.client].losses = Some(losses);
        // This task runs in the runtime of the client, which receives nothing while it is stopped.
        tokio::spawn(async move {
            while let Some(owner) = rings.recv().await {
                loss_notifier.lost(owner, LostReason::TakenOver);
            }
        });
    }

    fn acquire(self: Arc<Self>, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        let (transport, network) = (self.transport.clone(), self.network.clone());
        let (delivery, of_dequeue) = (transport.delivery(), transport.delivery());
        let sent = self.now();
        let leave = Arc::new(Flag::new());
        let (sender, receiver) = oneshot::channel();
        let (noticed, store_notices) = {
            let link = &transport.simulation.state().links[transport.client];
            (link.client_notices.clone(), link.store_notices.clone())
        };
        let asking = PendingAcquire {
            is_dead: transport.is_dead.is_raised(),
            transport: transport.clone(),
            request: request.clone(),
            delivery,
            leave: leave.clone(),
            noticed: store_notices,
        };
        network.spawn(asking.serve(sender));
        Box::pin(async move {
            let simulation = &transport.simulation;
            let mut receiver = Box::pin(arrived(receiver));
            // The connection broke, or the time limit is over; the store notices that some time later.
            let gives_up = || {
                let (simulation, leave) = (simulation.clone(), leave.clone());
                network.spawn(async move {
                    simulation.sleep(WAITER_TTL).await;
                    leave.raise();
                });
                Err(no_answer())
            };
            let is_over = async |limit: Option<Time>| match limit {
                Some(limit) => simulation.clock.sleep_until(limit).await,
                None => pending().await,
            };
            let mut limit = (!request.wait).then(|| sent.after(REQUEST_TIMEOUT));
            let mut stopped = false;
            loop {
                tokio::select! {
                    biased;
                    answer = &mut receiver => {
                        let (answer, at_once) = answer?;
                        let Answer::Granted(mut grant) = answer else {
                            return Ok(answer);
                        };
                        let now = simulation.clock.now();
                        simulation.note(transport.client, "hears of its grant", known(&request.name), grant.token);
                        grant_on_client_clock(simulation, &mut grant, at_once.then_some(sent), request.ttl, now);
                        return Ok(Answer::Granted(grant));
                    }
                    () = request.stop.raised(), if !stopped => {
                        if simulation.has_mutant(Mutant::CancelSwallowsGrant) {
                            return Ok(Answer::Busy);
                        }
                        stopped = true;
                        limit = Some(simulation.clock.now().after(REQUEST_TIMEOUT));
                        let (transport, leave) = (transport.clone(), leave.clone());
                        network.spawn(async move {
                            if transport.travels(of_dequeue.there).await {
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

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        let sent = self.now();
        let simulation = self.transport.simulation.clone();
        let asked: Vec<_> = holds
            .iter()
            .map(|hold| {
                let mut hold = hold.clone();
                hold.ttl = lease(&simulation, self.transport.client, hold.ttl);
                hold
            })
            .collect();
        let renewing = self.call("renews", known(&holds[0].name), move |store| {
            store.renew(asked.clone())
        });
        Box::pin(async move {
            let answers = renewing.await;
            let at = if simulation.has_mutant(Mutant::DeadlineFromReply) {
                simulation.clock.now()
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
                Err(_) if simulation.has_mutant(Mutant::RenewalAlwaysYes) => {
                    holds.iter().map(yes).collect()
                }
                Err(_) => holds
                    .iter()
                    .map(|_| Renewal::Unknown(no_answer()))
                    .collect(),
            }
        })
    }

    fn release(self: Arc<Self>, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        let simulation = self.transport.simulation.clone();
        let releasing = self.call("releases", known(&hold.name), move |store| {
            let mut hold = hold.clone();
            if simulation.has_mutant(Mutant::ReleaseByName)
                && let Some(name) = index_of(&hold.name)
                && let Some((_, owner)) = simulation.state().names[name].holder
            {
                hold.owner = owner;
            }
            store.release(hold)
        });
        Box::pin(async move { releasing.await? })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<Result<LockStatus, Error>> {
        // The answer comes at once or not at all, because no decision depends on it.
        if self.transport.passes() {
            return self.transport.simulation.store.clone().inspect(name);
        }
        let refused = Error::new(ErrorKind::Unreachable, "the connection was refused");
        Box::pin(ready(Err(refused)))
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<Result<Listed, Error>> {
        self.transport.simulation.store.clone().list(prefix)
    }

    fn as_operate(self: Arc<Self>) -> Option<Arc<dyn Operate>> {
        Some(self)
    }
}

impl Operate for SimulatedStore {
    fn break_lock(self: Arc<Self>, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        let (simulation, client) = (self.transport.simulation.clone(), self.transport.client);
        let breaking = self.call("breaks", known(&name), move |store| {
            let (name, simulation) = (name.clone(), simulation.clone());
            Box::pin(async move {
                let at = index_of(&name).unwrap_or_default();
                // This is recorded before the store acts, because the next waiter may get the name at that moment.
                let is_new = simulation.state().broken.insert((at, token));
                let broken = store.break_lock(name.clone(), token).await?;
                if broken {
                    notify_broken_hold(&simulation, at, token);
                } else if is_new {
                    simulation.state().broken.remove(&(at, token));
                }
                simulation.note(client, "broke", known(&name), token);
                Ok(broken)
            })
        });
        Box::pin(async move { breaking.await? })
    }

    fn check(self: Arc<Self>) -> BoxFuture<Result<Vec<Finding>, Error>> {
        self.transport.simulation.store.clone().check()
    }
}

/// Converts the store's grant into the client's grant. `sent`: when the request was sent, if the lock was granted at
/// once; the lease of a lock that was handed over counts from the hand-over.
fn grant_on_client_clock(
    simulation: &Simulation,
    grant: &mut Grant,
    sent: Option<Time>,
    ttl: Duration,
    now: Time,
) {
    if let Some(sent) = sent {
        grant.sent = sent;
        grant.round_trip = now.since(sent);
    }
    grant.ttl = Some(ttl);
    if simulation.has_mutant(Mutant::DeadlineFromReply) {
        grant.sent = now;
    }
}
