//! What differs between the servers: the words of a statement and the meaning of an answer. No I/O.

use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::name::LockName;

use super::board::Note;
use super::names::Key;
use super::settings::Settings;

/// A row of an answer, as text.
pub(super) type Row = Vec<Option<String>>;

/// Which session, in a server that may have been started anew since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionId {
    /// What the server calls the connection; used again after a restart, if not before.
    pub(super) id: u64,
    /// MySQL: when the server was started, in s. PostgreSQL: when the session began, in µs.
    pub(super) since: u64,
}

/// What a session is told by its server when it begins.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) session: SessionId,
    pub(super) version: String,
    /// For how long the server has run, or more.
    pub(super) uptime: Duration,
    /// How many locks the session can have.
    pub(super) capacity: usize,
    /// Whether the server ends an idle session, so that there is a lease.
    pub(super) ends_idle: bool,
    /// Why locks here would not be locks, and the cure.
    pub(super) objection: Option<String>,
}

/// One thing to be done in a statement; the statements of several are sent as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Take it if it is free.
    Take { key: Key, is_shared: bool },
    /// Give it back.
    Give { key: Key, is_shared: bool },
    /// Say that you are there.
    Ping,
}

/// What one server understands.
pub(super) trait Dialect: Send + Sync {
    /// Sets up a session that ends when nothing was heard from it for `idle`, and asks for [`Facts`].
    fn set_up(&self, idle: Duration, version: Option<u32>) -> String;

    /// What is sent behind that, in the same message, for a session that takes locks. Whoever shares sessions out
    /// would pass it on to others, so none has it before it is known that nobody does.
    fn prepare(&self) -> String {
        String::new()
    }

    /// The rows of [`set_up`](Dialect::set_up).
    fn facts(&self, rows: &[Row], version: Option<u32>) -> Option<Facts>;

    /// The longest idle limit up to `ttl` that a session can have, rounded up to what the server can count.
    fn idle_limit(&self, ttl: Duration) -> Duration;

    /// All of these in one statement with one row, which has the session's number first.
    fn batch(&self, asks: &[Ask]) -> String;

    /// What that row says about each: the token or 0 for what was to be taken, 1 or 0 for what was to be given back.
    /// `None`: the server cannot tell.
    fn answers(&self, asks: &[Ask], row: &Row) -> Vec<Option<u64>> {
        let column = |at: usize| row.get(at + 1)?.as_deref()?.parse().ok();
        (0..asks.len()).map(column).collect()
    }

    /// Waits for the key; `who` is there to be seen by others. The session's number and the token.
    fn wait(&self, key: &Key, is_shared: bool, who: &str) -> String;

    /// Whether an order from the session `from` about `to` hits that one, or perhaps another that the server calls the
    /// same since it was started anew.
    fn reaches(&self, from: SessionId, to: SessionId) -> bool;

    /// Calls off what the session is doing.
    fn cancel(&self, session: SessionId) -> String;

    /// Ends the session.
    fn kill(&self, session: SessionId) -> String;

    /// Has a row if the session is there.
    fn find(&self, session: SessionId) -> String;

    /// Which of the server's codes means that a wait was called off, or went on for too long.
    fn is_called_off(&self, code: &str) -> bool;

    /// Asks for the key that the server makes of these bytes.
    fn ask_key(&self, bytes: &[u8]) -> String;

    /// Whether there is a board; an error when it may not be used.
    fn find_board(&self) -> String;

    /// Makes the board.
    fn make_board(&self) -> String;

    /// Puts up notes, and takes others down.
    fn write_board(&self, session_notes: &[Note], taken_down: &[Note]) -> String;

    /// Takes down what nobody stands for any more.
    fn sweep_board(&self) -> String;

    /// Asks which of the session's holds are to be given up: one row, the tokens with spaces between.
    fn wanted(&self, session: SessionId) -> String;

    /// Marks a hold as to be given up.
    fn want(&self, session: SessionId, token: u64) -> String;

    /// Who has the key: see [`look`](super::look). With the board, if there is one.
    fn holders(&self, key: &Key, has_board: bool) -> String;

    /// Who waits for it, in their order: statements, as far as we may see them.
    fn waiters(&self, key: &Key) -> String;

    /// Names on the board that begin with this and are held.
    fn names(&self, prefix: &LockPrefix) -> String;

    /// How many other locks that session has, as far as can be told.
    fn others(&self, session: SessionId, token: u64) -> String;
}

/// How names begin that are looked for.
pub(super) struct LockPrefix(pub(super) String);

/// The dialect of the server in these settings.
pub(super) fn of(settings: &Settings) -> Result<Box<dyn Dialect>, Error> {
    use crate::database::Kind;
    match settings.server.kind {
        #[cfg(feature = "mysql")]
        Kind::MySql => Ok(Box::new(super::mysql::MySql)),
        #[cfg(feature = "postgres")]
        Kind::Postgres => Ok(Box::new(super::postgres::Postgres)),
        #[allow(unreachable_patterns, reason = "with both features there is none left")]
        kind => Err(Error::new(
            tenure_core::error::ErrorKind::Unsupported,
            format!("this build cannot talk to {kind:?}"),
        )),
    }
}

/// Bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The reverse of [`hex`].
pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|digit| u8::try_from(digit.to_digit(16)?).ok())
        .collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|two| two[0] << 4 | two[1]).collect())
}

/// A name from its bytes on the board.
pub(super) fn name_of(hex: &str) -> Option<LockName> {
    LockName::new(String::from_utf8(unhex(hex)?).ok()?).ok()
}

/// What a statement does, for whoever reads it in the server: `/* tenure:acquire */`.
pub(super) fn label(asks: &[Ask]) -> &'static str {
    if asks.iter().any(|ask| matches!(ask, Ask::Take { .. })) {
        "/* tenure:acquire */"
    } else if asks.iter().any(|ask| matches!(ask, Ask::Give { .. })) {
        "/* tenure:release */"
    } else {
        "/* tenure:renew */"
    }
}
