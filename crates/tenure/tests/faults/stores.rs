//! The stores under test. The tests of one store share its server.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use tenure::conformance::ContenderCounts;
use tenure::{Client, Error, Guard, Lock};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::etcd::Etcd;
use tenure_testkit::mariadb::MariaDb;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::proxy::Proxy;
use tenure_testkit::redis::Redis;
use tenure_testkit::server::Server;
use tenure_testkit::sqlite::DatabaseFile;
use tenure_testkit::zookeeper::Zookeeper;
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::task::JoinHandle;

use crate::common::{soon, start_acquire, until};
use crate::harness::redis::Keys;
use crate::harness::table::Database;
use crate::harness::{etcd as etcd_harness, session, zookeeper as zookeeper_harness};

/// Far above what a server and two busy cores need, and short enough to wait for its end.
pub(crate) const TTL: Duration = Duration::from_secs(8);

/// A name that no other test has.
pub(crate) fn name(tail: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{tail}-{}", COUNT.fetch_add(1, Ordering::SeqCst))
}

/// Acquires, and asks again after each error that says that the outcome is not known, or that no server answered.
pub(crate) async fn acquire(lock: &Lock) -> Guard {
    let start = Instant::now();
    loop {
        match soon(lock.acquire()).await {
            Ok(guard) => return guard,
            Err(err) => assert!(
                err.is_retryable() && start.elapsed() < TEST_TIMEOUT,
                "{err}"
            ),
        }
    }
}

/// A server on a busy machine may not answer within the limit of one attempt.
async fn connect_to(url: &str) -> Client {
    let start = Instant::now();
    loop {
        match soon(tenure::connect(url)).await {
            Ok(client) => return client,
            Err(err) => assert!(
                err.is_retryable() && start.elapsed() < TEST_TIMEOUT,
                "{err}"
            ),
        }
    }
}

/// What becomes of a request whose connection breaks before the reply. Of one that may wait for a lock the client always
/// finds out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LostReply {
    /// The client finds out, and the caller has a result.
    Recovered,
    /// The caller has an error that says that the outcome is not known.
    Reported,
    /// Either, which depends on the moment.
    Either,
}

/// What a proxy calls the requests of a store.
#[derive(Clone, Copy)]
pub(crate) struct Requests {
    /// The requests of an acquisition of a free name.
    pub(crate) acquire: &'static [&'static str],
    /// The requests of an acquisition that waits.
    pub(crate) wait: &'static [&'static str],
    /// The requests of a renewal.
    pub(crate) renew: &'static [&'static str],
    /// The requests of an acquisition of several names.
    pub(crate) several: &'static [&'static str],
}

impl Requests {
    const USUAL: Self = Self {
        acquire: &["acquire"],
        wait: &["acquire"],
        renew: &["renew"],
        several: &["acquire"],
    };

    /// A connection that is gone takes its holds along, so there is no renewal to be lost.
    const OF_SESSIONS: Self = Self {
        wait: &["acquire", "wait"],
        ..Self::USUAL
    };

    const OF_TABLES: Self = Self {
        several: &["acquire", "commit"],
        ..Self::USUAL
    };
}

/// A store, and its server.
pub(crate) struct Store {
    pub(crate) server: &'static dyn Server,
    options: &'static str,
    look: Box<dyn Fn(&str) -> ContenderCounts + Send + Sync>,
    /// Shared by the tests that do nothing to the server itself.
    turn: RwLock<()>,
    /// Set when the tables that the store needs are there.
    has_tables: OnceCell<()>,
    pub(crate) lost_reply: LostReply,
    /// Whether a hold ends with the connection on which it was acquired.
    pub(crate) ends_with_connection: bool,
    pub(crate) requests: Requests,
    /// How a server refuses a request that may be sent again, for a proxy.
    pub(crate) refusal: &'static str,
    /// How many requests that are given up do not take too long.
    pub(crate) many: u32,
}

impl Store {
    fn new<S: Server>(
        server: &'static S,
        options: &'static str,
        look: impl Fn(&'static S, &str) -> ContenderCounts + Send + Sync + 'static,
    ) -> Self {
        Self {
            server,
            options,
            look: Box::new(move |name| look(server, name)),
            turn: RwLock::new(()),
            has_tables: OnceCell::new(),
            lost_reply: LostReply::Either,
            ends_with_connection: false,
            requests: Requests::USUAL,
            refusal: "",
            many: 200,
        }
    }

    async fn until_ready(&self) {
        let init = async {
            let client = self.client().await;
            soon(client.init()).await.unwrap();
            client.close().await;
        };
        self.has_tables.get_or_init(|| init).await;
    }

    /// The turn of a test that does nothing to the server.
    pub(crate) async fn shared(&self) -> RwLockReadGuard<'_, ()> {
        let turn = self.turn.read().await;
        self.until_ready().await;
        turn
    }

