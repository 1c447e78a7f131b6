//! Locks on one Redis server: a hash for each name, with a time to live.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{AsyncCommands as _, RedisError, Script};
use tenure_core::guarantees::{Cell, Fault, Guarantees, Order};
use tenure_core::logic::pace;
use tenure_core::rt::Clock;
use tenure_core::store::{
    Answer, BoxFuture, ErrorParts as _, Finding, Grant, Hold, Listed, Operate, Release, Renewal,
    Request,
};
use tenure_core::support::{HoldRegistry, HolderRecord, millis_down, wall_time};
use tenure_core::{Error, ErrorKind, HoldInfo, LockName, LockStatus, LostReason, Mode};

/// The longest time that a request to the server may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Token, holder and start of a hold.
type Fields = (Option<u64>, Option<String>, Option<u64>);

/// What `Client::from_store` takes.
pub struct Store {
    connection: ConnectionManager,
    acquire: Script,
    change: Script,
    guarantees: Guarantees,
    /// What `close` has to release.
    holds: HoldRegistry<LockName>,
    clock: Clock,
}

impl Store {
    /// Connects to the server of a URL `redis://HOST:PORT`.
    ///
    /// # Errors
    /// `Unreachable`: the server is not there.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(TIMEOUT))
            .set_connection_timeout(Some(TIMEOUT));
        let client = redis::Client::open(url).map_err(not_sent)?;
        let connection = client.get_connection_manager_with_config(config).await;
        Ok(Self {
            connection: connection.map_err(not_sent)?,
            acquire: Script::new(include_str!("acquire.lua")),
            change: Script::new(include_str!("change.lua")),
            guarantees: guarantees(),
            holds: HoldRegistry::default(),
            clock: Clock::system(),
        })
    }

    /// Changes the lock of `name` if it has this field with this value. A ttl of zero deletes the lock.
    async fn change(&self, name: &LockName, has: [&str; 2], ttl: Duration) -> Result<bool, Error> {
        let mut change = self.change.key(key(name));
        change.arg(&has).arg(millis_down(ttl));
        let changed = change.invoke_async(&mut self.connection.clone()).await;
        changed.map_err(unanswered)
    }
}

impl tenure_core::store::Store for Store {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn acquire(self: Arc<Self>, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(async move {
            let (name, ttl) = (&request.name, millis_down(request.ttl));
            let lease = Some(Duration::from_millis(ttl));
            let holder = HolderRecord::from(&*request.holder).to_json();
            let mut acquire = self.acquire.key(key(name));
            acquire.key(token_key(name)).arg(request.owner.to_hex());
            acquire.arg(ttl).arg(holder);
            for attempt in 0.. {
                // The lease counts from before the request: the reply may have been on its way for long.
                let sent = self.clock.now();
                let answer = acquire.invoke_async(&mut self.connection.clone()).await;
                let (token, left): (u64, i64) = answer.map_err(unanswered)?;
                if token > 0 {
                    self.holds.insert(request.owner, name.clone());
                    let round_trip = self.clock.now().since(sent);
                    let grant = Grant::new(token, sent, round_trip, lease);
                    return Ok(Answer::Granted(grant));
                }
                if !request.wait {
                    break;
                }
                // A wait in which the store said nothing ends as `Unreachable`.
                request.report_taken();
                // The server sends no message about a release, so waiters ask again: at the end of the lease, and before.
                let left = u64::try_from(left).ok().map(Duration::from_millis);
                let pause = pace::next(attempt, self.clock.random(), left, None);
                let next = self.clock.now().after(pause.unwrap_or(pace::CAP));
                let pause = self.clock.sleep_until(next);
                if request.unless_stopped(pause).await.is_none() {
                    break;
                }
            }
            Ok(Answer::Busy)
        })
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        Box::pin(async move {
            let mut renewals = Vec::new();
            for hold in holds {
                let (owner, ttl) = (hold.owner.to_hex(), Some(hold.ttl));
                let sent = self.clock.now();
                let renewed = self.change(&hold.name, ["owner", &owner], hold.ttl);
                renewals.push(match renewed.await {
                    Ok(true) => Renewal::Renewed { sent, ttl },
                    Ok(false) => Renewal::Lost(LostReason::StoreSaysNo),
                    Err(err) => Renewal::Unknown(err),
                });
            }
            renewals
        })
    }

