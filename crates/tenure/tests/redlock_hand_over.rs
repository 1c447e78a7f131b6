//! A lock over several stores that passes from task to task of a client, while single stores refuse, fail, or are silent.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::guarantees::Guarantees;
use tenure::majority;
use tenure::memory;
use tenure::store::{
    self, Answer, BoxFuture, Hold, Listed, LossNotifier, RaiseToken, Release, Renewal, Request,
    ReserveTokens, Store as _,
};
use tenure::{Client, Error, ErrorKind, Guard, LockName, LockStatus, OwnerId};
use tenure_core::rt::Clock;

const TTL: Duration = Duration::from_secs(30);

/// Decades ahead of the clocks of the clients: tokens are what the nodes have counted.
const AHEAD: u64 = 1 << 60;

/// What becomes of a reservation on one node.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Yes,
    /// The node has no such hold.
    No,
    /// The request does not reach the node.
    Unsent,
    /// The node does it, and the reply is lost.
    Unknown,
    /// The node does it, and does not answer.
    Silent,
}

const OUTCOMES: [Outcome; 5] = [
    Outcome::Yes,
    Outcome::No,
    Outcome::Unsent,
    Outcome::Unknown,
    Outcome::Silent,
];

/// A store in memory as one client reaches it by a network.
struct Node {
    store: Arc<memory::Store>,
    reservation: Outcome,
    reservations: Arc<AtomicUsize>,
    is_cut: Arc<AtomicBool>,
}

impl Node {
    fn check(&self) -> Result<(), Error> {
        match self.is_cut.load(SeqCst) {
            true => Err(Error::new(ErrorKind::Unreachable, "the network is cut")),
            false => Ok(()),
        }
    }
}

impl store::Store for Node {
    fn guarantees(&self) -> &Guarantees {
        self.store.guarantees()
    }

    fn clock(&self) -> Clock {
        self.store.clock()
    }

    fn needs_runtime(&self) -> bool {
        false
    }

    fn attach(&self, notifier: LossNotifier) {
        self.store.attach(notifier);
    }

    fn acquire(self: Arc<Self>, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        self.store.clone().acquire(request)
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        Box::pin(async move {
            let unknown = |_: &Hold| self.check().map_err(Renewal::Unknown).err();
            match holds.iter().map(unknown).collect::<Option<Vec<_>>>() {
                Some(unknown) => unknown,
                None => self.store.clone().renew(holds).await,
            }
        })
    }

    fn release(self: Arc<Self>, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        Box::pin(async move {
            self.check()?;
            self.store.clone().release(hold).await
        })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<Result<LockStatus, Error>> {
        self.store.clone().inspect(name)
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<Result<Listed, Error>> {
        self.store.clone().list(prefix)
    }

    fn as_raise_token(self: Arc<Self>) -> Option<Arc<dyn RaiseToken>> {
        self.store.clone().as_raise_token()
    }

    fn as_reserve_tokens(self: Arc<Self>) -> Option<Arc<dyn ReserveTokens>> {
        Some(self)
    }
}

impl ReserveTokens for Node {
    fn reserve(self: Arc<Self>, hold: Hold, last: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move {
            self.reservations.fetch_add(1, SeqCst);
            match self.reservation {
                Outcome::No => return Ok(false),
                Outcome::Unsent => return Err(Error::new(ErrorKind::Unreachable, "not sent")),
                _ => {}
            }
            let raised = self.store.clone().raise(hold, last).await?;
            match self.reservation {
                Outcome::Unknown => Err(Error::new(ErrorKind::Indeterminate, "no reply")),
                Outcome::Silent => std::future::pending().await,
                _ => Ok(raised.is_some()),
            }
        })
    }
}

/// Three stores, and how a client reaches them whose reservations have these outcomes.
struct Site {
    stores: Vec<memory::Store>,
    outcomes: [Outcome; 3],
    reservations: Arc<AtomicUsize>,
    is_cut: Arc<AtomicBool>,
}

impl Site {
    async fn new(outcomes: [Outcome; 3]) -> Self {
        let first = memory::Store::with_virtual_clock();
        let stores = vec![first.beside(), first.beside(), first];
        for store in &stores {
            let name = LockName::new("a").unwrap();
            let mut request = Request::new(name, OwnerId::random(), TTL);
            request.propose = Some(AHEAD);
            let request = Arc::new(request);
            let store = Arc::new(store.clone());
            let Answer::Granted(grant) = store.clone().acquire(request.clone()).await.unwrap()
            else {
                panic!("it is free");
            };
            let hold = Hold::new(&request, grant.token);
            store.release(hold).await.unwrap();
        }
        Self {
            stores,
            outcomes,
            reservations: Arc::default(),
            is_cut: Arc::default(),
        }
    }

    /// A client whose reservations go wrong, and which may be cut off.
    fn client(&self) -> Client {
        let nodes = self.stores.iter().zip(self.outcomes);
        let nodes = nodes.map(|(store, reservation)| Node {
            store: Arc::new(store.clone()),
            reservation,
            reservations: self.reservations.clone(),
            is_cut: self.is_cut.clone(),
        });
        over(nodes.map(|node| Arc::new(node) as _).collect())
    }

    /// A client that passes nothing on, and reaches all nodes.
    fn other(&self) -> Client {
        let nodes = self.stores.iter();
        over(nodes.map(|node| Arc::new(node.clone()) as _).collect())
    }

