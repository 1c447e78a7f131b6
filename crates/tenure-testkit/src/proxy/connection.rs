//! One client's connection through a proxy, for every protocol that sends its messages over a byte stream.
//!
//! A protocol only parses ([`Protocol`]). This file decides what happens to each request, forwards in both directions,
//! and finds the request to which a reply belongs.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::control::{Control, Direction, Fault, Plan, lock};

/// The number of bytes of a reply that are slow in [`Fault::Trickle`].
const SLOW_BYTES: usize = 20;

/// The end of a reply that is matched by [`ReplyId::NextBytes`]: no more bytes come for this long.
const REPLY_GAP: Duration = Duration::from_millis(50);

/// How the reply to a request is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ReplyId {
    /// The request has no reply, or the message is no reply.
    #[default]
    None,
    /// The server replies in the order of the requests.
    InOrder,
    /// The client has one request under way at a time: the next bytes of the server are the beginning of its reply.
    NextBytes,
    /// The reply carries the number of its request.
    Number(i32),
}

/// A message of a client.
#[derive(Default)]
pub(super) struct Request {
    /// What the request does (`acquire`, `renew` ..); none if no fault can be planned for it.
    pub(super) kind: Option<String>,
    /// The name under which the request is recorded.
    pub(super) name: Option<String>,
    pub(super) is_counted: bool,
    pub(super) reply: ReplyId,
    /// The proxy answers with these bytes and does not forward the request.
    pub(super) own_answer: Option<Vec<u8>>,
}

/// A message of the server.
#[derive(Default)]
pub(super) struct Reply {
    pub(super) id: ReplyId,
    /// The server did nothing, and the client will send the request again. The planned fault is for the second request.
    pub(super) will_be_repeated: bool,
}

/// What a proxy knows of a protocol. One value serves one connection.
pub(super) trait Protocol: Send + 'static {
    /// The first whole message from the client, and its length.
    fn next_request(&mut self, buffer: &[u8]) -> Option<(usize, Request)>;

    /// The first whole message from the server, and its length.
    fn next_reply(&mut self, buffer: &[u8]) -> Option<(usize, Reply)>;

    /// The error that the server would answer to this message, for [`Fault::Answer`].
    fn error(&self, message: &[u8], text: &str) -> Vec<u8>;

    /// What the server gets instead of this message.
    fn forwarded(&self, message: Vec<u8>) -> Vec<u8> {
        message
    }

    /// Whether a fault that is planned for `kind` happens to this request.
    fn fits(&self, kind: &str, request: &Request, _message: &[u8]) -> bool {
        request.kind.as_deref() == Some(kind)
    }
}

/// The next message to the client.
struct Awaited {
    id: ReplyId,
    from: Sender,
}

enum Sender {
    Server(Option<Plan>),
    /// An answer of the proxy, which waits for the replies before it.
    Proxy(Vec<u8>),
}

/// One entry in the queue of a direction.
enum Delivery {
    Bytes {
        due: Instant,
        bytes: Vec<u8>,
        pause: Duration,
    },
    /// The entries that follow wait for a call of `resume` after this many calls.
    WaitForResume(u64),
    /// The connection is cut when all entries before this one have been delivered.
    Cut,
}

/// The request asks for its connection to be cut.
struct Cut;

struct Connection<P> {
    control: Arc<Control>,
    protocol: Mutex<P>,
    awaited: Mutex<VecDeque<Awaited>>,
    /// Deliveries to the client; none after the server has closed the connection.
    down: Mutex<Option<mpsc::UnboundedSender<Delivery>>>,
}

