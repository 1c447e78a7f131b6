//! The environment of the workers of a run: real servers, their leader, wall clocks, and the faults of these.

use std::ffi::OsString;
use std::sync::Mutex;
use std::time::Duration;

use tenure_torture::nemesis::Environment;
use tenure_torture::plan::FaultKind;

use tenure_testkit::clock::Clock;
use tenure_testkit::etcd::{Etcd, Member};
use tenure_testkit::hazelcast::Hazelcast;
use tenure_testkit::mariadb::MariaDb;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::redis::{Cluster, Redis, SentinelSetup};
use tenure_testkit::until;
use tenure_testkit::zookeeper::{Ensemble, Zookeeper};

/// One process of a store.
pub(crate) trait Node {
    fn stop(&self);
    fn resume(&self);
    fn kill(&self);
    fn start(&self);
}

macro_rules! node {
    ($server:ty, $start:ident) => {
        impl Node for $server {
            fn stop(&self) {
                <$server>::stop(self);
            }

            fn resume(&self) {
                <$server>::resume(self);
            }

            fn kill(&self) {
                <$server>::kill(self);
            }

            fn start(&self) {
                <$server>::$start(self);
            }
        }
    };
}

node!(Redis, launch);
node!(Member, start);
node!(Zookeeper, begin);
node!(MariaDb, launch);
node!(Postgres, launch);
// All members have to be there before one of them serves.
node!(Hazelcast, spawn);

/// A store, as one or as several processes.
pub(crate) trait Store: Send + Sync {
    fn nodes(&self) -> Vec<&dyn Node>;

    /// The number of nodes that a fault of the server hits.
    fn victims(&self) -> usize {
        self.nodes().len()
    }

    /// The node that leads; waits until one leads.
    fn leader(&self) -> Option<usize> {
        None
    }

    /// Whether one of the nodes leads when the store is used.
    fn has_leader(&self) -> bool {
        self.leader().is_some()
    }

    /// Waits until all nodes work together again after a fault.
    fn settle(&self) {}
}

macro_rules! alone {
    ($($server:ty),*) => {$(
        impl Store for $server {
            fn nodes(&self) -> Vec<&dyn Node> {
                vec![self]
            }
        }
    )*};
}

alone!(Redis, MariaDb, Postgres);

impl Store for Zookeeper {
    fn nodes(&self) -> Vec<&dyn Node> {
        vec![self]
    }

    fn settle(&self) {
        self.until_serving();
    }
}

impl Store for Ensemble {
    fn nodes(&self) -> Vec<&dyn Node> {
        self.nodes.iter().map(|it| it as _).collect()
    }

    fn leader(&self) -> Option<usize> {
        Some(Self::leader(self))
    }

    fn settle(&self) {
        self.until_whole();
    }
}

impl Store for Etcd {
    fn nodes(&self) -> Vec<&dyn Node> {
        self.members.iter().map(|it| it as _).collect()
    }

    fn leader(&self) -> Option<usize> {
        (self.members.len() > 1).then(|| Self::leader(self))
    }

    fn settle(&self) {
        self.until_ready();
    }
}

/// The members of Hazelcast, each in a process of its own.
pub(crate) struct HazelcastMembers(pub(crate) Vec<Hazelcast>);

impl Store for HazelcastMembers {
    fn nodes(&self) -> Vec<&dyn Node> {
        self.0.iter().map(|it| it as _).collect()
    }

    fn leader(&self) -> Option<usize> {
        Some(Hazelcast::leader_of(&self.0, "default"))
    }

    /// The group of the locks is made at the first use.
    fn has_leader(&self) -> bool {
        true
    }

    fn settle(&self) {
        self.0.iter().for_each(Hazelcast::wait_until_ready);
    }
}

/// The servers of a Redlock, of which a fault hits a minority.
pub(crate) struct RedlockServers(pub(crate) Vec<Redis>);

impl Store for RedlockServers {
    fn nodes(&self) -> Vec<&dyn Node> {
        self.0.iter().map(|it| it as _).collect()
    }

    fn victims(&self) -> usize {
        (self.0.len() - 1) / 2
    }
}

/// Whether the server is up and reports `value` for `field` of its replication.
fn shows(server: &Redis, field: &str, value: &str) -> bool {
    let said = || server.try_info("replication", field);
    server.is_up() && said().is_ok_and(|said| said == value)
}

impl Store for SentinelSetup {
    fn nodes(&self) -> Vec<&dyn Node> {
        self.servers.iter().map(|it| it as _).collect()
    }

    fn leader(&self) -> Option<usize> {
        let mut found = None;
        until("there is a primary", || {
            let port = self.primary_port();
            let is_it = |server: &Redis| {
                server.port() == port && server.is_up() && shows(server, "role", "master")
            };
            found = self.servers.iter().position(is_it);
            found.is_some()
        });
        found
    }

    fn settle(&self) {
        until("the replica follows", || {
            let followers = self
                .servers
                .iter()
                .filter(|server| shows(server, "master_link_status", "up"));
            followers.count() == 1
        });
    }
}

impl Store for Cluster {
    fn nodes(&self) -> Vec<&dyn Node> {
        self.nodes.iter().map(|it| it as _).collect()
    }

