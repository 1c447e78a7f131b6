//! Elections over several stores, of which single ones are away, refuse, or have another token.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::sync::{Mutex, watch};

use tenure::guarantees::Guarantees;
use tenure::majority;
use tenure::memory;
use tenure::store::{
    self, Answer, BoxFuture, Elections, Hold, Listed, LossNotifier, RaiseToken, Release, Renewal,
    Request, Sightings, Store as _,
};
use tenure::{Client, Error, ErrorKind, Holder, LockName, LockStatus, Observer, OwnerId};
use tenure_core::leader::Sighting;
use tenure_core::rt::{Clock, poll_now};

const TTL: Duration = Duration::from_secs(30);

/// A store in memory to which a client has to connect, one request at a time.
struct Node {
    store: Arc<memory::Store>,
    connecting: Mutex<()>,
    is_connected: AtomicBool,
    is_reachable: watch::Sender<bool>,
    /// The user may not read.
    is_denied: AtomicBool,
}

impl Node {
    async fn connect(&self) {
        let _turn = self.connecting.lock().await;
        if !self.is_connected.load(SeqCst) {
            let mut is_reachable = self.is_reachable.subscribe();
            is_reachable.wait_for(|it| *it).await.unwrap();
            self.is_connected.store(true, SeqCst);
        }
    }

    fn reach(&self, is_reachable: bool) {
        self.is_connected.store(false, SeqCst);
        self.is_reachable.send_replace(is_reachable);
    }

    /// Streams of pushes that are open or being opened.
    fn streams(&self) -> usize {
        self.is_reachable.receiver_count()
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
        Box::pin(async move {
            self.connect().await;
            self.store.clone().acquire(request).await
        })
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        self.store.clone().renew(holds)
    }

    fn release(self: Arc<Self>, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        self.store.clone().release(hold)
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

    fn as_elections(self: Arc<Self>) -> Option<Arc<dyn Elections>> {
        Some(self)
    }
}

impl Elections for Node {
    fn publish(self: Arc<Self>, hold: Hold, holder: Arc<Holder>) -> BoxFuture<Result<bool, Error>> {
        self.store.clone().publish(hold, holder)
    }

    fn leader(self: Arc<Self>, name: LockName) -> BoxFuture<Result<Sighting, Error>> {
        Box::pin(async move {
            if self.is_denied.load(SeqCst) {
                return Err(Error::new(ErrorKind::Denied, "the password is wrong"));
            }
            self.connect().await;
            self.store.clone().leader(name).await
        })
    }

    fn watch(self: Arc<Self>, name: LockName) -> Option<Sightings> {
        let pushes = async move {
            self.connect().await;
            let mut is_reachable = self.is_reachable.subscribe();
            let cut = async move { drop(is_reachable.wait_for(|it| !*it).await.map(|_| ())) };
            let pushes = self.store.clone().watch(name).unwrap();
            pushes.take_until(Box::pin(cut))
        };
        Some(Box::pin(stream::once(pushes).flatten()))
    }

