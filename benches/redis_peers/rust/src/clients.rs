//! The clients, each with the same two functions.

use std::sync::Arc;
use std::time::Duration;

use distributed_lock_core::error::LockError;
use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, IntoConnectionInfo as _, ProtocolVersion, PushKind};

use crate::scenarios::{Failure, Locks, TTL, now, processor_time};

fn url(port: &str) -> String {
    format!("redis://127.0.0.1:{port}/")
}

/// The script that tenure sends for free locks.
pub(crate) const ACQUIRE: &str =
    include_str!("../../../../crates/tenure/src/redis/lua/acquire_batch.lua");

/// The script that tenure sends to release locks without waiters.
pub(crate) const RELEASE: &str =
    include_str!("../../../../crates/tenure/src/redis/lua/release_batch.lua");

/// The description of the holder.
pub(crate) const HOLDER: &str = r#"{"host":"host-of-the-holder","pid":4711}"#;

/// For how long the server keeps a token, in ms: a day.
pub(crate) const KEEP: u64 = 86_400_000;

/// The permits of each semaphore.
pub(crate) const PERMITS: u32 = 8;

/// The bare commands, as a careful program would send them. This client cannot wait.
#[derive(Clone)]
pub(crate) struct Raw {
    connection: MultiplexedConnection,
    release: Arc<redis::Script>,
}

impl Raw {
    pub(crate) async fn connect(port: &str) -> Result<Self, Failure> {
        Ok(Self {
            connection: connection(port, AsyncConnectionConfig::new()).await?,
            release: Arc::new(redis::Script::new(
                "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0",
            )),
        })
    }
}

/// The scripts that tenure sends for a free lock, and nothing else of tenure: no queue, renewal or span in the client. A lock
/// with tokens whose server decides by these scripts cannot cost one worker less; tenure sends the locks of many workers in
/// one script, and this client does not. This client cannot wait.
#[derive(Clone)]
pub(crate) struct RawScripts {
    connection: MultiplexedConnection,
    acquire: Arc<redis::Script>,
    release: Arc<redis::Script>,
}

impl RawScripts {
    pub(crate) async fn connect(port: &str) -> Result<Self, Failure> {
        Ok(Self {
            connection: connection(port, AsyncConnectionConfig::new()).await?,
            acquire: Arc::new(redis::Script::new(ACQUIRE)),
            release: Arc::new(redis::Script::new(RELEASE)),
        })
    }
}

impl Locks for RawScripts {
    type Hold = ([String; 2], String);

    async fn lock(&self, name: &str) -> Result<Self::Hold, Failure> {
        let owner = format!("{:032x}", rand::random::<u128>());
        let keys = [name.to_owned(), format!("{{{name}}}:hold")];
        let mut invocation = self.acquire.key(&keys[0]);
        invocation.key(&keys[1]).arg(TTL.as_millis() as u64);
        invocation.arg(HOLDER).arg(KEEP).arg(&owner);
        let tokens: Vec<u64> = invocation
            .invoke_async(&mut self.connection.clone())
            .await?;
        match tokens[..] {
            [token] if token > 0 => Ok((keys, owner)),
            _ => Err("busy".into()),
        }
    }

    async fn unlock(&self, (keys, owner): Self::Hold) -> Result<(), Failure> {
        let mut invocation = self.release.key(&keys[0]);
        invocation.key(&keys[1]).arg(owner);
        let released: Vec<u32> = invocation
            .invoke_async(&mut self.connection.clone())
            .await?;
        match released[..] {
            [1] => Ok(()),
            _ => Err("lost".into()),
        }
    }
}

/// A bare lock of readers: a script that adds a reader unless there is a writer, and one that removes the reader.
#[derive(Clone)]
pub(crate) struct RawShared {
    connection: MultiplexedConnection,
    acquire: Arc<redis::Script>,
    release: Arc<redis::Script>,
}

impl RawShared {
    pub(crate) async fn connect(port: &str) -> Result<Self, Failure> {
        Ok(Self {
            connection: connection(port, AsyncConnectionConfig::new()).await?,
            acquire: Arc::new(redis::Script::new(
                "if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end \
                 local time = redis.call('TIME') \
                 redis.call('ZADD', KEYS[1], time[1] * 1000 + time[2] / 1000 + ARGV[2], ARGV[1]) \
                 redis.call('PEXPIRE', KEYS[1], ARGV[2]) \
                 return 1",
            )),
            release: Arc::new(redis::Script::new(
                "return redis.call('ZREM', KEYS[1], ARGV[1])",
            )),
        })
    }
}

