//! `hazelcast:`, locks of [`tenure`](https://crates.io/crates/tenure) in the CP subsystem of Hazelcast. They are the locks that
//! `HazelcastInstance.getCPSubsystem().getLock(name)` of the Java client gives, so Java programs exclude us and we exclude
//! them.
//!
//! ```no_run
//! # async fn example() -> Result<(), tenure_core::Error> {
//! let client = tenure_hazelcast::connect("hazelcast://127.0.0.1:5701").await?;
//! let guard = client.lock("job").acquire().await?;
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! # The URL
//! `hazelcast://[USER:PASSWORD@]HOST[:PORT],HOST,..[/CLUSTER]`: some or all members (port 5701), and the name of the cluster
//! (`dev`). One member is enough to reach the others; the client turns to the next one when a member does not answer.
//!
//! | option | meaning |
//! | --- | --- |
//! | `group=NAME` | the CP group of all locks, as after the `@` in the name of a Java program; default: the group `default` |
//! | `timeout=2s` | limit of each attempt of a request, and of each round of attempts to connect |
//!
//! # What is different from other stores
//! The members decide how long a session lasts (`session-time-to-live-seconds`, 300 s unless it is set). A lock with a longer
//! ttl is granted for that time. The lock of a process that was killed stays taken for that time, also when its ttl is
//! shorter. A lock whose lease ran out while its process lives is released by the process.
//!
//! A hold is exclusive: shared and upgradable holds, permits, `min_hold`, `lock_delay` and elections are refused. The members
//! keep nothing about a holder but numbers, and tell no names of locks.
//!
//! A cluster without the CP subsystem (unsafe mode), and TLS, which only Hazelcast Enterprise has, are refused.
//!
//! # Reading order
//! `frame` and `messages` (the protocol) · `settings` · `names` · `errors` (what errors mean) · `connection` (one member),
//! `members` (which one) and `requests` (until there is an answer) · `sessions` · `store` (the parts of a client) and `upkeep`
//! (what goes on between requests) · `attempt`, `acquire`, `wait`, `renew`, `release` (the operations) · `inspect` (for operators) · `guarantees`.

mod acquire;
mod attempt;
mod connection;
mod errors;
mod frame;
mod guarantees;
mod inspect;
mod members;
mod messages;
mod names;
mod release;
mod renew;
mod requests;
mod sessions;
mod settings;
mod store;
mod upkeep;
mod wait;

use std::sync::Arc;

use tenure_core::Client;
use tenure_core::error::{Error, ErrorParts as _, Step};
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::LockStatus;
use tenure_core::name::LockName;
use tenure_core::rt::Clock;
use tenure_core::store::{Answer, BoxFuture, Hold, Listed, Operate, Release, Renewal, Request};

pub use self::guarantees::guarantees;
pub use self::store::Store;

/// Connects to a cluster; the [page of this crate](crate) shows the URL. Must be called inside a tokio runtime, with time and
/// network enabled; background work of the client runs there.
///
/// # Cancel safety
/// Cancel safe.
///
/// # Errors
/// The errors of [`Store::connect`].
pub async fn connect(url: &str) -> Result<Client, Error> {
    let connected = async {
        let store = Store::connect(url).await?;
        let address = store.address();
        Ok(Client::from_store(store)?.with_address(address))
    };
    connected
        .await
        .map_err(|err: Error| err.with_step(Step::Connect))
}

/// Reads any bytes as those of a server, and panics when a promise is broken. For tests with bytes of any kind.
#[cfg(any(test, feature = "_fuzzing"))]
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let mut whole = frame::Decoder::default();
    whole.add(bytes);
    let mut messages = Vec::new();
    while let Ok(Some(message)) = whole.next() {
        messages::read_all(&message);
        messages.push(message);
    }
    // However the bytes are cut, they are the same messages.
    let mut cut = frame::Decoder::default();
    let mut found = Vec::new();
    for byte in bytes {
        cut.add(&[*byte]);
        while let Ok(Some(message)) = cut.next() {
            found.push(message);
        }
    }
    assert!(messages.iter().eq(found.iter().take(messages.len())));
}

impl tenure_core::store::Store for Store {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        guarantees::stores_with(capability)
    }

    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn acquire(self: Arc<Self>, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(async move { acquire::acquire(&self, &request).await })
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        Box::pin(async move { renew::renew(&self, &holds).await })
    }

    fn release(self: Arc<Self>, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        Box::pin(async move { release::release(&self, &hold).await })
    }

    /// A session may last longer than the ttl of its lock.
    fn ends_by_itself(&self, hold: &Hold) -> bool {
        let session_ttl = self.leases.read(hold.owner, |lease| lease.session.ttl);
        hold.ttl >= session_ttl.unwrap_or(self.session_ttl)
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<Result<LockStatus, Error>> {
        Box::pin(async move { inspect::inspect(&self, name).await })
    }

    fn list(self: Arc<Self>, _: String) -> BoxFuture<Result<Listed, Error>> {
        Box::pin(std::future::ready(inspect::list()))
    }

    fn close(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(async move { release::close(&self).await })
    }

    fn abandon(&self) {
        release::abandon(self);
    }

    fn as_operate(self: Arc<Self>) -> Option<Arc<dyn Operate>> {
        Some(self)
    }
}
