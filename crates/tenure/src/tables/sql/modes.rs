//! The statements for shared holders: the rows of a name are read, `step.rs` decides, and the rows are written,
//! in one transaction that keeps the row of the name locked.

use super::{CHANNEL, Dialect, RenewItem, SEVERAL, Statement, Statements, list};

/// The server ends a transaction whose client does not respond for so many seconds: the process of the client was
/// stopped, for example.
const IDLE_TIMEOUT: u32 = 5;

/// The row of a name. Times are in µs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LockRow {
    pub(crate) owner: String,
    pub(crate) token: u64,
    pub(crate) until: u64,
    pub(crate) since: u64,
    pub(crate) min_hold: u64,
    pub(crate) delay: u64,
    pub(crate) holder: String,
}

impl LockRow {
    /// The columns of both tables, and their values here.
    fn columns(&self, dialect: Dialect) -> impl Iterator<Item = (&'static str, String)> {
        let columns = [
            ("owner", format!("'{}'", self.owner)),
            ("token", self.token.to_string()),
            ("until", self.until.to_string()),
            ("since", self.since.to_string()),
            ("min_hold", self.min_hold.to_string()),
            ("delay", self.delay.to_string()),
            ("holder", dialect.text(&self.holder)),
        ];
        columns.into_iter()
    }
}

/// The row of a shared holder, of a waiter that wants to be one (`token` is 0), or of a place that stays reserved
/// (`owner` begins with `-`). Without its mode it is the row of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModeRow {
    pub(crate) mode: String,
    pub(crate) row: LockRow,
}

/// A waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WaiterRow {
    pub(crate) owner: String,
    pub(crate) until: u64,
    pub(crate) holder: String,
}

/// What a step changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// The row of the name; `None`: it stays as it is, and so does everything else.
    pub(crate) lock: Option<LockRow>,
    /// The owners of the rows that are to be removed or have changed.
    pub(crate) removed: Vec<String>,
    /// The rows that are new or have changed.
    pub(crate) written: Vec<ModeRow>,
    /// Waiters that have left the queue.
    pub(crate) left: Vec<String>,
    /// Waiters that keep their place, and new ones.
    pub(crate) kept: Vec<WaiterRow>,
    /// Owners that were granted a hold they had waited for.
    pub(crate) granted: Vec<String>,
    /// The queue has another first waiter.
    pub(crate) has_new_first: bool,
}

/// How the rows of a name are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Without a lock, for this purpose: nothing is written afterwards.
    Look(&'static str),
    /// The row of the name is locked until the end of the transaction.
    Lock,
    /// The same, and the row is made if it is missing.
    Make,
}

impl Statements {
    /// All rows of a name: `['L', now, owner, token, until, since, min_hold, delay, holder]`, `['M', mode]` and the same from
    /// `owner` on for each shared holder, and `['W', owner, until, holder]` for each waiter.
    ///
    /// The first of these reads comes after the row is locked, and so do the clock and, in MySQL, the snapshot of a
    /// transaction that reads repeatably: locking reads make no snapshot.
    pub(crate) fn read_name(&self, name: &str, access: Access) -> Statement {
        let name = self.dialect.name(name);
        let (modes, waiters) = (&self.modes, &self.waiters);
        let mut steps = Vec::new();
        if access == Access::Make {
            steps.push(self.make_row(&name));
        }
        if matches!(access, Access::Lock | Access::Make) {
            steps.extend(self.lock_rows(&format!("name={name}")));
        }
        steps.extend([
            self.read_lock(&name),
            format!(
                "SELECT 'M',mode,owner,token,until,since,min_hold,delay,holder FROM {modes} WHERE name={name} ORDER BY token,owner"
            ),
            format!(
                "SELECT 'W',owner,until,holder FROM {waiters} WHERE name={name} ORDER BY place"
            ),
        ]);
        let steps = steps.join(";");
        match access {
            Access::Look(purpose) => Statement::rows(format!("/*tenure:{purpose}*/ {steps}")),
            Access::Lock | Access::Make => {
                let begin = self.begin_limited();
                Statement::in_transaction(format!("/*tenure:begin*/ {begin};{steps}"))
            }
        }
    }

    /// The first of these rows.
    pub(super) fn read_lock(&self, name: &str) -> String {
        let (now, locks) = (self.dialect.now(), &self.locks);
        format!(
            "SELECT 'L',{now},owner,token,until,since,min_hold,delay,holder FROM {locks} WHERE name={name}"
        )
    }

