//! Stands between the clients of a test and their Redis, and makes trouble on command.
//!
//! It reads what passes by, so that trouble can be aimed at a request by what the request does: each
//! script of the backend says that in its first line, `-- tenure:acquire` for example. What has no such line
//! is nobody's aim. A script that is called by its digest is known by the text that passed by before;
//! a digest that the proxy does not know it refuses with NOSCRIPT, as the server would, and the client
//! sends the text.
//!
//! Runs in a runtime of its own: that of the test counts its tasks.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::resp::Value;

/// What can happen to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not forwarded; this error is the answer.
    Answer(&'static str),
    /// Not forwarded; these bytes are the answer.
    Garbage(&'static [u8]),
    /// Not forwarded; its connection is cut.
    CutBefore,
    /// Its connection is cut when the reply is there: applied, and nobody was told.
    CutAfter,
    /// Its reply and all that follow on that connection stay here until [`Proxy::resume`].
    NoReply,
    /// It and all that follow on that connection are forwarded this much later.
    Late(Duration),
    /// The first `SLOW` bytes of its reply come one by one, with a pause after each.
    Trickle(Duration),
}

/// See [`Fault::Trickle`].
const SLOW: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From clients to the server.
    Up,
    /// From the server to clients.
    Down,
}

/// How a direction is now.
#[derive(Clone, Copy, Default)]
pub(crate) struct Weather {
    held: bool,
    pub(crate) delay: Duration,
}

pub(crate) struct Shared {
    pub(crate) target: SocketAddr,
    /// First come, first served.
    pub(crate) plans: Mutex<VecDeque<Plan>>,
    /// Plans whose fault has not happened yet.
    under_way: Arc<AtomicU64>,
    pub(crate) requests: AtomicU64,
    /// What the requests do, in the order in which they came.
    pub(crate) seen: Mutex<Vec<String>>,
    pub(crate) connections: AtomicU64,
    pub(crate) weather: [watch::Sender<Weather>; 2],
    /// Grow with each call of `cut` and `resume`.
    pub(crate) cuts: watch::Sender<u64>,
    pub(crate) resumed: watch::Sender<u64>,
}

/// The next request of this step (`acquire`, `renew` ..) has this fault. Dropped when that has happened.
pub(crate) struct Plan {
    pub(crate) step: String,
    pub(crate) fault: Fault,
    under_way: Arc<AtomicU64>,
}

impl Drop for Plan {
    fn drop(&mut self) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One per harness or test. Dropped, it cuts everybody.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).thread_name("proxy").enable_all();
    builder.build().unwrap()
});

/// Digest of a script to its step. For all proxies of this program: its servers have seen the same scripts.
static SCRIPTS: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// In front of that port of this machine.
    pub fn start(target: u16) -> Self {
        Self::start_with(target, serve)
    }

    /// The same, where each connection is served by `serve`.
    pub(crate) fn start_with<F: Future<Output = ()> + Send + 'static>(
        target: u16,
        serve: impl Fn(Arc<Shared>, TcpStream) -> F + Send + 'static,
    ) -> Self {
        let shared = Arc::new(Shared {
            target: SocketAddr::from(([127, 0, 0, 1], target)),
            plans: Mutex::default(),
            under_way: Arc::default(),
            requests: AtomicU64::new(0),
            seen: Mutex::default(),
            connections: AtomicU64::new(0),
            weather: [(); 2].map(|()| watch::Sender::new(Weather::default())),
            cuts: watch::Sender::new(0),
            resumed: watch::Sender::new(0),
        });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let theirs = shared.clone();
        let accepting = RUNTIME.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(theirs.clone(), client));
            }
        });
        Self {
            port,
            shared,
            accepting,
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Requests of clients that were meant for the server: none of those that only set up a connection,
    /// load a script, subscribe, or ask how the server is.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// What the requests since the last call did: the step of each, or its name in the protocol. As with
    /// [`requests`](Self::requests), nothing that only sets up or keeps a connection; but what subscribes.
    pub fn take_seen(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.shared.seen))
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// What outlives a borrow of the proxy, for futures.
    pub fn planner(&self) -> Planner {
        Planner(self.shared.clone())
    }

    /// See [`Planner::plan`].
    pub fn plan(&self, step: &str, fault: Fault) {
        self.planner().plan(step, fault);
    }

    /// Whether all that was planned has happened.
    pub fn is_done(&self) -> bool {
        self.to_come() == 0
    }

    /// How much of what was planned has not happened yet.
    pub fn to_come(&self) -> u64 {
        self.shared.under_way.load(Ordering::SeqCst)
    }

    /// See [`Planner::cut`].
    pub fn cut(&self) {
        self.planner().cut();
    }

    /// Nothing passes in that direction, or everything again.
    pub fn hold(&self, direction: Direction, held: bool) {
        self.shared.weather[direction as usize].send_modify(|weather| weather.held = held);
    }

    /// From now on everything in that direction takes this much longer, and overtakes nothing.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.shared.weather[direction as usize].send_modify(|weather| weather.delay = delay);
    }

    /// See [`Planner::resume`].
    pub fn resume(&self) {
        self.planner().resume();
    }
}

