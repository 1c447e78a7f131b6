//! The protocol of ZooKeeper: a plain client for looks out of band, and a proxy that can aim at a request.
//!
//! Each message is four bytes of length and so many bytes; a request begins with its number and what it
//! wants, a reply with the number and a result.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::login::{PASSWORD, USER};
use super::proxy::{Direction, Fault, Parcel, Plan, Proxy, Shared, deliver, lock};
use super::wait::TEST_TIMEOUT;

const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const GET_ACL: i32 = 6;
const GET_CHILDREN: i32 = 8;
const SYNC: i32 = 9;
const PING: i32 = 11;
const GET_CHILDREN2: i32 = 12;
const MULTI: i32 = 14;
const CREATE2: i32 = 15;
const REMOVE_WATCHES: i32 = 18;
const CREATE_CONTAINER: i32 = 19;
const AUTH: i32 = 100;
const SET_WATCHES: i32 = 101;
const SET_WATCHES2: i32 = 105;
const CLOSE: i32 = -11;

/// The server took no request.
const THROTTLED: i32 = -127;
const NO_NODE: i32 = -101;

/// What a request is called in [`Proxy::plan`]; empty: nobody's aim.
fn step(opcode: i32) -> &'static str {
    match opcode {
        1 | CREATE2 => "acquire",
        CREATE_CONTAINER => "parents",
        MULTI => "renew",
        DELETE => "release",
        GET_CHILDREN | GET_CHILDREN2 => "list",
        GET_DATA => "watch",
        EXISTS => "exists",
        SYNC => "sync",
        _ => "",
    }
}

/// What keeps a connection, a session or a watch.
fn is_upkeep(opcode: i32) -> bool {
    let upkeep = [PING, AUTH, SET_WATCHES, SET_WATCHES2, REMOVE_WATCHES, CLOSE];
    upkeep.contains(&opcode)
}

fn int(bytes: &[u8], at: usize) -> Option<i32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(i32::from_be_bytes(bytes.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<i64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(i64::from_be_bytes(bytes.try_into().ok()?))
}

/// Puts things into a message.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn int(mut self, number: i32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn long(mut self, number: i64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        let mut message = self.int(i32::try_from(bytes.len()).unwrap());
        message.0.extend(bytes);
        message
    }

    fn flag(mut self, flag: bool) -> Self {
        self.0.push(u8::from(flag));
        self
    }

    /// With its length in front.
    fn framed(self) -> Vec<u8> {
        Self::default().bytes(&self.0).0
    }
}

/// What a server says about a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub data: Vec<u8>,
    pub czxid: i64,
    pub owner: i64,
}

/// A session of a test's own, for one conversation.
pub struct Session {
    stream: TcpStream,
    next: i32,
    /// Of the session.
    pub id: i64,
}