    /// Writes what has changed of a name, and ends the transaction that [`read_name`](Self::read_name) began.
    pub(crate) fn write_name(&self, what: &str, name: &str, changes: &Changes) -> Statement {
        let mut steps = Vec::new();
        if let Some(lock) = &changes.lock {
            self.write_rows(&mut steps, name, lock, changes);
            let literal = self.dialect.name(name);
            steps.push(self.count_queue(&literal));
            if changes.has_new_first {
                steps.extend(self.tell_first(&literal, ""));
            }
            steps.extend(self.tell_free(name));
            steps.extend(self.tell_granted(&changes.granted));
        }
        steps.push(self.end_limited("COMMIT"));
        Statement::in_transaction(format!("/*tenure:{what}*/ {}", steps.join(";")))
    }

    fn write_rows(&self, steps: &mut Vec<String>, name: &str, lock: &LockRow, changes: &Changes) {
        let (locks, modes, waiters) = (&self.locks, &self.modes, &self.waiters);
        let (dialect, name) = (self.dialect, self.dialect.name(name));
        let columns = lock.columns(dialect);
        let columns = list(columns.map(|(name, value)| format!("{name}={value}")));
        steps.push(format!("UPDATE {locks} SET {columns} WHERE name={name}"));
        if !changes.removed.is_empty() {
            let owners = owners(&changes.removed);
            steps.push(format!(
                "DELETE FROM {modes} WHERE name={name} AND owner IN({owners})"
            ));
        }
        if !changes.written.is_empty() {
            let columns = list(
                LockRow::default()
                    .columns(dialect)
                    .map(|(name, _)| name.to_owned()),
            );
            let values = changes.written.iter().map(|ModeRow { mode, row }| {
                let values = list(row.columns(dialect).map(|(_, value)| value));
                format!("({name},'{mode}',{values})")
            });
            let values = list(values);
            steps.push(format!(
                "INSERT INTO {modes}(name,mode,{columns})VALUES{values}"
            ));
        }
        if !changes.left.is_empty() {
            let owners = owners(&changes.left);
            steps.push(format!("DELETE FROM {waiters} WHERE owner IN({owners})"));
        }
        for waiter in &changes.kept {
            let (owner, until) = (&waiter.owner, waiter.until);
            let holder = dialect.text(&waiter.holder);
            steps.push(self.keep_waiter(&name, owner, &until.to_string(), &holder));
        }
    }

    /// Renews these holds, each with its ttl: shared holds, and exclusive holds that once were.
    /// `[name, owner, whether the lease has not ended]` for each name, and for each of the holds that is a shared one; with
    /// `finds_requests` also whether the holder is asked to let go.
    ///
    /// The rows of the names are locked first, because a step computes `until` of a name from all its holders.
    pub(crate) fn renew_modes(&self, holds: &[RenewItem], finds_requests: bool) -> Statement {
        let (now, locks, modes) = (self.dialect.now(), &self.locks, &self.modes);
        let names = list(holds.iter().map(|hold| self.dialect.name(&hold.name)));
        let owners = owners(holds.iter().map(|hold| &hold.owner));
        let mut steps = Vec::new();
        steps.extend(self.lock_rows(&format!("name IN({names})ORDER BY name")));
        for item in holds {
            steps.push(self.extend_mode(item, "token>0"));
            steps.push(self.extend_lock(item, &format!("until>{now}")));
        }
        steps.push(self.cover_modes(&names));
        // A shared holder is not asked.
        let (asked, is_not_asked) = (
            self.asked_column(finds_requests),
            if finds_requests { ",0" } else { "" },
        );
        steps.push(format!(
            "SELECT name,owner,CASE WHEN until>{now} THEN 1 ELSE 0 END{asked} FROM {locks} WHERE name IN({names})"
        ));
        steps.push(format!(
            "SELECT m.name,m.owner,CASE WHEN m.until-m.delay>{now} THEN 1 ELSE 0 END{is_not_asked} FROM {modes} m,{locks} l WHERE m.name IN({names})AND m.owner IN({owners})AND m.token>0 AND l.name=m.name AND l.owner='{SEVERAL}'"
        ));
        Statement {
            is_repeatable: false,
            ..self.transaction("renew", &steps).urgent()
        }
    }