    async fn settle(&self) {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }

    /// Moves the clock in steps that are shorter than the time between renewals.
    async fn advance(&self, time: Duration) {
        for _ in 0..32 {
            self.settle().await;
            self.stores[0].advance(time / 32);
        }
        self.settle().await;
    }

    /// The token under which each node has the hold.
    fn tokens(&self) -> Vec<u64> {
        let status = |store: &memory::Store| store.status(&LockName::new("a").unwrap());
        let holds = self.stores.iter().filter_map(|it| status(it).holds.pop());
        holds.filter_map(|hold| Some(hold.token?.get())).collect()
    }

    /// Two tasks have the lock, the second one when the first one has released it. Returns the token and the owner of the
    /// first, and the guard of the second.
    async fn pass_on(&self, client: &Client) -> (u64, OwnerId, Guard) {
        let lock = client.lock("a").ttl(TTL);
        let before = lock.acquire().await.unwrap();
        let guards = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..2 {
            let (lock, guards) = (lock.clone(), guards.clone());
            tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                guards.lock().unwrap().push(guard);
            });
        }
        self.settle().await;
        before.release().await.unwrap();
        self.settle().await;
        let first = guards.lock().unwrap().pop().expect("the first task");
        let (token, owner) = (first.token().get(), first.owner_id());
        tokio::spawn(first.release());
        self.settle().await;
        if guards.lock().unwrap().is_empty() {
            // Too few nodes answer the reservation.
            self.advance(TTL / 2).await;
        }
        let second = guards.lock().unwrap().pop().expect("the second task");
        (token, owner, second)
    }
}

fn over(nodes: Vec<Arc<dyn store::Store>>) -> Client {
    let store = majority::Store::new(nodes, majority::Settings::default()).unwrap();
    Client::from_dyn_store(store).unwrap()
}

/// Each course that a reservation can take on three nodes.
fn all_outcomes() -> impl Iterator<Item = [Outcome; 3]> {
    let pairs = OUTCOMES.iter().flat_map(|a| OUTCOMES.map(|b| (*a, b)));
    pairs.flat_map(|(a, b)| OUTCOMES.map(|c| [a, b, c]))
}

/// A majority decides. Whatever it says, later tokens are greater than those that were used.
#[tokio::test]
async fn a_reservation_has_three_outcomes_on_each_node() {
    for outcomes in all_outcomes() {
        let site = Site::new(outcomes).await;
        let client = site.client();
        let (token, owner, second) = site.pass_on(&client).await;
        let yes = outcomes.iter().filter(|it| **it == Outcome::Yes).count();
        let is_passed_on = second.owner_id() == owner;
        assert_eq!(is_passed_on, yes >= 2, "{outcomes:?}");
        assert!(second.token().get() > token, "{outcomes:?}");
        assert_eq!(site.reservations.load(SeqCst), 3, "one on each node");
        let used = second.token().get();
        second.release().await.unwrap();
        let next = site.other().lock("a").acquire().await.unwrap();
        assert!(next.token().get() > used, "{outcomes:?}");
        next.release().await.unwrap();
        site.advance(TTL * 2).await;
        let mut stores = site.stores.iter();
        assert!(stores.all(memory::Store::is_idle), "{outcomes:?}");
    }
}

/// The client ends in the middle of its turn. One node missed the reservation, and any one node is away at the next grant.
#[tokio::test]
async fn reserved_tokens_are_never_granted_again() {
    for (missed, away) in [(0, 1), (1, 2), (2, 0), (0, 0)] {
        let mut outcomes = [Outcome::Yes; 3];
        outcomes[missed] = Outcome::Unsent;
        let site = Site::new(outcomes).await;
        let client = site.client();
        let (token, owner, guard) = site.pass_on(&client).await;
        assert_eq!(guard.owner_id(), owner);
        let last = token + 32;
        let known = site.tokens();
        assert_eq!(known.iter().filter(|it| **it == last).count(), 2);
        site.is_cut.store(true, SeqCst);
        site.advance(TTL * 2).await;
        assert!(!guard.is_held());
        site.stores[away].pause();
        let next = site.other().lock("a").acquire().await.unwrap();
        assert!(next.token().get() > last, "{} in {known:?}", next.token());
        site.stores[away].resume();
        next.release().await.unwrap();
    }
}

/// A node that has forgotten the hold gets it back under the last reserved token, so that it counts with the others.
#[tokio::test]
async fn a_node_that_forgets_learns_of_the_reservation() {
    let site = Site::new([Outcome::Yes; 3]).await;
    let client = site.client();
    let (token, _, guard) = site.pass_on(&client).await;
    let last = token + 32;
    assert_eq!(site.tokens(), [last; 3]);
    for store in &site.stores {
        store.restart(Duration::ZERO);
        site.advance(TTL * 2).await;
        assert!(guard.is_held());
        assert_eq!(site.tokens(), [last; 3]);
    }
    guard.release().await.unwrap();
    let next = site.other().lock("a").acquire().await.unwrap();
    assert!(next.token().get() > last);
    next.release().await.unwrap();
}

/// Nodes that reserve no tokens are as before.
#[tokio::test]
async fn without_reservations_each_task_asks_the_nodes() {
    let site = Site::new([Outcome::Yes; 3]).await;
    let (_, owner, guard) = site.pass_on(&site.other()).await;
    assert_ne!(guard.owner_id(), owner);
    guard.release().await.unwrap();
}
