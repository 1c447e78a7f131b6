//! The text of every statement on our own tables. `shedlock.rs` has the statements on the table of a Java library.
//!
//! # Why this is right
//! The row of a name is the lock, and also the mutex of its queue: a transaction that changes the queue of a name locks
//! that row first. The row's own columns decide whether the name is free, in the statement that takes it; the database
//! reads them again when it had to wait for the row. So two clients never take one name, whatever the isolation level, and
//! no waiter overtakes another one whose place it could have seen.
//!
//! Each text begins with a comment that names its purpose, for people who watch a server, and for the tests.

pub(super) mod detach;
pub(super) mod elections;
pub(super) mod ending;
pub(super) mod modes;
mod probe;
pub(super) mod schema;
pub(super) mod shedlock;
mod together;
mod tokens;

use std::collections::BTreeSet;

use crate::database::hex;

use super::names::digest;
use super::names::escaped;

/// The SQL of one database.
#[cfg_attr(
    not(all(feature = "mysql", feature = "postgres", feature = "sqlite")),
    allow(
        dead_code,
        reason = "a build connects to the databases of its features"
    )
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Postgres,
    /// MySQL, MariaDB and their relatives.
    MySql {
        /// Whether an insert can return the row (MariaDB 10.5).
        returns: bool,
    },
    Sqlite,
}

/// What a statement returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    Rows,
    /// An empty row for each row that was changed.
    ChangedRows,
}

/// One request: one statement, or several that travel together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Statement {
    pub(crate) sql: String,
    pub(crate) reply_kind: ReplyKind,
    /// The text has BEGIN and COMMIT in it: after an error a transaction may be open on the connection.
    pub(crate) is_transaction: bool,
    /// The statement may be sent again when the connection broke before its answer came.
    pub(crate) is_repeatable: bool,
    /// A lease or another waiter depends on the statement, so it does not queue behind requests for locks.
    pub(crate) is_urgent: bool,
}

impl Statement {
    pub(crate) fn rows(sql: String) -> Self {
        Self {
            sql,
            reply_kind: ReplyKind::Rows,
            is_transaction: false,
            is_repeatable: true,
            is_urgent: false,
        }
    }

    /// The same, for a caller that sends the statement again by itself.
    pub(crate) fn once(sql: String) -> Self {
        Self {
            is_repeatable: false,
            is_urgent: true,
            ..Self::rows(sql)
        }
    }

    pub(crate) fn count(sql: String) -> Self {
        Self {
            reply_kind: ReplyKind::ChangedRows,
            ..Self::rows(sql)
        }
    }

    /// The text begins or ends a transaction.
    pub(crate) fn in_transaction(sql: String) -> Self {
        Self {
            is_transaction: true,
            ..Self::rows(sql)
        }
    }

    #[must_use]
    pub(crate) fn urgent(mut self) -> Self {
        self.is_urgent = true;
        self
    }
}

/// One acquisition, as it is written. Times are in µs.
#[derive(Clone, Debug)]
pub(crate) struct AcquireItem {
    pub(crate) name: String,
    pub(crate) owner: String,
    pub(crate) ttl: u64,
    pub(crate) delay: u64,
    pub(crate) min_hold: u64,
    pub(crate) holder: String,
    /// For the token, where the clock of the database is that of this machine and has ms.
    pub(crate) stamp: Option<u64>,
    /// Whether observers are told of the grant.
    pub(crate) is_candidate: bool,
}

/// One hold that is renewed. Times are in µs.
pub(crate) struct RenewItem {
    pub(crate) name: String,
    pub(crate) owner: String,
    pub(crate) ttl: u64,
}

impl AcquireItem {
    /// How long the name is taken if the holder sends no further request: as long as its lease and its lock delay, and at
    /// least as long as its `min_hold`.
    fn live(&self) -> u64 {
        self.ttl.saturating_add(self.delay).max(self.min_hold)
    }

