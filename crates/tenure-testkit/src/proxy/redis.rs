//! Redis. The first line of each script of the library names its purpose, `-- tenure:acquire` for example. A script
//! that is called by its digest is known by its text, which was sent through a proxy before. A digest that the proxy
//! does not know is refused with NOSCRIPT, as a server does, and then the client sends the text.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use crate::resp::Value;

use super::connection::{Protocol, Reply, ReplyId, Request, serve};
use super::control::{Proxy, lock};

impl Proxy {
    /// In front of a Redis; clients must not use TLS.
    pub fn redis(target: u16) -> Self {
        Self::start(target, |control, client, server| {
            serve(control, client, server, Redis::default())
        })
    }
}

/// The kind of each script, by its digest. All proxies of this program share it: their servers share the scripts.
static SCRIPTS: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

/// Commands that set up a connection, load a script, or ask the server about itself.
const SET_UP: &[&str] = &[
    "HELLO", "AUTH", "SELECT", "CLIENT", "COMMAND", "SCRIPT", "INFO", "ROLE", "PING", "CONFIG",
    "CLUSTER", "READONLY", "ASKING", "TIME", "ACL",
];

#[derive(Default)]
struct Redis {
    /// Protocol 3: pushes differ from replies.
    has_pushes: bool,
    /// A subscriber in protocol 2: the messages of the server are no replies.
    is_subscriber: bool,
}

impl Protocol for Redis {
    fn next_request(&mut self, buffer: &[u8]) -> Option<(usize, Request)> {
        let (value, length) = Value::parse(buffer)?;
        Some((length, self.request(&value.items())))
    }

    fn next_reply(&mut self, buffer: &[u8]) -> Option<(usize, Reply)> {
        let (value, length) = Value::parse(buffer)?;
        let is_reply = !matches!(value, Value::Push(_)) && !self.is_subscriber;
        let reply = Reply {
            id: match is_reply {
                true => ReplyId::InOrder,
                false => ReplyId::None,
            },
            will_be_repeated: value.text().starts_with("NOSCRIPT"),
        };
        Some((length, reply))
    }

    fn error(&self, _: &[u8], text: &str) -> Vec<u8> {
        format!("-{text}\r\n").into_bytes()
    }
}

impl Redis {
    fn request(&mut self, words: &[Value]) -> Request {
        let word = |at: usize| words.get(at).map_or_else(String::new, Value::text);
        let command = word(0).to_ascii_uppercase();
        let mut kind = None;
        match command.as_str() {
            "EVAL" => kind = remember_script(&word(1)),
            "SCRIPT" if word(1).eq_ignore_ascii_case("load") => drop(remember_script(&word(2))),
            "EVALSHA" => match lock(&SCRIPTS).get(&word(1)) {
                Some(known) => kind = Some(known.clone()).filter(|kind| !kind.is_empty()),
                None => return unknown_script(),
            },
            "HELLO" => self.has_pushes = word(1) == "3",
            "SUBSCRIBE" | "UNSUBSCRIBE" | "PSUBSCRIBE" | "PUNSUBSCRIBE" | "SSUBSCRIBE"
            | "SUNSUBSCRIBE" => {
                self.is_subscriber |= !self.has_pushes;
                return Request {
                    name: Some(command.to_ascii_lowercase()),
                    ..Request::default()
                };
            }
            _ => {}
        }
        let is_counted = !SET_UP.contains(&command.as_str());
        let name = kind.clone().unwrap_or_else(|| command.to_ascii_lowercase());
        Request {
            kind,
            name: is_counted.then_some(name),
            is_counted,
            reply: ReplyId::InOrder,
            own_answer: None,
        }
    }
}

fn unknown_script() -> Request {
    Request {
        reply: ReplyId::InOrder,
        own_answer: Some(b"-NOSCRIPT No matching script. Please use EVAL.\r\n".to_vec()),
        ..Request::default()
    }
}

/// The kind of a script with this text. From now on its digest is known, too.
fn remember_script(text: &str) -> Option<String> {
    let first = text.trim_start().lines().next().unwrap_or_default();
    let kind = first.trim().strip_prefix("-- tenure:").unwrap_or_default();
    let digest = sha1_smol::Sha1::from(text).digest().to_string();
    lock(&SCRIPTS).insert(digest, kind.to_owned());
    Some(kind.to_owned()).filter(|kind| !kind.is_empty())
}
