//! Who holds, who waits; for people, and for nothing that decides.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use tenure_core::backend::{Finding, Severity};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::{HoldInfo, Holder, Status};
use tenure_core::logic::pace;
use tenure_core::name::LockName;
use tenure_core::options::Mode;

use crate::database::Kind;
use tenure_core::support::HolderRecord;

use super::dialect::{LockPrefix, Row, SessionId, name_of, unhex};
use super::hold::Store;
use super::wait::description;

/// How often it is looked again for a note that is yet to be written.
const LOOKS: u32 = 6;

/// A note is written by then, on a server that is not overwhelmed.
const BEHIND: Duration = Duration::from_millis(100);

/// What a row of [`holders`](super::dialect::Dialect::holders) says.
struct Seen {
    session: SessionId,
    token: Option<u64>,
    info: HoldInfo,
}

impl Seen {
    /// Session, its beginning, token, holder, mode, since, ttl; user, host, idle for.
    fn read(row: &Row) -> Option<Self> {
        let cell = |at: usize| row.get(at)?.as_deref();
        let number = |at: usize| cell(at)?.split('.').next()?.parse::<u64>().ok();
        let session = SessionId {
            id: number(0)?,
            since: number(1).unwrap_or(0),
        };
        let written: Option<HolderRecord> = cell(3)
            .and_then(unhex)
            .and_then(|json| serde_json::from_slice(&json).ok());
        let token = number(2);
        let mut holder = match written {
            Some(written) => written.into(),
            // A foreign one, or one without a board: what the server knows of it.
            None => {
                let mut holder = Holder::new(cell(8).unwrap_or_default(), 0);
                holder.label = format!(
                    "connection {} of {}",
                    session.id,
                    cell(7).unwrap_or("an unknown user")
                );
                holder
            }
        };
        holder.since = number(5).map(|since| UNIX_EPOCH + Duration::from_micros(since));
        let mode = match cell(4) {
            Some("shared") => Mode::Shared,
            _ => Mode::Exclusive,
        };
        let ttl = number(6).map(Duration::from_micros);
        let idle = Duration::from_micros(number(9).unwrap_or(0));
        let left = ttl.map(|ttl| ttl.saturating_sub(idle));
        Some(Self {
            session,
            token,
            info: HoldInfo::new(holder, mode, token, left),
        })
    }
}

impl Store {
    async fn seen(self: &Arc<Self>, name: &LockName) -> Result<Vec<Seen>, Error> {
        let key = self.key(name).await?;
        let mut looks = 0;
        loop {
            let has_board = self.board.is_there();
            let rows = self.look(self.dialect.holders(&key, has_board)).await;
            let rows = match rows {
                Err(err) if has_board && err.kind() == ErrorKind::Denied => {
                    self.board.is_gone();
                    continue;
                }
                rows => rows?,
            };
            let seen: Vec<_> = rows.iter().filter_map(Seen::read).collect();
            looks += 1;
            // Its note may be a moment behind.
            let is_whole = !has_board || seen.iter().all(|seen| seen.token.is_some());
            if is_whole || looks >= LOOKS {
                return Ok(seen);
            }
            let pause = pace::next(looks + 3, rand::random(), None, None);
            let now = self.clock.now();
            self.clock
                .sleep_until(now.after(pause.unwrap_or(pace::CAP)))
                .await;
        }
    }

    pub(super) async fn inspect(self: Arc<Self>, name: LockName) -> Result<Status, Error> {
        let seen = self.seen(&name).await?;
        let key = self.key(&name).await?;
        let waiters = self.look(self.dialect.waiters(&key)).await?;
        let mut status = Status::free(name);
        status.holds = seen.into_iter().map(|seen| seen.info).collect();
        let waiter = |row: &Row| {
            let statement = row.first()?.as_deref();
            let written = statement.and_then(description);
            Some(written.unwrap_or_default().into())
        };
        status.queue = Some(waiters.iter().filter_map(waiter).collect());
        if !status.is_held() && self.settings.restart_guard.is_some() {
            let desk = self.desk().await?;
            status.set_restart_guard(self.restart_guard(&desk));
        }
        Ok(status)
    }

    pub(super) async fn list(self: Arc<Self>, prefix: String) -> Result<Vec<Status>, Error> {
        self.need_board()?;
        // Of a hold that nobody has written down yet only its holder knows.
        let at = self.clock.now().after(BEHIND);
        self.clock.sleep_until(at).await;
        let rows = self.look(self.dialect.names(&LockPrefix(prefix))).await?;
        let name = |row: &Row| name_of(row.first()?.as_deref()?);
        let mut names: Vec<_> = rows.iter().filter_map(name).collect();
        names.sort();
        names.dedup();
        let mut held = Vec::new();
        for name in names {
            let status = self.clone().inspect(name).await?;
            if status.is_held() {
                held.push(status);
            }
        }
        Ok(held)
    }