    /// The least token to grant, as SQL.
    fn stamp(&self, dialect: Dialect) -> String {
        match self.stamp {
            Some(stamp) => stamp.to_string(),
            None => dialect.now().to_owned(),
        }
    }
}

/// The statements for one store.
#[derive(Clone, Debug)]
pub(crate) struct Statements {
    pub(crate) dialect: Dialect,
    /// The tables, quoted.
    pub(crate) locks: String,
    pub(crate) waiters: String,
    pub(crate) modes: String,
    /// As in the URL.
    pub(crate) table: String,
}

/// What the owner column of a name says while there are shared holders, or reserved places of such holders.
pub(crate) const SEVERAL: &str = "*";

/// How many holds one statement lists: the reply of a statement for all of a million could not come within its time limit.
pub(crate) const LIST_PAGE: usize = 10_000;

/// The channel of all notifications. The server keeps the channels of its databases apart.
pub(crate) const CHANNEL: &str = "tenure";

impl Dialect {
    /// The same, as far as it depends on what the server calls itself: `10.11.6-MariaDB-log`, for example.
    pub(crate) fn with_version(self, version: &str) -> Self {
        match self {
            Self::MySql { .. } => {
                let version = version.strip_prefix("5.5.5-").unwrap_or(version);
                let mut numbers = version
                    .split(['.', '-'])
                    .map(|part| part.parse().unwrap_or(0));
                let mut next = || numbers.next().unwrap_or(0);
                let number: (u32, u32) = (next(), next());
                let returns = version.contains("MariaDB") && number >= (10, 5);
                Self::MySql { returns }
            }
            // The replies of other servers are the same in all versions.
            _ => self,
        }
    }

    /// The server's clock, in µs since 1970. It depends on no time zone, and is never later in a statement than in the
    /// statements after it.
    pub(crate) fn now(self) -> &'static str {
        match self {
            Self::Postgres => "(EXTRACT(EPOCH FROM clock_timestamp())*1000000)::bigint",
            Self::MySql { .. } => "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))",
            // SQLite's clock has milliseconds.
            Self::Sqlite => "CAST(ROUND(unixepoch('subsec')*1000)*1000 AS INTEGER)",
        }
    }

    fn max(self) -> &'static str {
        match self {
            Self::Sqlite => "MAX",
            _ => "GREATEST",
        }
    }

    /// Text as a literal, whatever the session's settings are.
    pub(crate) fn text(self, text: &str) -> String {
        match self {
            Self::Postgres => format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''")),
            Self::MySql { .. } => format!("CONVERT(X'{}' USING utf8mb4)", hex(text.as_bytes())),
            Self::Sqlite => format!("'{}'", text.replace('\'', "''")),
        }
    }

    /// A name as a literal.
    fn name(self, name: &str) -> String {
        match self {
            // The column of MySQL has bytes: a text would be compared by the rules of a language.
            Self::MySql { .. } => format!("X'{}'", hex(name.as_bytes())),
            _ => self.text(name),
        }
    }

    pub(crate) fn quoted(self, table: &str) -> String {
        let quote = match self {
            Self::MySql { .. } => '`',
            _ => '"',
        };
        let parts = table.split('.').map(|part| format!("{quote}{part}{quote}"));
        parts.collect::<Vec<_>>().join(".")
    }

    fn begin(self) -> &'static str {
        match self {
            // Each statement must see what was committed before it.
            Self::Postgres => "BEGIN ISOLATION LEVEL READ COMMITTED",
            Self::MySql { .. } => "START TRANSACTION",
            Self::Sqlite => "BEGIN IMMEDIATE",
        }
    }

    fn is_postgres(self) -> bool {
        self == Self::Postgres
    }
}

impl Statements {
    pub(crate) fn new(dialect: Dialect, table: &str) -> Self {
        Self {
            dialect,
            locks: dialect.quoted(table),
            waiters: dialect.quoted(&format!("{table}_waiters")),
            modes: dialect.quoted(&format!("{table}_modes")),
            table: table.to_owned(),
        }
    }