/// Gives orders to a proxy.
pub struct Planner(Arc<Shared>);

impl Planner {
    /// The next request of that step, by any client, has this fault.
    pub fn plan(&self, step: &str, fault: Fault) {
        self.0.under_way.fetch_add(1, Ordering::SeqCst);
        lock(&self.0.plans).push_back(Plan {
            step: step.to_owned(),
            fault,
            under_way: self.0.under_way.clone(),
        });
    }

    /// Cuts all connections. New ones are welcome.
    pub fn cut(&self) {
        self.0.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Ends [`hold`](Proxy::hold), and lets go of what [`Fault::NoReply`] keeps.
    pub fn resume(&self) {
        for weather in &self.0.weather {
            weather.send_modify(|weather| weather.held = false);
        }
        self.0.resumed.send_modify(|count| *count += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

/// What comes down next on a connection, apart from pushes.
enum Expected {
    /// The server's reply to a request.
    Reply(Option<Plan>),
    /// Ours.
    Own(Vec<u8>),
}

/// Something on its way through.
pub(crate) enum Parcel {
    Bytes {
        due: Instant,
        bytes: Vec<u8>,
        pause: Duration,
    },
    /// Nothing after this passes until the proxy is told to resume, counted from this.
    Wall(u64),
    /// What came before has arrived; now the link is cut.
    Cut,
}

/// One client's connection.
struct Link {
    shared: Arc<Shared>,
    expected: Mutex<VecDeque<Expected>>,
    /// `None` when there will be no more.
    down: Mutex<Option<mpsc::UnboundedSender<Parcel>>>,
    /// Protocol 3: what is pushed can be told from replies.
    has_pushes: Mutex<bool>,
    /// A subscriber in protocol 2: what comes down are no replies.
    is_raw: Mutex<bool>,
}

/// The link is to be cut.
struct Cut;

async fn serve(shared: Arc<Shared>, client: TcpStream) {
    let mut cuts = shared.cuts.subscribe();
    shared.connections.fetch_add(1, Ordering::SeqCst);
    let Ok(server) = TcpStream::connect(shared.target).await else {
        return;
    };
    if client
        .set_nodelay(true)
        .and_then(|()| server.set_nodelay(true))
        .is_err()
    {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (up, up_queue) = mpsc::unbounded_channel();
    let (down, down_queue) = mpsc::unbounded_channel();
    let link = Link {
        shared: shared.clone(),
        expected: Mutex::default(),
        down: Mutex::new(Some(down)),
        has_pushes: Mutex::new(false),
        is_raw: Mutex::new(false),
    };
    let carry_up = async {
        // What a client sent before it hung up still arrives.
        let (read, ()) = tokio::join!(
            link.read_up(from_client, up),
            deliver(&shared, Direction::Up, up_queue, to_server)
        );
        if read.is_ok() {
            // The server may have something to say yet.
            std::future::pending().await
        }
    };
    let carry_down = async {
        tokio::select! {
            biased;
            () = deliver(&shared, Direction::Down, down_queue, to_client) => {}
            () = async { link.read_down(from_server).await; std::future::pending().await } => {}
        }
    };
    tokio::select! {
        () = carry_up => {}
        () = carry_down => {}
        _ = cuts.changed() => {}
    }
}

impl Link {
    async fn read_up(
        &self,
        mut from: OwnedReadHalf,
        to: mpsc::UnboundedSender<Parcel>,
    ) -> Result<(), Cut> {
        let mut buffer = Vec::new();
        loop {
            match from.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {}
            }
            while let Some((request, length)) = Value::parse(&buffer) {
                let bytes = buffer.drain(..length).collect();
                if let Some(delay) = self.forwards(request)? {
                    let delay = delay + self.shared.weather[Direction::Up as usize].borrow().delay;
                    let due = Instant::now() + delay;
                    // Nobody takes it when the server has gone; then the link ends.
                    let _ = to.send(Parcel::Bytes {
                        due,
                        bytes,
                        pause: Duration::ZERO,
                    });
                }
            }
        }
    }

    /// How much later than usual this request is forwarded; `None`: not at all.
    fn forwards(&self, request: Value) -> Result<Option<Duration>, Cut> {
        let words: Vec<_> = request.items();
        let word = |i: usize| words.get(i).map_or_else(String::new, |word| word.text());
        let command = word(0).to_ascii_uppercase();
        let step = match command.as_str() {
            "EVAL" => learn(&word(1)),
            "SCRIPT" if word(1).eq_ignore_ascii_case("load") => {
                learn(&word(2));
                String::new()
            }
            "EVALSHA" => match lock(&SCRIPTS).get(&word(1)) {
                Some(step) => step.clone(),
                None => {
                    let refusal = "NOSCRIPT No matching script. Please use EVAL.";
                    self.answer(format!("-{refusal}\r\n").into_bytes());
                    return Ok(None);
                }
            },
            "HELLO" => {
                *lock(&self.has_pushes) = word(1) == "3";
                String::new()
            }
            "SUBSCRIBE" | "UNSUBSCRIBE" | "PSUBSCRIBE" | "PUNSUBSCRIBE" | "SSUBSCRIBE"
            | "SUNSUBSCRIBE" => {
                lock(&self.shared.seen).push(command.to_ascii_lowercase());
                *lock(&self.is_raw) |= !*lock(&self.has_pushes);
                return Ok(Some(Duration::ZERO));
            }
            _ => String::new(),
        };
        if !IS_SET_UP.contains(&command.as_str()) {
            self.shared.requests.fetch_add(1, Ordering::SeqCst);
            let seen = match step.is_empty() {
                true => command.to_ascii_lowercase(),
                false => step.clone(),
            };
            lock(&self.shared.seen).push(seen);
        }
        let plan = {
            let mut plans = lock(&self.shared.plans);
            let at = plans
                .iter()
                .position(|plan| plan.step == step && !step.is_empty());
            at.and_then(|at| plans.remove(at))
        };
        match plan.as_ref().map(|plan| &plan.fault) {
            Some(Fault::CutBefore) => Err(Cut),
            Some(Fault::Answer(text)) => {
                self.answer(format!("-{text}\r\n").into_bytes());
                Ok(None)
            }
            Some(Fault::Garbage(bytes)) => {
                self.answer(bytes.to_vec());
                Ok(None)
            }
            Some(Fault::Late(delay)) => {
                let delay = *delay;
                self.expect(Expected::Reply(None));
                Ok(Some(delay))
            }
            _ => {
                self.expect(Expected::Reply(plan));
                Ok(Some(Duration::ZERO))
            }
        }
    }

    fn expect(&self, expected: Expected) {
        lock(&self.expected).push_back(expected);
    }

    /// Answers in the server's place, in its turn.
    fn answer(&self, bytes: Vec<u8>) {
        self.expect(Expected::Own(bytes));
        self.send_own();
    }

    /// Sends those answers of ours whose turn it is.
    fn send_own(&self) {
        let mut expected = lock(&self.expected);
        while let Some(Expected::Own(_)) = expected.front() {
            if let Some(Expected::Own(bytes)) = expected.pop_front() {
                self.send_down(bytes, Duration::ZERO);
            }
        }
    }

    fn send_down(&self, bytes: Vec<u8>, pause: Duration) {
        let due = Instant::now() + self.shared.weather[Direction::Down as usize].borrow().delay;
        self.send_parcel(Parcel::Bytes { due, bytes, pause });
    }

    fn send_parcel(&self, parcel: Parcel) {
        if let Some(down) = &*lock(&self.down) {
            // Nobody takes it when the client has gone; then the link ends.
            let _ = down.send(parcel);
        }
    }

    /// Ends when the server has hung up; the link ends once all is delivered.
    async fn read_down(&self, mut from: OwnedReadHalf) {
        let mut buffer = Vec::new();
        loop {
            match from.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => {
                    drop(lock(&self.down).take());
                    return;
                }
                Ok(_) => {}
            }
            while let Some((value, length)) = Value::parse(&buffer) {
                let bytes = buffer.drain(..length).collect();
                let is_reply = !matches!(value, Value::Push(_)) && !*lock(&self.is_raw);
                if is_reply {
                    self.pass_reply(&value, bytes);
                } else {
                    self.send_down(bytes, Duration::ZERO);
                }
            }
        }
    }

    fn pass_reply(&self, value: &Value, bytes: Vec<u8>) {
        let plan = match lock(&self.expected).pop_front() {
            Some(Expected::Reply(plan)) => plan,
            // Answers of ours are sent as soon as it is their turn, so none is ever next.
            Some(Expected::Own(_)) | None => None,
        };
        let is_unknown_script = value.text().starts_with("NOSCRIPT");
        let mut pause = Duration::ZERO;
        match plan.as_ref().map(|plan| &plan.fault) {
            None => {}
            // Not applied: the fault is for the one that comes next, with the text.
            Some(_) if is_unknown_script => lock(&self.shared.plans).extend(plan),
            Some(Fault::CutAfter) => {
                self.send_parcel(Parcel::Cut);
                return;
            }
            Some(Fault::NoReply) => {
                let now = *self.shared.resumed.borrow();
                self.send_parcel(Parcel::Wall(now));
            }
            Some(Fault::Trickle(each)) => pause = *each,
            Some(_) => {}
        }
        self.send_down(bytes, pause);
        self.send_own();
    }
}

/// Commands that set up a connection, load a script, or ask how the server is.
const IS_SET_UP: &[&str] = &[
    "HELLO", "AUTH", "SELECT", "CLIENT", "COMMAND", "SCRIPT", "INFO", "ROLE", "PING", "CONFIG",
    "CLUSTER", "READONLY", "ASKING", "TIME", "ACL",
];

/// The step of a script with this text, from now on known by its digest too; empty when it has none.
fn learn(text: &str) -> String {
    let first = text.trim_start().lines().next().unwrap_or_default();
    let step = first.trim().strip_prefix("-- tenure:").unwrap_or_default();
    let digest = sha1_smol::Sha1::from(text).digest().to_string();
    lock(&SCRIPTS).insert(digest, step.to_owned());
    step.to_owned()
}

/// Carries parcels to their end, each at its time; returns when there will be no more.
pub(crate) async fn deliver(
    shared: &Shared,
    direction: Direction,
    mut queue: mpsc::UnboundedReceiver<Parcel>,
    mut to: OwnedWriteHalf,
) {
    let mut weather = shared.weather[direction as usize].subscribe();
    let mut resumed = shared.resumed.subscribe();
    while let Some(parcel) = queue.recv().await {
        match parcel {
            Parcel::Cut => return,
            Parcel::Wall(since) => {
                let _ = resumed.wait_for(|count| *count > since).await;
            }
            Parcel::Bytes { due, bytes, pause } => {
                tokio::time::sleep_until(due).await;
                let _ = weather.wait_for(|weather| !weather.held).await;
                let slow = if pause.is_zero() {
                    0
                } else {
                    SLOW.min(bytes.len())
                };
                for at in 0..slow {
                    if to.write_all(&bytes[at..=at]).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(pause).await;
                }
                if to.write_all(&bytes[slow..]).await.is_err() {
                    return;
                }
            }
        }
    }
    let _ = to.shutdown().await;
}
