//! Three servers, killed, stopped, or cut off from each other; the steps are in `common::trio`.

use std::time::Duration;

use crate::common::trio::{self, Trio};
use crate::support::{ROOT, TTL, nodes};
use tenure_testkit::network::Network;
use tenure_testkit::zookeeper::{Ensemble, PASSWORD, USER, skip_unless_installed};

impl Trio for Ensemble {
    const TTL: Duration = TTL;
    const LONG: Duration = Duration::from_secs(15);
    const ALONE: &str = "no majority";

    fn url(&self, servers: &[usize]) -> String {
        let addresses = servers.iter().map(|at| self.nodes[*at].address());
        let addresses: Vec<_> = addresses.collect();
        let addresses = addresses.join(",");
        format!("zookeeper://{USER}:{PASSWORD}@{addresses}{ROOT}?ttl=15s&timeout=2s")
    }

    fn leader(&self) -> usize {
        Self::leader(self)
    }

    fn until_whole(&self) {
        Self::until_whole(self);
    }

    fn contenders(&self, server: usize, name: &str) -> usize {
        nodes(&self.nodes[server], name).len()
    }

    fn kill(&self, server: usize) {
        self.nodes[server].kill();
    }

    fn start(&self, server: usize) {
        self.nodes[server].begin();
    }

    fn stop(&self, server: usize) {
        self.nodes[server].stop();
    }

    fn resume(&self, server: usize) {
        self.nodes[server].resume();
    }
}

/// `None`: ZooKeeper is missing, and the test says so.
fn start() -> Option<Ensemble> {
    (!skip_unless_installed()).then(Ensemble::start)
}

/// `None`: ZooKeeper or the network is missing, and the test says which.
fn start_on_network() -> Option<(Ensemble, Network)> {
    if skip_unless_installed() {
        return None;
    }
    let network = Network::new(3)?;
    Some((Ensemble::start_on(&network), network))
}

trio::on_three_servers!(start, start_on_network);
