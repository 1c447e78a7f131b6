//! `tenure` on a real Redis. The tests ask the server over a connection that is not `tenure`'s.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../support/mod.rs"]
mod support;

mod bench;
mod inspect;
mod lease;
mod run;
mod take;
mod wait;

use std::ops::Deref;

use support::Store;
use support::scenarios::ServerStore;
use tenure_testkit::redis::{self, Redis};

/// A server, as the store of a test.
struct RedisStore {
    server: Redis,
    store: Store,
}

impl RedisStore {
    /// A server that is trusted at once: by default a server without persistence grants nothing for half a minute after
    /// its start. Returns `None`, and prints that, where no redis-server is installed.
    fn start() -> Option<Self> {
        Self::start_with("restart_guard=off")
    }

    /// A server with these options in its URL.
    fn start_with(options: &str) -> Option<Self> {
        if redis::skip_unless_installed() {
            return None;
        }
        let server = Redis::start(&[]);
        let store = Store::at(format!("{}?timeout=10s&{options}", server.url()));
        Some(Self { server, store })
    }

    /// Whether a key exists.
    fn has(&self, key: &str) -> bool {
        self.server.order(&["EXISTS", key]).int() == 1
    }
}

impl ServerStore for RedisStore {
    fn until_waiting(&self, name: &str, count: usize) {
        let (queue, length) = (format!("tenure:{{{name}}}:queue"), 2 * count as i64);
        tenure_testkit::until("all wait", || {
            self.server.order(&["LLEN", &queue]).int() == length
        });
    }

    fn assert_queue_is_empty(&self, name: &str) {
        assert!(!self.has(&format!("tenure:{{{name}}}:queue")));
    }

    fn is_free(&self, name: &str) -> bool {
        !self.has(name)
    }

    fn ends_with_connection(&self) -> bool {
        false
    }

    fn stop(&self) {
        self.server.stop();
    }

    fn resume(&self) {
        self.server.resume();
    }

    fn kill(&self) {
        self.server.kill();
    }
}

impl Deref for RedisStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// Makes a test of each of these scenarios, on a new server.
macro_rules! on_redis {
    ($($name:ident),* $(,)?) => {
        $(#[test] fn $name() {
            if let Some(store) = crate::RedisStore::start() { crate::support::scenarios::$name(&store); }
        })*
    };
}
use on_redis;
