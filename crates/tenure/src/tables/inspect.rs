//! Inspection for operators: who holds, who waits, and whether the database keeps its promises.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::{HoldInfo, Holder, Status};
use tenure_core::name::{Escaped, LockName};
use tenure_core::options::Mode;
use tenure_core::store::{BoxFuture, Finding, Listed, Operate, Severity};
use tenure_core::support::{HolderRecord, parse_mode};

use crate::database::Row;

use super::errors;
use super::guarantees::Durability;
use super::init;
use super::names::{Format, decoded};
use super::requests::{HOLD_COLUMNS, number, text, time_left};
use super::server_info::ServerInfo;
use super::sql::modes::SEVERAL;
use super::store::Store;

impl Operate for Store {
    fn break_lock(self: Arc<Self>, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { break_lock(&self, &name, token).await })
    }

    fn check(self: Arc<Self>) -> BoxFuture<Result<Vec<Finding>, Error>> {
        Box::pin(async move { check(&self).await })
    }

    fn init(self: Arc<Self>) -> BoxFuture<Result<Vec<String>, Error>> {
        Box::pin(async move { init::init(&self).await })
    }
}

/// One row of the table of locks, from its second column on, or of the table of modes, from its third column on.
struct LockRow {
    mode: Mode,
    owner: String,
    token: u64,
    left: Duration,
    since: i64,
    delay: i64,
    holder: String,
}

impl LockRow {
    fn read(row: &Row) -> Result<Self, Error> {
        Self::read_from(row, 1, Mode::Exclusive)
    }

    /// Of a shared holder.
    fn read_shared(row: &Row) -> Result<Self, Error> {
        let (mode, _) = parse_mode(text(row, 1)?).ok_or_else(errors::unexpected_reply)?;
        Self::read_from(row, 2, mode)
    }

    fn read_from(row: &Row, at: usize, mode: Mode) -> Result<Self, Error> {
        Ok(Self {
            mode,
            owner: text(row, at)?.to_owned(),
            token: u64::try_from(number(row, at + 1)?).unwrap_or(0),
            left: time_left(number(row, at + 2)?),
            since: number(row, at + 3)?,
            delay: number(row, at + 4)?,
            holder: text(row, at + 5)?.to_owned(),
        })
    }

    fn add_to(self, status: &mut Status) {
        if self.owner == SEVERAL {
            // The holders have rows of their own.
            return;
        }
        // What comes after the lease is `lock_delay`.
        let lease = self.left.saturating_sub(time_left(self.delay));
        if self.owner.is_empty() || self.owner.starts_with('-') || lease.is_zero() {
            let reserved = Some(self.left).filter(|left| !left.is_zero());
            status.reserved = status.reserved.max(reserved);
            return;
        }
        let mut holder = holder_of(&self.holder);
        holder.since = server_time(self.since);
        let info = HoldInfo::new(holder, self.mode, Some(self.token), Some(lease));
        status.holds.push(info);
    }
}

fn holder_of(record: &str) -> Holder {
    let record: HolderRecord = serde_json::from_str(record).unwrap_or_default();
    record.into()
}

/// A time of the server, in µs since 1970.
fn server_time(micros: i64) -> Option<SystemTime> {
    let micros = u64::try_from(micros).ok()?;
    UNIX_EPOCH.checked_add(Duration::from_micros(micros))
}

/// Adds a row of ShedLock's table. `locked_by` is the host of a Java program, or `host:owner` of a hold of ours.
fn add_shedlock_row(row: &Row, status: &mut Status) -> Result<(), Error> {
    let locked_by = text(row, 1)?;
    let (at, left) = (number(row, 2)?, time_left(number(row, 3)?));
    if left.is_zero() {
        return Ok(());
    }
    let is_owner = |text: &str| text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let host = match locked_by.rsplit_once(':') {
        Some((host, owner)) if is_owner(owner) => host,
        _ => locked_by,
    };
    let mut holder = Holder::new(host, 0);
    holder.since = server_time(at);
    let token = u64::try_from(at).ok();
    let info = HoldInfo::new(holder, Mode::Exclusive, token, Some(left));
    status.holds.push(info);
    Ok(())
}