    /// The node that has the first name of a run.
    fn leader(&self) -> Option<usize> {
        let mut found = None;
        until("somebody has the slot", || {
            let up = self.nodes.iter().find(|node| node.is_up());
            let slot = up.map(|node| node.ask(&["CLUSTER", "KEYSLOT", "tenure-torture-0"]).int());
            let owner = self.find_owner(u16::try_from(slot.unwrap()).unwrap());
            found = owner.filter(|node| node.is_up()).map(Redis::port);
            found.is_some()
        });
        let port = found.unwrap();
        self.nodes.iter().position(|node| node.port() == port)
    }

    fn settle(&self) {
        until("every master has its replica", || {
            let followers = self
                .nodes
                .iter()
                .filter(|node| shows(node, "master_link_status", "up"));
            followers.count() == self.nodes.len() / 2
        });
    }
}

/// A store and the clocks that can be moved.
pub(crate) struct TestEnvironment {
    store: Option<Box<dyn Store>>,
    server_clock: Option<(Clock, Mutex<i64>)>,
    worker_clock: Clock,
    /// The nodes that a fault hit and that are still down, and how often servers were hit.
    hit: Mutex<(Vec<usize>, usize)>,
}

impl TestEnvironment {
    pub(crate) fn new(store: Option<Box<dyn Store>>, server_clock: Option<Clock>) -> Self {
        Self {
            store,
            server_clock: server_clock.map(|clock| (clock, Mutex::new(0))),
            worker_clock: Clock::make(),
            hit: Mutex::default(),
        }
    }

    /// The variables that give workers the clock that a fault moves. Where there is no server, that clock is the clock
    /// of the store.
    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        self.clock_of_workers().environment()
    }

    fn clock_of_workers(&self) -> &Clock {
        match (&self.store, &self.server_clock) {
            (None, Some((clock, _))) => clock,
            _ => &self.worker_clock,
        }
    }

    fn store(&self) -> &dyn Store {
        self.store.as_deref().unwrap()
    }

    fn hit_some(&self, act: impl Fn(&dyn Node)) {
        let nodes = self.store().nodes();
        let mut hit = self.hit.lock().unwrap();
        let count = self.store().victims();
        // Where a fault does not hit all nodes, it hits other nodes each time.
        hit.0 = (0..count)
            .map(|at| (at + hit.1 * count) % nodes.len())
            .collect();
        hit.1 += 1;
        for at in &hit.0 {
            act(nodes[*at]);
        }
    }

    fn hit_leader(&self, act: impl Fn(&dyn Node)) {
        let leader = self.store().leader().unwrap();
        self.hit.lock().unwrap().0 = vec![leader];
        act(self.store().nodes()[leader]);
    }

    fn heal(&self, act: impl Fn(&dyn Node)) {
        let hit = std::mem::take(&mut self.hit.lock().unwrap().0);
        for at in hit {
            act(self.store().nodes()[at]);
        }
        self.store().settle();
    }

    /// Moves the server's clock by whole seconds, and at least by `by`.
    fn jump(&self, by: Duration, sign: i64) {
        let (clock, offset) = self.server_clock.as_ref().unwrap();
        let mut offset = offset.lock().unwrap();
        *offset += sign * seconds(by);
        clock.set(*offset);
    }
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap() + 1
}

impl Environment for TestEnvironment {
    fn kinds(&self) -> Vec<FaultKind> {
        let mut kinds = vec![FaultKind::Suspend];
        if self.store.is_some() || self.server_clock.is_none() {
            kinds.push(FaultKind::ClientClock);
        }
        if let Some(store) = &self.store {
            kinds.extend([FaultKind::ServerPause, FaultKind::ServerKill]);
            if store.has_leader() {
                kinds.extend([FaultKind::LeaderPause, FaultKind::LeaderKill]);
            }
        }
        if self.server_clock.is_some() {
            kinds.extend([FaultKind::ClockForward, FaultKind::ClockBack]);
        }
        kinds
    }

    fn begin(&self, kind: FaultKind, lasts: Duration) {
        match kind {
            FaultKind::ServerPause => self.hit_some(|it| it.stop()),
            FaultKind::ServerKill => self.hit_some(|it| it.kill()),
            FaultKind::LeaderPause => self.hit_leader(|it| it.stop()),
            FaultKind::LeaderKill => self.hit_leader(|it| it.kill()),
            FaultKind::ClockForward => self.jump(lasts, 1),
            FaultKind::ClockBack => self.jump(lasts, -1),
            FaultKind::ClientClock => self.worker_clock.set(seconds(lasts)),
            FaultKind::Suspend => self.clock_of_workers().fall_asleep(),
            kind => panic!("{kind} is not about servers and clocks"),
        }
    }

    fn end(&self, kind: FaultKind) {
        match kind {
            FaultKind::ServerPause => self.heal(|it| it.resume()),
            FaultKind::ServerKill => self.heal(|it| it.start()),
            FaultKind::LeaderPause | FaultKind::LeaderKill => {
                // Another node must lead before this node is back; otherwise there was no failover.
                let new = self.store().leader();
                assert_ne!(new, self.hit.lock().unwrap().0.first().copied());
                match kind {
                    FaultKind::LeaderPause => self.heal(|it| it.resume()),
                    _ => self.heal(|it| it.start()),
                }
            }
            FaultKind::ClientClock => self.worker_clock.set(0),
            FaultKind::Suspend => self.clock_of_workers().wake_up(),
            _ => {}
        }
    }
}
