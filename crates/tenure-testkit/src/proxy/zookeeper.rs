//! ZooKeeper. TLS and the words of four letters pass as they are.

use std::net::SocketAddr;

use crate::jute::{Message, Session, int, opcode};
use crate::login::{PASSWORD, USER};

use super::connection::{Protocol, Reply, ReplyId, Request, serve};
use super::control::Proxy;

impl Proxy {
    /// In front of a ZooKeeper server.
    pub fn zookeeper(target: u16) -> Self {
        Self::start(target, |control, client, server| {
            let protocol = ZooKeeper {
                server: control.target(),
                requests: Stream::default(),
                replies: Stream::default(),
            };
            serve(control, client, server, protocol)
        })
    }
}

/// The answer of a server that accepted no request.
const THROTTLED: i32 = -127;

struct ZooKeeper {
    server: SocketAddr,
    requests: Stream,
    replies: Stream,
}

/// The messages of one direction.
#[derive(Default)]
struct Stream {
    /// The first message opens the session and has no number.
    is_open: bool,
    /// TLS, or a word of four letters.
    is_raw: bool,
}

impl Stream {
    /// The length of the first whole message, and its number, if it has one. Where there are no messages, all bytes are
    /// taken for one.
    fn next(&mut self, buffer: &[u8]) -> Option<(usize, Option<i32>)> {
        self.is_raw |= !self.is_open && buffer.first().is_some_and(|byte| *byte != 0);
        let length = match self.is_raw {
            true => buffer.len(),
            false => 4 + usize::try_from(int(buffer, 0)?).ok()?,
        };
        if length == 0 || buffer.len() < length {
            return None;
        }
        let is_first = !std::mem::replace(&mut self.is_open, true);
        let number = int(&buffer[..length], 4).filter(|_| !is_first && !self.is_raw);
        Some((length, number))
    }
}

impl Protocol for ZooKeeper {
    fn next_request(&mut self, buffer: &[u8]) -> Option<(usize, Request)> {
        let (length, number) = self.requests.next(buffer)?;
        let request = match (number, int(buffer, 8)) {
            (Some(number), Some(opcode)) => request(number, opcode),
            _ => Request::default(),
        };
        Some((length, request))
    }

    fn next_reply(&mut self, buffer: &[u8]) -> Option<(usize, Reply)> {
        let (length, number) = self.replies.next(buffer)?;
        let reply = Reply {
            id: number.map_or(ReplyId::None, ReplyId::Number),
            will_be_repeated: false,
        };
        Some((length, reply))
    }

    /// The error of a server that is throttled, whatever the text is.
    fn error(&self, message: &[u8], _: &str) -> Vec<u8> {
        let number = int(message, 4).unwrap();
        Message::default()
            .int(number)
            .long(0)
            .int(THROTTLED)
            .framed()
    }

    /// The first attempt to make a node in a directory that does not exist is not the acquisition.
    fn fits(&self, kind: &str, request: &Request, message: &[u8]) -> bool {
        request.kind.as_deref() == Some(kind) && (kind != "acquire" || self.has_parent(message))
    }
}

impl ZooKeeper {
    /// Whether the node above the one that is to be made exists.
    fn has_parent(&self, request: &[u8]) -> bool {
        let length = int(request, 12).and_then(|length| usize::try_from(length).ok());
        let path = length.and_then(|length| request.get(16..16 + length));
        let path = String::from_utf8_lossy(path.unwrap_or_default());
        let parent = path.rsplit_once('/').map_or("/", |(parent, _)| parent);
        // Newer servers tell this only to users who may read the node.
        let login = format!("{USER}:{PASSWORD}");
        let session = Session::open(&self.server.to_string(), Some(&login));
        session.is_ok_and(|mut session| session.exists(parent))
    }
}

fn request(number: i32, opcode: i32) -> Request {
    let kind = kind(opcode).map(str::to_owned);
    let name = kind.clone().unwrap_or_else(|| format!("opcode {opcode}"));
    let is_counted = !is_upkeep(opcode);
    Request {
        kind,
        name: is_counted.then_some(name),
        is_counted,
        reply: ReplyId::Number(number),
        own_answer: None,
    }
}

fn kind(opcode: i32) -> Option<&'static str> {
    Some(match opcode {
        opcode::CREATE | opcode::CREATE2 => "acquire",
        opcode::CREATE_CONTAINER => "parents",
        opcode::SET_DATA => "change",
        opcode::MULTI => "renew",
        opcode::DELETE => "release",
        opcode::GET_CHILDREN | opcode::GET_CHILDREN2 => "list",
        opcode::GET_DATA => "watch",
        opcode::EXISTS => "exists",
        opcode::SYNC => "sync",
        _ => return None,
    })
}

/// Requests that keep a connection, a session or a watch.
fn is_upkeep(opcode: i32) -> bool {
    matches!(
        opcode,
        opcode::PING
            | opcode::AUTH
            | opcode::SET_WATCHES
            | opcode::SET_WATCHES2
            | opcode::REMOVE_WATCHES
            | opcode::CLOSE
    )
}
