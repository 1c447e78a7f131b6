//! One function for each request on the control connection.

use std::sync::Arc;

use tenure_core::error::Error;
use tenure_core::name::LockName;

use crate::database::Row;

use super::control::ControlConnection;
use super::dialect;
use super::errors;
use super::holder_row::HolderRow;
use super::key::Key;
use super::server_info::{SessionId, SessionState};
use super::session::Session;

/// The first value of the first row.
fn value(rows: &[Row]) -> Option<&str> {
    rows.first()?.first()?.as_deref()
}

/// The key that the server's own hash function makes of a name.
pub(super) async fn hash_key(control: &Arc<ControlConnection>, name: &[u8]) -> Result<Key, Error> {
    let sql = control.context.dialect.hash_key(name);
    let rows = control.query(sql).await?;
    let number = value(&rows).and_then(|number| number.parse().ok());
    number.map(Key::One).ok_or_else(errors::unexpected_reply)
}

pub(super) async fn session_exists(
    control: &Arc<ControlConnection>,
    session: SessionId,
) -> Result<bool, Error> {
    let sql = control.context.dialect.find_session(session);
    let rows = control.query(sql).await?;
    Ok(!rows.is_empty())
}

/// What the session does, as the control connection sees it.
pub(super) async fn session_state(
    control: &Arc<ControlConnection>,
    session: SessionId,
) -> Result<SessionState, Error> {
    let sql = control.context.dialect.session_state(session);
    let rows = control.query(sql).await?;
    Ok(match rows.is_empty() {
        true => SessionState::Gone,
        false if value(&rows) == Some("1") => SessionState::Busy,
        false => SessionState::Idle,
    })
}

/// What others want of the holders of a session, by the tokens of the holds.
#[derive(Debug, Default)]
pub(super) struct HolderRequests {
    /// The holds shall end.
    pub(super) breaks: Vec<u64>,
    /// The holders are asked to let go.
    pub(super) asked: Vec<u64>,
}

impl HolderRequests {
    /// The row of [`requests_to_holders`](super::dialect::Dialect::requests_to_holders), or of
    /// [`requested_breaks`](super::dialect::Dialect::requested_breaks), which has one column less.
    pub(super) fn read(rows: &[Row]) -> Self {
        let tokens = |at: usize| {
            let tokens = rows.first().and_then(|row| row.get(at)?.as_deref());
            let tokens = tokens.unwrap_or_default().split(' ');
            tokens.filter_map(|token| token.parse().ok()).collect()
        };
        Self {
            breaks: tokens(1),
            asked: tokens(2),
        }
    }
}

/// What others want of the holders of that session.
pub(super) async fn requests_to_holders(
    control: &Arc<ControlConnection>,
    session: &Session,
) -> Result<HolderRequests, Error> {
    let rows = control.query(session.ask_for_requests()).await?;
    Ok(HolderRequests::read(&rows))
}

/// Ends that session, and no later session that has its number.
pub(super) async fn end_session(
    control: &Arc<ControlConnection>,
    session: SessionId,
) -> Result<(), Error> {
    let sql = control.context.dialect.end_session(session);
    control.command(session, sql).await
}

/// Ends a session that another request has found a moment ago, in the same run of the server.
pub(super) async fn end_found_session(
    control: &Arc<ControlConnection>,
    session: SessionId,
) -> Result<(), Error> {
    let sql = control.context.dialect.end_session(session);
    control.query(sql).await.map(drop)
}

/// Cancels the statement that the session runs.
pub(super) async fn cancel_statement(
    control: &Arc<ControlConnection>,
    session: SessionId,
) -> Result<(), Error> {
    let sql = control.context.dialect.cancel_statement(session);
    control.command(session, sql).await
}

/// The sessions that have the lock, a row for each.
pub(super) async fn holders(
    control: &Arc<ControlConnection>,
    key: &Key,
    has_table: bool,
) -> Result<Vec<Row>, Error> {
    let sql = control.context.dialect.holders(key, has_table);
    control.query(sql).await
}

/// The same, and before that the number of [`last_token`](super::dialect::Dialect::last_token).
pub(super) async fn leader(
    control: &Arc<ControlConnection>,
    key: &Key,
) -> Result<(u64, Vec<Row>), Error> {
    let dialect = &control.context.dialect;
    let (last_token, holders) = (dialect.last_token(), dialect.holders(key, true));
    let sql = format!("/* tenure:leader */ {last_token}; {holders}");
    let mut rows = control.query(sql).await?;
    let last_token = value(&rows).and_then(|token| token.parse().ok());
    let last_token = last_token.ok_or_else(errors::unexpected_reply)?;
    rows.remove(0);
    Ok((last_token, rows))
}

