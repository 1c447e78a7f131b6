//! Inspection for operators: who holds, who waits, and what the server and its settings guarantee. Nothing here decides
//! about locks.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::holder::{HoldInfo, Holder, LockStatus};
use tenure_core::leader::Sighting;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::store::{BoxFuture, Finding, Listed, Operate};
use tenure_core::support::{HolderRecord, RetryBudget, wall_time};

use crate::database::{Kind, Row, process_of, unhex};

use super::dialect::{Dialect, waiter_of};
use super::errors;
use super::holder_row::last_reserved;
use super::key::Key;
use super::requests;
use super::server_info::{ServerInfo, SessionId};
use super::settings::Settings;
use super::store::Store;

impl Operate for Store {
    fn break_lock(self: Arc<Self>, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { break_lock(&self, &name, token).await })
    }

    fn check(self: Arc<Self>) -> BoxFuture<Result<Vec<Finding>, Error>> {
        Box::pin(async move { check(&self).await })
    }

    fn init(self: Arc<Self>) -> BoxFuture<Result<Vec<String>, Error>> {
        Box::pin(async move { init(&self).await })
    }
}

/// The greatest number of a connection. Every token is greater: it begins with the time of the server's start.
const MAX_CONNECTION: u64 = u32::MAX as u64;

/// How often the holders are read again while a row of theirs is yet to be written.
const MAX_ATTEMPTS: u32 = 6;

/// A row is written this long after its grant, on a server that is not overloaded.
const WRITE_LAG: Duration = Duration::from_millis(100);

/// The first pause before the holders are read again is as long as the pause after this many failures: a row is written,
/// or a lock released, within that time.
const SKIPPED_PAUSES: u32 = 4;

/// A session that has a lock: a row of [`holders`](super::dialect::Dialect::holders).
struct KeyHolder {
    session: SessionId,
    /// The token of the row, which is that of the grant, up to the last that is reserved for the hold.
    tokens: Option<RangeInclusive<u64>>,
    info: HoldInfo,
    /// The session keeps the lock for so long, whether or not it is held.
    kept: Option<Duration>,
}

impl KeyHolder {
    /// The columns: session, its start, token, holder, mode, since, ttl; user, host, idle time, how long it keeps the lock;
    /// PostgreSQL: the name that the program gave to its connection.
    fn read(dialect: &dyn Dialect, row: &Row) -> Option<Self> {
        let cell = |at: usize| row.get(at)?.as_deref();
        let integer = |at: usize| cell(at)?.split('.').next()?.parse::<u64>().ok();
        let session = SessionId {
            number: integer(0)?,
            since: integer(1).unwrap_or(0),
        };
        let json = cell(3).and_then(unhex);
        let json = json.and_then(|json| String::from_utf8(json).ok());
        let json = json.as_deref().unwrap_or_default();
        let record: Option<HolderRecord> = serde_json::from_str(json).ok();
        let mut holder = match record {
            Some(record) => record.into(),
            // A holder of another library, or no table: what the server knows of the session.
            None => {
                let process = cell(11).and_then(process_of);
                let mut holder =
                    process.unwrap_or_else(|| Holder::new(cell(8).unwrap_or_default(), 0));
                let user = cell(7).unwrap_or("an unknown user");
                holder.label = format!(
                    "connection {} of {user}; {} ends it",
                    session.number,
                    dialect.end_by_hand(session.number)
                );
                holder
            }
        };
        holder.since = integer(5).and_then(wall_time);
        let mode = match cell(4) {
            Some("shared") => Mode::Shared,
            Some("upgradable") => Mode::Upgradable,
            _ => Mode::Exclusive,
        };
        let tokens = integer(2).map(|first| first..=last_reserved(json).unwrap_or(first));
        let token = tokens.as_ref().map(|tokens| *tokens.end());
        let idle = Duration::from_micros(integer(9).unwrap_or(0));
        let ttl = integer(6).map(Duration::from_micros);
        let ttl_left = ttl.map(|ttl| ttl.saturating_sub(idle));
        Some(Self {
            session,
            tokens,
            info: HoldInfo::new(holder, mode, token, ttl_left),
            kept: integer(10).map(Duration::from_micros),
        })
    }