/// Forwards in both directions until one side is done or a fault cuts the connection.
pub(super) async fn serve<P: Protocol>(
    control: Arc<Control>,
    client: TcpStream,
    server: TcpStream,
    protocol: P,
) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (up, up_queue) = mpsc::unbounded_channel();
    let (down, down_queue) = mpsc::unbounded_channel();
    let connection = Connection {
        control: control.clone(),
        protocol: Mutex::new(protocol),
        awaited: Mutex::default(),
        down: Mutex::new(Some(down)),
    };
    let carry_up = async {
        // What a client sent before it closed the connection still arrives.
        let (read, ()) = tokio::join!(
            connection.read_up(from_client, up),
            deliver(&control, Direction::Up, up_queue, to_server)
        );
        if read.is_ok() {
            // Replies of the server may still come.
            std::future::pending().await
        }
    };
    let carry_down = async {
        tokio::select! {
            biased;
            () = deliver(&control, Direction::Down, down_queue, to_client) => {}
            () = async { connection.read_down(from_server).await; std::future::pending().await } => {}
        }
    };
    tokio::select! {
        () = carry_up => {}
        () = carry_down => {}
    }
}

impl<P: Protocol> Connection<P> {
    async fn read_up(
        &self,
        mut from: OwnedReadHalf,
        to: mpsc::UnboundedSender<Delivery>,
    ) -> Result<(), Cut> {
        let mut buffer = Vec::new();
        loop {
            match from.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {}
            }
            loop {
                let next = lock(&self.protocol).next_request(&buffer);
                let Some((length, request)) = next else { break };
                let message: Vec<u8> = buffer.drain(..length).collect();
                if let Some(kind) = &request.kind {
                    self.control.wait_while_blocked(kind).await;
                }
                if let Some(later) = self.decide(request, &message)? {
                    let due = Instant::now() + later + self.control.delay(Direction::Up);
                    let pause = Duration::ZERO;
                    let message = lock(&self.protocol).forwarded(message);
                    // An error means that the server has closed the connection, which ends it.
                    let _ = to.send(Delivery::Bytes {
                        due,
                        bytes: message,
                        pause,
                    });
                }
            }
        }
    }

    /// How much later than usual the request is forwarded; `None`: it is not forwarded.
    fn decide(&self, request: Request, message: &[u8]) -> Result<Option<Duration>, Cut> {
        if let Some(bytes) = request.own_answer {
            self.answer(request.reply, bytes);
            return Ok(None);
        }
        if request.is_counted {
            self.control.count_request();
        }
        let protocol = lock(&self.protocol);
        let fits = |kind: &str| protocol.fits(kind, &request, message);
        let plan = self.control.take_plan(fits);
        if let Some(name) = request.name {
            self.control.record(name);
        }
        match plan.as_ref().map(|plan| &plan.fault) {
            Some(Fault::CutBefore) => Err(Cut),
            Some(Fault::Answer(text)) => {
                self.answer(request.reply, protocol.error(message, text));
                Ok(None)
            }
            Some(Fault::Garbage(bytes)) => {
                self.answer(request.reply, bytes.to_vec());
                Ok(None)
            }
            Some(Fault::Late(later)) => {
                self.await_reply(request.reply, None);
                Ok(Some(*later))
            }
            _ => {
                self.await_reply(request.reply, plan);
                Ok(Some(Duration::ZERO))
            }
        }
    }

    fn await_reply(&self, id: ReplyId, plan: Option<Plan>) {
        // Replies in order are counted; of the others only those with a fault matter.
        if id == ReplyId::InOrder || plan.is_some() {
            let from = Sender::Server(plan);
            lock(&self.awaited).push_back(Awaited { id, from });
        }
    }

    /// Answers instead of the server, after the replies that are due before.
    fn answer(&self, id: ReplyId, bytes: Vec<u8>) {
        if id != ReplyId::InOrder {
            return self.send_down(bytes, Duration::ZERO);
        }
        let from = Sender::Proxy(bytes);
        lock(&self.awaited).push_back(Awaited { id, from });
        self.send_own_answers();
    }

    /// Sends the answers of the proxy that no reply of the server precedes.
    fn send_own_answers(&self) {
        let mut awaited = lock(&self.awaited);
        while let Some(Awaited {
            from: Sender::Proxy(bytes),
            ..
        }) = awaited.front_mut()
        {
            self.send_down(std::mem::take(bytes), Duration::ZERO);
            awaited.pop_front();
        }
    }

    fn send_down(&self, bytes: Vec<u8>, pause: Duration) {
        let due = Instant::now() + self.control.delay(Direction::Down);
        self.enqueue_down(Delivery::Bytes { due, bytes, pause });
    }

    fn enqueue_down(&self, delivery: Delivery) {
        if let Some(down) = &*lock(&self.down) {
            // An error means that the client has closed the connection, which ends it.
            let _ = down.send(delivery);
        }
    }

    /// Ends when the server has closed the connection, which ends once everything is delivered.
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
            loop {
                let next = lock(&self.protocol).next_reply(&buffer);
                let Some((length, reply)) = next else { break };
                let bytes = buffer.drain(..length).collect();
                if self.forward_reply(&reply, bytes).is_err() {
                    if reply.id == ReplyId::NextBytes {
                        read_rest_of_reply(&mut from).await;
                    }
                    self.enqueue_down(Delivery::Cut);
                    return;
                }
            }
        }
    }

    fn forward_reply(&self, reply: &Reply, bytes: Vec<u8>) -> Result<(), Cut> {
        let mut pause = Duration::ZERO;
        if let Some(plan) = self.take_awaited(reply.id) {
            match &plan.fault {
                _ if reply.will_be_repeated => self.control.put_back(plan),
                Fault::CutAfter => return Err(Cut),
                Fault::NoReply => {
                    let count = self.control.resumes();
                    self.enqueue_down(Delivery::WaitForResume(count));
                }
                Fault::Trickle(each) => pause = *each,
                _ => {}
            }
        }
        self.send_down(bytes, pause);
        self.send_own_answers();
        Ok(())
    }

    /// The plan for the request to which this reply belongs.
    fn take_awaited(&self, id: ReplyId) -> Option<Plan> {
        if id == ReplyId::None {
            return None;
        }
        let mut awaited = lock(&self.awaited);
        let at = awaited.iter().position(|it| it.id == id)?;
        match awaited.remove(at)?.from {
            Sender::Server(plan) => plan,
            // An answer of the proxy is sent as soon as it is the first, so a reply never meets one.
            Sender::Proxy(_) => None,
        }
    }
}