    /// The name of a lock in notifications.
    #[cfg(feature = "postgres")]
    pub(crate) fn digest(&self, name: &str) -> String {
        digest(&self.table, &escaped(name))
    }

    pub(crate) fn transaction(&self, what: &str, steps: &[String]) -> Statement {
        let begin = self.dialect.begin();
        let steps = steps.join(";");
        Statement::in_transaction(format!("/*tenure:{what}*/ {begin};{steps};COMMIT"))
    }

    /// Takes a name that is free and has no waiters. `[token]` if it was taken. Sent again with the same owner, the
    /// statement finds out about a grant whose answer was lost. In MySQL `[owner, token]` as they are then.
    pub(crate) fn acquire(&self, request: &AcquireItem) -> Statement {
        let take = self.take_free(request);
        let channel = request.is_candidate.then(|| self.channel(&request.name));
        Statement::rows(match channel.flatten() {
            Some(channel) => format!(
                "/*tenure:acquire*/ WITH g AS({take})SELECT token FROM g WHERE pg_notify('{channel}','')::text IS NOT NULL"
            ),
            None => format!("/*tenure:acquire*/ {take}"),
        })
    }

    /// The text of [`acquire`](Self::acquire), without its purpose.
    fn take_free(&self, request: &AcquireItem) -> String {
        let (now, max, locks) = (self.dialect.now(), self.dialect.max(), &self.locks);
        let name = self.dialect.name(&request.name);
        let holder = self.dialect.text(&request.holder);
        let (owner, min_hold, delay) = (&request.owner, request.min_hold, request.delay);
        let (live, stamp) = (request.live(), request.stamp(self.dialect));
        let alias = match self.dialect {
            Dialect::MySql { .. } => "",
            _ => " AS l",
        };
        let insert = format!(
            "INSERT INTO {locks}{alias}(name,owner,token,until,since,min_hold,delay,holder,queued)VALUES({name},'{owner}',{stamp},{now}+{live},{now},{min_hold},{delay},{holder},0)"
        );
        match self.dialect {
            Dialect::MySql { returns } => {
                // A lease is never made shorter, because this request may arrive twice.
                // MySQL assigns from left to right, and each expression sees what was assigned before: `owner` decides who
                // gets the lock, so it is assigned last but one, and `until` last.
                let free = format!("until<={now} AND queued<={now}");
                let update = format!(
                    "ON DUPLICATE KEY UPDATE token=IF({free},{max}(token+1,{stamp}),token),since=IF({free},{now},since),min_hold=IF({free},{min_hold},min_hold),delay=IF({free},{delay},delay),holder=IF({free},{holder},holder),owner=IF({free},'{owner}',owner),until=IF(owner='{owner}',{max}(until,{now}+{live}),until)"
                );
                match returns {
                    true => format!("{insert}{update} RETURNING owner,token"),
                    false => format!(
                        "{insert}{update};SELECT owner,token FROM {locks} WHERE name={name}"
                    ),
                }
            }
            _ => {
                // A request that was sent twice replaces no value that was published since.
                let kept = match request.is_candidate {
                    true => format!(
                        "CASE WHEN l.owner=excluded.owner AND l.until>{now} THEN l.holder ELSE excluded.holder END"
                    ),
                    false => "excluded.holder".to_owned(),
                };
                format!(
                    "{insert}ON CONFLICT(name)DO UPDATE SET owner=excluded.owner,token=CASE WHEN l.owner=excluded.owner AND l.until>{now} THEN l.token ELSE {max}(l.token+1,excluded.token)END,until={max}(l.until,excluded.until),since=excluded.since,min_hold=excluded.min_hold,delay=excluded.delay,holder={kept} WHERE l.owner=excluded.owner OR(l.until<={now} AND l.queued<={now})RETURNING token"
                )
            }
        }
    }