    /// The row of a holder may not be written yet.
    /// A lock that is kept after its hold has no row.
    fn has_row(&self) -> bool {
        self.tokens.is_some() || self.kept.is_some()
    }

    /// The lock is kept after its hold.
    fn is_over(&self) -> bool {
        self.kept.is_some() && self.tokens.is_none()
    }
}

/// The sessions that have the lock.
async fn holders(store: &Store, key: &Key) -> Result<Vec<KeyHolder>, Error> {
    let mut pauses = RetryBudget::without_limit().after_failures(SKIPPED_PAUSES);
    loop {
        let has_table = store.holder_table.is_usable();
        let rows = match requests::holders(&store.control, key, has_table).await {
            Err(err) if has_table && store.control.is_refused_statement(&err) => {
                store.holder_table.disable();
                continue;
            }
            rows => rows?,
        };
        let read = |row| KeyHolder::read(&*store.context.dialect, row);
        let holders: Vec<_> = rows.iter().filter_map(read).collect();
        let is_complete = !has_table || holders.iter().all(KeyHolder::has_row);
        if is_complete || pauses.failures() + 1 >= SKIPPED_PAUSES + MAX_ATTEMPTS {
            return Ok(holders);
        }
        pauses.pause(&store.context.clock).await;
    }
}

/// Who leads: the exclusive holder. The table has to be there.
pub(super) async fn leader(store: &Store, name: &LockName) -> Result<Sighting, Error> {
    require_room_for_values(store).await?;
    let key = store.keys.key(name).await?;
    let mut pauses = RetryBudget::without_limit().after_failures(SKIPPED_PAUSES);
    loop {
        let read = requests::leader(&store.control, &key).await;
        let (last_token, rows) = read.map_err(|err| {
            if !store.control.is_refused_statement(&err) {
                return err;
            }
            store.holder_table.disable();
            errors::no_room_for_values(&store.context.settings.server).with_source(err)
        })?;
        let read = |row| KeyHolder::read(&*store.context.dialect, row);
        let holders: Vec<_> = rows.iter().filter_map(read).collect();
        let is_complete = holders.iter().all(KeyHolder::has_row);
        if is_complete || pauses.failures() + 1 >= SKIPPED_PAUSES + MAX_ATTEMPTS {
            let is_leader = |it: &KeyHolder| it.info.mode == Mode::Exclusive && !it.is_over();
            let leader = holders.into_iter().find(is_leader);
            return Ok(leader.map_or_else(
                || Sighting::of_nobody(last_token),
                |leader| Sighting::of_hold(leader.info),
            ));
        }
        pauses.pause(&store.context.clock).await;
    }
}

/// Looks for the table, if it was not there before.
///
/// # Errors
/// `Unsupported`: a leader could publish nothing.
pub(super) async fn require_room_for_values(store: &Store) -> Result<(), Error> {
    if store.holder_table.is_usable() {
        return Ok(());
    }
    let server = &store.context.settings.server;
    let found = store.holder_table.find().await;
    found.map_err(|err| match store.control.is_refused_statement(&err) {
        true => errors::no_room_for_values(server).with_source(err),
        false => err,
    })
}

/// Asks the exclusive holder with that token to let go. `false`: there is none.
pub(super) async fn ask_to_release(
    store: &Store,
    name: &LockName,
    token: u64,
) -> Result<bool, Error> {
    require_room_for_values(store).await?;
    let key = store.keys.key(name).await?;
    match holder_with(store, &key, token).await? {
        Some((holder, token)) if holder.info.mode == Mode::Exclusive => {
            requests::ask_to_release(&store.control, holder.session, token).await
        }
        _ => Ok(false),
    }
}