/// Reads the rest of a reply whose end the proxy does not parse; the last bytes say that the server is done.
async fn read_rest_of_reply(from: &mut OwnedReadHalf) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(Ok(1..)) = tokio::time::timeout(REPLY_GAP, from.read(&mut buffer)).await {}
}

/// Writes each delivery at its time; returns when there will be no more.
async fn deliver(
    control: &Control,
    direction: Direction,
    mut queue: mpsc::UnboundedReceiver<Delivery>,
    mut to: OwnedWriteHalf,
) {
    while let Some(delivery) = queue.recv().await {
        match delivery {
            Delivery::Cut => return,
            Delivery::WaitForResume(count) => control.wait_for_resume_after(count).await,
            Delivery::Bytes { due, bytes, pause } => {
                tokio::time::sleep_until(due).await;
                control.wait_while_held(direction).await;
                if write(&mut to, &bytes, pause).await.is_err() {
                    return;
                }
            }
        }
    }
    // A client that is told nothing is not told of the end either.
    if direction == Direction::Down {
        control.wait_while_held(direction).await;
    }
    let _ = to.shutdown().await;
}

async fn write(to: &mut OwnedWriteHalf, bytes: &[u8], pause: Duration) -> std::io::Result<()> {
    let slow = match pause.is_zero() {
        true => 0,
        false => SLOW_BYTES.min(bytes.len()),
    };
    let (slow, rest) = bytes.split_at(slow);
    for byte in slow {
        to.write_all(&[*byte]).await?;
        tokio::time::sleep(pause).await;
    }
    to.write_all(rest).await
}