    fn release(self: Arc<Self>, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        Box::pin(async move {
            let owner = hold.owner.to_hex();
            let released = self.change(&hold.name, ["owner", &owner], Duration::ZERO);
            let was_held = released.await?;
            self.holds.remove(hold.owner);
            Ok(Release::of(was_held))
        })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<Result<LockStatus, Error>> {
        Box::pin(async move {
            let mut read = redis::pipe();
            let fields = ["token", "holder", "since"];
            read.atomic().hmget(key(&name), &fields).pttl(key(&name));
            let read = read.query_async(&mut self.connection.clone()).await;
            let ((token, holder, since), left): (Fields, i64) = read.map_err(unanswered)?;
            let mut status = LockStatus::free(name);
            if let (Some(holder), Ok(left)) = (holder, u64::try_from(left)) {
                let mut holder = HolderRecord::read(&holder);
                holder.since = since.and_then(wall_time);
                let left = Some(Duration::from_millis(left));
                let info = HoldInfo::new(holder, Mode::Exclusive, token, left);
                status.holds.push(info);
            }
            Ok(status)
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<Result<Listed, Error>> {
        Box::pin(async move {
            let mut connection = self.connection.clone();
            let mut names = Vec::new();
            let mut keys = connection.scan_match("lock:*").await.map_err(unanswered)?;
            while let Some(key) = keys.next_item().await {
                let key: String = key.map_err(unanswered)?;
                let name = key.strip_prefix("lock:");
                let name = name.filter(|name| name.starts_with(&prefix));
                names.extend(name.and_then(|name| LockName::new(name).ok()));
            }
            Ok(Listed::Names(names))
        })
    }

    fn close(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(async move {
            for (owner, name) in self.holds.take_all() {
                // A hold that cannot be released ends with its lease.
                let _ = self.clone().release(Hold::of(name, owner)).await;
            }
        })
    }

    fn as_operate(self: Arc<Self>) -> Option<Arc<dyn Operate>> {
        Some(self)
    }
}

impl Operate for Store {
    fn break_lock(self: Arc<Self>, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move {
            let token = token.to_string();
            self.change(&name, ["token", &token], Duration::ZERO).await
        })
    }

    fn check(self: Arc<Self>) -> BoxFuture<Result<Vec<Finding>, Error>> {
        Box::pin(async move {
            let pong: Result<String, _> = self.connection.clone().ping().await;
            pong.map(|_| Vec::new()).map_err(unanswered)
        })
    }
}

fn key(name: &LockName) -> String {
    format!("lock:{}", name.as_str())
}

fn token_key(name: &LockName) -> String {
    format!("token:{}", name.as_str())
}

fn not_sent(err: RedisError) -> Error {
    let message = "the server is not there; does it run?";
    Error::new(ErrorKind::Unreachable, message).with_source(err)
}

/// A request without an answer may have been applied. The driver releases what it may have acquired.
fn unanswered(err: RedisError) -> Error {
    match err.is_connection_refusal() {
        true => not_sent(err),
        false => Error::new(ErrorKind::Indeterminate, "no answer from the server").with_source(err),
    }
}

/// What this store can do and promises. The conformance suite expects exactly that.
pub fn guarantees() -> Guarantees {
    let restart = "a server without an append-only file forgets its locks";
    let faults = Cell::of_lease_store(&[
        Cell::nothing(Fault::StoreRestart, restart),
        Cell::nothing(Fault::PowerLoss, restart),
    ]);
    let order = Order::Unordered("the first waiter that asks after a release gets the lock");
    Guarantees::new("example", order, faults)
}