impl Locks for RawShared {
    type Hold = (String, String);

    async fn lock(&self, name: &str) -> Result<Self::Hold, Failure> {
        let owner = format!("{:032x}", rand::random::<u128>());
        let (readers, writer) = (format!("{{{name}}}:readers"), format!("{{{name}}}:writer"));
        let mut invocation = self.acquire.key(&readers);
        invocation
            .key(writer)
            .arg(&owner)
            .arg(TTL.as_millis() as u64);
        let granted: u32 = invocation
            .invoke_async(&mut self.connection.clone())
            .await?;
        if granted == 1 {
            Ok((readers, owner))
        } else {
            Err("busy".into())
        }
    }

    async fn unlock(&self, (readers, owner): Self::Hold) -> Result<(), Failure> {
        let mut invocation = self.release.key(readers);
        invocation.arg(owner);
        let removed: u32 = invocation
            .invoke_async(&mut self.connection.clone())
            .await?;
        if removed == 1 {
            Ok(())
        } else {
            Err("lost".into())
        }
    }
}

pub(crate) async fn connection(
    port: &str,
    config: AsyncConnectionConfig,
) -> Result<MultiplexedConnection, Failure> {
    let info = url(port).into_connection_info()?;
    let redis = info
        .redis_settings()
        .clone()
        .set_protocol(ProtocolVersion::RESP3);
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let info = info.set_redis_settings(redis).set_tcp_settings(tcp);
    let client = redis::Client::open(info)?;
    Ok(client
        .get_multiplexed_async_connection_with_config(&config)
        .await?)
}

impl Locks for Raw {
    type Hold = (String, String);

    async fn lock(&self, name: &str) -> Result<Self::Hold, Failure> {
        let owner = format!("{:032x}", rand::random::<u128>());
        let mut set = redis::cmd("SET");
        set.arg(name).arg(&owner).arg("NX").arg("PX");
        set.arg(TTL.as_millis() as u64);
        let set: Option<String> = set.query_async(&mut self.connection.clone()).await?;
        set.ok_or("busy")?;
        Ok((name.to_owned(), owner))
    }

    async fn unlock(&self, (name, owner): Self::Hold) -> Result<(), Failure> {
        let mut invocation = self.release.key(name);
        invocation.arg(owner);
        let deleted: u32 = invocation
            .invoke_async(&mut self.connection.clone())
            .await?;
        if deleted == 1 {
            Ok(())
        } else {
            Err("lost".into())
        }
    }
}

