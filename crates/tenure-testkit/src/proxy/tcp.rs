//! Bytes that the proxy cannot parse, TLS for example: connections are cut, held and delayed, and no fault is aimed at
//! a request.

use super::connection::{Protocol, Reply, Request, serve};
use super::control::Proxy;

impl Proxy {
    /// In front of that port, whatever its protocol is.
    pub fn tcp(target: u16) -> Self {
        Self::start(target, |control, client, server| {
            serve(control, client, server, Tcp)
        })
    }
}

struct Tcp;

impl Protocol for Tcp {
    fn next_request(&mut self, buffer: &[u8]) -> Option<(usize, Request)> {
        (!buffer.is_empty()).then(|| (buffer.len(), Request::default()))
    }

    fn next_reply(&mut self, buffer: &[u8]) -> Option<(usize, Reply)> {
        (!buffer.is_empty()).then(|| (buffer.len(), Reply::default()))
    }

    fn error(&self, _: &[u8], text: &str) -> Vec<u8> {
        panic!("this protocol has no error for {text:?}")
    }
}
