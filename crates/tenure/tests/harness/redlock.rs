//! `redlock:` over stores in memory: five of them with leases on one virtual clock, three without on the real clock.

use std::sync::Arc;
use std::time::Duration;

use tenure::conformance::{ContenderCounts, Failure, Harness, RequestFault, Verdict};
use tenure::error::Step;
use tenure::guarantees::Guarantees;
use tenure::majority;
use tenure::memory::{self, Disturbance};
use tenure::store::{BoxFuture, Store};
use tenure::{Client, Error, LockName};
use tenure_core::rt::Clock;

const TTL: Duration = Duration::from_secs(30);

struct Redlock {
    nodes: Vec<memory::Store>,
    is_virtual: bool,
    guarantees: Guarantees,
}

pub(crate) fn open() -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
    open_over(3, memory::Store::new(), false)
}

pub(crate) fn open_virtual() -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
    open_over(5, memory::Store::with_virtual_clock(), true)
}

fn open_over(
    count: usize,
    first: memory::Store,
    is_virtual: bool,
) -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
    let others = (1..count).map(|_| first.beside());
    let nodes: Vec<_> = others.chain([first.clone()]).collect();
    Box::pin(async move {
        let guarantees = store(&nodes)?.guarantees().clone();
        Ok(Arc::new(Redlock {
            nodes,
            is_virtual,
            guarantees,
        }) as _)
    })
}

/// The store of one client over the nodes. The suite delays replies on purpose, so no node is given up early.
fn store(nodes: &[memory::Store]) -> Result<Arc<majority::Store>, Error> {
    let nodes = nodes.iter().map(|node| Arc::new(node.clone()) as _);
    let settings = majority::Settings::default().with_node_timeout(TTL * 2);
    majority::Store::new(nodes.collect(), settings)
}

impl Redlock {
    /// A capability of the stores with the virtual clock.
    fn only_virtual(
        &self,
        work: impl Fn(&[memory::Store]) -> Verdict + Send + 'static,
    ) -> Option<BoxFuture<Verdict>> {
        let nodes = self.nodes.clone();
        self.is_virtual
            .then(|| Box::pin(async move { work(&nodes) }) as _)
    }
}

impl Harness for Redlock {
    fn client(&self) -> BoxFuture<Result<Client, Error>> {
        let store = store(&self.nodes);
        Box::pin(async move { Client::from_dyn_store(store?) })
    }

    fn guarantees(&self) -> Guarantees {
        self.guarantees.clone()
    }

    /// Inspects the nodes themselves; an entry that is left on any node counts.
    fn count_contenders(&self, name: &str) -> BoxFuture<Result<ContenderCounts, Failure>> {
        let name = LockName::new(name);
        let nodes = self.nodes.clone();
        Box::pin(async move {
            let name = name?;
            let mut counts = ContenderCounts {
                holders: 0,
                waiters: Some(0),
            };
            for node in nodes {
                let status = node.status(&name);
                counts.holders = counts.holders.max(status.holds.len());
                let waiters = status.queue.map_or(0, |queue| queue.len());
                counts.waiters = counts.waiters.max(Some(waiters));
            }
            Ok(counts)
        })
    }

    fn leases(&self) -> bool {
        self.is_virtual
    }

    fn ttl(&self) -> Duration {
        if self.is_virtual {
            TTL
        } else {
            Duration::from_millis(200)
        }
    }

    fn clock(&self) -> Clock {
        self.nodes[0].clock()
    }

    fn advance(&self, by: Duration) -> Option<BoxFuture<()>> {
        let node = self.nodes[0].clone();
        self.is_virtual.then(|| {
            Box::pin(async move {
                settle().await;
                node.advance(by);
                settle().await;
            }) as _
        })
    }

    /// The requests to one node: without faults all nodes get the same number.
    fn requests(&self) -> Option<u64> {
        Some(self.nodes[0].requests())
    }

    fn evict(&self, name: &str) -> Option<BoxFuture<Verdict>> {
        let name = name.to_owned();
        self.only_virtual(move |nodes| {
            for node in nodes {
                if node.expire(&name)? == 0 {
                    return Err(Failure::new("there is no hold to evict"));
                }
            }
            Ok(())
        })
    }

    /// On every node, because a fault of a minority has no effect, as `tests/redlock.rs` shows.
    fn disturb(&self, step: Step, request_fault: RequestFault) -> Option<BoxFuture<Verdict>> {
        let disturbance = match request_fault {
            RequestFault::RequestLost => Disturbance::RequestLost,
            RequestFault::ReplyLost => Disturbance::ReplyLost,
            RequestFault::ReplyNever => Disturbance::ReplyNever,
            RequestFault::Late(by) => Disturbance::Late(by),
            _ => return None,
        };
        self.only_virtual(move |nodes| {
            nodes
                .iter()
                .for_each(|node| node.disturb(step, disturbance));
            Ok(())
        })
    }

    fn pause_store(&self) -> Option<BoxFuture<Verdict>> {
        self.only_virtual(|nodes| {
            nodes.iter().for_each(memory::Store::pause);
            Ok(())
        })
    }

    fn resume_store(&self) -> Option<BoxFuture<Verdict>> {
        self.only_virtual(|nodes| {
            nodes.iter().for_each(memory::Store::resume);
            Ok(())
        })
    }

    fn wipe_store(&self) -> Option<BoxFuture<Verdict>> {
        self.only_virtual(|nodes| {
            nodes.iter().for_each(|node| node.restart(Duration::ZERO));
            Ok(())
        })
    }

    /// Restarts as many nodes as may fail; each of them has no vote for one ttl.
    fn restart_store(&self) -> Option<BoxFuture<Verdict>> {
        self.only_virtual(|nodes| {
            let minority = (nodes.len() - 1) / 2;
            nodes[..minority].iter().for_each(|node| node.restart(TTL));
            Ok(())
        })
    }
}

/// Lets every task run until all of them wait. In a runtime of one thread each yield lets all tasks
/// that are ready run once; no chain of wake-ups in the driver and over the nodes is this long.
async fn settle() {
    for _ in 0..48 {
        tokio::task::yield_now().await;
    }
}
