//! A queue store on one Redis server: what such a store costs with the engine `tenure_core::queue`. It has all modes and
//! serves its waiters in order, and no fast path.
//!
//! An entry is a hash with a time to live, so it ends with its client; a sorted set has the entries of a name in order.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{AsyncCommands as _, FromRedisValue, RedisError, Script};
use tenure_core::guarantees::{Cell, Fault, Guarantees, Order};
use tenure_core::logic::queue::{
    Contender, Turn, Upgrading, count_holders, decide, decide_while_upgrading,
};
use tenure_core::queue::{
    self, Acquisition, Created, HoldMode, ModeChange, Others, Position, QueueRequest, Replaced,
};
use tenure_core::rt::{Clock, wall_micros};
use tenure_core::store::{
    Answer, BoxFuture, ChangeMode, ErrorParts as _, Finding, Grant, Hold, Listed, Operate, Release,
    Renewal, Request,
};
use tenure_core::support::{HoldRegistry, HolderRecord, mode_text, parse_mode, wall_time};
use tenure_core::{Error, ErrorKind, HoldInfo, Holder, LockName, LockStatus, LostReason, Mode};

/// The longest time that a request to the server may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How often a waiter looks at the entries ahead.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What all scripts have. KEYS: the entries in order, the last revision, the last token that is not the id of its entry.
const COMMON: &str = "
local function entry(id) return KEYS[1] .. ':' .. id end
local function next_revision()
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    local next = math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 1, now)
    redis.call('SET', KEYS[2], string.format('%.0f', next))
    return string.format('%.0f', next)
end
local function keep(id, ttl)
    return redis.call('ZSCORE', KEYS[1], id) and redis.call('PEXPIRE', entry(id), ttl) == 1
end
";

/// ARGV: owner, mode, holder, since, ttl.
const CREATE: &str = "
local id = next_revision()
redis.call('ZADD', KEYS[1], id, id)
redis.call('HSET', entry(id), 'owner', ARGV[1], 'mode', ARGV[2], 'holder', ARGV[3], 'since', ARGV[4],
    'version', id, 'token', id, 'last', '')
redis.call('PEXPIRE', entry(id), ARGV[5])
return id";