    /// Takes a place in the queue or keeps it, and takes the name when it is free and our place the first.
    /// `place`: for how many µs the place is valid.
    /// The last row is `[owner, token, µs until the lease ends, waiters ahead of us]`.
    pub(crate) fn enqueue(&self, request: &AcquireItem, place: u64) -> Statement {
        let (now, max) = (self.dialect.now(), self.dialect.max());
        let (locks, waiters) = (&self.locks, &self.waiters);
        let name = self.dialect.name(&request.name);
        let holder = self.dialect.text(&request.holder);
        let (owner, min_hold, delay) = (&request.owner, request.min_hold, request.delay);
        let (live, stamp) = (request.live(), request.stamp(self.dialect));
        let mut steps = self.enter_queue(request, place, &name, &holder);
        // MySQL assigns from left to right, and the owner decides.
        let (kept, granted) = match request.is_candidate {
            true => (
                format!(
                    "holder=CASE WHEN owner='{owner}' AND until>{now} THEN holder ELSE {holder} END,"
                ),
                String::new(),
            ),
            false => (String::new(), format!(",holder={holder}")),
        };
        let first = format!(
            "(SELECT w.owner FROM {waiters} w WHERE w.name={name} ORDER BY w.place LIMIT 1)"
        );
        steps.push(format!(
            "UPDATE {locks} SET {kept}token=CASE WHEN owner='{owner}' AND until>{now} THEN token ELSE {max}(token+1,{stamp})END,owner='{owner}',until={max}(until,{now}+{live}),since={now},min_hold={min_hold},delay={delay}{granted} WHERE name={name} AND(owner='{owner}' OR(until<={now} AND {first}='{owner}'))"
        ));
        let is_ours =
            format!("EXISTS(SELECT 1 FROM {locks} WHERE name={name} AND owner='{owner}')");
        steps.push(format!(
            "DELETE FROM {waiters} WHERE owner='{owner}' AND {is_ours}"
        ));
        steps.push(self.count_queue(&name));
        steps.extend(self.tell_first(&name, &format!("AND {is_ours}")));
        if request.is_candidate {
            let tell = self.tell_observers(&request.name);
            steps.extend(tell.map(|tell| format!("{tell}WHERE {is_ours}")));
        }
        steps.push(format!(
            "SELECT owner,token,until-{now},(SELECT COUNT(*)FROM {waiters} a WHERE a.name={name} AND a.place<(SELECT b.place FROM {waiters} b WHERE b.owner='{owner}'))FROM {locks} WHERE name={name}"
        ));
        self.transaction("acquire", &steps)
    }

    /// Makes the row of the name if it is missing and locks it, removes dead waiters, and takes a place in the queue or
    /// keeps it.
    fn enter_queue(
        &self,
        request: &AcquireItem,
        place: u64,
        name: &str,
        holder: &str,
    ) -> Vec<String> {
        let (now, owner) = (self.dialect.now(), &request.owner);
        let waiters = &self.waiters;
        let mut steps = vec![self.make_row(name)];
        if self.dialect.is_postgres() {
            steps.extend(self.lock_rows(&format!("name={name}")));
        }
        steps.push(format!(
            "DELETE FROM {waiters} WHERE name={name} AND until<={now}"
        ));
        steps.push(self.keep_waiter(name, owner, &format!("{now}+{place}"), holder));
        steps
    }

    /// Takes a place in the queue, or keeps it until that time.
    fn keep_waiter(&self, name: &str, owner: &str, until: &str, holder: &str) -> String {
        let waiters = &self.waiters;
        let enter = format!(
            "INSERT INTO {waiters}(name,owner,until,holder)VALUES({name},'{owner}',{until},{holder})"
        );
        match self.dialect {
            Dialect::MySql { .. } => format!("{enter}ON DUPLICATE KEY UPDATE until={until}"),
            _ => format!("{enter}ON CONFLICT(owner)DO UPDATE SET until=excluded.until"),
        }
    }