pub(super) async fn inspect(store: &Store, name: LockName) -> Result<LockStatus, Error> {
    let key = store.keys.key(&name).await?;
    let holders = holders(store, &key).await?;
    let waiters = requests::waiters(&store.control, &key).await?;
    let mut status = LockStatus::free(name);
    let has_table = store.holder_table.is_usable();
    let is_over = |it: &KeyHolder| has_table && it.is_over();
    let (kept, held): (Vec<_>, Vec<_>) = holders.into_iter().partition(is_over);
    status.holds = held.into_iter().map(|holder| holder.info).collect();
    let waiter = |statement: Option<String>| {
        let record = statement.as_deref().and_then(waiter_of);
        record.unwrap_or_default().into()
    };
    status.queue = Some(waiters.into_iter().map(waiter).collect());
    if !status.is_held()
        && let Some(guard) = store.context.settings.restart_guard
    {
        let session = store.control.session().await?;
        status.set_restart_guard(Some(session.restart_guard(guard)));
    }
    if !status.is_held() {
        let kept = kept.into_iter().filter_map(|it| it.kept).max();
        status.reserved = status.reserved.max(kept);
    }
    Ok(status)
}

pub(super) async fn list(store: &Store, prefix: &str) -> Result<Listed, Error> {
    require_table(store)?;
    // A hold whose row is not written yet would be missing.
    let clock = &store.context.clock;
    clock.sleep_until(clock.now().after(WRITE_LAG)).await;
    let mut names = requests::held_names(&store.control, prefix).await?;
    names.sort();
    names.dedup();
    // One after the other: all questions go to the control session, and a question that waits there for others could pass
    // its time limit.
    let mut statuses = Vec::new();
    for name in names {
        statuses.push(inspect(store, name).await?);
    }
    Ok(Listed::Statuses(statuses))
}

fn require_table(store: &Store) -> Result<(), Error> {
    if store.holder_table.is_usable() {
        return Ok(());
    }
    let server = &store.context.settings.server;
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "{server} does not say what its locks are called, and has no table tenure_holders for that; `tenure check --init` makes it"
        ),
    ))
}

pub(super) async fn break_lock(store: &Store, name: &LockName, token: u64) -> Result<bool, Error> {
    let (context, control) = (&store.context, &store.control);
    let key = store.keys.key(name).await?;
    if token <= MAX_CONNECTION {
        return break_without_token(store, &key, token).await;
    }
    require_table(store)?;
    let mut holder = holder_with(store, &key, token).await?;
    if holder.is_none() {
        // The row of a hold with `min_hold` may not be written yet: until then the lock looks as if it were only kept.
        let clock = &context.clock;
        clock.sleep_until(clock.now().after(WRITE_LAG)).await;
        holder = holder_with(store, &key, token).await?;
    }
    let Some((holder, token)) = holder else {
        return Ok(false);
    };
    // The client of the holder releases the lock: no other session can take a single lock away from a session.
    requests::request_break(control, holder.session, token).await?;
    let check_interval = context.settings.validate.max(Duration::from_secs(1));
    let timeout = check_interval.saturating_mul(2);
    let timeout = timeout.saturating_add(context.settings.server.timeout);
    let limit = context.clock.now().after(timeout);
    let mut pauses = RetryBudget::until(limit).after_failures(SKIPPED_PAUSES);
    while !pauses.is_spent(&context.clock) {
        pauses.pause(&context.clock).await;
        if holder_with(store, &key, token).await?.is_none() {
            return Ok(true);
        }
    }
    // The client does not react. Its session can be ended if no other lock depends on it.
    if requests::has_one_lock(control, holder.session, &key, token).await? {
        requests::end_found_session(control, holder.session).await?;
        return Ok(true);
    }
    Err(Error::new(
        ErrorKind::Store,
        format!(
            "the holder does not answer, and its session {} has other locks too; they all end with it, within {:?} at most if it is dead, or now if you end that session in the server",
            holder.session.number,
            holder.info.ttl_left.unwrap_or_default()
        ),
    ))
}

/// Ends the hold of that connection, which shows no token: its client has no table of holders, or belongs to another program.
/// Such a hold ends with its session, so the session must have no other lock.
async fn break_without_token(store: &Store, key: &Key, connection: u64) -> Result<bool, Error> {
    let (context, control) = (&store.context, &store.control);
    let holders = holders(store, key).await?;
    let is_it = |it: &&KeyHolder| it.tokens.is_none() && it.session.number == connection;
    let Some(holder) = holders.iter().find(is_it) else {
        return Ok(false);
    };
    let server = &context.settings.server;
    let by_hand = context.dialect.end_by_hand(connection);
    let is_alone = context.dialect.shows_all_locks()
        && requests::has_one_lock(control, holder.session, key, connection).await?;
    if !is_alone {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the connection {connection} of {server} has other locks too, or {server} does not say; all of them end with it: {by_hand}"
            ),
        ));
    }
    let ended = requests::end_found_session(control, holder.session).await;
    ended.map_err(|err| match err.kind() {
        ErrorKind::Denied => Error::new(
            ErrorKind::Denied,
            format!("our user may not end the connection {connection} of {server}; let its own user or an administrator do it: {by_hand}"),
        )
        .with_source(err),
        _ => err,
    })?;
    Ok(true)
}

