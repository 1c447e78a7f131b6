//! Jute, the encoding of ZooKeeper, and a session of a test.
//!
//! Each message is four bytes of length and so many bytes. A request begins with its number and its operation, a reply
//! with the number and a result.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

use super::wait::TEST_TIMEOUT;

/// The operations, as `ZooDefs.OpCode` of ZooKeeper numbers them.
pub(crate) mod opcode {
    pub(crate) const CREATE: i32 = 1;
    pub(crate) const DELETE: i32 = 2;
    pub(crate) const EXISTS: i32 = 3;
    pub(crate) const GET_DATA: i32 = 4;
    pub(crate) const SET_DATA: i32 = 5;
    pub(crate) const GET_ACL: i32 = 6;
    pub(crate) const SET_ACL: i32 = 7;
    pub(crate) const GET_CHILDREN: i32 = 8;
    pub(crate) const SYNC: i32 = 9;
    pub(crate) const PING: i32 = 11;
    pub(crate) const GET_CHILDREN2: i32 = 12;
    pub(crate) const MULTI: i32 = 14;
    pub(crate) const CREATE2: i32 = 15;
    pub(crate) const REMOVE_WATCHES: i32 = 18;
    pub(crate) const CREATE_CONTAINER: i32 = 19;
    pub(crate) const AUTH: i32 = 100;
    pub(crate) const SET_WATCHES: i32 = 101;
    pub(crate) const SET_WATCHES2: i32 = 105;
    pub(crate) const CLOSE: i32 = -11;
}

const NO_NODE: i32 = -101;

pub(crate) fn int(bytes: &[u8], at: usize) -> Option<i32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(i32::from_be_bytes(bytes.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<i64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(i64::from_be_bytes(bytes.try_into().ok()?))
}

/// A message that is being written.
#[derive(Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn int(mut self, number: i32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(crate) fn long(mut self, number: i64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        let mut message = self.int(i32::try_from(bytes.len()).unwrap());
        message.0.extend(bytes);
        message
    }

    pub(crate) fn flag(mut self, flag: bool) -> Self {
        self.0.push(u8::from(flag));
        self
    }

    /// The message with its length in front.
    pub(crate) fn framed(self) -> Vec<u8> {
        Self::default().bytes(&self.0).0
    }
}

/// A node of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub data: Vec<u8>,
    pub czxid: i64,
    pub owner: i64,
}

/// A session of the test, past the library.
pub struct Session {
    stream: TcpStream,
    next: i32,
    /// The id of the session.
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
            let auth = Message::default().int(-4).int(opcode::AUTH).int(0);
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

    /// Brings a server that lags behind up to date.
    pub fn sync(&mut self, path: &str) {
        let body = Message::default().bytes(path.as_bytes());
        self.ask(opcode::SYNC, body).unwrap().unwrap();
    }

    /// The names of the children; empty if there is no such node.
    pub fn children(&mut self, path: &str) -> Vec<String> {
        let body = Message::default().bytes(path.as_bytes()).flag(false);
        let answer = match self.ask(opcode::GET_CHILDREN, body).unwrap() {
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
        let answer = match self.ask(opcode::GET_DATA, body).unwrap() {
            Err(NO_NODE) => return None,
            answer => answer.unwrap(),
        };
        let length = usize::try_from(int(&answer, 0).unwrap().max(0)).unwrap();
        let stat = &answer[4 + length..];
        Some(Node {
            data: answer[4..4 + length].to_vec(),
            czxid: long(stat, 0).unwrap(),
            // The owner comes after four long and three short numbers.
            owner: long(stat, 44).unwrap(),
        })
    }

    /// Whether the node exists. No right to read it is needed.
    pub fn exists(&mut self, path: &str) -> bool {
        let body = Message::default().bytes(path.as_bytes()).flag(false);
        self.ask(opcode::EXISTS, body).unwrap().is_ok()
    }

    pub fn delete(&mut self, path: &str) -> bool {
        let body = Message::default().bytes(path.as_bytes()).int(-1);
        match self.ask(opcode::DELETE, body).unwrap() {
            Err(NO_NODE) => false,
            answer => answer.is_ok(),
        }
    }

    /// Creates a node and returns its path. `flags`: 0 persistent, 1 ephemeral, 2 sequential, 3 both.
    pub fn create(&mut self, path: &str, data: &[u8], flags: i32) -> Result<String, i32> {
        let everything = 0x1f;
        let body = Message::default().bytes(path.as_bytes()).bytes(data);
        let body = body.int(1).int(everything).bytes(b"world").bytes(b"anyone");
        let answer = self.ask(opcode::CREATE, body.int(flags)).unwrap()?;
        let length = usize::try_from(int(&answer, 0).unwrap()).unwrap();
        Ok(String::from_utf8(answer[4..4 + length].to_vec()).unwrap())
    }

    /// Replaces the data of a node.
    pub fn set(&mut self, path: &str, data: &[u8]) -> Result<(), i32> {
        let body = Message::default().bytes(path.as_bytes()).bytes(data);
        self.ask(opcode::SET_DATA, body.int(-1)).unwrap().map(drop)
    }

    /// The access control list, as `scheme:id` of each entry.
    pub fn access(&mut self, path: &str) -> Vec<String> {
        let body = Message::default().bytes(path.as_bytes());
        let answer = self.ask(opcode::GET_ACL, body).unwrap().unwrap();
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

    /// Leaves these rights on a node to `id` of `scheme`, and none to others. The rights are those of `ZooDefs.Perms`.
    pub fn restrict(&mut self, path: &str, rights: i32, (scheme, id): (&str, &str)) {
        let acl = Message::default().bytes(path.as_bytes()).int(1).int(rights);
        let acl = acl.bytes(scheme.as_bytes()).bytes(id.as_bytes()).int(-1);
        self.ask(opcode::SET_ACL, acl).unwrap().unwrap();
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
        // Without this the session would last until its timeout. An error means that the server has ended.
        let _ = self.ask(opcode::CLOSE, Message::default());
    }
}
