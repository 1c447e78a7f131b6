//! Writes that take effect only if no newer holder has overtaken the holder of a guard.

use tenure_core::Guard;
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::{EtcdCompare, ZooKeeperCheck};
use tenure_core::guard_traits::{EtcdGuard as _, ZooKeeperGuard as _};

/// A unit of writes that its store applies in one step, and that can be fenced: it then takes effect only if no newer
/// holder has overtaken the holder of the guard.
///
/// The unit depends on the store of the data: a transaction of a database ([`tenure::sql`](crate), feature `sqlx`),
/// the conditions of a transaction in etcd, the checks of a `multi` in ZooKeeper. In Redis use
/// [`put`](tenure_core::guard_traits::KeyValueGuard::put) and [`delete`](tenure_core::guard_traits::KeyValueGuard::delete),
/// which are units of one write (the trait `KeyValueGuard` in [`tenure::redis`](crate)).
/// `docs/fencing.md` shows what happens without fencing.
///
/// ```
/// use tenure::{Error, Fenced, Guard};
///
/// /// For any store: what is added to `unit` after this call is refused if a newer holder has overtaken this one.
/// async fn begin(unit: &mut impl Fenced, guard: &Guard) -> Result<(), Error> {
///     unit.fence(guard).await
/// }
/// ```
pub trait Fenced {
    /// Makes this unit take effect only if no newer holder has overtaken the hold of `guard`. With several names: if
    /// none of them was overtaken.
    ///
    /// A database refuses in this call, by a row per name that remembers the greatest token. etcd and ZooKeeper refuse
    /// when the unit is applied.
    ///
    /// # Cancel safety
    /// When the future is dropped, the unit may be fenced or not; do not use the unit any more.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost): the hold was overtaken; do not use the unit any more.
    /// [`Unsupported`](crate::ErrorKind::Unsupported): the lock is not in the store of these conditions.
    /// The errors of the store.
    fn fence(&mut self, guard: &Guard) -> impl Future<Output = Result<(), Error>> + Send;
}

fn elsewhere(store: &str) -> Error {
    let message = format!(
        "the lock is not kept in {store}, so a condition there says nothing about the lock; send the fencing token along with the write instead"
    );
    Error::new(ErrorKind::Unsupported, message)
}

/// Conditions of a transaction in etcd.
impl Fenced for Vec<EtcdCompare> {
    async fn fence(&mut self, guard: &Guard) -> Result<(), Error> {
        let lock = guard.etcd().ok_or_else(|| elsewhere("etcd"))?;
        self.extend_from_slice(lock.compare());
        Ok(())
    }
}

/// Checks of a `multi` in ZooKeeper.
impl Fenced for Vec<ZooKeeperCheck> {
    async fn fence(&mut self, guard: &Guard) -> Result<(), Error> {
        let lock = guard.zookeeper().ok_or_else(|| elsewhere("ZooKeeper"))?;
        self.extend_from_slice(lock.check());
        Ok(())
    }
}