pub(super) async fn inspect(store: &Store, name: LockName) -> Result<Status, Error> {
    let rows = store.requests.inspect(&name).await?;
    let mut status = Status::free(name);
    if store.settings.format == Format::ShedLock {
        for row in &rows {
            add_shedlock_row(row, &mut status)?;
        }
        return Ok(status);
    }
    let mut queue = Vec::new();
    for row in &rows {
        match text(row, 0)? {
            "L" => LockRow::read(row)?.add_to(&mut status),
            "M" => LockRow::read_shared(row)?.add_to(&mut status),
            _ => queue.push(holder_of(text(row, 1)?)),
        }
    }
    status.queue = Some(queue);
    Ok(status)
}

pub(super) async fn list(store: &Store, prefix: &str) -> Result<Listed, Error> {
    let format = store.settings.format;
    let mut all = BTreeMap::new();
    for row in &store.requests.list(prefix).await? {
        let Some(name) = decoded(format, text(row, 0)?) else {
            continue;
        };
        let status = all
            .entry(name.clone())
            .or_insert_with(|| Status::free(name));
        match format {
            Format::Tenure if row.len() == 2 => {
                let queue = status.queue.get_or_insert_default();
                queue.push(holder_of(text(row, 1)?));
            }
            Format::Tenure => {
                let lock_row = match row.len() {
                    HOLD_COLUMNS => LockRow::read(row),
                    _ => LockRow::read_shared(row),
                };
                lock_row?.add_to(status);
                status.queue.get_or_insert_default();
            }
            Format::ShedLock => add_shedlock_row(row, status)?,
        }
    }
    Ok(Listed::Statuses(all.into_values().collect()))
}

pub(super) async fn break_lock(store: &Store, name: &LockName, token: u64) -> Result<bool, Error> {
    // No token of ours is greater, and no column has room for a greater one.
    match i64::try_from(token) {
        Ok(_) => store.requests.break_hold(name, token).await,
        Err(_) => Ok(false),
    }
}

pub(super) async fn check(store: &Store) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    let requests = &store.requests;
    let server_info = ServerInfo::ask(&requests.pool, requests.own.dialect).await?;
    let version: String = server_info.version.chars().take(80).collect();
    let version = format!("the database is {}", Escaped(&version));
    findings.push(Finding::new(Severity::Good, version));
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    if let Some(server) = store.settings.server() {
        findings.extend(server.plaintext());
    }
    findings.extend(check_server(&server_info));
    let (table, name) = (store.settings.table(), LockName::new("tenure-check")?);
    let usable = async {
        requests.probe().await?;
        requests.inspect(&name).await
    };
    match usable.await {
        Ok(_) => {
            let text = format!("the table {table} is there, and this user may lock");
            findings.push(Finding::new(Severity::Good, text));
            if let Err(err) = requests.probe_modes().await {
                let text = format!("this user can take exclusive locks only: {err}");
                findings.push(Finding::new(Severity::Warning, text));
            }
        }
        Err(err) if err.kind() == ErrorKind::Denied => {
            findings.push(Finding::new(Severity::Bad, err.to_string()));
        }
        Err(err) => return Err(err),
    }
    Ok(findings)
}

/// What the settings of the server weaken.
fn check_server(server_info: &ServerInfo) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |severity, text: &str| findings.push(Finding::new(severity, text));
    match server_info.durability {
        Durability::Full => {}
        Durability::Killed => find(
            Severity::Bad,
            "a machine that loses power loses the last grants; set fsync = on, or innodb_flush_log_at_trx_commit = 1",
        ),
        Durability::Nothing => find(
            Severity::Bad,
            "a server that is killed loses the last grants; set synchronous_commit = on, or innodb_flush_log_at_trx_commit = 1",
        ),
    }
    if server_info.is_replica {
        find(
            Severity::Bad,
            "this server is read-only, as a replica is; nothing can be granted there, name the primary",
        );
    }
    if server_info.fails_over {
        find(
            Severity::Warning,
            "a replica follows asynchronously; if it takes over, the last grants may be lost; make replication synchronous",
        );
    }
    findings
}
