//! Blocks: duties that several stores have. Each block has one job and its own test, and knows no store.
//!
//! A store has blocks as fields and decides for itself when it calls them.

mod hold_registry;
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "mysql",
    feature = "postgres",
    feature = "sqlite"
))]
mod holder_record;
mod maintenance;
mod retry;
mod runtime;
mod server_start;
mod single_flight;
mod waiters;

#[allow(
    unused_imports,
    reason = "the stores are moved onto the blocks one after the other"
)]
pub(crate) use self::hold_registry::HoldRegistry;
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "mysql",
    feature = "postgres",
    feature = "sqlite"
))]
pub(crate) use self::holder_record::HolderRecord;
#[allow(
    unused_imports,
    reason = "the stores are moved onto the blocks one after the other"
)]
pub(crate) use self::maintenance::Maintenance;
#[allow(
    unused_imports,
    reason = "the stores are moved onto the blocks one after the other"
)]
pub(crate) use self::retry::RetryBudget;
#[allow(
    unused_imports,
    reason = "the stores are moved onto the blocks one after the other"
)]
pub(crate) use self::runtime::{RuntimeWatch, spawner};
#[allow(
    unused_imports,
    reason = "the stores are moved onto the blocks one after the other"
)]
pub(crate) use self::server_start::{ServerStart, not_trusted_yet};
#[allow(
    unused_imports,
    reason = "the stores are moved onto the blocks one after the other"
)]
pub(crate) use self::single_flight::SingleFlight;
#[allow(
    unused_imports,
    reason = "the stores are moved onto the blocks one after the other"
)]
pub(crate) use self::waiters::{Subscription, WaiterRegistry};
