//! rslock.

use std::time::Duration;

use rslock::{Lock, LockError, LockManager};

use crate::{Failure, Locks};

/// The longest pause between two attempts; the client selects a pause from zero up to this one.
const DELAY: Duration = Duration::from_millis(20);

#[derive(Clone)]
pub(crate) struct Rslock {
    url: String,
    once: LockManager,
}

impl Rslock {
    pub(crate) async fn connect(host: &str, port: &str) -> Result<Self, Failure> {
        let url = format!("redis://{host}:{port}/");
        let once = manager(&url, Duration::ZERO);
        once.query_redis_for_key_value(b"ready").await?;
        Ok(Self { url, once })
    }

    async fn at(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        Ok(self.once.query_redis_for_key_value(key).await?)
    }
}

impl Locks for Rslock {
    type Hold = Lock;

    async fn lock(
        &self,
        name: &str,
        wait: Duration,
        ttl: Duration,
    ) -> Result<Option<Lock>, Failure> {
        let manager = match wait.is_zero() {
            true => self.once.clone(),
            false => manager(&self.url, wait),
        };
        match manager.lock(name.as_bytes(), ttl).await {
            Ok(lock) => Ok(Some(lock)),
            Err(LockError::Unavailable) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn unlock(&self, lock: Lock) -> Result<bool, Failure> {
        // The client does not report whether it deleted the key.
        let mine = self.at(&lock.resource).await?.as_ref() == Some(&lock.val);
        lock.lock_manager.unlock(&lock).await;
        Ok(mine)
    }

    async fn locked(&self, name: &str) -> Result<bool, Failure> {
        Ok(self.at(name.as_bytes()).await?.is_some())
    }

    fn value(lock: &Lock) -> &[u8] {
        &lock.val
    }
}

fn manager(url: &str, wait: Duration) -> LockManager {
    let mut manager = LockManager::new(vec![url]);
    // The pauses are half of DELAY on average.
    let tries = 1 + 2 * wait.as_millis() / DELAY.as_millis();
    manager.set_retry(u32::try_from(tries).unwrap_or(u32::MAX), DELAY);
    manager
}