    /// Makes the row of the name if it is missing.
    fn make_row(&self, name: &str) -> String {
        let locks = &self.locks;
        let insert = format!(
            "INSERT INTO {locks}(name,owner,token,until,since,min_hold,delay,holder,queued)VALUES({name},'',0,0,0,0,0,'',0)"
        );
        match self.dialect {
            // The update locks the row for writing at once; INSERT IGNORE would lock it for reading first.
            Dialect::MySql { .. } => format!("{insert}ON DUPLICATE KEY UPDATE name=name"),
            _ => format!("{insert}ON CONFLICT(name)DO NOTHING"),
        }
    }

    /// Reads the queue and changes nothing: `[token, µs until the lease ends, waiters ahead of us]`.
    pub(crate) fn read_queue(&self, name: &str, owner: &str) -> Statement {
        let (now, locks, waiters) = (self.dialect.now(), &self.locks, &self.waiters);
        let name = self.dialect.name(name);
        Statement::rows(format!(
            "/*tenure:peek*/ SELECT token,until-{now},(SELECT COUNT(*)FROM {waiters} a WHERE a.name={name} AND a.until>{now} AND a.place<(SELECT b.place FROM {waiters} b WHERE b.owner='{owner}'))FROM {locks} WHERE name={name}"
        ))
    }

    /// Renews these holds, as far as they are ours: each with its ttl.
    /// A row for each name that the table has: `[name, owner, whether the lease has not ended]`, and with `finds_requests`
    /// whether the holder is asked to let go.
    pub(crate) fn renew(&self, holds: &[RenewItem], finds_requests: bool) -> Statement {
        let (now, max, locks) = (self.dialect.now(), self.dialect.max(), &self.locks);
        let ttls: BTreeSet<_> = holds.iter().map(|hold| hold.ttl).collect();
        let of = |ttl: Option<u64>| {
            let of = holds.iter();
            of.filter(move |hold| ttl.is_none_or(|ttl| ttl == hold.ttl))
        };
        let names = |ttl| list(of(ttl).map(|hold| self.dialect.name(&hold.name)));
        let owners = |ttl| list(of(ttl).map(|hold| format!("'{}'", hold.owner)));
        let all = names(None);
        let mut steps = Vec::new();
        if self.dialect.is_postgres() && holds.len() > 1 {
            // All statements of a request are one transaction there. It locks the rows in the order in which a request for
            // several names locks them, so that the two never wait for each other.
            let owners = owners(None);
            steps.push(format!(
                "SELECT 1 FROM {locks} WHERE name IN({all})AND owner IN({owners})ORDER BY name FOR UPDATE"
            ));
        }
        steps.extend(ttls.into_iter().map(|ttl| {
            let (names, owners) = (names(Some(ttl)), owners(Some(ttl)));
            // An owner has one name, so both lists together say the same as pairs would.
            format!(
                "UPDATE {locks} SET until={max}(until,{now}+delay+{ttl})WHERE name IN({names})AND owner IN({owners})AND until>{now}"
            )
        }));
        let asked = self.asked_column(finds_requests);
        steps.push(format!(
            "SELECT name,owner,CASE WHEN until>{now} THEN 1 ELSE 0 END{asked} FROM {locks} WHERE name IN({all})"
        ));
        Statement::once(format!("/*tenure:renew*/ {}", steps.join(";")))
    }

