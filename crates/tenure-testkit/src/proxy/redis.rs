//! Redis. The first line of each script of the library names its purpose, `-- tenure:acquire` for example. A script
//! that is called by its digest is known by its text, which was sent through a proxy before. A digest that the proxy
//! does not know is refused with NOSCRIPT, as a server does, and then the client sends the text.

use std::collections::{HashMap, VecDeque};
use std::sync::{LazyLock, Mutex};

use crate::resp::{Value, request};

use super::connection::{Protocol, Reply, ReplyId, Request, serve};
use super::control::{Proxy, lock};

/// A mistake that the proxy plants in scripts: a text, and the wrong text in its place.
#[derive(Debug)]
pub struct Mistake {
    pub text: &'static str,
    pub wrong: &'static str,
}

impl Proxy {
    /// In front of a Redis; clients must not use TLS.
    pub fn redis(target: u16) -> Self {
        Self::start(target, |control, client, server| {
            serve(control, client, server, Redis::default())
        })
    }

    /// The same, where each script gets this mistake on its way to the server. The server knows such a script under another
    /// digest, so the client sends the text again each time.
    pub fn redis_with(target: u16, mistake: &'static Mistake) -> Self {
        Self::start(target, |control, client, server| {
            let protocol = Redis {
                mistake: Some(mistake),
                ..Redis::default()
            };
            serve(control, client, server, protocol)
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
    /// For each request to (un)subscribe, in protocol 3: how many of its confirmations have not come yet. A server sends
    /// them as pushes, and in the order of the requests.
    confirmations: VecDeque<usize>,
    mistake: Option<&'static Mistake>,
}

impl Protocol for Redis {
    fn next_request(&mut self, buffer: &[u8]) -> Option<(usize, Request)> {
        let (value, length) = Value::parse(buffer)?;
        Some((length, self.request(&value.items())))
    }

    fn next_reply(&mut self, buffer: &[u8]) -> Option<(usize, Reply)> {
        let (value, length) = Value::parse(buffer)?;
        let is_reply = match &value {
            Value::Push(items) => self.is_last_confirmation(items),
            _ => !self.is_subscriber,
        };
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

    fn forwarded(&self, message: Vec<u8>) -> Vec<u8> {
        let Some(mistake) = self.mistake else {
            return message;
        };
        let words = Value::parse(&message).map(|(value, _)| value.items());
        let words = words.unwrap_or_default();
        let is_script = words.first().is_some_and(|word| word.text() == "EVAL");
        let words = words.into_iter().enumerate().map(|(at, word)| match word {
            Value::Bulk(_) if at == 1 => word.text().replace(mistake.text, mistake.wrong).into(),
            Value::Bulk(bytes) => bytes,
            other => other.text().into(),
        });
        match is_script {
            true => request(&words.collect::<Vec<Vec<u8>>>()),
            false => message,
        }
    }
}

impl Redis {
    /// Whether this push is the last confirmation of a request, which is then answered. Sharded subscriptions are left out:
    /// a server may end them by itself.
    fn is_last_confirmation(&mut self, push: &[Value]) -> bool {
        let word = push.first().map_or_else(String::new, Value::text);
        let confirms = matches!(
            word.as_str(),
            "subscribe" | "unsubscribe" | "psubscribe" | "punsubscribe"
        );
        let Some(left) = self.confirmations.front_mut().filter(|_| confirms) else {
            return false;
        };
        *left -= 1;
        let is_last = *left == 0;
        if is_last {
            self.confirmations.pop_front();
        }
        is_last
    }

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
                let mut request = Request {
                    name: Some(command.to_ascii_lowercase()),
                    ..Request::default()
                };
                if self.has_pushes && !matches!(&*command, "SSUBSCRIBE" | "SUNSUBSCRIBE") {
                    self.confirmations
                        .push_back(words.len().saturating_sub(1).max(1));
                    request.reply = ReplyId::InOrder;
                }
                return request;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of a reply to the bytes that a server sends.
    fn reply(protocol: &mut Redis, bytes: &[u8]) -> ReplyId {
        let (length, reply) = protocol.next_reply(bytes).unwrap();
        assert_eq!(length, bytes.len());
        reply.id
    }

    #[test]
    fn a_subscription_is_answered_by_its_last_push() {
        let mut protocol = Redis::default();
        let mut ask = |words: &[&str]| {
            let (_, request) = protocol.next_request(&request(words)).unwrap();
            request.reply
        };
        assert_eq!(ask(&["HELLO", "3"]), ReplyId::InOrder);
        assert_eq!(ask(&["SUBSCRIBE", "a", "b"]), ReplyId::InOrder);
        assert_eq!(ask(&["UNSUBSCRIBE", "a"]), ReplyId::InOrder);
        let [first, second] = ["a", "b"].map(|channel| {
            format!(">3\r\n$9\r\nsubscribe\r\n$1\r\n{channel}\r\n:1\r\n").into_bytes()
        });
        assert_eq!(reply(&mut protocol, &first), ReplyId::None);
        let message = b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n";
        assert_eq!(reply(&mut protocol, message), ReplyId::None);
        assert_eq!(reply(&mut protocol, &second), ReplyId::InOrder);
        let ended = b">3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:1\r\n";
        assert_eq!(reply(&mut protocol, ended), ReplyId::InOrder);
        assert_eq!(reply(&mut protocol, b":1\r\n"), ReplyId::InOrder);
    }
}