/// Returns the last raised token and the entries, and removes those that are over.
const READ: &str = "
local found = {{ redis.call('GET', KEYS[3]) or '0' }}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    local fields = redis.call('HMGET', entry(id), 'owner', 'mode', 'last', 'version', 'token', 'holder', 'since')
    if fields[1] then
        table.insert(fields, 1, id)
        fields[#fields + 1] = tostring(redis.call('PTTL', entry(id)))
        found[#found + 1] = fields
    else
        redis.call('ZREM', KEYS[1], id)
    end
end
return found";

/// ARGV: the own id, ttl, then ids and versions. Returns 1 if one of these entries has changed, -1 if our own is gone.
const WATCH: &str = "
if not keep(ARGV[1], ARGV[2]) then return -1 end
for at = 3, #ARGV, 2 do
    if redis.call('HGET', entry(ARGV[at]), 'version') ~= ARGV[at + 1] then return 1 end
end
return 0";

/// ARGV: id, ttl, the last token that was granted before. Returns the token; 0: the entry is gone.
const GRANT: &str = "
if not keep(ARGV[1], ARGV[2]) then return 0 end
local token = redis.call('HGET', entry(ARGV[1]), 'token')
if tonumber(token) < tonumber(ARGV[3]) then
    token = next_revision()
    redis.call('HSET', entry(ARGV[1]), 'token', token)
    redis.call('SET', KEYS[3], token)
end
return tonumber(token)";

/// ARGV: id, ttl, version, mode, last holder. Returns the new version; 0: the entry has another version; -1: it is gone.
const REPLACE: &str = "
if not keep(ARGV[1], ARGV[2]) then return -1 end
if redis.call('HGET', entry(ARGV[1]), 'version') ~= ARGV[3] then return 0 end
local version = next_revision()
redis.call('HSET', entry(ARGV[1]), 'version', version, 'mode', ARGV[4], 'last', ARGV[5])
if ARGV[4] == '' then
    redis.call('HSET', entry(ARGV[1]), 'token', version)
    redis.call('SET', KEYS[3], version)
end
return tonumber(version)";

/// ARGV: owner. Deletes what the owner has, and returns how many entries that were.
const DELETE: &str = "
local deleted = 0
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    if redis.call('HGET', entry(id), 'owner') == ARGV[1] then
        deleted = deleted + redis.call('DEL', entry(id))
        redis.call('ZREM', KEYS[1], id)
    end
end
return deleted";

/// ARGV: id, ttl. Returns 1 if the entry is there.
const KEEP: &str = "return keep(ARGV[1], ARGV[2]) and 1 or 0";

/// What `Client::from_store` takes.
pub(crate) struct Store {
    connection: ConnectionManager,
    guarantees: Guarantees,
    holds: HoldRegistry<Held>,
    clock: Clock,
}

/// What is remembered of an acquisition.
#[derive(Clone)]
struct Held {
    name: LockName,
    /// The id of the entry; 0: the reply to its creation has not come.
    id: u64,
}

/// An entry as it was read.
#[derive(Clone)]
pub(crate) struct Stored {
    id: u64,
    owner: String,
    mode: Mode,
    is_upgrading: bool,
    last_holder: Option<i64>,
    version: u64,
    token: u64,
    holder: Holder,
    left: Duration,
}

impl Stored {
    fn parse(fields: &[String]) -> Option<Self> {
        let [id, owner, mode, last, version, token, holder, since, left] = fields else {
            return None;
        };
        let (mode, is_upgrading) = parse_mode(mode).unwrap_or((Mode::Exclusive, false));
        let mut holder = HolderRecord::read(holder);
        holder.since = wall_time(since.parse().ok()?);
        Some(Self {
            id: id.parse().ok()?,
            owner: owner.clone(),
            mode,
            is_upgrading,
            last_holder: last.parse().ok(),
            version: version.parse().ok()?,
            token: token.parse().ok()?,
            holder,
            left: Duration::from_millis(left.parse().unwrap_or(0)),
        })
    }
}

/// A queue as it was read.
struct Queue {
    entries: Vec<Stored>,
    contenders: Vec<Contender>,
    upgrading: Option<Upgrading>,
    /// No token that was granted is greater, unless it is the id of an entry.
    last_token: u64,
}

impl Queue {
    fn new(entries: Vec<Stored>, last_token: u64) -> Self {
        let contender = |entry: &Stored| Contender { mode: entry.mode };
        let at = entries.iter().position(|entry| entry.is_upgrading);
        let upgrading = at.map(|at| {
            let last = entries[at].last_holder;
            let is_holder =
                |entry: &Stored| last.is_some_and(|last| entry.id.cast_signed() <= last);
            let last_holder = entries.iter().rposition(is_holder);
            Upgrading { at, last_holder }
        });
        Self {
            contenders: entries.iter().map(contender).collect(),
            entries,
            upgrading,
            last_token,
        }
    }

    fn turn(&self, me: usize) -> Turn {
        match self.upgrading {
            Some(upgrading) => decide_while_upgrading(&self.contenders, upgrading, me),
            None => decide(&self.contenders, me),
        }
    }

    fn count_holders(&self) -> usize {
        let holds = |me: &usize| {
            let is_upgrading = self.upgrading.is_some_and(|upgrading| upgrading.at == *me);
            is_upgrading || self.turn(*me) == Turn::Held
        };
        (0..self.entries.len()).take_while(holds).count()
    }

    fn position(&self, own: &Entry) -> Position<Ahead> {
        let Some(me) = self.entries.iter().position(|entry| entry.id == own.id) else {
            return Position::Gone;
        };
        let ahead: Vec<usize> = match own.end_of {
            None => match self.turn(me) {
                Turn::Held => Vec::new(),
                Turn::WatchOne(at) => vec![at],
                Turn::WatchAll(range) => range.collect(),
            },
            Some(last) => {
                let is_other = |at: &usize| *at != me && self.entries[*at].id.cast_signed() <= last;
                (0..self.entries.len()).filter(is_other).collect()
            }
        };
        if ahead.is_empty() {
            let last_token = self.last_token;
            return Position::Held { last_token };
        }
        let watched = ahead.into_iter().map(|at| &self.entries[at]);
        Position::Behind(watched.map(|entry| (entry.id, entry.version)).collect())
    }
}

/// An entry of ours.
pub(crate) struct Entry {
    id: u64,
    /// The entry waits for the end of all other entries up to this one; `None`: for its turn.
    end_of: Option<i64>,
}

/// Ids and versions of the entries that one waits for.
type Ahead = Vec<(u64, u64)>;

/// A request of the engine.
struct Operation<'a> {
    store: &'a Store,
    request: &'a Request,
}

impl Store {
    /// Connects to the server of a URL `redis://HOST:PORT`.
    pub(crate) async fn connect(url: &str) -> Result<Self, Error> {
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(TIMEOUT))
            .set_connection_timeout(Some(TIMEOUT));
        let client = redis::Client::open(url).map_err(unanswered)?;
        let connection = client.get_connection_manager_with_config(config).await;
        Ok(Self {
            connection: connection.map_err(unanswered)?,
            guarantees: guarantees(),
            holds: HoldRegistry::default(),
            clock: Clock::system(),
        })
    }

    async fn run<T: FromRedisValue>(
        &self,
        name: &LockName,
        script: &str,
        args: &[&str],
    ) -> Result<T, Error> {
        let script = Script::new(&[COMMON, script].concat());
        let mut call = script.key(format!("queue:{}", name.as_str()));
        call.key(format!("revision:{}", name.as_str()));
        call.key(format!("raised:{}", name.as_str()));
        for arg in args {
            call.arg(*arg);
        }
        let mut connection = self.connection.clone();
        call.invoke_async(&mut connection).await.map_err(unanswered)
    }

    async fn read(&self, name: &LockName) -> Result<Queue, Error> {
        let found: Vec<Vec<String>> = self.run(name, READ, &[]).await?;
        let last_token = found.first().and_then(|first| first.first()?.parse().ok());
        let entries = found.iter().filter_map(|fields| Stored::parse(fields));
        Ok(Queue::new(entries.collect(), last_token.unwrap_or(0)))
    }

    async fn delete(&self, name: &LockName, owner: &str) -> Result<bool, Error> {
        let deleted: u64 = self.run(name, DELETE, &[owner]).await?;
        Ok(deleted > 0)
    }

    async fn renew_one(&self, hold: &Hold) -> Renewal {
        let Some(id) = self.holds.read(hold.owner, |held| held.id.to_string()) else {
            return Renewal::Lost(LostReason::StoreSaysNo);
        };
        let sent = self.clock.now();
        let args = [id.as_str(), &millis(hold.ttl)];
        match self.run(&hold.name, KEEP, &args).await {
            Ok(1) => Renewal::Renewed {
                sent,
                ttl: Some(hold.ttl),
            },
            Ok(_) => Renewal::Lost(LostReason::StoreSaysNo),
            Err(err) => Renewal::Unknown(err),
        }
    }
}

