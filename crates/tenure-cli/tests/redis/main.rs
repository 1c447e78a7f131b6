//! `tenure` on a real Redis. What a test wants to know of the server it asks out of band.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../support/mod.rs"]
mod support;

mod bench;
mod lease;
mod look;
mod run;
mod wait;

use std::ops::Deref;

use support::Store;
use tenure_testkit::redis::{self, Redis};

/// A server and the store that it is.
struct OnRedis {
    server: Redis,
    store: Store,
}

impl OnRedis {
    /// One that is trusted at once: by default a server without persistence grants nothing for half a minute
    /// after its start. `None`: there is no redis-server here, and that has been said.
    fn start() -> Option<Self> {
        Self::start_with("restart_guard=off")
    }

    /// With these options in the URL.
    fn start_with(options: &str) -> Option<Self> {
        if redis::skip_unless_installed() {
            return None;
        }
        let server = Redis::start(&[]);
        let store = Store::at(format!("{}?timeout=1s&{options}", server.url()));
        Some(Self { server, store })
    }

    /// Whether a key is there.
    fn has(&self, key: &str) -> bool {
        self.server.order(&["EXISTS", key]).int() == 1
    }

    /// Returns when so many wait for `name`.
    fn until_waiting(&self, name: &str, count: i64) {
        let queue = format!("tenure:{{{name}}}:queue");
        tenure_testkit::until("all wait", || {
            self.server.order(&["LLEN", &queue]).int() == 2 * count
        });
    }
}

impl Deref for OnRedis {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}
