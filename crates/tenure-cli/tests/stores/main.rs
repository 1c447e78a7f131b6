//! `tenure` on real servers of each kind but Redis: the same must be true of all.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../support/mod.rs"]
mod support;

mod bench;
mod inspect;
mod lease;
mod leftovers;
mod password;
mod run;
mod take;
mod wait;

use std::ops::Deref;

use support::Store;
use support::scenarios::ServerStore;
use tenure_testkit::etcd::{self, Etcd};
use tenure_testkit::mariadb::{self, MariaDb};
use tenure_testkit::postgres::{self, Postgres};
use tenure_testkit::zookeeper::{self, Zookeeper};

/// A server of one of these kinds.
enum Server {
    Etcd(Etcd),
    Zookeeper(Zookeeper),
    /// With the options of the URL for the mode.
    MariaDb(MariaDb, &'static str),
    Postgres(Postgres, &'static str),
}

impl Server {
    /// The URL ends in an option, so that more options can follow.
    fn url(&self) -> String {
        match self {
            Self::Etcd(server) => server.url() + "?names=encoded",
            Self::Zookeeper(server) => format!("zookeeper://127.0.0.1:{}?tls=off", server.port()),
            Self::MariaDb(server, mode) => format!("{}?{mode}", server.url()),
            Self::Postgres(server, mode) => format!("{}?{mode}", server.url()),
        }
    }

    fn scheme(&self) -> &'static str {
        match self {
            Self::Etcd(_) => "etcd",
            Self::Zookeeper(_) => "zookeeper",
            Self::MariaDb(..) => "mysql",
            Self::Postgres(..) => "postgres",
        }
    }

    /// Whether each lock is a row with its own lease.
    fn is_table(&self) -> bool {
        matches!(self, Self::MariaDb(_, mode) | Self::Postgres(_, mode) if *mode == "mode=table")
    }
}

/// A server, as the store of a test.
struct AnyStore {
    server: Server,
    store: Store,
}

impl AnyStore {
    /// Returns `None`, and prints that, where no such server is installed.
    fn etcd() -> Option<Self> {
        (!etcd::skip_unless_installed()).then(|| Self::new(Server::Etcd(Etcd::start(1, &[]))))
    }

    fn zookeeper() -> Option<Self> {
        (!zookeeper::skip_unless_installed())
            .then(|| Self::new(Server::Zookeeper(Zookeeper::start(&[]))))
    }

    fn mysql(mode: &'static str) -> Option<Self> {
        (!mariadb::skip_unless_installed())
            .then(|| Self::in_database(Server::MariaDb(MariaDb::start(&[]), mode)))
    }

    fn postgres(mode: &'static str) -> Option<Self> {
        (!postgres::skip_unless_installed())
            .then(|| Self::in_database(Server::Postgres(Postgres::start(&[]), mode)))
    }

    /// A database with the tables of the store.
    fn in_database(server: Server) -> Self {
        let store = Self::new(server);
        assert_eq!(store.code(&["check", "--init"]), 0);
        store
    }

    fn new(server: Server) -> Self {
        let store = Store::at(format!("{}&timeout=10s", server.url()));
        Self { server, store }
    }

    /// What `tenure status` prints about `name`.
    fn status(&self, name: &str) -> serde_json::Value {
        let output = self.output(&["status", "--json", name]);
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl ServerStore for AnyStore {
    fn until_waiting(&self, name: &str, count: usize) {
        tenure_testkit::until("all wait", || {
            self.status(name)["queue"].as_array().unwrap().len() == count
        });
    }

    fn assert_queue_is_empty(&self, name: &str) {
        self.until_waiting(name, 0);
    }

    fn is_free(&self, name: &str) -> bool {
        let status = self.status(name);
        status["holds"] == serde_json::json!([]) && status["queue"] == serde_json::json!([])
    }

    fn ends_with_connection(&self) -> bool {
        matches!(self.server, Server::MariaDb(..) | Server::Postgres(..)) && !self.server.is_table()
    }

    fn stop(&self) {
        match &self.server {
            Server::Etcd(server) => server.members[0].stop(),
            Server::Zookeeper(server) => server.stop(),
            Server::MariaDb(server, _) => server.stop(),
            Server::Postgres(server, _) => server.stop(),
        }
    }

    fn resume(&self) {
        match &self.server {
            Server::Etcd(server) => server.members[0].resume(),
            Server::Zookeeper(server) => server.resume(),
            Server::MariaDb(server, _) => server.resume(),
            Server::Postgres(server, _) => server.resume(),
        }
    }

    fn kill(&self) {
        match &self.server {
            Server::Etcd(server) => server.members[0].kill(),
            Server::Zookeeper(server) => server.kill(),
            Server::MariaDb(server, _) => server.kill(),
            Server::Postgres(server, _) => server.kill(),
        }
    }
}

impl Deref for AnyStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// Makes a test of each of these functions on each of the stores.
macro_rules! on_each {
    ($($name:ident),* $(,)?) => {
        mod etcd {
            $(#[test] fn $name() { if let Some(store) = crate::AnyStore::etcd() { super::$name(&store); } })*
        }
        mod zookeeper {
            $(#[test] fn $name() { if let Some(store) = crate::AnyStore::zookeeper() { super::$name(&store); } })*
        }
        mod mysql {
            $(#[test] fn $name() { if let Some(store) = crate::AnyStore::mysql("mode=session&restart_guard=off") { super::$name(&store); } })*
        }
        mod postgres {
            $(#[test] fn $name() { if let Some(store) = crate::AnyStore::postgres("mode=session&restart_guard=off") { super::$name(&store); } })*
        }
        mod mysql_table {
            $(#[test] fn $name() { if let Some(store) = crate::AnyStore::mysql("mode=table") { super::$name(&store); } })*
        }
        mod postgres_table {
            $(#[test] fn $name() { if let Some(store) = crate::AnyStore::postgres("mode=table") { super::$name(&store); } })*
        }
    };
}
use on_each;