impl QueueRequest for Operation<'_> {
    type Entry = Entry;
    type Ahead = Ahead;

    const BEGINS_ANEW: bool = true;

    fn context(&self) -> (&Request, &Clock) {
        (self.request, &self.store.clock)
    }

    async fn read(
        &self,
        entry: &Entry,
        _: Option<Ahead>,
        _: bool,
    ) -> Result<Position<Ahead>, Error> {
        Ok(self.store.read(&self.request.name).await?.position(entry))
    }

    /// Looks at the entries ahead again and again, and keeps our own.
    async fn watch(
        &self,
        entry: &Entry,
        ahead: &mut Ahead,
    ) -> Result<Option<Position<Ahead>>, Error> {
        let (id, ttl) = (entry.id.to_string(), millis(self.request.ttl));
        let mut args = vec![id, ttl];
        for (id, version) in ahead {
            args.extend([id.to_string(), version.to_string()]);
        }
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let clock = &self.store.clock;
        loop {
            clock.sleep_until(clock.now().after(POLL_INTERVAL)).await;
            match self.store.run(&self.request.name, WATCH, &args).await? {
                0 => {}
                -1 => return Ok(Some(Position::Gone)),
                _ => return Ok(None),
            }
        }
    }

    /// The watch notices the end of our entry.
    async fn session_end(&self, _: &Entry) {
        std::future::pending().await
    }
}

