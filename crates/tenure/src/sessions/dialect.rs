//! What differs between MySQL and PostgreSQL: the text of a statement and the meaning of its rows. No I/O.

use std::time::Duration;

use tenure_core::holder::Holder;
use tenure_core::name::LockName;
use tenure_core::support::HolderRecord;

use crate::database::{Row, unhex};

use super::holder_row::HolderRow;
use super::key::Key;
use super::mode::KeyMode;
use super::operations::SessionOperation;
use super::server_info::{ServerInfo, SessionId};

/// The columns of the table of holders.
pub(super) const HOLDER_COLUMNS: &str =
    "connection, lock_key, token, name, mode, holder, since, ttl, wanted";

/// What the column `wanted` says of a holder that is asked to let go. 1 says that its hold shall end (`break_lock`).
pub(super) const ASKED: u8 = 2;

/// The SQL of one server.
pub(super) trait Dialect: Send + Sync {
    /// Sets up a session that the server ends after `idle` without a statement, and asks for [`ServerInfo`].
    fn set_up(&self, idle: Duration, version: Option<u32>) -> String;

    /// What is sent after [`set_up`](Dialect::set_up), in the same message, for a session that takes locks. Behind a pooler
    /// it would stay in sessions of other clients, so it is sent only when it is known that there is no pooler.
    fn prepare(&self) -> String {
        String::new()
    }

    /// Counts the locks that the session of a caller's pool has already. `None`: the server does not say.
    fn counts_own_locks(&self) -> Option<String> {
        None
    }

    /// Reads the rows of [`set_up`](Dialect::set_up).
    fn server_info(&self, rows: &[Row], version: Option<u32>) -> Option<ServerInfo>;

    /// The idle limit of a session for that ttl: rounded up to what the server can count, and not longer than the
    /// longest limit of the server.
    fn idle_limit(&self, ttl: Duration) -> Duration;

    /// All these operations in one statement, whose one row has the session's number first.
    fn statement(&self, operations: &[SessionOperation]) -> String;

    /// What the row of [`statement`](Dialect::statement) says of each operation: the token or 0 of a `TryLock`, 1 or 0 of
    /// an `Unlock` or a `Reserve`.
    /// `None`: the server cannot tell.
    fn replies(&self, operations: &[SessionOperation], row: &Row) -> Vec<Option<u64>> {
        let column = |at: usize| row.get(at + 1)?.as_deref()?.parse().ok();
        (0..operations.len()).map(column).collect()
    }

    /// Waits for the lock. The row has the session's number and the token. `waiter` is the text of
    /// [`waiter_text`], for people who look at the server.
    fn wait(&self, key: &Key, mode: KeyMode, waiter: &str) -> String;

    /// A statement that lasts for `min_hold`, and that the server runs to its end after its client has left.
    fn keep(&self, min_hold: Duration) -> String;

    /// Asks for the key exclusively, on the session that has it as [`KeyMode::Upgradable`], without waiting. The row is that
    /// of [`wait`](Dialect::wait), with 0 as the token if other sessions have the key. An error of
    /// [`is_cancelled`](Dialect::is_cancelled) says the same.
    fn try_upgrade(&self, _: &Key) -> String {
        "SELECT NULL".into()
    }

    /// Waits for the key exclusively, on the session that has it as [`KeyMode::Upgradable`]. The row is that of
    /// [`wait`](Dialect::wait).
    fn wait_for_upgrade(&self, _: &Key) -> String {
        "SELECT NULL".into()
    }

    /// Makes a stronger mode of the session `to`, which is `Shared` or `Upgradable`. May be repeated. The row has the
    /// session's number, and 1 if the session has the key, else 0.
    fn downgrade(&self, _: &Key, _to: KeyMode) -> String {
        "SELECT NULL".into()
    }

    /// Whether a command from the session `from` about `to` reaches `to`. If not, the command may reach a session that
    /// has the same number since a restart of the server.
    fn reaches(&self, from: SessionId, to: SessionId) -> bool;

    /// Cancels the statement that the session runs.
    fn cancel_statement(&self, session: SessionId) -> String;

    /// Ends the session.
    fn end_session(&self, session: SessionId) -> String;

