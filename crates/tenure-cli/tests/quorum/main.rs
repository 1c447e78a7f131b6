//! `tenure` on a real etcd and on a real ZooKeeper: the same must be true of both.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../../../tenure/tests/servers/mod.rs"]
mod servers;
#[path = "../support/mod.rs"]
mod support;

mod bench;
mod lease;
mod look;
mod run;
mod wait;

use std::ops::Deref;

use servers::etcd::{self, Etcd};
use servers::zookeeper::{self, Zookeeper};
use support::Store;

/// A server of one of these kinds.
enum Server {
    Etcd(Etcd),
    Zookeeper(Zookeeper),
}

impl Server {
    fn url(&self) -> String {
        match self {
            Self::Etcd(server) => server.url(),
            Self::Zookeeper(server) => format!("zookeeper://127.0.0.1:{}", server.port()),
        }
    }

    fn scheme(&self) -> &'static str {
        match self {
            Self::Etcd(_) => "etcd",
            Self::Zookeeper(_) => "zookeeper",
        }
    }

    fn stop(&self) {
        match self {
            Self::Etcd(server) => server.members[0].stop(),
            Self::Zookeeper(server) => server.stop(),
        }
    }

    fn go_on(&self) {
        match self {
            Self::Etcd(server) => server.members[0].go_on(),
            Self::Zookeeper(server) => server.go_on(),
        }
    }

    fn kill(&self) {
        match self {
            Self::Etcd(server) => server.members[0].kill(),
            Self::Zookeeper(server) => server.kill(),
        }
    }
}

/// A server and the store that it is.
struct On {
    server: Server,
    store: Store,
}

impl On {
    /// `None`: there is no such server here, and that has been said.
    fn etcd() -> Option<Self> {
        (!etcd::is_missing()).then(|| Self::new(Server::Etcd(Etcd::start(1, &[]))))
    }

    fn zookeeper() -> Option<Self> {
        (!zookeeper::is_missing()).then(|| Self::new(Server::Zookeeper(Zookeeper::start(&[]))))
    }

    fn new(server: Server) -> Self {
        let store = Store::at(format!("{}?timeout=1s", server.url()));
        Self { server, store }
    }

    /// Who holds `name` and who waits, from the command line.
    fn status(&self, name: &str) -> serde_json::Value {
        let output = self.output(&["status", "--json", name]);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn is_free(&self, name: &str) -> bool {
        let status = self.status(name);
        status["holds"] == serde_json::json!([]) && status["queue"] == serde_json::json!([])
    }

    /// Returns when so many wait for `name`.
    fn until_waiting(&self, name: &str, count: usize) {
        servers::until("all wait", || {
            self.status(name)["queue"].as_array().unwrap().len() == count
        });
    }
}

impl Deref for On {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// Each of these functions is a test on each of the stores.
macro_rules! on_each {
    ($($name:ident),* $(,)?) => {
        mod etcd {
            $(#[test] fn $name() { if let Some(on) = crate::On::etcd() { super::$name(&on); } })*
        }
        mod zookeeper {
            $(#[test] fn $name() { if let Some(on) = crate::On::zookeeper() { super::$name(&on); } })*
        }
    };
}
use on_each;