    /// Extends the lease of a shared hold, if its row is also one of those that `which` selects.
    pub(super) fn extend_mode(&self, item: &RenewItem, which: &str) -> String {
        let (now, max) = (self.dialect.now(), self.dialect.max());
        let (locks, modes) = (&self.locks, &self.modes);
        let (name, owner, ttl) = (self.dialect.name(&item.name), &item.owner, item.ttl);
        format!(
            "UPDATE {modes} SET until={max}(until,{now}+delay+{ttl})WHERE name={name} AND owner='{owner}' AND {which} AND until-delay>{now} AND EXISTS(SELECT 1 FROM {locks} l WHERE l.name={name} AND l.owner='{SEVERAL}')"
        )
    }

    /// Extends the lease of an exclusive hold, if its row is also one of those that `which` selects.
    pub(super) fn extend_lock(&self, item: &RenewItem, which: &str) -> String {
        let (now, max, locks) = (self.dialect.now(), self.dialect.max(), &self.locks);
        let (name, owner, ttl) = (self.dialect.name(&item.name), &item.owner, item.ttl);
        format!(
            "UPDATE {locks} SET until={max}(until,{now}+delay+{ttl})WHERE name={name} AND owner='{owner}' AND {which}"
        )
    }

    /// Lets the names of shared holds be taken for as long as those are.
    pub(super) fn cover_modes(&self, names: &str) -> String {
        let (now, max) = (self.dialect.now(), self.dialect.max());
        let (locks, modes) = (&self.locks, &self.modes);
        // The row changes in any case, so that servers that replicate to each other notice two changes of one name.
        format!(
            "UPDATE {locks} SET until={max}(until,COALESCE((SELECT MAX(m.until)FROM {modes} m WHERE m.name={locks}.name),0)),since={now} WHERE name IN({names})AND owner='{SEVERAL}'"
        )
    }

    /// Locks rows, where the database has a statement for that.
    pub(super) fn lock_rows(&self, which: &str) -> Option<String> {
        let locks = &self.locks;
        match self.dialect {
            // A transaction that writes is alone in the file.
            Dialect::Sqlite => None,
            _ => Some(format!("SELECT 1 FROM {locks} WHERE {which} FOR UPDATE")),
        }
    }

    /// Begins a transaction that the server ends if the client stops responding in it, as far as the server has that.
    pub(super) fn begin_limited(&self) -> String {
        let begin = self.dialect.begin();
        match self.dialect {
            Dialect::Postgres => {
                format!("{begin};SET LOCAL idle_in_transaction_session_timeout='{IDLE_TIMEOUT}s'")
            }
            // MariaDB from 10.5 on: the setting is one of the session.
            Dialect::MySql { returns: true } => {
                format!("SET idle_transaction_timeout={IDLE_TIMEOUT};{begin}")
            }
            _ => begin.to_owned(),
        }
    }

    pub(super) fn end_limited(&self, end: &str) -> String {
        match self.dialect {
            Dialect::MySql { returns: true } => {
                format!("{end};SET idle_transaction_timeout=DEFAULT")
            }
            _ => end.to_owned(),
        }
    }

    /// Notifies the first in the queue that the name is free.
    pub(super) fn tell_free(&self, name: &str) -> Option<String> {
        match self.dialect {
            Dialect::Postgres => {
                let (now, locks) = (self.dialect.now(), &self.locks);
                let (literal, digest) = (self.dialect.name(name), super::digest(&self.table, name));
                Some(format!(
                    "SELECT pg_notify('{CHANNEL}','free {digest}')FROM {locks} WHERE name={literal} AND until<={now} AND queued>{now}"
                ))
            }
            _ => None,
        }
    }

    /// Notifies waiters that hold now. As for the first in the queue, the notification has the beginning of an owner only.
    fn tell_granted(&self, owners: &[String]) -> Option<String> {
        match self.dialect {
            Dialect::Postgres if !owners.is_empty() => {
                let owners = owners.iter().map(|owner| &owner[..owner.len().min(12)]);
                let messages =
                    owners.map(|owner| format!("pg_notify('{CHANNEL}','granted {owner}')"));
                Some(format!("SELECT {}", messages.collect::<Vec<_>>().join(",")))
            }
            _ => None,
        }
    }
}

/// Owners as literals.
fn owners<'a>(owners: impl IntoIterator<Item = &'a String>) -> String {
    list(owners.into_iter().map(|owner| format!("'{owner}'")))
}
