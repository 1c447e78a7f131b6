//! The protocol of Redis, as far as the proxy needs it, and a client that is not the library.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::wait::TEST_TIMEOUT;

/// A value of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `+`, and other values of one line: numbers with a fraction, booleans.
    Text(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    /// Arrays, sets, and maps as key, value, key, value.
    Array(Vec<Value>),
    /// A push, which is no reply.
    Push(Vec<Value>),
}

impl Value {
    /// The first value in `bytes`, and its length; `None` if it is not complete.
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let end = bytes.windows(2).position(|two| two == b"\r\n")?;
        let line = String::from_utf8_lossy(bytes[..end].get(1..).unwrap_or_default()).into_owned();
        let mut at = end + 2;
        let count = || line.parse::<i64>().unwrap_or(0);
        let value = match bytes[0] {
            b'-' => Self::Error(line),
            b':' => Self::Int(count()),
            b'_' => Self::Nil,
            b'$' | b'=' | b'!' => match usize::try_from(count()) {
                Ok(length) => {
                    let bulk = bytes.get(at..at + length)?.to_vec();
                    bytes.get(at + length + 1)?;
                    at += length + 2;
                    Self::Bulk(bulk)
                }
                Err(_) => Self::Nil,
            },
            kind @ (b'*' | b'~' | b'>' | b'%' | b'|') => {
                let Ok(length) = usize::try_from(count()) else {
                    return Some((Self::Nil, at));
                };
                let length = if matches!(kind, b'%' | b'|') {
                    length * 2
                } else {
                    length
                };
                let mut items = Vec::new();
                for _ in 0..length {
                    let (item, length) = Self::parse(&bytes[at..])?;
                    items.push(item);
                    at += length;
                }
                if kind == b'>' {
                    Self::Push(items)
                } else {
                    Self::Array(items)
                }
            }
            _ => Self::Text(line),
        };
        Some((value, at))
    }

    /// The value as text.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) | Self::Error(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Nil => String::new(),
            Self::Array(items) | Self::Push(items) => {
                let items: Vec<_> = items.iter().map(Self::text).collect();
                items.join(" ")
            }
        }
    }

    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            other => panic!("{other:?} is no number"),
        }
    }

    pub fn items(self) -> Vec<Self> {
        match self {
            Self::Array(items) | Self::Push(items) => items,
            _ => Vec::new(),
        }
    }
}

/// A request as bytes.
pub fn request<A: AsRef<[u8]>>(words: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.as_ref().len()).bytes());
        bytes.extend(word.as_ref());
        bytes.extend(b"\r\n");
    }
    bytes
}

/// A connection that blocks this thread.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects to a port of this machine.
    pub fn open(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(TEST_TIMEOUT))?;
        stream.set_nodelay(true)?;
        let buffer = Vec::new();
        Ok(Self { stream, buffer })
    }

    /// Sends without waiting for the answer.
    pub fn send<A: AsRef<[u8]>>(&mut self, words: &[A]) -> std::io::Result<()> {
        self.stream.write_all(&request(words))
    }

    /// The next value that comes.
    pub fn receive(&mut self) -> std::io::Result<Value> {
        loop {
            if let Some((value, length)) = Value::parse(&self.buffer) {
                self.buffer.drain(..length);
                return Ok(value);
            }
            let mut bytes = [0; 16 * 1024];
            match self.stream.read(&mut bytes)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                length => self.buffer.extend(&bytes[..length]),
            }
        }
    }

    /// Sends and waits for the answer.
    pub fn ask<A: AsRef<[u8]>>(&mut self, words: &[A]) -> std::io::Result<Value> {
        self.send(words)?;
        self.receive()
    }
}
