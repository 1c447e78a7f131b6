//! Who holds, who waits; for people, and for nothing that decides.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use tenure_core::backend::{Finding, Severity};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::{HoldInfo, Holder, Status};
use tenure_core::name::{Escaped, LockName};
use tenure_core::options::Mode;
use tenure_core::support::HolderRecord;

use super::guarantees::Durability;
use super::hold::{Store, changed, left, number, text};
use super::names::{Format, decoded, encoded};
use super::pool::Row;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use super::settings::Place;
use super::sql::name_of;

/// One row of the table of locks, from its second column on.
struct Seen {
    owner: String,
    token: u64,
    left: Duration,
    since: i64,
    delay: i64,
    holder: String,
}

impl Seen {
    fn read(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            owner: text(row, 1)?.to_owned(),
            token: u64::try_from(number(row, 2)?).unwrap_or(0),
            left: left(number(row, 3)?),
            since: number(row, 4)?,
            delay: number(row, 5)?,
            holder: text(row, 6)?.to_owned(),
        })
    }

    /// What is left of the lease; what comes after that is `lock_delay`.
    fn lease(&self) -> Duration {
        self.left.saturating_sub(left(self.delay))
    }

    fn put_into(self, status: &mut Status) {
        let lease = self.lease();
        if self.owner.is_empty() || lease.is_zero() {
            status.reserved = Some(self.left).filter(|left| !left.is_zero());
            return;
        }
        let mut holder = person(&self.holder);
        holder.since = since(self.since);
        let info = HoldInfo::new(holder, Mode::Exclusive, Some(self.token), Some(lease));
        status.holds.push(info);
    }
}

/// A holder as it was written.
fn person(text: &str) -> Holder {
    let record: HolderRecord = serde_json::from_str(text).unwrap_or_default();
    record.into()
}

/// A time of the server, in µs since 1970.
fn since(micros: i64) -> Option<std::time::SystemTime> {
    let micros = u64::try_from(micros).ok()?;
    UNIX_EPOCH.checked_add(Duration::from_micros(micros))
}

/// Who has a lock in ShedLock's table: `host` of a Java program, `host:owner` of one of ours.
fn stranger(row: &Row, status: &mut Status) -> Result<(), Error> {
    let by = text(row, 1)?;
    let (at, left) = (number(row, 2)?, left(number(row, 3)?));
    if left.is_zero() {
        return Ok(());
    }
    let is_owner = |text: &str| text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let host = match by.rsplit_once(':') {
        Some((host, owner)) if is_owner(owner) => host,
        _ => by,
    };
    let mut holder = Holder::new(host, 0);
    holder.since = since(at);
    let token = u64::try_from(at).ok();
    status
        .holds
        .push(HoldInfo::new(holder, Mode::Exclusive, token, Some(left)));
    Ok(())
}

impl Store {
    pub(super) async fn inspect(&self, name: LockName) -> Result<Status, Error> {
        let mut status = Status::free(name);
        if self.settings.format == Format::ShedLock {
            let name = encoded(Format::ShedLock, status.name.as_str());
            let reply = self.pool.ask(self.theirs.look(&name, false)).await?;
            for row in &reply.rows {
                stranger(row, &mut status)?;
            }
            return Ok(status);
        }
        let name = name_of(status.name.as_str());
        let reply = self.pool.ask(self.ours.inspect(&name)).await?;
        let mut queue = Vec::new();
        for row in &reply.rows {
            match text(row, 0)? {
                "L" => Seen::read(row)?.put_into(&mut status),
                _ => queue.push(person(text(row, 1)?)),
            }
        }
        status.queue = Some(queue);
        Ok(status)
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<Status>, Error> {
        let dialect = self.settings.format;
        let reply = self.pool.ask(match dialect {
            Format::Tenure => self.ours.list(prefix),
            Format::ShedLock => self.theirs.look(prefix, true),
        });
        // By name: the database has an order of its own.
        let mut all = BTreeMap::new();
        for row in &reply.await?.rows {
            let Some(name) = decoded(dialect, text(row, 0)?) else {
                continue;
            };
            let status = all
                .entry(name.clone())
                .or_insert_with(|| Status::free(name));
            match dialect {
                Format::Tenure if row.len() == 2 => {
                    let queue = status.queue.get_or_insert_default();
                    queue.push(person(text(row, 1)?));
                }
                Format::Tenure => {
                    Seen::read(row)?.put_into(status);
                    status.queue.get_or_insert_default();
                }
                Format::ShedLock => stranger(row, status)?,
            }
        }
        Ok(all.into_values().filter(Status::is_held).collect())
    }

    pub(super) async fn break_lock(&self, name: LockName, token: u64) -> Result<bool, Error> {
        // No token of ours is greater, and no column has room for it.
        if i64::try_from(token).is_err() {
            return Ok(false);
        }
        let statement = match self.settings.format {
            Format::Tenure => self.ours.break_lock(&name_of(name.as_str()), token),
            Format::ShedLock => {
                let name = encoded(Format::ShedLock, name.as_str());
                self.theirs.break_lock(&name, token)
            }
        };
        let reply_kind = statement.reply_kind;
        let reply = self.pool.ask(statement).await?;
        let is_broken = changed(reply_kind, &reply)?;
        if !is_broken && reply.is_repeated {
            return Err(Error::new(
                ErrorKind::Indeterminate,
                "the connection broke; it was ended just then, or had ended before",
            ));
        }
        Ok(is_broken)
    }

    pub(super) async fn check(&self) -> Result<Vec<Finding>, Error> {
        let mut findings = Vec::new();
        let mut find = |severity, text: String| findings.push(Finding::new(severity, text));
        let server_info =
            super::server_info::ServerInfo::ask(&self.pool, self.ours.dialect).await?;
        let version: String = server_info.version.chars().take(80).collect();
        find(
            Severity::Good,
            format!("the database is {}", Escaped(&version)),
        );
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        if let Place::Server(server) = &self.settings.place
            && let Some(Finding { severity, text, .. }) = server.plaintext()
        {
            find(severity, text);
        }
        match server_info.durability {
            Durability::Full => {}
            Durability::Killed => find(
                Severity::Bad,
                "a machine that loses power loses the last grants; set fsync = on, or innodb_flush_log_at_trx_commit = 1".into(),
            ),
            Durability::Nothing => find(
                Severity::Bad,
                "a server that is killed loses the last grants; set synchronous_commit = on, or innodb_flush_log_at_trx_commit = 1".into(),
            ),
        }
        if server_info.is_replica {
            let text = "this server is read-only, as a replica is; nothing can be granted there, name the primary";
            find(Severity::Bad, text.into());
        }
        if server_info.fails_over {
            let text = "a replica follows asynchronously; if it takes over, the last grants may be lost; make replication synchronous";
            find(Severity::Warning, text.into());
        }
        // Whether the tables are there, and ours to read.
        let table = self.settings.table();
        let name = "tenure-check";
        let looked = self.pool.ask(match self.settings.format {
            Format::Tenure => self.ours.inspect(name),
            Format::ShedLock => self.theirs.look(name, false),
        });
        match looked.await {
            Ok(_) => find(Severity::Good, format!("the table {table} is there")),
            Err(err) if err.kind() == ErrorKind::Denied => find(Severity::Bad, err.to_string()),
            Err(err) => return Err(err),
        }
        Ok(findings)
    }
}
