//! Hazelcast. The first message of a client has three more bytes before it.

use super::connection::{Protocol, Reply, ReplyId, Request, serve};
use super::control::Proxy;

impl Proxy {
    /// In front of a member of Hazelcast.
    pub fn hazelcast(target: u16) -> Self {
        Self::start(target, |control, client, server| {
            serve(control, client, server, Hazelcast { has_begun: false })
        })
    }
}

/// What a client sends first.
const PROTOCOL: &[u8] = b"CP2";

/// The flag of the last frame of a message.
const FINAL: u16 = 0x2000;

/// The code of the error that tells a client to send its request again.
const RETRYABLE: i32 = 46;

struct Hazelcast {
    has_begun: bool,
}

/// The length of the first whole message.
fn length(buffer: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let frame = buffer.get(at..)?;
        let length = i32::from_le_bytes(frame.get(..4)?.try_into().ok()?);
        let flags = u16::from_le_bytes(frame.get(4..6)?.try_into().ok()?);
        at += usize::try_from(length).ok()?;
        if flags & FINAL != 0 {
            return (buffer.len() >= at).then_some(at);
        }
    }
}

/// The type of a message, and its number.
fn head(message: &[u8]) -> Option<(i32, i64)> {
    let kind = i32::from_le_bytes(message.get(6..10)?.try_into().ok()?);
    let number = i64::from_le_bytes(message.get(10..18)?.try_into().ok()?);
    Some((kind, number))
}

fn id(number: i64) -> ReplyId {
    i32::try_from(number).map_or(ReplyId::None, ReplyId::Number)
}

impl Protocol for Hazelcast {
    fn next_request(&mut self, buffer: &[u8]) -> Option<(usize, Request)> {
        let skipped = if self.has_begun { 0 } else { PROTOCOL.len() };
        let message = buffer.get(skipped..)?;
        let length = length(message)?;
        self.has_begun = true;
        let (kind, number) = head(message)?;
        let name = kind_of(kind);
        let request = Request {
            kind: name.map(str::to_owned),
            name: Some(name.map_or_else(|| format!("{kind:#08x}"), str::to_owned)),
            is_counted: !is_upkeep(kind),
            reply: id(number),
            own_answer: None,
        };
        Some((skipped + length, request))
    }

    fn next_reply(&mut self, buffer: &[u8]) -> Option<(usize, Reply)> {
        let length = length(buffer)?;
        let (_, number) = head(buffer)?;
        let reply = Reply {
            id: id(number),
            will_be_repeated: false,
        };
        Some((length, reply))
    }

    /// An error without causes and without a stack.
    fn error(&self, message: &[u8], text: &str) -> Vec<u8> {
        let (_, number) = head(message).unwrap();
        let code = text.parse().unwrap_or(RETRYABLE);
        let first = [&0_i32.to_le_bytes()[..], &number.to_le_bytes(), &[0]].concat();
        let (begin, end) = (0x1000, 0x0800);
        [
            frame(0xc000, &first),
            frame(begin, &[]),
            frame(begin, &[]),
            frame(0, &i32::to_le_bytes(code)),
            frame(0, b"java.lang.Exception"),
            frame(0, b"injected by a proxy"),
            frame(begin, &[]),
            frame(end, &[]),
            frame(end, &[]),
            frame(end | FINAL, &[]),
        ]
        .concat()
    }
}

fn frame(flags: u16, content: &[u8]) -> Vec<u8> {
    let length = i32::try_from(content.len() + 6).unwrap();
    [&length.to_le_bytes()[..], &flags.to_le_bytes(), content].concat()
}

fn kind_of(kind: i32) -> Option<&'static str> {
    Some(match kind {
        0x07_0100 | 0x07_0200 => "acquire",
        0x07_0300 => "release",
        0x07_0400 => "look",
        0x1e_0100 => "group",
        0x1f_0100 => "session",
        0x1f_0200 => "close",
        0x1f_0300 => "renew",
        _ => return None,
    })
}

/// Requests that keep a connection, or open and close a session.
fn is_upkeep(kind: i32) -> bool {
    matches!(
        kind,
        0x00_0100 | 0x00_0b00 | 0x1e_0100 | 0x1f_0100 | 0x1f_0200
    )
}
