//! The only proof of holding.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use crate::driver::held::Held;
use crate::error::{Error, ErrorKind};
use crate::fence::{
    Condition, EtcdCompare, EtcdLock, FencingToken, OwnerId, ZooKeeperCheck, ZooKeeperLock,
};
use crate::kernel::lease::State;
use crate::lost::LostReason;
use crate::name::LockName;
use crate::options::Mode;
use crate::owner::Entrance;

/// A lock that is held: one name, or several that were taken together.
///
/// The hold lasts until [`release`](Guard::release), until the guard is dropped, or until it is
/// [`lost`](Guard::lost), whichever comes first. It is renewed in the background meanwhile.
///
/// **Dropping a guard is not immediate.** Drop asks for the release and neither blocks nor panics, in or
/// out of a runtime; a store that answers at once (`memory:`, `file:`) has released when drop returns,
/// others release in the background. If the client's runtime is gone by then, the lease runs out by itself.
///
/// A guard is `Send` and `Sync`, may be moved to other tasks, and keeps the client alive.
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct Guard {
    entrances: Entrances,
}

/// Most guards hold one name: no list is allocated for them.
enum Entrances {
    One(Entrance),
    /// In canonical order; at least one.
    Many(Vec<Entrance>),
}

impl Guard {
    pub(crate) fn one(entrance: Entrance) -> Self {
        Self {
            entrances: Entrances::One(entrance),
        }
    }

    pub(crate) fn many(entrances: Vec<Entrance>) -> Self {
        debug_assert!(!entrances.is_empty(), "BUG: a guard holds something");
        Self {
            entrances: Entrances::Many(entrances),
        }
    }

    fn all(&self) -> &[Entrance] {
        match &self.entrances {
            Entrances::One(entrance) => std::slice::from_ref(entrance),
            Entrances::Many(entrances) => entrances,
        }
    }

    fn first(&self) -> &Entrance {
        &self.all()[0]
    }

    /// The name that is held; of several, the first in byte order.
    /// After [`Client::lock_any`](crate::Client::lock_any) it tells which one it is.
    pub fn name(&self) -> &LockName {
        self.first().held().name()
    }

    /// How it is held.
    pub fn mode(&self) -> Mode {
        self.first().held().mode()
    }

    /// The number of this grant, for the protected resource to check; of several, that of [`name`](Guard::name).
    pub fn token(&self) -> FencingToken {
        FencingToken::new(self.first().held().token())
    }

    /// Every name with its number, in byte order of the names.
    pub fn tokens(&self) -> impl Iterator<Item = (&LockName, FencingToken)> {
        self.all().iter().map(|entrance| {
            (
                entrance.held().name(),
                FencingToken::new(entrance.held().token()),
            )
        })
    }

    /// The random identity under which the store knows this hold; of several, that of [`name`](Guard::name).
    /// A capability: whoever knows it can release the lock in the store.
    pub fn owner_id(&self) -> OwnerId {
        self.first().held().owner()
    }

    /// The identity of each name's hold, in byte order of the names.
    pub fn owner_ids(&self) -> impl Iterator<Item = OwnerId> {
        self.all().iter().map(|entrance| entrance.held().owner())
    }

    /// Time until the local deadline, after which we claim nothing; zero when the hold is lost,
    /// [`Duration::MAX`] where no lease runs (`memory:`, `file:`: as long as the process lives).
    ///
    /// Of several names: the earliest deadline. Grows again with each renewal.
    /// Reads the clock, so it is right even when the runtime is stuck.
    pub fn remaining(&self) -> Duration {
        self.all()
            .iter()
            .map(|entrance| entrance.held().remaining())
            .min()
            .unwrap_or(Duration::ZERO)
    }

    /// Held, at risk or lost, at this moment; of several names, the worst.
    /// Reads the clock, so it is right even when the runtime is stuck.
    pub fn state(&self) -> State {
        let mut worst = State::Held;
        for entrance in self.all() {
            match entrance.held().state() {
                lost @ State::Lost(_) => return lost,
                State::AtRisk => worst = State::AtRisk,
                State::Held => {}
            }
        }
        worst
    }

    /// Whether we may still believe that we hold the lock.
    pub fn is_held(&self) -> bool {
        !matches!(self.state(), State::Lost(_))
    }