    /// The turn of a test that stops the server, or counts what all clients have there.
    pub(crate) async fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        let turn = self.turn.write().await;
        self.until_ready().await;
        turn
    }

    pub(crate) fn url(&self) -> String {
        self.url_at(self.server.port())
    }

    pub(crate) fn url_at(&self, port: u16) -> String {
        self.server.url_at(port) + self.options
    }

    pub(crate) async fn client(&self) -> Client {
        connect_to(&self.url()).await
    }

    /// A client by way of a proxy of its own.
    pub(crate) async fn proxied(&self) -> (Proxy, Client) {
        let proxy = self.server.proxy();
        let client = connect_to(&self.url_at(proxy.port())).await;
        (proxy, client)
    }

    /// How many hold, and how many wait, as the server shows.
    pub(crate) fn counts(&self, name: &str) -> (usize, usize) {
        let counts = (self.look)(name);
        (counts.holders, counts.waiters.unwrap_or(0))
    }

    /// How many hold or wait, as the server shows.
    pub(crate) fn contenders(&self, name: &str) -> usize {
        let (holders, waiters) = self.counts(name);
        holders + waiters
    }

    /// Begins to wait behind a holder.
    pub(crate) async fn wait(
        &self,
        client: &Client,
        name: &str,
        ttl: Duration,
    ) -> JoinHandle<Result<Guard, Error>> {
        let waiting = start_acquire(client.lock(name).ttl(ttl));
        until("it waits", || self.counts(name) == (1, 1)).await;
        waiting
    }

    pub(crate) async fn until_idle(&self, name: &str) {
        until("nothing is left", || self.contenders(name) == 0).await;
    }
}

fn look_at_redis(server: &Redis, name: &str) -> ContenderCounts {
    let (holders, waiters) = Keys::of(name).count_contenders(server);
    ContenderCounts {
        holders,
        waiters: Some(waiters),
    }
}

/// For what the store functions keep in statics, which are never dropped either. Servers end with this program.
fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// A function for each store; `None`, with a message, where its server is not installed.
macro_rules! stores {
    ($($name:ident: $($server:ident)?, $make:expr;)*) => { $(
        pub(crate) fn $name() -> Option<&'static Store> {
            static STORE: LazyLock<Store> = LazyLock::new(|| $make);
            $(if tenure_testkit::$server::skip_unless_installed() {
                return None;
            })?
            Some(&STORE)
        }
    )* };
}

/// A restart makes a server without these forget its locks.
const KEEPS: &[&str] = &["appendonly yes", "appendfsync always"];

const REDIS: &str = "?timeout=3s&restart_guard=off";
const SESSIONS: &str = "?tls=off&timeout=3s&restart_guard=off&validate=200ms";
const TABLE: &str = "?mode=table&tls=off&timeout=3s";
/// Below the node of the conformance suite, which reads the queues.
const ZOOKEEPER: &str = "/tests/locks?ttl=8s&timeout=3s";

stores! {
    redis: redis, Store {
        refusal: "LOADING Redis is loading the dataset in memory",
        requests: Requests { several: &["acquire_all"], ..Requests::USUAL },
        many: 10_000,
        ..Store::new(leak(Redis::start(KEEPS)), REDIS, look_at_redis)
    };
    redis_in_memory: redis, Store::new(leak(Redis::start(&[])), REDIS, look_at_redis);
    etcd: etcd, Store {
        lost_reply: LostReply::Reported,
        requests: Requests {
            wait: &["acquire", "watch"],
            renew: &["renew", "keep-alive"],
            ..Requests::USUAL
        },
        refusal: "14 etcdserver: no leader",
        many: 1_000,
        ..Store::new(leak(Etcd::start(1, &[])), "?timeout=2s", |server, name| {
            etcd_harness::look(server, &etcd_harness::directory("", name))
        })
    };
    zookeeper: zookeeper, Store {
        lost_reply: LostReply::Recovered,
        requests: Requests {
            acquire: &["parents", "acquire", "watch"],
            wait: &["acquire", "list", "watch"],
            ..Requests::USUAL
        },
        refusal: "throttled",
        many: 1_000,
        ..Store::new(leak(Zookeeper::start(&[])), ZOOKEEPER, zookeeper_harness::look)
    };
    mysql: mariadb, Store {
        ends_with_connection: true,
        requests: Requests::OF_SESSIONS,
        ..Store::new(leak(MariaDb::start(&[])), SESSIONS, session::look_at_mysql)
    };
    postgres: postgres, Store {
        ends_with_connection: true,
        requests: Requests::OF_SESSIONS,
        ..Store::new(leak(Postgres::start(&[])), SESSIONS, session::look_at_postgres)
    };
    mysql_table: mariadb, Store {
        requests: Requests::OF_TABLES,
        ..Store::new(leak(MariaDb::start(&[])), TABLE, |server, name| {
            Database::MySql(server).look(name)
        })
    };
    postgres_table: postgres, {
        let server = leak(Postgres::start(&[]));
        let inside = leak(server.database_admin());
        Store {
            requests: Requests::OF_TABLES,
            ..Store::new(server, TABLE, |server, name| Database::Postgres(server, inside).look(name))
        }
    };
    sqlite: , {
        let file = leak(Arc::new(DatabaseFile::new()));
        Store::new(&**file, "?timeout=3s", |_, name| Database::File(file.clone()).look(name))
    };
}

/// Each of these scenarios is a test on each of these stores, in a [`shared`](Store::shared) turn or
/// [`alone`](Store::alone).
macro_rules! on {
    ($turn:ident $stores:tt: $($scenario:ident)+) => {
        $($crate::stores::on!(@ $turn $stores $scenario);)+
    };
    (@ $turn:ident [$($store:ident)+] $scenario:ident) => {
        mod $scenario { $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $store() {
                if let Some(store) = $crate::stores::$store() {
                    let _turn = store.$turn().await;
                    super::$scenario(store).await;
                }
            }
        )+ }
    };
}
pub(crate) use on;
