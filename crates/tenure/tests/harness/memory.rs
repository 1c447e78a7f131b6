//! `memory:`, on the real clock without leases, and on a virtual clock with them.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use tenure::conformance::{ContenderCounts, Failure, Harness, RequestFault, Verdict};
use tenure::error::Step;
use tenure::guarantees::Guarantees;
use tenure::memory::{self, Disturbance};
use tenure::store::{BoxFuture, Store as _};
use tenure::{Client, Error, LockName};
use tenure_core::rt::Clock;

struct Memory {
    store: memory::Store,
    is_virtual: bool,
}

pub(crate) fn open() -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
    done(Ok(Arc::new(Memory {
        store: memory::Store::new(),
        is_virtual: false,
    })))
}

pub(crate) fn open_virtual() -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
    done(Ok(Arc::new(Memory {
        store: memory::Store::with_virtual_clock(),
        is_virtual: true,
    })))
}

fn done<T: Send + 'static>(value: T) -> BoxFuture<T> {
    Box::pin(std::future::ready(value))
}

impl Memory {
    /// A capability of the store with the virtual clock.
    fn only_virtual(
        &self,
        work: impl FnOnce(&memory::Store) -> Verdict + Send + 'static,
    ) -> Option<BoxFuture<Verdict>> {
        let store = self.store.clone();
        self.is_virtual
            .then(|| Box::pin(async move { work(&store) }) as _)
    }
}

impl Harness for Memory {
    fn client(&self) -> BoxFuture<Result<Client, Error>> {
        let store = self.store.clone();
        Box::pin(async move { Client::from_store(store) })
    }

    fn guarantees(&self) -> Guarantees {
        self.store.guarantees().clone()
    }

    /// The view of the lock table itself: the store has no other data.
    fn count_contenders(&self, name: &str) -> BoxFuture<Result<ContenderCounts, Failure>> {
        let status = LockName::new(name).map(|name| self.store.status(&name));
        Box::pin(ready(status.map_err(Failure::from).map(|status| {
            ContenderCounts {
                holders: status.holds.len(),
                waiters: Some(status.queue.map_or(0, |queue| queue.len())),
            }
        })))
    }

    fn leases(&self) -> bool {
        self.is_virtual
    }

    fn ttl(&self) -> Duration {
        if self.is_virtual {
            Duration::from_secs(30)
        } else {
            Duration::from_millis(200)
        }
    }

    fn clock(&self) -> Clock {
        self.store.clock()
    }

    fn advance(&self, by: Duration) -> Option<BoxFuture<()>> {
        let store = self.store.clone();
        self.is_virtual.then(|| {
            Box::pin(async move {
                settle().await;
                store.advance(by);
                settle().await;
            }) as _
        })
    }

    fn requests(&self) -> Option<u64> {
        Some(self.store.requests())
    }

    fn evict(&self, name: &str) -> Option<BoxFuture<Verdict>> {
        let name = name.to_owned();
        self.only_virtual(move |store| match store.expire(&name)? {
            0 => Err(Failure::new("there is no hold to evict")),
            _ => Ok(()),
        })
    }

    fn disturb(&self, step: Step, request_fault: RequestFault) -> Option<BoxFuture<Verdict>> {
        let disturbance = match request_fault {
            RequestFault::RequestLost => Disturbance::RequestLost,
            RequestFault::ReplyLost => Disturbance::ReplyLost,
            RequestFault::ReplyNever => Disturbance::ReplyNever,
            RequestFault::Late(by) => Disturbance::Late(by),
            _ => return None,
        };
        self.only_virtual(move |store| {
            store.disturb(step, disturbance);
            Ok(())
        })
    }

    fn pause_store(&self) -> Option<BoxFuture<Verdict>> {
        self.only_virtual(|store| {
            store.pause();
            Ok(())
        })
    }

    fn resume_store(&self) -> Option<BoxFuture<Verdict>> {
        self.only_virtual(|store| {
            store.resume();
            Ok(())
        })
    }
}

/// Lets every task run until all of them wait. In a runtime of one thread each yield lets all tasks
/// that are ready run once; no chain of wake-ups in the driver is this long.
async fn settle() {
    for _ in 0..24 {
        tokio::task::yield_now().await;
    }
}