/// Writes the row of a leader. `false`: its session has not got the lock.
pub(super) async fn publish(
    control: &Arc<ControlConnection>,
    row: &HolderRow,
) -> Result<bool, Error> {
    let sql = control.context.dialect.publish(row);
    Ok(!control.query(sql).await?.is_empty())
}

/// The same for a hold that the server granted just now, and whose session is asked at the same time.
pub(super) async fn publish_grant(
    control: &Arc<ControlConnection>,
    row: &HolderRow,
) -> Result<bool, Error> {
    let sql = control.context.dialect.publish_grant(row);
    Ok(!control.query(sql).await?.is_empty())
}

/// Tells observers that the leader has changed.
pub(super) async fn tell_observers(
    control: &Arc<ControlConnection>,
    key: &Key,
) -> Result<(), Error> {
    match control.context.dialect.tell_observers(key) {
        Some(sql) => control.query(sql).await.map(drop),
        None => Ok(()),
    }
}

/// Asks the holder with that token to let go. `false`: the table has no such holder.
pub(super) async fn ask_to_release(
    control: &Arc<ControlConnection>,
    session: SessionId,
    token: u64,
) -> Result<bool, Error> {
    let sql = control.context.dialect.ask_to_release(session, token);
    Ok(!control.query(sql).await?.is_empty())
}

/// The statements of the sessions that wait for the lock, in their order; `None`: our user may not see it.
pub(super) async fn waiters(
    control: &Arc<ControlConnection>,
    key: &Key,
) -> Result<Vec<Option<String>>, Error> {
    let sql = control.context.dialect.waiters(key);
    let rows = control.query(sql).await?;
    let statement = |row: Row| row.into_iter().next();
    Ok(rows.into_iter().filter_map(statement).collect())
}

/// The names that begin with `prefix`, stand in the table of holders, and are held.
pub(super) async fn held_names(
    control: &Arc<ControlConnection>,
    prefix: &str,
) -> Result<Vec<LockName>, Error> {
    let sql = control.context.dialect.held_names(prefix);
    let rows = control.query(sql).await?;
    let name = |row: &Row| dialect::name_of(row.first()?.as_deref()?);
    Ok(rows.iter().filter_map(name).collect())
}

/// Asks the client that has that hold to release it.
pub(super) async fn request_break(
    control: &Arc<ControlConnection>,
    session: SessionId,
    token: u64,
) -> Result<(), Error> {
    let sql = control.context.dialect.request_break(session, token);
    control.query(sql).await.map(drop)
}

/// Whether the session has no other lock than the hold of that key and token, as far as the server knows.
pub(super) async fn has_one_lock(
    control: &Arc<ControlConnection>,
    session: SessionId,
    key: &Key,
    token: u64,
) -> Result<bool, Error> {
    let sql = control.context.dialect.other_locks(session, key, token);
    let rows = control.query(sql).await?;
    Ok(value(&rows) == Some("0"))
}

/// Whether the table of holders is there and may be used.
pub(super) async fn find_holder_table(control: &Arc<ControlConnection>) -> Result<(), Error> {
    let sql = control.context.dialect.find_holder_table();
    control.query(sql).await.map(drop)
}

/// Whether this user may write the table of holders.
pub(super) async fn probe_holder_table(control: &Arc<ControlConnection>) -> Result<(), Error> {
    let sql = control.context.dialect.probe_holder_table();
    control.query(sql).await.map(drop)
}

/// Whether this user may lock that key.
pub(super) async fn probe_lock(control: &Arc<ControlConnection>, key: &Key) -> Result<(), Error> {
    let sql = control.context.dialect.probe_lock(key);
    control.query(sql).await.map(drop)
}

pub(super) async fn create_holder_table(control: &Arc<ControlConnection>) -> Result<(), Error> {
    let sql = control.context.dialect.create_holder_table();
    control.query(sql).await.map(drop)
}

/// Deletes the removed rows, and then inserts the added ones.
pub(super) async fn write_holder_table(
    control: &Arc<ControlConnection>,
    added: &[HolderRow],
    removed: &[HolderRow],
) -> Result<(), Error> {
    let sql = control.context.dialect.write_holder_table(added, removed);
    control.query(sql).await.map(drop)
}

/// Deletes rows whose session no longer has the lock.
pub(super) async fn sweep_holder_table(control: &Arc<ControlConnection>) -> Result<(), Error> {
    let sql = control.context.dialect.sweep_holder_table();
    control.query(sql).await.map(drop)
}
