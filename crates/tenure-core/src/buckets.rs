//! Keys in buckets: a lock for each bucket in place of one for each key, and a walk over all buckets.

use std::fmt;

use crate::client::Client;
use crate::error::{Error, ErrorKind};
use crate::fence::FencingToken;
use crate::lock::Lock;
use crate::name::LockName;

/// The bucket of `key`, a number from 0 to `count` - 1.
///
/// The same key has the same bucket in every version of this library, on every platform and in every process. The
/// algorithm, for programs in other languages: the 64-bit FNV-1a hash of the bytes of the key (RFC 9923), then the
/// finalizer `fmix64` of MurmurHash3, and the rest of the division by `count`. The finalizer is necessary because the
/// lowest bits of FNV-1a depend only on the lowest bits of each byte. Texts are hashed as UTF-8.
///
/// A `count` of 0 counts as 1. Another `count` moves most keys to another bucket: all programs must use the same.
///
/// ```
/// assert_eq!(tenure::bucket_of("order 42", 16), 11);
/// ```
pub fn bucket_of(key: impl AsRef<[u8]>, count: u32) -> u32 {
    let hash = fmix64(fnv1a(key.as_ref()));
    let bucket = hash % u64::from(count.max(1));
    // Less than `count`.
    u32::try_from(bucket).unwrap_or(0)
}

/// The 64-bit FNV-1a hash: <http://www.isthe.com/chongo/tech/comp/fnv/>.
fn fnv1a(bytes: &[u8]) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x100_0000_01b3;
    bytes.iter().fold(OFFSET_BASIS, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(PRIME)
    })
}

/// The last step of MurmurHash3 for 64 bits: every bit of the input changes every bit of the result with a chance of one half.
fn fmix64(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

impl Client {
    /// The buckets `name/0` to `name/{count - 1}`, each with a lock of its own. Keys are put into them by [`bucket_of`].
    ///
    /// The locks have the default options of the client ([`with_defaults`](Client::with_defaults)).
    pub fn buckets(&self, name: impl Into<String>, count: u32) -> Buckets {
        Buckets {
            client: self.clone(),
            name: name.into(),
            count,
            left: (0..count).collect(),
        }
    }
}

/// Buckets of keys, and a walk over all of them. Made by [`Client::buckets`].
#[derive(Clone)]
pub struct Buckets {
    client: Client,
    name: String,
    count: u32,
    left: Vec<u32>,
}

impl Buckets {
    /// The lock of the bucket that has this key.
    pub fn lock_of(&self, key: impl AsRef<[u8]>) -> Lock {
        let bucket = bucket_of(key, self.count);
        self.client.lock(self.name_of(bucket))
    }

    /// The buckets for which the walk has not run its body to a success yet, in order.
    pub fn left(&self) -> &[u32] {
        &self.left
    }

    /// Runs `body` under the lock of each bucket, one bucket after the other, until all are done: it takes one that is
    /// free, and waits only when other clients hold all that are left.
    ///
    /// Each bucket is visited once by each walk. Several processes that walk at the same time start at random places,
    /// never visit the same bucket together, and each of them visits all: the body finds out in its data whether
    /// something is left to do.
    ///
    /// The walk ends at the first error, and the bucket of the error is still [left](Buckets::left), as are those that
    /// were not visited: call the method again to go on. A body whose lock was lost is dropped at its current await, and its
    /// bucket is left; so `body` may run again for a bucket for which it has run in part.
    ///
    /// # Cancel safety
    /// Cancel safe: `body` is dropped, its lock released, and its bucket is left.
    ///
    /// # Errors
    /// The errors of `body`, and those of [`Lock::run`] for the lock of a bucket, above all [`Lost`](ErrorKind::Lost).
    ///
    /// # Examples
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// let client = tenure::connect("memory:").await?;
    /// let mut buckets = client.buckets("jobs", 16);
    /// buckets.run_each(|bucket, token| async move {
    ///     println!("the keys of bucket {bucket}, with fencing token {token}");
    ///     Ok::<_, tenure::Error>(())
    /// }).await?;
    /// assert!(buckets.left().is_empty());
    ///
    /// // Work on one key excludes the walk from its bucket.
    /// buckets.lock_of("order 42").acquire().await?.release().await
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    // Not `AsyncFnMut`: the compiler does not see that such a walk is `Send` when its body borrows.
    pub async fn run_each<E, F, Body>(&mut self, mut body: F) -> Result<(), E>
    where
        E: From<Error>,
        F: FnMut(u32, FencingToken) -> Body,
        Body: Future<Output = Result<(), E>>,
    {
        while !self.left.is_empty() {
            let names = self.left.iter().map(|bucket| self.name_of(*bucket));
            let lock = self.client.lock_any(names);
            let visit = lock.run(async |guard| {
                let bucket = bucket_in(guard.name())?;
                body(bucket, guard.token()).await.map(|()| bucket)
            });
            let done = visit.await??;
            self.left.retain(|bucket| *bucket != done);
        }
        Ok(())
    }

    fn name_of(&self, bucket: u32) -> String {
        format!("{}/{bucket}", self.name)
    }
}

/// The number at the end of a name of [`Buckets::name_of`].
fn bucket_in(name: &LockName) -> Result<u32, Error> {
    let number = name.as_str().rsplit('/').next().map(str::parse);
    match number {
        Some(Ok(bucket)) => Ok(bucket),
        _ => {
            let message = format!("{name} was granted, which is no bucket");
            Err(Error::new(ErrorKind::Store, message))
        }
    }
}

impl fmt::Debug for Buckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buckets")
            .field("name", &self.name)
            .field("count", &self.count)
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}