    /// Resolves with the reason when the hold ends without our doing, at the deadline at the latest,
    /// even when the store is unreachable; of several names, when the first is lost.
    /// Never resolves after a normal release.
    ///
    /// The future owns what it needs: it may be moved into another task, and keeps no hold alive
    /// beyond its guard.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + Sync + 'static + use<> {
        let mut each: Vec<Pin<Box<dyn Future<Output = LostReason> + Send + Sync>>> = self
            .all()
            .iter()
            .map(|entrance| Box::pin(entrance.held().clone().lost()) as _)
            .collect();
        std::future::poll_fn(move |cx| {
            each.iter_mut()
                .find_map(|lost| match lost.as_mut().poll(cx) {
                    Poll::Ready(reason) => Some(Poll::Ready(reason)),
                    Poll::Pending => None,
                })
                .unwrap_or(Poll::Pending)
        })
    }

    /// Sets `key` to `value` in the store that keeps the lock, unless the lock is not ours any more: the store
    /// looks and writes in one step, so the write of a former holder never counts, however late it arrives.
    ///
    /// Of several names all must still be ours.
    /// `redis`, `etcd` and `zookeeper` can do this; a cluster wants the key in the slot of the lock (`{orders/42}:total`
    /// for the lock `orders/42`), and in ZooKeeper it is the path of a node.
    /// It is as strong as the store: see the [guarantees](crate::guarantees) for what it may forget.
    ///
    /// # Cancel safety
    /// Dropped, the write may have been applied or not.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost): the lock is not ours any more, and nothing was written.
    /// `Indeterminate`: nobody can tell whether it was written. `Unsupported`: the store keeps no data.
    pub async fn put(&self, key: &str, value: impl AsRef<[u8]>) -> Result<(), Error> {
        self.write(key, Some(value.as_ref().to_vec())).await
    }

    /// Deletes `key` in the store that keeps the lock, unless the lock is not ours any more; one that is not there
    /// is no error. See [`put`](Guard::put).
    ///
    /// # Cancel safety
    /// As [`put`](Guard::put).
    ///
    /// # Errors
    /// As [`put`](Guard::put).
    pub async fn delete(&self, key: &str) -> Result<(), Error> {
        self.write(key, None).await
    }

    async fn write(&self, key: &str, value: Option<Vec<u8>>) -> Result<(), Error> {
        let all: Vec<_> = self.all().iter().map(Entrance::held).collect();
        Held::write(&all, key.to_owned(), value).await
    }

    /// The lock as etcd has it, for a transaction of your own that shall count only while the lock is held:
    /// put its [`compare`](EtcdLock::compare) among the transaction's conditions. `None`: it lies in another store.
    ///
    /// They are plain data, so that no version of a client crate is part of this one.
    /// With the crate `etcd-client` a condition is
    /// `Compare::create_revision(it.key.clone(), CompareOp::Equal, it.create_revision)`.
    pub fn etcd(&self) -> Option<EtcdLock> {
        let compare = |entrance: &Entrance| match entrance.held().condition()? {
            Condition::Etcd(compare) => Some(compare),
            _ => None,
        };
        let all: Option<Vec<_>> = self.all().iter().map(compare).collect();
        all.map(EtcdLock::new)
    }

    /// The lock as ZooKeeper has it, for a `multi` of your own that shall count only while the lock is held:
    /// put its [`check`](ZooKeeperLock::check) among the operations. `None`: it lies in another store.
    ///
    /// They are plain data, so that no version of a client crate is part of this one.
    /// With the crate `zookeeper-client` that is `multi.add_check_version(&it.path, it.version)`.
    pub fn zookeeper(&self) -> Option<ZooKeeperLock> {
        let check = |entrance: &Entrance| match entrance.held().condition()? {
            Condition::ZooKeeper(check) => Some(check),
            _ => None,
        };
        let all: Option<Vec<_>> = self.all().iter().map(check).collect();
        all.map(ZooKeeperLock::new)
    }

    /// Neither renews nor releases from now on: the lock is free when its lease ends, and not before. Says how long
    /// that takes.
    #[cfg(feature = "sqlx")]
    pub(crate) fn abandon(self) -> Duration {
        let left = self.all().iter().map(|entrance| entrance.held().abandon());
        left.max().unwrap_or_default()
    }

    /// Gives the lock back. Of several names all are released, the last taken first, whatever happens to one.
    ///
    /// With a re-entrant [`Owner`](crate::Owner) only the last guard releases; the others just end.
    ///
    /// # Cancel safety
    /// Once called, the release goes on in the background even if this future is dropped.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost): the hold had ended before; work may have overlapped.
    /// `Indeterminate` or `Unreachable`: the store did not confirm; the release is repeated in the
    /// background until it does or the lease runs out.
    pub async fn release(self) -> Result<(), Error> {
        let mut entrances = match self.entrances {
            Entrances::One(entrance) => return entrance.release().await,
            Entrances::Many(entrances) => entrances,
        };
        let mut first_error = Ok(());
        while let Some(entrance) = entrances.pop() {
            let result = entrance.release().await;
            if first_error.is_ok() {
                first_error = result;
            }
        }
        first_error
    }
}

/// A unit of writes that its store applies in one step, and that can be made to count only as long as nobody newer
/// than the holder has been there.
///
/// What it is depends on where the data lies: a transaction of a database ([`tenure::sql`](crate), feature `sqlx`),
/// the conditions of one in etcd, the checks of a `multi` in ZooKeeper. In Redis it is
/// [`Guard::put`] and [`Guard::delete`], which are units of one write.
/// `docs/fencing.md` shows what happens without.
///
/// ```
/// use tenure::{Error, Fenced, Guard};
///
/// /// Whatever store it is for: what is added to `unit` from here on is refused when the holder was overtaken.
/// async fn begin(unit: &mut impl Fenced, guard: &Guard) -> Result<(), Error> {
///     unit.fence(guard).await
/// }
/// ```
pub trait Fenced {
    /// Makes this unit count only if the hold of `guard` was not overtaken; of several names, none of them.
    ///
    /// A database refuses here, by a row per name that remembers the greatest token. etcd and ZooKeeper refuse when
    /// the unit is applied.
    ///
    /// # Cancel safety
    /// Dropped, the unit may be fenced or not; give it up.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost): it was overtaken; give the unit up.
    /// [`Unsupported`](crate::ErrorKind::Unsupported): the lock does not lie in the store of these conditions.
    /// Those of the store.
    fn fence(&mut self, guard: &Guard) -> impl Future<Output = Result<(), Error>> + Send;
}

fn elsewhere(store: &str) -> Error {
    let message = format!(
        "the lock does not lie in {store}, so a condition there says nothing about it; send the fencing token along with the write instead"
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

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.tokens().map(|(name, token)| (name, token.get())))
            .finish()
    }
}