/// The time from before a message is published until another connection receives it, in µs.
pub(crate) async fn push(port: &str, seconds: f64) -> Result<String, Failure> {
    let (sender, mut messages) = tokio::sync::mpsc::unbounded_channel();
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let mut subscriber = connection(port, config).await?;
    subscriber.subscribe("push").await?;
    let mut publisher = connection(port, AsyncConnectionConfig::new()).await?;
    let mut times = Vec::new();
    let end = now() + (seconds * 1e9) as u64;
    while now() < end {
        let began = now();
        let mut publish = redis::cmd("PUBLISH");
        publish.arg("push").arg("x");
        let publishing: redis::RedisFuture<'_, ()> =
            Box::pin(async { publish.query_async(&mut publisher).await });
        let delivered = async {
            while let Some(push) = messages.recv().await {
                if push.kind == PushKind::Message {
                    return now();
                }
            }
            0
        };
        let (published, delivered) = tokio::join!(publishing, delivered);
        published?;
        times.push(delivered.saturating_sub(began));
    }
    times.sort_unstable();
    let p50 = times[times.len() / 2] as f64 / 1000.0;
    Ok(format!(r#"{{"p50_us":{p50:.1}}}"#))
}

/// The cost of holding many locks: processor time over the whole time, and memory for each lock.
pub(crate) async fn keep(port: &str, count: usize, seconds: f64) -> Result<String, Failure> {
    let Tenure(client) = Tenure::connect(port).await?;
    let before = memory()?;
    let mut held = Vec::with_capacity(count);
    for number in 0..count {
        held.push(
            client
                .lock(format!("keep-{number}"))
                .ttl(TTL)
                .acquire()
                .await?,
        );
    }
    let bytes = memory()?.saturating_sub(before) / count as u64;
    let cpu = processor_time();
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    let share = (processor_time() - cpu) as f64 / 1e9 / seconds;
    let lost = held.iter().filter(|guard| !guard.is_held()).count();
    Ok(format!(
        r#"{{"core":{share:.5},"bytes":{bytes},"lost":{lost}}}"#
    ))
}

/// The resident memory of this process.
fn memory() -> Result<u64, Failure> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let resident: u64 = pages.split(' ').nth(1).ok_or("no statm")?.parse()?;
    Ok(resident * rustix::param::page_size() as u64)
}

#[derive(Clone)]
pub(crate) struct Tenure(tenure::Client);

/// The same with shared holds.
#[derive(Clone)]
pub(crate) struct TenureShared(pub(crate) Tenure);

impl Locks for TenureShared {
    type Hold = tenure::Guard;

    async fn lock(&self, name: &str) -> Result<Self::Hold, Failure> {
        let Tenure(client) = &self.0;
        Ok(client.lock(name).ttl(TTL).shared().acquire().await?)
    }

    async fn unlock(&self, hold: Self::Hold) -> Result<(), Failure> {
        Ok(hold.release().await?)
    }
}

/// The same in strict order: no task passes the lock on to another one of its process.
#[derive(Clone)]
pub(crate) struct TenureFair(pub(crate) Tenure);

impl Locks for TenureFair {
    type Hold = tenure::Guard;

    async fn lock(&self, name: &str) -> Result<Self::Hold, Failure> {
        let Tenure(client) = &self.0;
        Ok(client.lock(name).ttl(TTL).fair(true).acquire().await?)
    }

    async fn unlock(&self, hold: Self::Hold) -> Result<(), Failure> {
        Ok(hold.release().await?)
    }
}

/// The same with one of [`PERMITS`] permits.
#[derive(Clone)]
pub(crate) struct TenurePermits(pub(crate) Tenure);

impl Locks for TenurePermits {
    type Hold = tenure::Guard;

    async fn lock(&self, name: &str) -> Result<Self::Hold, Failure> {
        let Tenure(client) = &self.0;
        Ok(client
            .lock(name)
            .ttl(TTL)
            .permits(PERMITS)
            .acquire()
            .await?)
    }

    async fn unlock(&self, hold: Self::Hold) -> Result<(), Failure> {
        Ok(hold.release().await?)
    }
}

impl Tenure {
    pub(crate) async fn connect(ports: &str) -> Result<Self, Failure> {
        let hosts: Vec<_> = ports
            .split(',')
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let scheme = if hosts.len() > 1 { "redlock" } else { "redis" };
        let url = format!("{scheme}://{}/?restart_guard=off", hosts.join(","));
        Ok(Self(tenure::connect(&url).await?))
    }
}

impl Locks for Tenure {
    type Hold = tenure::Guard;

    async fn lock(&self, name: &str) -> Result<Self::Hold, Failure> {
        Ok(self.0.lock(name).ttl(TTL).acquire().await?)
    }

    async fn unlock(&self, hold: Self::Hold) -> Result<(), Failure> {
        Ok(hold.release().await?)
    }
}

#[derive(Clone)]
pub(crate) struct Rslock(rslock::LockManager);

impl Rslock {
    pub(crate) fn connect(ports: &str) -> Self {
        let mut manager = rslock::LockManager::new(ports.split(',').map(url).collect());
        // The delay is the client's default; with its default limit the client would give up after three tries.
        manager.set_retry(u32::MAX, Duration::from_millis(200));
        Self(manager)
    }
}

impl Locks for Rslock {
    type Hold = rslock::Lock;

    async fn lock(&self, name: &str) -> Result<Self::Hold, Failure> {
        Ok(self.0.lock(name, TTL).await?)
    }

    async fn unlock(&self, hold: Self::Hold) -> Result<(), Failure> {
        self.0.unlock(&hold).await;
        Ok(())
    }
}

#[derive(Clone)]
pub(crate) struct DistributedLock(Arc<distributed_lock_redis::RedisLockProvider>);

impl DistributedLock {
    pub(crate) async fn connect(port: &str) -> Result<Self, Failure> {
        let provider = distributed_lock_redis::RedisLockProvider::new(url(port)).await?;
        Ok(Self(Arc::new(provider)))
    }
}

impl Locks for DistributedLock {
    type Hold = distributed_lock_redis::RedisLockHandle;

    async fn lock(&self, name: &str) -> Result<Self::Hold, Failure> {
        let lock = self.0.create_lock(name);
        loop {
            match lock.acquire(None).await {
                // The client tries once, no matter which time is set. So this program waits, with the interval of
                // redis-py.
                Err(LockError::Timeout(_)) => tokio::time::sleep(Duration::from_millis(100)).await,
                held => return Ok(held?),
            }
        }
    }

    async fn unlock(&self, hold: Self::Hold) -> Result<(), Failure> {
        Ok(hold.release().await?)
    }
}
