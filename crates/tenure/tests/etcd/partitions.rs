//! Three members on a network with partitions; the steps are in `common::partitions`.

use std::time::Duration;

use crate::common::partitions::{self, Trio};
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
        format!("{}?timeout=1s", self.url_by(&addresses))
    }

    fn leader(&self) -> usize {
        Self::leader(self)
    }

    fn until_whole(&self) {
        self.until_ready();
    }

    fn contenders(&self, _: usize) -> usize {
        self.keys("x/").len()
    }
}

/// `None`, with a message: etcd is not installed, or no network can be made.
fn start() -> Option<(Etcd, Network)> {
    if skip_unless_installed() {
        return None;
    }
    let network = Network::new(3)?;
    Some((Etcd::start_on(&network), network))
}

partitions::on_three_servers!(start);