    fn ask_to_release(
        self: Arc<Self>,
        name: LockName,
        token: u64,
    ) -> BoxFuture<Result<bool, Error>> {
        self.store.clone().ask_to_release(name, token)
    }
}

/// Three stores in memory on one virtual clock.
fn stores() -> [memory::Store; 3] {
    let first = memory::Store::with_virtual_clock();
    let others = [first.beside(), first.beside()];
    let [second, third] = others;
    [first, second, third]
}

/// The same, of which none was connected to yet.
fn nodes() -> [Arc<Node>; 3] {
    stores().map(|store| {
        Arc::new(Node {
            store: Arc::new(store),
            connecting: Mutex::default(),
            is_connected: AtomicBool::new(false),
            is_reachable: watch::Sender::new(true),
            is_denied: AtomicBool::new(false),
        })
    })
}

fn client<S: store::Store>(nodes: impl IntoIterator<Item = Arc<S>>) -> Client {
    let nodes = nodes.into_iter().map(|node| node as Arc<dyn store::Store>);
    let store = majority::Store::new(nodes.collect(), majority::Settings::default()).unwrap();
    Client::from_dyn_store(store).unwrap()
}

/// Lets every task run until all of them wait.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

async fn advance(store: &memory::Store, time: Duration) {
    for _ in 0..32 {
        settle().await;
        store.advance(time / 32);
    }
    settle().await;
}

/// Polls the observer once: the number of the leader's term, or 0 for nobody. `None`: there is no item yet.
fn poll(observer: &mut Observer) -> Option<Result<u64, ErrorKind>> {
    let item = poll_now(pin!(observer.next())).ok()?;
    let item = item.expect("the stream goes on");
    let token = item.map(|leader| leader.and_then(|it| it.token).map_or(0, u64::from));
    Some(token.map_err(|err| err.kind()))
}

#[tokio::test]
async fn nodes_that_connect_hold_up_no_read() {
    let nodes = nodes();
    nodes[1].reach(false);
    nodes[2].reach(false);
    let client = client(nodes.clone());
    let mut observer = client.election("a").observe();
    // The first one pushes, and the others connect.
    assert_eq!(poll(&mut observer), None);
    settle().await;
    assert_eq!(poll(&mut observer), None);
    nodes[1].reach(true);
    nodes[2].reach(true);
    settle().await;
    assert_eq!(poll(&mut observer), Some(Ok(0)));
}

#[tokio::test]
async fn an_observer_that_is_not_polled_keeps_no_connection_from_others() {
    let nodes = nodes();
    let client = client(nodes.clone());
    let mut observer = client.election("a").observe();
    assert_eq!(poll(&mut observer), Some(Ok(0)));
    nodes[1].reach(false);
    nodes[2].reach(false);
    for _ in 0..3 {
        settle().await;
        assert_eq!(poll(&mut observer), None);
        nodes[0].store.advance(Duration::from_millis(100));
    }
    // The pushes of two nodes are being opened again.
    assert_eq!(poll(&mut observer), None);
    nodes[1].reach(true);
    nodes[2].reach(true);
    settle().await;
    let lock = client.lock("b").ttl(TTL);
    let acquiring = tokio::spawn(async move { lock.try_acquire().await });
    settle().await;
    assert!(acquiring.is_finished());
    assert!(acquiring.await.unwrap().unwrap().is_some());
    // What has happened meanwhile is seen.
    let election = client.election("a").ttl(TTL);
    let term = election.campaign().await.unwrap();
    advance(&nodes[0].store, Duration::from_secs(1)).await;
    let mut seen = poll(&mut observer);
    while seen == Some(Ok(0)) {
        settle().await;
        seen = poll(&mut observer);
    }
    assert_eq!(seen, Some(Ok(term.token().get())));
}

#[tokio::test]
async fn nothing_is_left_of_an_observer() {
    let nodes = nodes();
    let client = client(nodes.clone());
    nodes[1].reach(false);
    let streams = || nodes.each_ref().map(|node| node.streams());
    let mut observers = [(); 2].map(|()| client.election("a").observe());
    for observer in &mut observers {
        assert_eq!(poll(observer), None);
    }
    settle().await;
    assert_ne!(streams(), [0; 3]);
    let [first, second] = observers;
    drop(first);
    drop(second);
    settle().await;
    assert_eq!(streams(), [0; 3]);
    let mut observer = client.election("a").observe();
    assert_eq!(poll(&mut observer), None);
    settle().await;
    assert_ne!(streams(), [0; 3]);
    client.close().await;
    assert_eq!(streams(), [0; 3]);
    assert!(observer.next().await.is_none());
}

#[tokio::test]
async fn an_observer_outlasts_an_outage_while_another_node_refuses() {
    let nodes = nodes();
    let client = client(nodes.clone());
    nodes[0].is_denied.store(true, SeqCst);
    nodes[1].reach(false);
    let mut observer = client.election("a").observe();
    assert_eq!(poll(&mut observer), None);
    advance(&nodes[0].store, Duration::from_secs(4)).await;
    assert_eq!(poll(&mut observer), Some(Err(ErrorKind::Unreachable)));
    nodes[1].reach(true);
    let mut seen = poll(&mut observer);
    while seen.is_none() {
        advance(&nodes[0].store, Duration::from_secs(1)).await;
        seen = poll(&mut observer);
    }
    assert_eq!(seen, Some(Ok(0)));
}

/// A node that was given back and granted again has a token of its own.
#[tokio::test]
async fn a_leader_with_another_token_on_one_node_outlasts_the_failure_of_another_node() {
    let stores = stores();
    let shared = || stores.clone().map(Arc::new);
    let (leader, outsider) = (client(shared()), client(shared()));
    let term = leader.election("a").ttl(TTL).campaign().await.unwrap();
    let token = term.token().get();
    // The last one forgets the term, and has another contender for a moment.
    stores[2].expire("a").unwrap();
    let mut request = Request::new(LockName::new("a").unwrap(), OwnerId::random(), TTL);
    request.propose = Some(token + 1000);
    let request = Arc::new(request);
    let last = Arc::new(stores[2].clone());
    let Answer::Granted(grant) = last.clone().acquire(request.clone()).await.unwrap() else {
        panic!("the lock is taken");
    };
    let hold = Hold::new(&request, grant.token);
    assert_eq!(last.release(hold).await.unwrap(), Release::Released);
    advance(&stores[0], TTL).await;
    let on_last = stores[2].status(&request.name).holds[0].token;
    assert!(on_last.map(u64::from) > Some(token));
    stores[0].pause();
    let election = outsider.election("a");
    let asking = election.clone();
    let leading = tokio::spawn(async move { election.leader().await });
    let asked = tokio::spawn(async move { asking.ask_to_resign().await });
    advance(&stores[0], Duration::from_secs(2)).await;
    for leader in [leading.await.unwrap(), asked.await.unwrap()] {
        let shown = leader.unwrap().and_then(|it| it.token);
        assert_eq!(shown, Some(term.token()));
    }
    assert!(term.is_asked_to_resign());
}

/// Where the nodes hand over, a node may have the next leader under the number of the leader before.
#[tokio::test]
async fn a_request_does_not_reach_the_next_leader_under_the_number_of_a_node() {
    let stores = stores();
    let nodes: Vec<_> = stores
        .iter()
        .cloned()
        .map(|it| Arc::new(it) as Arc<dyn store::Store>)
        .collect();
    let store = majority::Store::new(nodes.clone(), majority::Settings::default()).unwrap();
    let name = LockName::new("a").unwrap();
    let holder = Arc::new(Holder::new("h", 1));
    for (node, token) in nodes.iter().zip([9, 9, 8]) {
        let mut request = Request::new(name.clone(), OwnerId::random(), TTL);
        request.propose = Some(token);
        request.holder = holder.clone();
        let granted = node.clone().acquire(Arc::new(request)).await.unwrap();
        assert!(matches!(granted, Answer::Granted(grant) if grant.token == token));
    }
    let ask = async |token| {
        let elections = store.clone().as_elections().unwrap();
        elections.ask_to_release(name.clone(), token).await.unwrap()
    };
    assert!(!ask(8).await && !ask(7).await && !ask(10).await);
    assert!(ask(9).await);
}
