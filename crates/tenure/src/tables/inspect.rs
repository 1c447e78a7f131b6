//! Inspection for operators: who holds, who waits, and whether the database keeps its promises.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::{HoldInfo, Holder, LockStatus};
use tenure_core::name::{Escaped, LockName};
use tenure_core::options::Mode;
use tenure_core::store::{BoxFuture, Finding, Listed, Operate, Severity};
use tenure_core::support::{HolderRecord, wall_time};

use crate::database::Row;

use super::cells::{natural, text, time_left};
use super::guarantees::Durability;
use super::init;
use super::names::{Format, decoded};
use super::requests::HOLD_COLUMNS;
use super::server_info::ServerInfo;
use super::sql::SEVERAL;
use super::sql::modes::{LockRow, ModeRow};
use super::step::mode_of;
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

/// Adds the hold that a row is about, or what a hold has left behind. `now`: by the clock of the database.
pub(super) fn add_row(status: &mut LockStatus, mode: Mode, row: &LockRow, now: u64) {
    if row.owner == SEVERAL {
        // The holders have rows of their own.
        return;
    }
    let left = Duration::from_micros(row.until.saturating_sub(now));
    // What comes after the lease is `lock_delay`.
    let lease = left.saturating_sub(Duration::from_micros(row.delay));
    if row.owner.is_empty() || row.owner.starts_with('-') || lease.is_zero() {
        let reserved = Some(left).filter(|left| !left.is_zero());
        status.reserved = status.reserved.max(reserved);
        return;
    }
    let mut holder = HolderRecord::read(&row.holder);
    holder.since = wall_time(row.since);
    let info = HoldInfo::new(holder, mode, Some(row.token), Some(lease));
    status.holds.push(info);
}

/// Adds a row of ShedLock's table. `locked_by` is the host of a Java program, or `host:owner` of a hold of ours.
fn add_shedlock_row(row: &Row, status: &mut LockStatus) -> Result<(), Error> {
    let locked_by = text(row, 1)?;
    let (at, left) = (natural(row, 2)?, time_left(row, 3)?);
    if left.is_zero() {
        return Ok(());
    }
    let is_owner = |text: &str| text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let host = match locked_by.rsplit_once(':') {
        Some((host, owner)) if is_owner(owner) => host,
        _ => locked_by,
    };
    let mut holder = Holder::new(host, 0);
    holder.since = wall_time(at);
    let info = HoldInfo::new(holder, Mode::Exclusive, Some(at), Some(left));
    status.holds.push(info);
    Ok(())
}

pub(super) async fn inspect(store: &Store, name: LockName) -> Result<LockStatus, Error> {
    let mut status = LockStatus::free(name.clone());
    if store.settings.format == Format::ShedLock {
        for row in &store.requests.shedlock_rows(&name).await? {
            add_shedlock_row(row, &mut status)?;
        }
        return Ok(status);
    }
    let mut queue = Vec::new();
    if let Some(rows) = store.requests.name_rows(&name, "look").await?.0 {
        add_row(&mut status, Mode::Exclusive, &rows.lock, rows.now);
        for ModeRow { mode, row } in rows.shared() {
            add_row(&mut status, mode_of(mode)?.0, row, rows.now);
        }
        let waiting = rows.waiters.iter().filter(|it| it.until > rows.now);
        queue.extend(waiting.map(|it| HolderRecord::read(&it.holder)));
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
            .or_insert_with(|| LockStatus::free(name));
        match format {
            Format::Tenure if row.len() == 2 => {
                let queue = status.queue.get_or_insert_default();
                queue.push(HolderRecord::read(text(row, 1)?));
            }
            Format::Tenure => {
                // The row of a shared holder has its mode before the others.
                let (mode, at) = match row.len() {
                    HOLD_COLUMNS => (Mode::Exclusive, 1),
                    _ => (mode_of(text(row, 1)?)?.0, 2),
                };
                let lock_row = LockRow::read(row, at + 1)?;
                add_row(status, mode, &lock_row, natural(row, at)?);
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
    findings.push(Finding::good(version));
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    if let Some(server) = store.settings.server() {
        findings.extend(server.plaintext());
    }
    findings.extend(check_server(&server_info));
    let (table, name) = (store.settings.table(), LockName::new("tenure-check")?);
    let usable = async {
        requests.probe().await?;
        inspect(store, name).await
    };
    match usable.await {
        Ok(_) => {
            let text = format!("the table {table} is there, and this user may lock");
            findings.push(Finding::good(text));
            if let Err(err) = requests.probe_modes().await {
                let text = format!("this user can take exclusive locks only: {err:#}");
                findings.push(Finding::warning(text));
            }
        }
        Err(err) if err.kind() == ErrorKind::Denied => {
            findings.push(Finding::bad(format!("{err:#}")));
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