    /// The first [`LIST_PAGE`] holds: `[name, now]` and the columns from `owner` to `holder` as in
    /// [`read_name`](Self::read_name), all shared holders and reserved places: `[name, mode, now]` and the same, and then all
    /// waiters: `[name, holder]`.
    pub(crate) fn list(&self, prefix: &str) -> Statement {
        let (now, waiters) = (self.dialect.now(), &self.waiters);
        let begins = self.begins(prefix);
        let page = self.page(&begins);
        let (locks, modes) = (&self.locks, &self.modes);
        let shared = format!(
            "SELECT name,mode,{now},owner,token,until,since,min_hold,delay,holder FROM {modes} m WHERE {begins} AND until>{now} AND EXISTS(SELECT 1 FROM {locks} l WHERE l.name=m.name AND l.owner='{SEVERAL}')ORDER BY token"
        );
        Statement::rows(format!(
            "/*tenure:look*/ {page};{shared};SELECT name,holder FROM {waiters} WHERE until>{now} AND {begins} ORDER BY place LIMIT 10000"
        ))
    }

    /// The next [`LIST_PAGE`] holds after the name `last`, as it stands in the table.
    pub(crate) fn list_more(&self, prefix: &str, last: &str) -> Statement {
        let (begins, last) = (self.begins(prefix), self.dialect.name(last));
        let page = self.page(&format!("{begins} AND name>{last}"));
        Statement::rows(format!("/*tenure:look*/ {page}"))
    }

    fn page(&self, which: &str) -> String {
        let (now, locks) = (self.dialect.now(), &self.locks);
        format!(
            "SELECT name,{now},owner,token,until,since,min_hold,delay,holder FROM {locks} WHERE owner<>'' AND until>{now} AND {which} ORDER BY name LIMIT {LIST_PAGE}"
        )
    }

    /// A condition on names.
    fn begins(&self, prefix: &str) -> String {
        let prefix = escaped(prefix);
        match self.dialect {
            _ if prefix.is_empty() => "1=1".to_owned(),
            Dialect::MySql { .. } => {
                format!("LEFT(name,{})={}", prefix.len(), self.dialect.name(&prefix))
            }
            _ => {
                let (count, literal) = (prefix.chars().count(), self.dialect.name(&prefix));
                format!("SUBSTR(name,1,{count})={literal} AND name>={literal}")
            }
        }
    }

    /// Writes into the row of the name until when it has waiters, for statements that do not read the queue.
    fn count_queue(&self, name: &str) -> String {
        let (locks, waiters) = (&self.locks, &self.waiters);
        format!(
            "UPDATE {locks} SET queued=COALESCE((SELECT MAX(w.until)FROM {waiters} w WHERE w.name={name}),0)WHERE name={name}"
        )
    }

    /// Notifies the first in the queue that it is the first. The notification has the beginning of its owner only, because
    /// a client that knows the whole owner can release.
    fn tell_first(&self, name: &str, when: &str) -> Option<String> {
        let waiters = &self.waiters;
        self.dialect.is_postgres().then(|| {
            format!(
                "SELECT pg_notify('tenure','first '||left(f.owner,12))FROM(SELECT owner FROM {waiters} WHERE name={name} ORDER BY place LIMIT 1)f WHERE true {when}"
            )
        })
    }
}

/// Literals, with commas between them.
fn list(literals: impl Iterator<Item = String>) -> String {
    literals.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_answer_with_the_row() {
        for (version, expected) in [
            ("10.11.6-MariaDB-0+deb12u1", true),
            ("10.5.0-MariaDB", true),
            ("10.4.32-MariaDB-log", false),
            ("5.5.5-10.6.1-MariaDB", true),
            ("11.4.2-MariaDB", true),
            ("8.0.36", false),
            ("5.7.44-log", false),
            ("", false),
        ] {
            let dialect = Dialect::MySql { returns: false }.with_version(version);
            assert_eq!(dialect, Dialect::MySql { returns: expected }, "{version}");
        }
    }

    #[test]
    fn text_ends_where_it_should() {
        let text = Dialect::Postgres.text(r"a'b\c'; DROP TABLE x --");
        assert_eq!(text, r"E'a''b\\c''; DROP TABLE x --'");
        assert_eq!(Dialect::Postgres.quoted("a.b"), r#""a"."b""#);
    }
}