/// The holder that has that token, if it has the lock, and the token of its row.
async fn holder_with(
    store: &Store,
    key: &Key,
    token: u64,
) -> Result<Option<(KeyHolder, u64)>, Error> {
    let holders = holders(store, key).await?;
    let found = holders.into_iter().find_map(|holder| {
        let tokens = holder.tokens.clone()?;
        tokens.contains(&token).then(|| (holder, *tokens.start()))
    });
    Ok(found)
}

pub(super) async fn check(store: &Store) -> Result<Vec<Finding>, Error> {
    let settings = &store.context.settings;
    let session = store.control.session().await?;
    let mut findings = check_server(settings, &session.server_info);
    // An operator may have created the table, or granted rights on it, since the last look for it.
    let _ = store.holder_table.find().await;
    // This name has a key with each value of the option `keys`.
    let key = store.keys.key(&LockName::new("0")?).await?;
    match requests::probe_lock(&store.control, &key).await {
        Ok(()) => {}
        Err(err) if err.kind() == ErrorKind::Denied => {
            findings.push(Finding::bad(format!("{err:#}")));
        }
        Err(err) => return Err(err),
    }
    findings.push(match store.holder_table.is_usable() {
        true => match requests::probe_holder_table(&store.control).await {
            Ok(()) => Finding::good("the table tenure_holders says who holds"),
            Err(err) => Finding::warning(format!(
                "the holds of this user are not shown in the table tenure_holders: {err:#}"
            )),
        },
        false => Finding::warning(
            "there is no table tenure_holders, so no client can see who holds, there are no elections, and list and break do not work; `tenure check --init` makes it",
        ),
    });
    findings.push(Finding::warning(
        "locks of a session are not replicated: after a failover the new server knows none of them; use mode=table where that matters",
    ));
    Ok(findings)
}

/// What the server and the settings of the client guarantee.
fn check_server(settings: &Settings, server_info: &ServerInfo) -> Vec<Finding> {
    let (server, version) = (&settings.server, &server_info.version);
    let product = match server.kind {
        Kind::MySql => "MySQL",
        Kind::Postgres => "PostgreSQL",
    };
    let mut findings = vec![Finding::good(format!("{server} is {product} {version}"))];
    findings.extend(server.plaintext());
    findings.push(match server_info.ends_idle {
        true => Finding::good(
            "the server ends a session that is silent for a ttl, and its locks with it",
        ),
        false => Finding::warning(format!(
            "{version} does not end silent sessions: the locks of a host that vanished are free when TCP notices; use PostgreSQL 14 or later"
        )),
    });
    if server_info.capacity == 1 {
        findings.push(Finding::warning(format!(
            "a session of {version} has one lock at a time, so every lock takes a connection of its own; use MySQL 5.7.5 or MariaDB 10.0.2 or later"
        )));
    }
    findings.push(match settings.restart_guard {
        Some(guard) => Finding::good(format!(
            "a restart forgets locks; after one nothing is granted for {guard:?} (restart_guard)"
        )),
        // The table of guarantees says so too; no other guarantee is void.
        None => Finding::warning(
            "restart_guard is off and the server forgets locks when it restarts: then two clients can hold a lock; set restart_guard to the longest ttl in use",
        ),
    });
    findings
}

/// Makes the table of holders, and says what was made.
pub(super) async fn init(store: &Store) -> Result<Vec<String>, Error> {
    if store.holder_table.find().await.is_ok() {
        return Ok(Vec::new());
    }
    let created = requests::create_holder_table(&store.control).await;
    // Another client may create the table at the same time.
    let found = store.holder_table.find().await;
    found.map_err(|err| created.err().unwrap_or(err))?;
    Ok(vec!["table tenure_holders".to_owned()])
}
