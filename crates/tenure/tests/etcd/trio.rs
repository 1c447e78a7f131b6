//! Three members, killed, stopped, or on a network with partitions; the steps are in `common::trio`.

use std::time::Duration;

use crate::common::trio::{self, Trio};
use crate::support::{LONG, TTL};
use tenure_testkit::etcd::{Etcd, skip_unless_installed};
use tenure_testkit::network::Network;

impl Trio for Etcd {
    const TTL: Duration = TTL;
    const LONG: Duration = LONG;
    const ALONE: &str = "no leader";

    fn url(&self, servers: &[usize]) -> String {
        let addresses = servers.iter().map(|at| self.members[*at].address());
        let addresses: Vec<_> = addresses.collect();
        // A short limit, so that a member that does not answer is left soon.
        format!("{}?timeout=2s", self.url_by(&addresses))
    }

    fn leader(&self) -> usize {
        Self::leader(self)
    }

    fn until_whole(&self) {
        self.until_ready();
    }

    fn contenders(&self, _: usize, name: &str) -> usize {
        self.keys(&format!("{name}/")).len()
    }

    fn kill(&self, server: usize) {
        self.members[server].kill();
    }

    fn start(&self, server: usize) {
        self.members[server].start();
    }

    fn stop(&self, server: usize) {
        self.members[server].stop();
    }

    fn resume(&self, server: usize) {
        self.members[server].resume();
    }
}

/// `None`, with a message: etcd is not installed.
fn start() -> Option<Etcd> {
    (!skip_unless_installed()).then(|| Etcd::start(3, &[]))
}

/// `None`, with a message: etcd is not installed, or no network can be made.
fn start_on_network() -> Option<(Etcd, Network)> {
    if skip_unless_installed() {
        return None;
    }
    let network = Network::new(3)?;
    Some((Etcd::start_on(&network), network))
}

trio::on_three_servers!(start, start_on_network);
