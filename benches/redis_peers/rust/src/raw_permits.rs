//! The least semaphore on Redis that has a queue and wakes its waiters.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue as _, PushInfo, PushKind, Script};
use tokio::sync::oneshot;

use crate::clients::{PERMITS, connection};
use crate::scenarios::{Failure, Locks};

/// KEYS: HOLDERS QUEUE. ARGV: PERMITS CHANNEL ID. 1: granted. 0: in the queue.
const ACQUIRE: &str = "\
    local owner = ARGV[2] .. ' ' .. ARGV[3] \
    if redis.call('SCARD', KEYS[1]) < tonumber(ARGV[1]) then \
      redis.call('SADD', KEYS[1], owner) \
      return 1 \
    end \
    redis.call('RPUSH', KEYS[2], owner) \
    return 0";

/// KEYS: HOLDERS QUEUE. ARGV: CHANNEL ID. 1: released; the first waiter has the permit now. 0: there was no such permit.
const RELEASE: &str = "\
    if redis.call('SREM', KEYS[1], ARGV[1] .. ' ' .. ARGV[2]) == 0 then \
      return 0 \
    end \
    local first = redis.call('LPOP', KEYS[2]) \
    if first then \
      redis.call('SADD', KEYS[1], first) \
      local channel, id = string.match(first, '^(%S+) (%d+)$') \
      redis.call('PUBLISH', channel, id) \
    end \
    return 1";

/// A bare semaphore: a set of holders, a list of waiters, and a message to the waiter that gets a permit. It has no tokens,
/// leases or renewal, and no description of a holder. A waiter that gives up keeps its place.
#[derive(Clone)]
pub(crate) struct RawPermits(Arc<Client>);

struct Client {
    connection: MultiplexedConnection,
    /// The server sends messages as long as this connection lives.
    _subscriber: MultiplexedConnection,
    channel: String,
    acquire: Script,
    release: Script,
    next: AtomicU64,
    waiters: Arc<Waiters>,
}

/// The requests for permits that have not been granted yet.
#[derive(Default)]
struct Waiters(Mutex<HashMap<u64, oneshot::Sender<()>>>);

impl RawPermits {
    pub(crate) async fn connect(port: &str) -> Result<Self, Failure> {
        let channel = format!("permits-{:032x}", rand::random::<u128>());
        let waiters = Arc::new(Waiters::default());
        let pushed = waiters.clone();
        let config = AsyncConnectionConfig::new()
            .set_push_sender(move |push: PushInfo| -> Result<(), Failure> { pushed.wake(push) });
        let mut subscriber = connection(port, config).await?;
        subscriber.subscribe(&channel).await?;
        Ok(Self(Arc::new(Client {
            connection: connection(port, AsyncConnectionConfig::new()).await?,
            _subscriber: subscriber,
            channel,
            acquire: Script::new(ACQUIRE),
            release: Script::new(RELEASE),
            next: AtomicU64::new(0),
            waiters,
        })))
    }
}

impl Waiters {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the waiter that has got a permit.
    fn wake(&self, push: PushInfo) -> Result<(), Failure> {
        if push.kind != PushKind::Message {
            return Ok(());
        }
        let id = push.data.get(1).ok_or("a message without text")?;
        let id = u64::from_redis_value_ref(id)?;
        let waiter = self.all().remove(&id);
        if let Some(waiter) = waiter {
            // The receiver is dropped if the waiter has given up.
            let _ = waiter.send(());
        }
        Ok(())
    }
}

impl Locks for RawPermits {
    type Hold = ([String; 2], u64);

    async fn lock(&self, name: &str) -> Result<Self::Hold, Failure> {
        let Self(client) = self;
        let keys = [format!("{{{name}}}:holders"), format!("{{{name}}}:queue")];
        let id = client.next.fetch_add(1, Ordering::Relaxed);
        let (waiter, granted) = oneshot::channel();
        // The message may arrive before the reply that there is no permit.
        client.waiters.all().insert(id, waiter);
        let mut invocation = client.acquire.key(&keys[0]);
        invocation.key(&keys[1]).arg(PERMITS);
        invocation.arg(&client.channel).arg(id);
        let is_granted: u32 = invocation
            .invoke_async(&mut client.connection.clone())
            .await?;
        if is_granted == 1 {
            client.waiters.all().remove(&id);
        } else {
            granted.await?;
        }
        Ok((keys, id))
    }

    async fn unlock(&self, (keys, id): Self::Hold) -> Result<(), Failure> {
        let Self(client) = self;
        let mut invocation = client.release.key(&keys[0]);
        invocation.key(&keys[1]).arg(&client.channel).arg(id);
        let released: u32 = invocation
            .invoke_async(&mut client.connection.clone())
            .await?;
        if released == 1 {
            Ok(())
        } else {
            Err("lost".into())
        }
    }
}