impl Acquisition for Operation<'_> {
    async fn create(&self) -> Result<Created<Entry, Ahead>, Error> {
        let Self { store, request } = self;
        let name = request.name.clone();
        store.holds.insert(request.owner, Held { name, id: 0 });
        let mode = mode_text(request.mode, false).unwrap_or_default();
        let holder = HolderRecord::from(&*request.holder).to_json();
        let (owner, since) = (request.owner.to_hex(), wall_micros().to_string());
        let args = [owner.as_str(), &mode, &holder, &since, &millis(request.ttl)];
        match store.run(&request.name, CREATE, &args).await {
            Ok(id) => {
                store.holds.update(request.owner, |held| held.id = id);
                Ok(Created::Entry(Entry { id, end_of: None }, None))
            }
            Err(err) => {
                if err.kind() != ErrorKind::Indeterminate {
                    store.holds.remove(request.owner);
                }
                Err(err)
            }
        }
    }

    async fn grant(&self, entry: &Entry, last_token: u64) -> Result<Option<Answer>, Error> {
        let sent = self.store.clock.now();
        let (id, ttl) = (entry.id.to_string(), millis(self.request.ttl));
        let args = [id.as_str(), &ttl, &last_token.to_string()];
        let token: u64 = self.store.run(&self.request.name, GRANT, &args).await?;
        let grant = Grant::new(
            token,
            sent,
            self.store.clock.now().since(sent),
            Some(self.request.ttl),
        );
        Ok((token > 0).then_some(Answer::Granted(grant)))
    }

    async fn leave(&self) -> Result<(), Error> {
        let owner = self.request.owner;
        self.store
            .delete(&self.request.name, &owner.to_hex())
            .await?;
        self.store.holds.remove(owner);
        Ok(())
    }
}

impl Operation<'_> {
    /// Writes a mode, if the entry has not changed since it was read.
    async fn write(
        &self,
        own: &mut Stored,
        mode: &str,
        last_holder: Option<i64>,
    ) -> Result<Replaced<()>, Error> {
        let last = last_holder.map_or_else(String::new, |last| last.to_string());
        let (id, version) = (own.id.to_string(), own.version.to_string());
        let args = [
            id.as_str(),
            &millis(self.request.ttl),
            &version,
            mode,
            &last,
        ];
        let written: i64 = self.store.run(&self.request.name, REPLACE, &args).await?;
        Ok(match u64::try_from(written) {
            Ok(0) => Replaced::Refused,
            Ok(version) => {
                own.version = version;
                Replaced::Done(())
            }
            Err(_) => Replaced::Gone,
        })
    }
}

impl ModeChange for Operation<'_> {
    type Own = Stored;

    async fn read_own(&self) -> Result<Option<Stored>, Error> {
        let queue = self.store.read(&self.request.name).await?;
        let id = self.store.holds.read(self.request.owner, |held| held.id);
        let mut entries = queue.entries.into_iter();
        Ok(entries.find(|entry| Some(entry.id) == id))
    }

    fn is_exclusive(&self, own: &Stored) -> bool {
        own.mode == Mode::Exclusive
    }

    async fn replace(&self, own: &mut Stored, mode: HoldMode) -> Result<Replaced<()>, Error> {
        let (text, last_holder) = match mode {
            HoldMode::Shared => (mode_text(Mode::Shared, false), None),
            HoldMode::Upgradable => (mode_text(Mode::Upgradable, false), None),
            HoldMode::Upgrading { last_holder } => (mode_text(Mode::Upgradable, true), last_holder),
        };
        self.write(own, &text.unwrap_or_default(), last_holder)
            .await
    }

    async fn others(&self, own: &mut Stored) -> Result<Option<Others<Entry, Ahead>>, Error> {
        let queue = self.store.read(&self.request.name).await?;
        let holders = &queue.entries[..count_holders(&queue.contenders)];
        // What came after the announcement does not hold, whatever the modes say.
        let holders: Vec<_> = holders.iter().filter(|it| it.id < own.version).collect();
        let last = holders.last().filter(|_| holders.len() > 1);
        Ok(last.map(|last| Others {
            last_holder: last.id.cast_signed(),
            entry: Entry {
                id: own.id,
                end_of: Some(last.id.cast_signed()),
            },
            position: None,
        }))
    }

    async fn become_exclusive(&self, own: &mut Stored) -> Result<Replaced<Grant>, Error> {
        if self.is_exclusive(own) {
            let entry = Entry {
                id: own.id,
                end_of: None,
            };
            return Ok(match self.grant(&entry, 0).await? {
                Some(Answer::Granted(grant)) => Replaced::Done(grant),
                _ => Replaced::Gone,
            });
        }
        let sent = self.store.clock.now();
        let written = self.write(own, "", None).await?;
        let round_trip = self.store.clock.now().since(sent);
        Ok(written.map(|()| Grant::new(own.version, sent, round_trip, Some(self.request.ttl))))
    }
}