    /// The statement with which an operator ends the connection with that number.
    fn end_by_hand(&self, connection: u64) -> String;

    /// Whether every lock of a session can be seen, of whichever program.
    fn shows_all_locks(&self) -> bool;

    /// Has a row if the session is there.
    fn find_session(&self, session: SessionId) -> String;

    /// Has a row if the session is there, with 1 if the session runs a statement of [`keep`](Dialect::keep) or
    /// [`wait_for_upgrade`](Dialect::wait_for_upgrade), else 0.
    fn session_state(&self, session: SessionId) -> String;

    /// Whether this error code of the server says that a wait was cancelled or took too long.
    fn is_cancelled(&self, code: &str) -> bool;

    /// Asks for the number that the server's own hash function makes of these bytes.
    fn hash_key(&self, bytes: &[u8]) -> String;

    /// Fails unless the table of holders is there and may be used.
    fn find_holder_table(&self) -> String {
        "/* tenure:look */ SELECT token FROM tenure_holders WHERE connection = 0".into()
    }

    /// Needs every right on the table of holders that a holder needs, and changes nothing.
    fn probe_holder_table(&self) -> String {
        "/* tenure:look */ INSERT INTO tenure_holders SELECT * FROM tenure_holders WHERE connection = 0; \
         UPDATE tenure_holders SET wanted = wanted WHERE connection = 0; DELETE FROM tenure_holders WHERE connection = 0"
            .into()
    }

    /// Needs every right that an exclusive lock on that key needs, and locks nothing.
    fn probe_lock(&self, key: &Key) -> String;

    fn create_holder_table(&self) -> String;

    /// Deletes the removed rows, and then inserts the added ones. A hold for which tokens were reserved may have its row already:
    /// then the row keeps what others want of the holder.
    fn write_holder_table(&self, added: &[HolderRow], removed: &[HolderRow]) -> String {
        let mut sql = delete_holder_rows(removed);
        // The lock of a leader is free before its row is deleted.
        let left = removed.iter().filter(|row| row.value_number().is_some());
        for tell in left.filter_map(|row| self.tell_observers(&row.key)) {
            sql += &format!("{tell};");
        }
        let values = added.iter().map(|row| self.holder_values(row));
        let rows: Vec<_> = values.map(|values| format!("({values})")).collect();
        if !rows.is_empty() {
            sql += &self.insert_holder_rows(&rows.join(", "));
        }
        for row in added.iter().filter(|row| row.last_token.is_some()) {
            sql += &format!(
                "; UPDATE tenure_holders SET holder = {} WHERE {}",
                self.bytes(&row.holder()),
                is_row(row)
            );
        }
        sql
    }

    /// These bytes in a statement.
    fn bytes(&self, bytes: &str) -> String;

    /// One row of the table of holders.
    fn holder_values(&self, row: &HolderRow) -> String;

    /// Inserts those of `rows` that the table does not have.
    fn insert_holder_rows(&self, rows: &str) -> String;

    /// Writes the row of a leader, or replaces what the row says about the holder, unless a newer value is there; only if the
    /// session has the lock. Tells observers. A row if the session has the lock.
    fn publish(&self, row: &HolderRow) -> String;

    /// The same for a hold that the server granted just now and whose session is asked at the same time: the statement need not
    /// look at the lock, and observers are told [later](Self::tell_observers).
    fn publish_grant(&self, row: &HolderRow) -> String {
        self.publish(row)
    }

    /// Tells observers that the leader or its value has changed. `None`: the server pushes nothing.
    fn tell_observers(&self, _: &Key) -> Option<String> {
        None
    }

    /// Asks for a number that is at least the last token of each lock that is free when the next statement begins, and less than
    /// each token that is granted after that.
    fn last_token(&self) -> String;

    /// Deletes rows whose session no longer has the lock.
    fn sweep_holder_table(&self) -> String;

    /// Asks which holds of the session shall end: one row, with the tokens between spaces.
    fn requested_breaks(&self, session: SessionId) -> String;

    /// The same, and in one more column which holders of the session are asked to let go.
    fn requests_to_holders(&self, session: SessionId) -> String;

