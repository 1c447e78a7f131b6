//! Any protocol that sends statements as text. A planned kind is a word of the request, `COMMIT` for example.

use super::connection::{Protocol, Reply, ReplyId, Request, serve};
use super::control::Proxy;

impl Proxy {
    /// In front of that port. Only faults without an answer of the proxy can be planned.
    pub fn text(target: u16) -> Self {
        Self::start(target, |control, client, server| {
            serve(control, client, server, Text)
        })
    }
}

struct Text;

impl Protocol for Text {
    fn next_request(&mut self, buffer: &[u8]) -> Option<(usize, Request)> {
        let request = Request {
            reply: ReplyId::NextBytes,
            ..Request::default()
        };
        (!buffer.is_empty()).then_some((buffer.len(), request))
    }

    fn next_reply(&mut self, buffer: &[u8]) -> Option<(usize, Reply)> {
        let reply = Reply {
            id: ReplyId::NextBytes,
            will_be_repeated: false,
        };
        (!buffer.is_empty()).then_some((buffer.len(), reply))
    }

    fn error(&self, _: &[u8], text: &str) -> Vec<u8> {
        panic!("this protocol has no error for {text:?}")
    }

    fn fits(&self, kind: &str, _: &Request, message: &[u8]) -> bool {
        let mut parts = message.windows(kind.len());
        parts.any(|part| part == kind.as_bytes())
    }
}