impl tenure_core::store::Store for Store {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn acquire(self: Arc<Self>, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(async move {
            let (store, request) = (&*self, &*request);
            queue::acquire(&Operation { store, request }).await
        })
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        Box::pin(async move {
            let mut renewals = Vec::new();
            for hold in holds {
                renewals.push(self.renew_one(&hold).await);
            }
            renewals
        })
    }

    fn release(self: Arc<Self>, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        Box::pin(async move {
            let is_deleted = self.delete(&hold.name, &hold.owner.to_hex()).await?;
            self.holds.remove(hold.owner);
            Ok(Release::of(is_deleted))
        })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<Result<LockStatus, Error>> {
        Box::pin(async move {
            let queue = self.read(&name).await?;
            let holders = queue.count_holders();
            let mut status = LockStatus::free(name);
            let (held, waiting) = queue.entries.split_at(holders);
            status.holds.extend(held.iter().map(|entry| {
                let (holder, left) = (entry.holder.clone(), Some(entry.left));
                HoldInfo::new(holder, entry.mode, Some(entry.token), left)
            }));
            let waiting = waiting.iter().map(|entry| entry.holder.clone());
            status.queue = Some(waiting.collect());
            Ok(status)
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<Result<Listed, Error>> {
        Box::pin(async move {
            let mut connection = self.connection.clone();
            let mut names = Vec::new();
            let mut keys = connection
                .scan_match("revision:*")
                .await
                .map_err(unanswered)?;
            while let Some(key) = keys.next_item().await {
                let key: String = key.map_err(unanswered)?;
                let name = key.strip_prefix("revision:");
                let name = name.filter(|name| name.starts_with(&prefix));
                names.extend(name.and_then(|name| LockName::new(name).ok()));
            }
            Ok(Listed::Names(names))
        })
    }

    fn close(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(async move {
            for (owner, held) in self.holds.take_all() {
                // What cannot be deleted ends with its ttl.
                let _ = self.delete(&held.name, &owner.to_hex()).await;
            }
        })
    }

    fn as_change_mode(self: Arc<Self>) -> Option<Arc<dyn ChangeMode>> {
        Some(self)
    }

    fn as_operate(self: Arc<Self>) -> Option<Arc<dyn Operate>> {
        Some(self)
    }
}

impl ChangeMode for Store {
    fn upgrade(
        self: Arc<Self>,
        _: Hold,
        request: Arc<Request>,
    ) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(async move {
            let (store, request) = (&*self, &*request);
            queue::upgrade(&Operation { store, request }).await
        })
    }

    fn downgrade(self: Arc<Self>, hold: Hold, mode: Mode) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move {
            let request = &Request::new(hold.name.clone(), hold.owner, hold.ttl);
            let store = &*self;
            queue::downgrade(&Operation { store, request }, mode).await
        })
    }
}

impl Operate for Store {
    fn break_lock(self: Arc<Self>, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move {
            let queue = self.read(&name).await?;
            let mut holders = queue.entries[..queue.count_holders()].iter();
            match holders.find(|entry| entry.token == token) {
                Some(entry) => self.delete(&name, &entry.owner).await,
                None => Ok(false),
            }
        })
    }

    fn check(self: Arc<Self>) -> BoxFuture<Result<Vec<Finding>, Error>> {
        Box::pin(async move {
            let pong: Result<String, _> = self.connection.clone().ping().await;
            pong.map(|_| Vec::new()).map_err(unanswered)
        })
    }
}

fn millis(ttl: Duration) -> String {
    ttl.as_millis().to_string()
}

/// A request without an answer may have been applied.
fn unanswered(err: RedisError) -> Error {
    let (kind, what) = match err.is_connection_refusal() {
        true => (ErrorKind::Unreachable, "the server is not there"),
        false => (ErrorKind::Indeterminate, "no answer from the server"),
    };
    Error::new(kind, what).with_source(err)
}

/// What this store can do and promises.
pub(crate) fn guarantees() -> Guarantees {
    let restart = "a server without an append-only file forgets its locks";
    let faults = Cell::of_lease_store(&[
        Cell::nothing(Fault::StoreRestart, restart),
        Cell::nothing(Fault::PowerLoss, restart),
    ]);
    let mut guarantees = Guarantees::new("example-queue", Order::Fair, faults);
    guarantees.shared = true;
    guarantees.upgradable = true;
    guarantees.permits = true;
    guarantees
}
