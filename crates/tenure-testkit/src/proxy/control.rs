//! The handle of a test on a proxy: which faults happen to which requests, and what was recorded.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A fault that can happen to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is not forwarded, and this error is the answer: the line of an error of Redis, `CODE text` for SQL
    /// and gRPC. ZooKeeper always answers that it is throttled, and SQL servers without a text that they have no
    /// connection left.
    Answer(&'static str),
    /// The request is not forwarded, and these bytes are the answer.
    Garbage(&'static [u8]),
    /// The request is not forwarded, and its connection is cut.
    CutBefore,
    /// The connection is cut when the reply arrives: the server has applied the request, and the client gets no reply.
    CutAfter,
    /// The reply waits here until [`Proxy::resume`], and so do all that follow on its connection (of etcd: its stream).
    NoReply,
    /// The request is forwarded this much later, and so are all that follow on its connection (of etcd: its stream).
    Late(Duration),
    /// The first bytes of the reply are sent one by one, with this pause after each.
    Trickle(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From clients to the server.
    Up,
    /// From the server to clients.
    Down,
}

/// The conditions of one direction.
#[derive(Clone, Copy, Default)]
struct Traffic {
    is_held: bool,
    delay: Duration,
}

/// The next request of this kind (`acquire`, `renew` ..) has this fault. It is dropped when the fault has happened.
pub(super) struct Plan {
    kind: String,
    pub(super) fault: Fault,
    pending: Arc<AtomicU64>,
}

impl Drop for Plan {
    fn drop(&mut self) {
        self.pending.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What a proxy and its connections share.
pub(super) struct Control {
    target: Mutex<SocketAddr>,
    /// The first one that fits a request is taken.
    plans: Mutex<VecDeque<Plan>>,
    /// Plans whose fault has not happened yet.
    pending: Arc<AtomicU64>,
    requests: AtomicU64,
    /// The kinds of the requests, in the order in which they came.
    seen: Mutex<Vec<String>>,
    connections: AtomicU64,
    traffic: [watch::Sender<Traffic>; 2],
    blocked: watch::Sender<HashSet<String>>,
    /// The numbers of calls of `cut` and `resume`.
    cuts: watch::Sender<u64>,
    resumes: watch::Sender<u64>,
}

/// A lock that is usable after a panic of another test that held it.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Control {
    fn new(target: u16) -> Self {
        Self {
            target: Mutex::new(local(target)),
            plans: Mutex::default(),
            pending: Arc::default(),
            requests: AtomicU64::new(0),
            seen: Mutex::default(),
            connections: AtomicU64::new(0),
            traffic: [(); 2].map(|()| watch::Sender::default()),
            blocked: watch::Sender::default(),
            cuts: watch::Sender::new(0),
            resumes: watch::Sender::new(0),
        }
    }

    pub(super) fn target(&self) -> SocketAddr {
        *lock(&self.target)
    }

    /// A connection to the server. Both ends send small messages at once, as clients and servers do.
    async fn connect(&self, client: &TcpStream) -> std::io::Result<TcpStream> {
        let server = TcpStream::connect(self.target()).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        Ok(server)
    }

    pub(super) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn record(&self, kind: String) {
        lock(&self.seen).push(kind);
    }

    /// The plan for a request that `fits` says belongs to a planned kind.
    pub(super) fn take_plan(&self, fits: impl Fn(&str) -> bool) -> Option<Plan> {
        let mut plans = lock(&self.plans);
        let at = plans.iter().position(|plan| fits(&plan.kind));
        at.and_then(|at| plans.remove(at))
    }

    /// For a request that the server did not accept: the fault is for the next one.
    pub(super) fn put_back(&self, plan: Plan) {
        lock(&self.plans).push_back(plan);
    }

    pub(super) fn delay(&self, direction: Direction) -> Duration {
        self.traffic[direction as usize].borrow().delay
    }

    pub(super) async fn wait_while_held(&self, direction: Direction) {
        let mut traffic = self.traffic[direction as usize].subscribe();
        let _ = traffic.wait_for(|traffic| !traffic.is_held).await;
    }

    pub(super) async fn wait_while_blocked(&self, kind: &str) {
        let mut blocked = self.blocked.subscribe();
        let _ = blocked.wait_for(|blocked| !blocked.contains(kind)).await;
    }

    pub(super) fn resumes(&self) -> u64 {
        *self.resumes.borrow()
    }

    /// Waits for a call of `resume` that is later than the first `count` ones.
    pub(super) async fn wait_for_resume_after(&self, count: u64) {
        let mut resumes = self.resumes.subscribe();
        let _ = resumes.wait_for(|resumes| *resumes > count).await;
    }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// A proxy in front of one server. Dropped, it cuts all its connections.
pub struct Proxy {
    port: u16,
    control: Arc<Control>,
    accept_task: JoinHandle<()>,
}

/// Proxies run in a runtime of their own: tests count the tasks of theirs.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).thread_name("proxy").enable_all();
    builder.build().unwrap()
});

impl Proxy {
    /// A proxy in front of that port of this machine. `serve` is called with each client's connection and one to the
    /// server, and is dropped when the connection is cut.
    pub(super) fn start<F: Future<Output = ()> + Send + 'static>(
        target: u16,
        serve: impl Fn(Arc<Control>, TcpStream, TcpStream) -> F + Copy + Send + 'static,
    ) -> Self {
        let control = Arc::new(Control::new(target));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = control.clone();
        let accept_task = RUNTIME.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((client, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let control = shared.clone();
                let mut cuts = shared.cuts.subscribe();
                tokio::spawn(async move {
                    let Ok(server) = control.connect(&client).await else {
                        return;
                    };
                    tokio::select! {
                        () = serve(control, client, server) => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        Self {
            port,
            control,
            accept_task,
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> String {
        local(self.port).to_string()
    }

    /// The number of requests of clients, without those that only set up or keep a connection, load a script,
    /// subscribe, or ask the server about itself.
    pub fn requests(&self) -> u64 {
        self.control.requests.load(Ordering::SeqCst)
    }

    /// The kinds of the requests since the last call, or their names in the protocol. Requests that only set up or keep
    /// a connection are left out.
    pub fn take_seen(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.control.seen))
    }

    /// The number of connections accepted so far.
    pub fn connections(&self) -> u64 {
        self.control.connections.load(Ordering::SeqCst)
    }

    /// A handle that a future can keep without borrowing the proxy.
    pub fn planner(&self) -> Planner {
        Planner(self.control.clone())
    }

    /// See [`Planner::plan`].
    pub fn plan(&self, kind: &str, fault: Fault) {
        self.planner().plan(kind, fault);
    }

    /// Whether all planned faults have happened.
    pub fn is_done(&self) -> bool {
        self.pending() == 0
    }

    /// The number of planned faults that have not happened yet.
    pub fn pending(&self) -> u64 {
        self.control.pending.load(Ordering::SeqCst)
    }

    /// Drops all plans whose fault has not happened yet.
    pub fn forget_plans(&self) {
        lock(&self.control.plans).clear();
    }

    /// See [`Planner::cut`].
    pub fn cut(&self) {
        self.planner().cut();
    }

    /// Holds back all messages in that direction, or lets them pass again.
    pub fn hold(&self, direction: Direction, is_held: bool) {
        self.control.traffic[direction as usize].send_modify(|traffic| traffic.is_held = is_held);
    }

    /// [`hold`](Proxy::hold) in both directions.
    pub fn hold_both(&self, is_held: bool) {
        self.hold(Direction::Up, is_held);
        self.hold(Direction::Down, is_held);
    }

    /// From now on all messages in that direction are late by this time; their order stays the same.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.control.traffic[direction as usize].send_modify(|traffic| traffic.delay = delay);
    }

    /// From now on no request of that kind passes, until [`resume`](Proxy::resume).
    pub fn block(&self, kind: &str) {
        self.control.blocked.send_modify(|blocked| {
            blocked.insert(kind.to_owned());
        });
    }

    /// New connections go to that port of this machine. Connections that are open stay.
    pub fn redirect(&self, target: u16) {
        *lock(&self.control.target) = local(target);
    }

    /// See [`Planner::resume`].
    pub fn resume(&self) {
        self.planner().resume();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accept_task.abort();
        self.cut();
    }
}

/// Plans faults, also while the proxy is borrowed elsewhere.
pub struct Planner(Arc<Control>);

impl Planner {
    /// The next request of that kind, by any client, has this fault.
    pub fn plan(&self, kind: &str, fault: Fault) {
        self.0.pending.fetch_add(1, Ordering::SeqCst);
        lock(&self.0.plans).push_back(Plan {
            kind: kind.to_owned(),
            fault,
            pending: self.0.pending.clone(),
        });
    }

    /// Cuts all connections. New ones are accepted.
    pub fn cut(&self) {
        self.0.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Ends [`hold`](Proxy::hold) and [`block`](Proxy::block), and releases the replies of [`Fault::NoReply`].
    pub fn resume(&self) {
        for traffic in &self.0.traffic {
            traffic.send_modify(|traffic| traffic.is_held = false);
        }
        self.0.blocked.send_modify(HashSet::clear);
        self.0.resumes.send_modify(|count| *count += 1);
    }
}