impl Session {
    /// `login`: `user:password`.
    pub fn open(address: &str, login: Option<&str>) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TEST_TIMEOUT))?;
        let mut session = Self {
            stream,
            next: 0,
            id: 0,
        };
        let hello = Message::default().int(0).long(0).int(10_000).long(0);
        let hello = hello.bytes(&[0; 16]).flag(false).framed();
        session.stream.write_all(&hello)?;
        let answer = session.read()?;
        session.id = long(&answer, 8).unwrap_or_default();
        if let Some(login) = login {
            let auth = Message::default().int(-4).int(AUTH).int(0);
            let auth = auth.bytes(b"digest").bytes(login.as_bytes());
            session.stream.write_all(&auth.framed())?;
            session.read()?;
        }
        Ok(session)
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length);
        let mut body = vec![0; usize::try_from(length).unwrap()];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }

    /// The answer to a request, or the number of the error.
    fn ask(&mut self, opcode: i32, body: Message) -> io::Result<Result<Vec<u8>, i32>> {
        self.next += 1;
        let mut message = Message::default().int(self.next).int(opcode);
        message.0.extend(body.0);
        self.stream.write_all(&message.framed())?;
        loop {
            let answer = self.read()?;
            if int(&answer, 0) == Some(self.next) {
                return Ok(match int(&answer, 12) {
                    Some(0) => Ok(answer[16..].to_vec()),
                    error => Err(error.unwrap()),
                });
            }
        }
    }

    /// What a server that lags behind has not heard of is there afterwards.
    pub fn sync(&mut self, path: &str) {
        let body = Message::default().bytes(path.as_bytes());
        self.ask(SYNC, body).unwrap().unwrap();
    }

    /// Empty when there is no such node.
    pub fn children(&mut self, path: &str) -> Vec<String> {
        let body = Message::default().bytes(path.as_bytes()).flag(false);
        let answer = match self.ask(GET_CHILDREN, body).unwrap() {
            Err(NO_NODE) => return Vec::new(),
            answer => answer.unwrap(),
        };
        let mut at = 4;
        let mut children = Vec::new();
        for _ in 0..int(&answer, 0).unwrap() {
            let length = usize::try_from(int(&answer, at).unwrap()).unwrap();
            let child = answer[at + 4..at + 4 + length].to_vec();
            children.push(String::from_utf8(child).unwrap());
            at += 4 + length;
        }
        children
    }

    pub fn get(&mut self, path: &str) -> Option<Node> {
        let body = Message::default().bytes(path.as_bytes()).flag(false);
        let answer = match self.ask(GET_DATA, body).unwrap() {
            Err(NO_NODE) => return None,
            answer => answer.unwrap(),
        };
        let length = usize::try_from(int(&answer, 0).unwrap().max(0)).unwrap();
        let stat = &answer[4 + length..];
        Some(Node {
            data: answer[4..4 + length].to_vec(),
            czxid: long(stat, 0).unwrap(),
            // After four long and three short numbers.
            owner: long(stat, 44).unwrap(),
        })
    }

    /// Whoever may read it.
    pub fn exists(&mut self, path: &str) -> bool {
        let body = Message::default().bytes(path.as_bytes()).flag(false);
        self.ask(EXISTS, body).unwrap().is_ok()
    }

    pub fn delete(&mut self, path: &str) -> bool {
        let body = Message::default().bytes(path.as_bytes()).int(-1);
        match self.ask(DELETE, body).unwrap() {
            Err(NO_NODE) => false,
            answer => answer.is_ok(),
        }
    }

    /// The path of the node that was made. `flags`: 0 stays, 1 goes with the session, 2 is numbered, 3 both.
    pub fn create(&mut self, path: &str, data: &[u8], flags: i32) -> Result<String, i32> {
        let everything = 0x1f;
        let body = Message::default().bytes(path.as_bytes()).bytes(data);
        let body = body.int(1).int(everything).bytes(b"world").bytes(b"anyone");
        let answer = self.ask(1, body.int(flags)).unwrap()?;
        let length = usize::try_from(int(&answer, 0).unwrap()).unwrap();
        Ok(String::from_utf8(answer[4..4 + length].to_vec()).unwrap())
    }

    /// Replaces the data.
    pub fn set(&mut self, path: &str, data: &[u8]) -> Result<(), i32> {
        let body = Message::default().bytes(path.as_bytes()).bytes(data);
        self.ask(SET_DATA, body.int(-1)).unwrap().map(drop)
    }

    /// Who may do what, as `scheme:id` of each entry.
    pub fn access(&mut self, path: &str) -> Vec<String> {
        let body = Message::default().bytes(path.as_bytes());
        let answer = self.ask(GET_ACL, body).unwrap().unwrap();
        let mut at = 4;
        let text = |at: &mut usize| {
            let length = usize::try_from(int(&answer, *at).unwrap()).unwrap();
            let text = String::from_utf8(answer[*at + 4..*at + 4 + length].to_vec()).unwrap();
            *at += 4 + length;
            text
        };
        let mut entries = Vec::new();
        for _ in 0..int(&answer, 0).unwrap() {
            at += 4;
            let scheme = text(&mut at);
            entries.push(format!("{scheme}:{}", text(&mut at)));
        }
        entries
    }

    /// Deletes a node and everything under it.
    pub fn delete_all(&mut self, path: &str) {
        for child in self.children(path) {
            self.delete_all(&format!("{path}/{child}"));
        }
        self.delete(path);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Else the session would last for a while. The server may be gone.
        let _ = self.ask(CLOSE, Message::default());
    }
}

/// A proxy in front of a ZooKeeper server. Of TLS it sees nothing, and passes it through.
pub fn proxy(target: u16) -> Proxy {
    Proxy::start_with(target, serve)
}

/// One client's connection.
struct Link {
    shared: Arc<Shared>,
    /// What is to happen to the reply with that number.
    plans: Mutex<HashMap<i32, Plan>>,
    down: Mutex<Option<mpsc::UnboundedSender<Parcel>>>,
}

