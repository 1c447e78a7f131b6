//! Stands between the clients of a test and their etcd, and makes trouble on command.
//!
//! The proxy speaks HTTP/2 to both, so that trouble can be aimed at a request by what the request does (see `step`).
//! Each client's connection has one of its own to the server.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::proxy::RUNTIME;

/// What can happen to a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Not forwarded; this status is the answer.
    Answer(u8, &'static str),
    /// Not forwarded; its connection is cut.
    CutBefore,
    /// Its connection is cut when the answer is there: applied, and nobody was told.
    CutAfter,
    /// Its answer stays here until [`Proxy::resume`].
    NoReply,
    /// It is forwarded this much later, also when nobody waits for the answer any more.
    Late(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From clients to the server.
    Up,
    /// From the server to clients.
    Down,
}

struct Shared {
    target: SocketAddr,
    /// First come, first served.
    plans: Mutex<VecDeque<(String, Fault)>>,
    /// Plans whose fault has not happened yet.
    under_way: AtomicU64,
    requests: AtomicU64,
    /// What passed by, by step.
    seen: Mutex<Vec<String>>,
    /// Steps of which nothing passes.
    blocked: watch::Sender<HashSet<String>>,
    held: [watch::Sender<bool>; 2],
    /// Grow with each call of `cut` and `resume`.
    cuts: watch::Sender<u64>,
    resumed: watch::Sender<u64>,
}

/// One per harness or test. Dropped, it cuts everybody.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// In front of that port of this machine.
    pub fn start(target: u16) -> Self {
        let shared = Arc::new(Shared {
            target: SocketAddr::from(([127, 0, 0, 1], target)),
            plans: Mutex::default(),
            under_way: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            seen: Mutex::default(),
            blocked: watch::Sender::default(),
            held: [(); 2].map(|()| watch::Sender::new(false)),
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

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Requests about locks and leases: none of those that only set up a connection.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// The steps of all requests since the last call.
    pub fn take_seen(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.shared.seen))
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
        self.shared.under_way.load(Ordering::SeqCst) == 0
    }

    /// See [`Planner::cut`].
    pub fn cut(&self) {
        self.planner().cut();
    }

    /// From now on no request of that step passes, until [`resume`](Proxy::resume).
    pub fn block(&self, step: &str) {
        self.shared.blocked.send_modify(|blocked| {
            blocked.insert(step.to_owned());
        });
    }

    /// Nothing passes in that direction, or everything again.
    pub fn hold(&self, direction: Direction, held: bool) {
        self.shared.held[direction as usize].send_replace(held);
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
        lock(&self.0.plans).push_back((step.to_owned(), fault));
    }

    /// Cuts all connections. New ones are welcome.
    pub fn cut(&self) {
        self.0.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Ends `hold` and `block`, and lets go of what [`Fault::NoReply`] keeps.
    pub fn resume(&self) {
        for held in &self.0.held {
            held.send_replace(false);
        }
        self.0.blocked.send_modify(HashSet::clear);
        self.0.resumed.send_modify(|count| *count += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

/// What a request does: `acquire`, `release`, `renew` (the look at keys), `write`, `rest`, `sweep`, `grant`, `revoke`,
/// `keep-alive`, `left`, `watch`, `look`, or the name of its method. (What a stream says after its first answer is
/// no request; it is blocked as `events`.)
fn step(path: &str, body: &[u8]) -> String {
    let method = path.rsplit('/').next().unwrap_or_default();
    let step = match method {
        "Txn" => return txn_step(body.get(5..).unwrap_or_default()),
        "Range" => "look",
        "LeaseGrant" => "grant",
        "LeaseRevoke" => "revoke",
        "LeaseKeepAlive" => "keep-alive",
        "LeaseTimeToLive" => "left",
        "Watch" => "watch",
        other => other,
    };
    step.to_owned()
}

/// By the fields of a `TxnRequest`: 1 conditions, 2 and 3 operations, in which 1 is a range, 2 a put, 3 a delete.
fn txn_step(mut message: &[u8]) -> String {
    let (mut conditions, mut operations, mut has_failure, mut creates) =
        (0, Vec::new(), false, false);
    while let Some((field, content)) = next_field(&mut message) {
        match field {
            1 => {
                conditions += 1;
                // Its field 5, the create revision: it is 0 when a lock is acquired.
                let mut content = content;
                while let Some((field, value)) = next_field(&mut content) {
                    creates |= field == 5 && value == [0];
                }
            }
            2 => operations.push(content.first().map_or(0, |tag| tag >> 3)),
            _ => has_failure = true,
        }
    }
    let step = match operations[..] {
        [2, ..] if creates => "acquire",
        [2] if conditions > 0 && !has_failure => "write",
        [3] => "release",
        [3, ..] => "sweep",
        _ => "renew",
    };
    step.to_owned()
}

/// The next field of a message: its number and its bytes (a number as it is encoded).
fn next_field<'a>(message: &mut &'a [u8]) -> Option<(u64, &'a [u8])> {
    let tag = varint(message)?;
    let before = *message;
    let number = varint(message)?;
    match tag & 7 {
        2 => {
            let content = message.get(..usize::try_from(number).ok()?)?;
            *message = &message[content.len()..];
            Some((tag >> 3, content))
        }
        _ => Some((tag >> 3, &before[..before.len() - message.len()])),
    }
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let length = 1 + message.iter().position(|byte| byte & 0x80 == 0)?;
    let (bytes, rest) = message.split_at(length);
    *message = rest;
    let bits = bytes.iter().rev();
    Some(bits.fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f)))
}

async fn serve(shared: Arc<Shared>, client: TcpStream) {
    let mut cuts = shared.cuts.subscribe();
    let Ok(server) = TcpStream::connect(shared.target).await else {
        return;
    };
    let nodelay = client.set_nodelay(true).and(server.set_nodelay(true));
    if nodelay.is_err() {
        return;
    }
    // Raised by a request whose fault is a cut.
    let cut = Arc::new(tokio::sync::Notify::new());
    let mut requests = JoinSet::new();
    let work = async {
        let Ok((upstream, carrying)) = h2::client::handshake(server).await else {
            return;
        };
        let Ok(mut accepting) = h2::server::handshake(client).await else {
            return;
        };
        let accept = async {
            while let Some(Ok((request, respond))) = accepting.accept().await {
                let (shared, upstream, cut) = (shared.clone(), upstream.clone(), cut.clone());
                requests.spawn(async move {
                    if pass(&shared, request, respond, upstream).await == Outcome::Cut {
                        cut.notify_one();
                    }
                });
            }
            // What a client sent before it hung up still arrives.
            while requests.join_next().await.is_some() {}
        };
        tokio::select! {
            () = accept => {}
            _ = carrying => {}
        }
    };
    tokio::select! {
        () = work => {}
        () = cut.notified() => {}
        _ = cuts.changed() => {}
    }
}

#[derive(PartialEq)]
enum Outcome {
    Done,
    Cut,
}

async fn pass(
    shared: &Shared,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    mut upstream: SendRequest<Bytes>,
) -> Outcome {
    let (head, mut body) = request.into_parts();
    // All of it, but for the one that never ends.
    let is_open = head.uri.path().ends_with("/Watch");
    let mut first = Vec::new();
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
        first.extend(data);
        if is_open {
            break;
        }
    }
    let step = step(head.uri.path(), &first);
    if !head.uri.path().contains("Auth") && !head.uri.path().contains("Cluster") {
        shared.requests.fetch_add(1, Ordering::SeqCst);
    }
    lock(&shared.seen).push(step.clone());
    let fault = {
        let mut plans = lock(&shared.plans);
        let at = plans.iter().position(|(aim, _)| *aim == step);
        at.and_then(|at| plans.remove(at)).map(|(_, fault)| fault)
    };
    let happened = || {
        if fault.is_some() {
            shared.under_way.fetch_sub(1, Ordering::SeqCst);
        }
    };
    match &fault {
        Some(Fault::Answer(code, message)) => {
            happened();
            answer(&mut respond, *code, message);
            return Outcome::Done;
        }
        Some(Fault::CutBefore) => {
            happened();
            return Outcome::Cut;
        }
        Some(Fault::Late(delay)) => tokio::time::sleep(*delay).await,
        _ => {}
    }
    wait_for(shared, &step).await;
    wait_up(shared, Direction::Up).await;
    let forwarded = Request::from_parts(head, ());
    if std::future::poll_fn(|cx| upstream.poll_ready(cx))
        .await
        .is_err()
    {
        return Outcome::Cut;
    }
    let Ok((answered, mut up)) = upstream.send_request(forwarded, false) else {
        return Outcome::Cut;
    };
    let _ = up.send_data(first.into(), !is_open);
    let sending = async {
        if is_open {
            carry(shared, Direction::Up, &mut body, &mut up).await;
        }
        std::future::pending::<()>().await
    };
    let receiving = async {
        let Ok(answer) = answered.await else {
            return Outcome::Cut;
        };
        match &fault {
            Some(Fault::CutAfter) => {
                happened();
                return Outcome::Cut;
            }
            Some(Fault::NoReply) => {
                let mut resumed = shared.resumed.subscribe();
                let now = *resumed.borrow_and_update();
                happened();
                let _ = resumed.wait_for(|count| *count > now).await;
            }
            _ => happened(),
        }
        wait_up(shared, Direction::Down).await;
        let (head, mut body) = answer.into_parts();
        let is_whole = body.is_end_stream();
        let Ok(mut down) = respond.send_response(Response::from_parts(head, ()), is_whole) else {
            return Outcome::Done;
        };
        if !is_whole {
            // Whoever does not listen any more ends the request in the server too.
            let carried = carry(shared, Direction::Down, &mut body, &mut down);
            carried.await;
        }
        Outcome::Done
    };
    tokio::select! {
        outcome = receiving => outcome,
        () = sending => Outcome::Done,
    }
}

async fn wait_for(shared: &Shared, step: &str) {
    let mut blocked = shared.blocked.subscribe();
    let _ = blocked.wait_for(|blocked| !blocked.contains(step)).await;
}

async fn wait_up(shared: &Shared, direction: Direction) {
    let mut held = shared.held[direction as usize].subscribe();
    let _ = held.wait_for(|held| !held).await;
}

async fn carry(
    shared: &Shared,
    direction: Direction,
    from: &mut RecvStream,
    to: &mut SendStream<Bytes>,
) {
    for count in 0.. {
        let next = tokio::select! {
            next = from.data() => next,
            _ = std::future::poll_fn(|cx| to.poll_reset(cx)) => return,
        };
        let Some(next) = next else { break };
        let Ok(data) = next else {
            to.send_reset(h2::Reason::INTERNAL_ERROR);
            return;
        };
        let _ = from.flow_control().release_capacity(data.len());
        wait_up(shared, direction).await;
        if direction == Direction::Down && count > 0 {
            wait_for(shared, "events").await;
        }
        if to.send_data(data, false).is_err() {
            return;
        }
    }
    let trailers = from.trailers().await;
    wait_up(shared, direction).await;
    let _ = match trailers {
        Ok(Some(trailers)) => to.send_trailers(trailers),
        _ => to.send_data(Bytes::new(), true),
    };
}

/// Answers in the server's place.
fn answer(respond: &mut SendResponse<Bytes>, code: u8, message: &str) {
    let mut response = Response::new(());
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert("content-type", "application/grpc".parse().unwrap());
    headers.insert("grpc-status", code.to_string().parse().unwrap());
    headers.insert("grpc-message", message.parse().unwrap());
    let _ = respond.send_response(response, true);
}
