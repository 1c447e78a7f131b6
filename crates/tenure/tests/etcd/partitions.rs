//! Three members on a network that falls apart between them; what happens is in `common::partitions`.

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
        // Told soon that one does not answer.
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

/// `None`: there is no etcd, or no network, which is said.
fn start() -> Option<(Etcd, Network)> {
    if skip_unless_installed() {
        return None;
    }
    let network = Network::new(3)?;
    Some((Etcd::start_on(&network), network))
}

partitions::on_three_servers!(start);
