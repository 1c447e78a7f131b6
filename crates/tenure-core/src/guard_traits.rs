//! What a guard can do in some stores only. The crate `tenure` has each trait in the modules of the stores that it is for.

use crate::error::Error;
use crate::fence::{Condition, EtcdLock, ZooKeeperLock};
use crate::guard::Guard;

/// Single writes into the store that keeps the lock, which take effect only while the lock is held: in Redis, etcd and
/// ZooKeeper.
///
/// `tenure::redis`, `tenure::etcd` and `tenure::zookeeper` have this one trait; `use tenure::redis::KeyValueGuard as _`
/// gives a guard the method [`put`](KeyValueGuard::put), whichever store keeps the lock. A guard of `tenure::blocking` has
/// the trait of that module.
pub trait KeyValueGuard {
    /// Sets `key` to `value` in the store that keeps the lock, if this guard still holds the lock: the store
    /// checks and writes in one step, so a write of a former holder never takes effect, however late it arrives.
    ///
    /// With several names: if all of them are still held.
    /// In a Redis Cluster the key must be in the slot of the lock (`{orders/42}:total` for the lock `orders/42`); in
    /// ZooKeeper it is the path of a node.
    /// This is as strong as the store: the [guarantees](crate::guarantees) say what the store may forget.
    ///
    /// # Cancel safety
    /// When the future is dropped, the write may have been applied or not.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost): the lock is not held any more, and nothing was written.
    /// `Indeterminate`: it is unknown whether the value was written. `Unsupported`: the store keeps no data.
    fn put(
        &self,
        key: &str,
        value: impl AsRef<[u8]>,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Deletes `key` in the store that keeps the lock, if this guard still holds the lock. A key that does not exist
    /// is no error. See [`put`](KeyValueGuard::put).
    ///
    /// # Cancel safety
    /// As [`put`](KeyValueGuard::put).
    ///
    /// # Errors
    /// As [`put`](KeyValueGuard::put).
    fn delete(&self, key: &str) -> impl Future<Output = Result<(), Error>> + Send;
}

impl KeyValueGuard for Guard {
    fn put(
        &self,
        key: &str,
        value: impl AsRef<[u8]>,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        self.write(key, Some(value.as_ref().to_vec()))
    }

    fn delete(&self, key: &str) -> impl Future<Output = Result<(), Error>> + Send {
        self.write(key, None)
    }
}

/// The conditions of a lock in etcd.
pub trait EtcdGuard {
    /// The lock as it is stored in etcd, for a transaction of your own that shall take effect only while the lock is
    /// held: add [`compare`](EtcdLock::compare) to the transaction's conditions. `None`: the lock is in another store, or in two.
    ///
    /// The conditions are plain data, so that this crate depends on no version of a client crate.
    /// With the crate `etcd-client` a condition is
    /// `Compare::create_revision(it.key.clone(), CompareOp::Equal, it.create_revision)`.
    fn etcd(&self) -> Option<EtcdLock>;
}

impl EtcdGuard for Guard {
    fn etcd(&self) -> Option<EtcdLock> {
        let compare = |condition| match condition {
            Condition::Etcd(compare) => Some(compare),
            Condition::ZooKeeper(_) => None,
        };
        let all = self.conditions()?.into_iter().map(compare);
        all.collect::<Option<_>>().map(EtcdLock::new)
    }
}

/// The checks of a lock in ZooKeeper.
pub trait ZooKeeperGuard {
    /// The lock as it is stored in ZooKeeper, for a `multi` of your own that shall take effect only while the lock is
    /// held: add [`check`](ZooKeeperLock::check) to its operations. `None`: the lock is in another store, or in two.
    ///
    /// The checks are plain data, so that this crate depends on no version of a client crate.
    /// With the crate `zookeeper-client` that is `multi.add_check_version(&it.path, it.version)`.
    fn zookeeper(&self) -> Option<ZooKeeperLock>;
}

impl ZooKeeperGuard for Guard {
    fn zookeeper(&self) -> Option<ZooKeeperLock> {
        let check = |condition| match condition {
            Condition::ZooKeeper(check) => Some(check),
            Condition::Etcd(_) => None,
        };
        let all = self.conditions()?.into_iter().map(check);
        all.collect::<Option<_>>().map(ZooKeeperLock::new)
    }
}
