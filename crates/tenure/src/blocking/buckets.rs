//! Keys in buckets, without async.

use tenure_core::bucket_of;
use tenure_core::error::{Error, ErrorKind};
use tenure_core::name::LockName;

use super::{Client, Guard, Lock};

impl Client {
    /// See [`Client::buckets`](crate::Client::buckets).
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
        self.client.lock(self.name_of(bucket_of(key, self.count)))
    }

    /// The buckets for which the walk has not run its body to a success yet, in order.
    pub fn left(&self) -> &[u32] {
        &self.left
    }

    /// Runs `body` under the lock of each bucket, one bucket after the other, until all are done: see
    /// [`Buckets::run_each`](crate::Buckets::run_each). As in [`Lock::run`], `body` cannot be stopped from outside.
    ///
    /// ```
    /// # fn example() -> Result<(), tenure::Error> {
    /// let client = tenure::blocking::connect("memory:")?;
    /// let mut buckets = client.buckets("jobs", 4);
    /// let mut visited = Vec::new();
    /// buckets.run_each(|bucket, _guard| {
    ///     visited.push(bucket);
    ///     Ok::<_, tenure::Error>(())
    /// })?;
    /// visited.sort();
    /// assert_eq!(visited, [0, 1, 2, 3]);
    /// # Ok(()) }
    /// # example().unwrap();
    /// ```
    ///
    /// # Errors
    /// The errors of `body`, and those of [`Lock::run`] for the lock of a bucket.
    pub fn run_each<E: From<Error>>(
        &mut self,
        mut body: impl FnMut(u32, &Guard) -> Result<(), E>,
    ) -> Result<(), E> {
        while !self.left.is_empty() {
            let names = self.left.iter().map(|bucket| self.name_of(*bucket));
            let lock = self.client.lock_any(names);
            let visit = lock.run(|guard| {
                let bucket = bucket_in(guard.name())?;
                body(bucket, guard).map(|()| bucket)
            });
            let done = visit??;
            self.left.retain(|bucket| *bucket != done);
        }
        Ok(())
    }

    fn name_of(&self, bucket: u32) -> String {
        format!("{}/{bucket}", self.name)
    }
}

/// The number at the end of the name of a bucket.
fn bucket_in(name: &LockName) -> Result<u32, Error> {
    let number = name.as_str().rsplit('/').next();
    let number = number.and_then(|number| number.parse().ok());
    number.ok_or_else(|| {
        let message = format!("{name} was granted, which is no bucket");
        Error::new(ErrorKind::Store, message)
    })
}
