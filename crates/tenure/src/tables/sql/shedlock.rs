//! The statements on ShedLock's table. Java knows only the four columns of the table.
//!
//! Times are UTC, in whole ms, by the server's clock: as ShedLock has them with `usingDbTime()`.
//! There is no column for a token, so `locked_at` is the token: each grant makes it greater by 1 ms at least.
//! A row is never deleted: a Java program remembers that it is there, and would never get the lock again.

use super::{Dialect, RenewItem, Statement};

/// One acquisition, as it is written.
#[derive(Clone, Debug)]
pub(crate) struct AcquireItem {
    pub(crate) name: String,
    pub(crate) locked_by: String,
    /// How long the lock is taken if the holder sends no further request: the lease, or `min_hold` if that is longer. In µs,
    /// and whole ms.
    pub(crate) live: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Statements {
    pub(crate) dialect: Dialect,
    /// The table, quoted.
    pub(super) table: String,
}

impl Statements {
    pub(crate) fn new(dialect: Dialect, table: &str) -> Self {
        Self {
            dialect,
            table: dialect.quoted(table),
        }
    }

    /// The server's clock.
    fn now(&self) -> &'static str {
        match self.dialect {
            Dialect::Postgres => "date_trunc('milliseconds',timezone('utc',clock_timestamp()))",
            Dialect::MySql { .. } => "UTC_TIMESTAMP(3)",
            Dialect::Sqlite => "NULL",
        }
    }

    /// The time that is so many µs later.
    fn after(&self, time: &str, micros: u64) -> String {
        match self.dialect {
            Dialect::Postgres => format!("({time}+{micros}*interval '1 microsecond')"),
            _ => format!("({time}+INTERVAL {micros} MICROSECOND)"),
        }
    }

    /// A time as µs since 1970. Both columns and clock are UTC, whatever the session's time zone is.
    fn micros(&self, time: &str) -> String {
        match self.dialect {
            Dialect::Postgres => format!("(EXTRACT(EPOCH FROM {time})*1000000)::bigint"),
            _ => format!("TIMESTAMPDIFF(MICROSECOND,'1970-01-01',{time})"),
        }
    }

    fn text(&self, text: &str) -> String {
        self.dialect.text(text)
    }

    /// The longest name of a host in `locked_by`, which has 255 characters and the owner too.
    pub(crate) const MAX_HOST: usize = 200;

    /// Takes a lock that is free. `[token]` if it was taken; in MySQL `[locked_by, token]` as they are then.
    pub(crate) fn acquire(&self, request: &AcquireItem) -> Statement {
        let (now, table) = (self.now(), &self.table);
        let (name, by) = (self.text(&request.name), self.text(&request.locked_by));
        let until = self.after(now, request.live);
        let insert = format!(
            "/*tenure:acquire*/ INSERT INTO {table}{}(name,lock_until,locked_at,locked_by)VALUES({name},{until},{now},{by})",
            match self.dialect {
                Dialect::Postgres => " AS l",
                _ => "",
            }
        );
        match self.dialect {
            Dialect::Postgres => {
                let next = self.after("l.locked_at", 1_000);
                let token = self.micros("locked_at");
                Statement::rows(format!(
                    "{insert}ON CONFLICT(name)DO UPDATE SET lock_until=GREATEST(l.lock_until,excluded.lock_until),locked_at=GREATEST(excluded.locked_at,{next}),locked_by=excluded.locked_by WHERE l.locked_by=excluded.locked_by AND l.lock_until>{now} OR l.lock_until<={now} RETURNING {token}"
                ))
            }
            _ => {
                let next = self.after("locked_at", 1_000);
                let token = self.micros("locked_at");
                // MySQL assigns from left to right, and each expression sees what was assigned before.
                Statement::rows(format!(
                    "{insert}ON DUPLICATE KEY UPDATE locked_at=IF(lock_until<={now},GREATEST({now},{next}),locked_at),locked_by=IF(lock_until<={now},{by},locked_by),lock_until=IF(locked_by={by},GREATEST(lock_until,{until}),lock_until);SELECT locked_by,{token} FROM {table} WHERE name={name}"
                ))
            }
        }
    }

    /// `[µs until the lease ends]`
    pub(crate) fn read_queue(&self, name: &str) -> Statement {
        let (until, now) = (self.micros("lock_until"), self.micros(self.now()));
        let (table, name) = (&self.table, self.text(name));
        Statement::rows(format!(
            "/*tenure:peek*/ SELECT {until}-{now} FROM {table} WHERE name={name}"
        ))
    }

    /// Releases the lock, and keeps the name reserved for `min_hold` after the grant.
    pub(crate) fn release(&self, name: &str, by: &str, min_hold: u64) -> Statement {
        let (now, table) = (self.now(), &self.table);
        let (name, by) = (self.text(name), self.text(by));
        let least = self.after("locked_at", min_hold);
        Statement::count(format!(
            "/*tenure:release*/ UPDATE {table} SET lock_until=GREATEST({now},{least}) WHERE name={name} AND locked_by={by} AND lock_until>{now}"
        ))
        .urgent()
    }

    pub(crate) fn break_lock(&self, name: &str, token: u64) -> Statement {
        let (now, table, name) = (self.now(), &self.table, self.text(name));
        let at = self.micros("locked_at");
        Statement::count(format!(
            "/*tenure:break*/ UPDATE {table} SET lock_until={now} WHERE name={name} AND {at}={token} AND lock_until>{now}"
        ))
    }

    /// See the statement of the same name on our own tables.
    pub(crate) fn renew(&self, holds: &[RenewItem]) -> Statement {
        let (now, table) = (self.now(), &self.table);
        let mut steps: Vec<_> = holds
            .iter()
            .map(|RenewItem { name, owner, ttl }| {
                let (name, by, until) = (self.text(name), self.text(owner), self.after(now, *ttl));
                format!(
                    "UPDATE {table} SET lock_until=GREATEST(lock_until,{until})WHERE name={name} AND locked_by={by} AND lock_until>{now}"
                )
            })
            .collect();
        let names: Vec<_> = holds.iter().map(|hold| self.text(&hold.name)).collect();
        let names = names.join(",");
        steps.push(format!(
            "SELECT name,locked_by,CASE WHEN lock_until>{now} THEN 1 ELSE 0 END FROM {table} WHERE name IN({names})"
        ));
        Statement::once(format!("/*tenure:renew*/ {}", steps.join(";")))
    }

    /// `[name, locked_by, token, µs until the lease ends]` of one name, or of all held names with that prefix.
    pub(crate) fn inspect(&self, name: &str, is_prefix: bool) -> Statement {
        let (table, text) = (&self.table, self.text(name));
        let (at, until) = (self.micros("locked_at"), self.micros("lock_until"));
        let now = self.micros(self.now());
        let which = match is_prefix {
            false => format!("name={text}"),
            true => format!(
                "LEFT(name,{})={text} AND {until}>{now}",
                name.chars().count()
            ),
        };
        Statement::rows(format!(
            "/*tenure:look*/ SELECT name,locked_by,{at},{until}-{now} FROM {table} WHERE {which} ORDER BY name"
        ))
    }
}