    fn need_board(&self) -> Result<(), Error> {
        if self.board.is_there() {
            return Ok(());
        }
        let server = &self.settings.server;
        Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{server} does not say what its locks are called, and has no table tenure_holders for that; `tenure check --init` makes it"
            ),
        ))
    }

    pub(super) async fn break_lock(
        self: Arc<Self>,
        name: LockName,
        token: u64,
    ) -> Result<bool, Error> {
        self.need_board()?;
        let find = |seen: Vec<Seen>| seen.into_iter().find(|it| it.token == Some(token));
        let Some(seen) = find(self.seen(&name).await?) else {
            return Ok(false);
        };
        let session = seen.session;
        // Its holder gives it up: nobody else can take one lock of a session away.
        self.look(self.dialect.want(session, token)).await?;
        let patience = self
            .settings
            .validate
            .max(Duration::from_secs(1))
            .saturating_mul(2)
            .saturating_add(self.settings.server.timeout);
        let limit = self.clock.now().after(patience);
        for tries in 4.. {
            let pause = pace::next(tries, rand::random(), None, None).unwrap_or(pace::CAP);
            self.clock.sleep_until(self.clock.now().after(pause)).await;
            if find(self.seen(&name).await?).is_none() {
                return Ok(true);
            }
            if self.is_past(limit) {
                break;
            }
        }
        // It does not listen. Its session can be ended if nothing else hangs on it.
        let others = self.look(self.dialect.others(session, token)).await?;
        let others = others.first().and_then(|row| row.first()?.clone());
        if others.as_deref() == Some("0") {
            // The row was found a moment ago, by a session of the same run of the server.
            self.look(self.dialect.kill(session)).await?;
            return Ok(true);
        }
        Err(Error::new(
            ErrorKind::Backend,
            format!(
                "the holder does not answer, and its session {} has other locks too; they all end with it, within {:?} at most if it is dead, or now if you end that session in the server",
                session.id,
                seen.info.ttl_left.unwrap_or_default()
            ),
        ))
    }

    pub(super) async fn check(self: Arc<Self>) -> Result<Vec<Finding>, Error> {
        let server = &self.settings.server;
        let desk = self.desk().await?;
        let version = &desk.facts.version;
        let product = match server.kind {
            Kind::MySql => "MySQL",
            Kind::Postgres => "PostgreSQL",
        };
        let good = |text: String| Finding::new(Severity::Good, text);
        let warning = |text: String| Finding::new(Severity::Warning, text);
        let mut findings = vec![good(format!("{server} is {product} {version}"))];
        findings.extend(server.plaintext());
        findings.push(match desk.facts.ends_idle {
            true => good("the server ends a session that is silent for a ttl, and its locks with it".into()),
            false => warning(format!(
                "{version} does not end silent sessions: the locks of a host that vanished are free when TCP notices; use PostgreSQL 14 or later"
            )),
        });
        if desk.facts.capacity == 1 {
            findings.push(warning(format!(
                "a session of {version} has one lock at a time, so every lock takes a connection of its own; use MySQL 5.7.5 or MariaDB 10.0.2 or later"
            )));
        }
        findings.push(match self.settings.restart_guard {
            Some(guard) => good(format!(
                "a restart forgets locks; after one nothing is granted for {guard:?} (restart_guard)"
            )),
            // The table of promises says so too; it voids nothing else.
            None => warning(
                "restart_guard is off and the server forgets locks when it restarts: then two clients can hold a lock; set restart_guard to the longest ttl in use".into(),
            ),
        });
        self.find_board().await;
        findings.push(match self.board.is_there() {
            true => good("the table tenure_holders says who holds".into()),
            false => warning(
                "there is no table tenure_holders, so nobody can see who holds, and list and break do not work; `tenure check --init` makes it".into(),
            ),
        });
        findings.push(warning(
            "locks of a session are not replicated: after a failover the new server knows none of them; use mode=table where that matters".into(),
        ));
        Ok(findings)
    }

    /// Whether there is a board that we may use.
    pub(super) async fn find_board(self: &Arc<Self>) {
        if self.look(self.dialect.find_board()).await.is_ok() {
            self.board.found();
        }
    }

    pub(super) async fn init(self: Arc<Self>) -> Result<Vec<String>, Error> {
        if self.look(self.dialect.find_board()).await.is_ok() {
            self.board.found();
            return Ok(Vec::new());
        }
        let made = self.look(self.dialect.make_board()).await;
        // Somebody else may be doing the same.
        self.look(self.dialect.find_board())
            .await
            .map_err(|err| made.err().unwrap_or(err))?;
        self.board.found();
        Ok(vec!["table tenure_holders".to_owned()])
    }
}