async fn serve(shared: Arc<Shared>, client: tokio::net::TcpStream) {
    let mut cuts = shared.cuts.subscribe();
    shared.connections.fetch_add(1, Ordering::SeqCst);
    let Ok(server) = tokio::net::TcpStream::connect(shared.target).await else {
        return;
    };
    let nodelay = client
        .set_nodelay(true)
        .and_then(|()| server.set_nodelay(true));
    if nodelay.is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (up, up_queue) = mpsc::unbounded_channel();
    let (down, down_queue) = mpsc::unbounded_channel();
    let link = Link {
        shared: shared.clone(),
        plans: Mutex::default(),
        down: Mutex::new(Some(down)),
    };
    let carry_up = async {
        let (read, ()) = tokio::join!(
            link.read_up(from_client, up),
            deliver(&shared, Direction::Up, up_queue, to_server)
        );
        if read.is_ok() {
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

/// The first message of these bytes, with its length; all of them where there are no messages.
fn message(buffer: &[u8], is_raw: bool) -> Option<usize> {
    if is_raw {
        return Some(buffer.len()).filter(|length| *length > 0);
    }
    let length = 4 + usize::try_from(int(buffer, 0)?).ok()?;
    (buffer.len() >= length).then_some(length)
}

/// TLS, or a word of four letters.
fn is_raw(buffer: &[u8]) -> bool {
    buffer.first().is_some_and(|byte| *byte != 0)
}

impl Link {
    async fn read_up(
        &self,
        mut from: OwnedReadHalf,
        to: mpsc::UnboundedSender<Parcel>,
    ) -> Result<(), ()> {
        let mut buffer = Vec::new();
        let (mut is_first, mut raw) = (true, false);
        loop {
            match from.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {}
            }
            raw |= is_first && is_raw(&buffer);
            while let Some(length) = message(&buffer, raw) {
                let bytes: Vec<u8> = buffer.drain(..length).collect();
                let extra = match is_first || raw {
                    true => Some(Duration::ZERO),
                    false => self.forwards(&bytes)?,
                };
                is_first = false;
                if let Some(extra) = extra {
                    let delay = self.shared.weather[Direction::Up as usize].borrow().delay;
                    let due = Instant::now() + delay + extra;
                    let pause = Duration::ZERO;
                    let _ = to.send(Parcel::Bytes { due, bytes, pause });
                }
            }
        }
    }

    /// How much later than usual; `None`: not at all. An error: the link is cut.
    fn forwards(&self, bytes: &[u8]) -> Result<Option<Duration>, ()> {
        let (xid, opcode) = (int(bytes, 4).ok_or(())?, int(bytes, 8).ok_or(())?);
        if !is_upkeep(opcode) {
            self.shared.requests.fetch_add(1, Ordering::SeqCst);
            lock(&self.shared.seen).push(match step(opcode) {
                "" => format!("opcode {opcode}"),
                step => step.to_owned(),
            });
        }
        let step = step(opcode);
        let plan = {
            let mut plans = lock(&self.shared.plans);
            let aims = |plan: &Plan| plan.step == step && !step.is_empty();
            // The first try to make a node in a directory that is not there is not what was meant.
            let at = plans
                .iter()
                .position(|plan| aims(plan) && (step != "acquire" || self.has_parent(bytes)));
            at.and_then(|at| plans.remove(at))
        };
        match plan.as_ref().map(|plan| &plan.fault) {
            None => Ok(Some(Duration::ZERO)),
            Some(Fault::CutBefore) => Err(()),
            Some(Fault::Answer(_)) => {
                let refused = Message::default().int(xid).long(0).int(THROTTLED);
                self.send_down(refused.framed());
                Ok(None)
            }
            Some(Fault::Garbage(bytes)) => {
                self.send_down(bytes.to_vec());
                Ok(None)
            }
            Some(Fault::Late(delay)) => Ok(Some(*delay)),
            Some(Fault::CutAfter | Fault::NoReply | Fault::Trickle(_)) => {
                lock(&self.plans).extend(plan.map(|plan| (xid, plan)));
                Ok(Some(Duration::ZERO))
            }
        }
    }

    /// Whether the node above the one that is to be made is there.
    fn has_parent(&self, request: &[u8]) -> bool {
        let length = int(request, 12).and_then(|length| usize::try_from(length).ok());
        let path = length.and_then(|length| request.get(16..16 + length));
        let path = String::from_utf8_lossy(path.unwrap_or_default());
        let parent = path.rsplit_once('/').map_or("/", |(parent, _)| parent);
        // Newer servers say so only to those who may read it.
        let login = format!("{USER}:{PASSWORD}");
        let session = Session::open(&self.shared.target.to_string(), Some(&login));
        session.is_ok_and(|mut session| session.exists(parent))
    }

    fn send_down(&self, bytes: Vec<u8>) {
        let due = Instant::now() + self.shared.weather[Direction::Down as usize].borrow().delay;
        let pause = Duration::ZERO;
        self.send_parcel(Parcel::Bytes { due, bytes, pause });
    }

    fn send_parcel(&self, parcel: Parcel) {
        if let Some(down) = &*lock(&self.down) {
            let _ = down.send(parcel);
        }
    }

    async fn read_down(&self, mut from: OwnedReadHalf) {
        let mut buffer = Vec::new();
        let (mut is_first, mut raw) = (true, false);
        loop {
            match from.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => {
                    drop(lock(&self.down).take());
                    return;
                }
                Ok(_) => {}
            }
            raw |= is_first && is_raw(&buffer);
            while let Some(length) = message(&buffer, raw) {
                let bytes: Vec<u8> = buffer.drain(..length).collect();
                let xid = int(&bytes, 4).filter(|_| !is_first && !raw);
                is_first = false;
                let plan = xid.and_then(|xid| lock(&self.plans).remove(&xid));
                match plan.as_ref().map(|plan| &plan.fault) {
                    Some(Fault::CutAfter) => {
                        self.send_parcel(Parcel::Cut);
                        continue;
                    }
                    Some(Fault::NoReply) => {
                        let now = *self.shared.resumed.borrow();
                        self.send_parcel(Parcel::Wall(now));
                    }
                    _ => {}
                }
                self.send_down(bytes);
            }
        }
    }
}