    /// Notes that the holder with that token is asked to let go. A row if that is noted.
    fn ask_to_release(&self, session: SessionId, token: u64) -> String;

    /// Notes that the hold with that token shall end.
    fn request_break(&self, session: SessionId, token: u64) -> String {
        format!(
            "/* tenure:board */ UPDATE tenure_holders SET wanted = 1 WHERE connection = {} AND token = {token}",
            session.number
        )
    }

    /// The sessions that have the lock, a row for each: see [`inspect`](super::inspect).
    fn holders(&self, key: &Key, has_table: bool) -> String;

    /// The statements of the sessions that wait for the lock, in their order, as far as our user may see them.
    fn waiters(&self, key: &Key) -> String;

    /// The names in the table of holders that begin with `prefix` and are held.
    fn held_names(&self, prefix: &str) -> String;

    /// How many locks that session has besides the hold of that key and token, as far as the server shows them.
    fn other_locks(&self, session: SessionId, key: &Key, token: u64) -> String;
}

/// A name from the hexadecimal digits that the server sends for it.
pub(super) fn name_of(digits: &str) -> Option<LockName> {
    LockName::new(String::from_utf8(unhex(digits)?).ok()?).ok()
}

/// The purpose of a statement, for people who look at the server: `/* tenure:acquire */`.
pub(super) fn label(operations: &[SessionOperation]) -> &'static str {
    let is_any = |is_it: fn(&SessionOperation) -> bool| operations.iter().any(is_it);
    if is_any(|it| matches!(it, SessionOperation::TryLock { .. })) {
        "/* tenure:acquire */"
    } else if is_any(|it| matches!(it, SessionOperation::Unlock { .. })) {
        "/* tenure:release */"
    } else if is_any(|it| matches!(it, SessionOperation::Reserve { .. })) {
        "/* tenure:reserve */"
    } else {
        "/* tenure:renew */"
    }
}

/// Notes that the holder with that token is asked to let go, unless its hold shall end.
pub(super) fn ask_in_table(session: SessionId, token: u64) -> String {
    format!(
        "/* tenure:ask */ UPDATE tenure_holders SET wanted = CASE wanted WHEN 0 THEN {ASKED} ELSE wanted END WHERE connection = {} AND token = {token}",
        session.number
    )
}

/// The beginning of a statement that writes the table of holders: it deletes these rows.
fn delete_holder_rows(removed: &[HolderRow]) -> String {
    let mut sql = String::from("/* tenure:board */ ");
    for row in removed {
        sql += &format!("DELETE FROM tenure_holders WHERE {};", is_row(row));
    }
    sql
}

/// What is true of that row in the table of holders.
fn is_row(row: &HolderRow) -> String {
    format!(
        "connection = {} AND token = {} AND lock_key = '{}'",
        row.session.number, row.token, row.key
    )
}

/// The waiter as JSON, with every character escaped that may not stand in a comment or could end one. Without the value of a
/// candidate: the server shows the beginning of a statement only.
pub(super) fn waiter_text(holder: &Holder) -> String {
    let record = HolderRecord {
        value: None,
        number: None,
        ..HolderRecord::from(holder)
    };
    let record = record.to_json();
    let mut text = String::with_capacity(record.len());
    for byte in record.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b':' | b',' | b' ' => {
                text.push(byte.into());
            }
            byte => text += &format!("%{byte:02x}"),
        }
    }
    text
}

/// The waiter that [`waiter_text`] wrote into this statement.
pub(super) fn waiter_of(statement: &str) -> Option<HolderRecord> {
    let (_, rest) = statement.split_once("/* tenure:wait ")?;
    let (text, _) = rest.split_once(" */")?;
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            let digits = std::str::from_utf8(&digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_is_read_from_its_statement() {
        let mut holder = Holder::new("h*/st", 7);
        holder.label = "why? ü %41".into();
        let text = waiter_text(&holder);
        assert!(!text.contains("*/"), "{text}");
        let statement = format!("/* tenure:wait {text} */ SELECT 1");
        assert_eq!(waiter_of(&statement), Some(HolderRecord::from(&holder)));
        assert_eq!(waiter_of("SELECT 1"), None);
    }
}
