//! One function per request to the database: what is asked, and what the answer means.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::logic::lease::margin;
use tenure_core::lost::LostReason;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::rt::Clock;
use tenure_core::store::{Grant, Hold, Release, Renewal, Request};
use tenure_core::support::{HolderRecord, micros_up};
use tenure_core::time::Time;

use crate::database::Row;
use crate::waiting::{QueuePosition, waiter_ttl};

use super::errors;
use super::file_id::FileId;
use super::names::{Format, encoded};
use super::pool::{Decide, Pool, Reply};
use super::sql::Statement;
use super::sql::ending::HoldEnd;
use super::sql::modes::SEVERAL;
use super::sql::{self, Dialect, ReplyKind, shedlock};
use super::step::{Operation, Outcome};

/// The columns of a row of the table of locks in the reply to [`list`](Requests::list).
pub(super) const HOLD_COLUMNS: usize = 7;

/// The requests of one client, in the format of its table.
pub(super) struct Requests {
    pub(super) format: Format,
    /// Statements on our own tables.
    pub(super) own: sql::Statements,
    /// Statements on ShedLock's table.
    shedlock: shedlock::Statements,
    pub(super) pool: Arc<Pool>,
    pub(super) clock: Clock,
    /// The name of this host, as the driver has it: known with the first request.
    host: OnceLock<String>,
}

/// What has to be remembered of a hold to renew and to release it.
#[derive(Clone, Debug)]
pub(super) struct HeldEntry {
    pub(super) name: LockName,
    /// In µs; ShedLock's table has no column for it.
    min_hold: u64,
    /// Whether it may be a shared hold: it was acquired as one, or has become shared.
    pub(super) is_shared_hold: bool,
    /// What `locked_by` says, in ShedLock's table.
    locked_by: String,
    /// The file that granted the hold.
    pub(super) file: Option<FileId>,
    /// When this client counts the lease as over, unless the lease is renewed.
    pub(super) ends: Time,
}

impl HeldEntry {
    /// The lease counts from `sent` on. A lease that was over before the reply came stays over.
    pub(super) fn extend(&mut self, sent: Time, ttl: Option<Duration>, now: Time) {
        if self.ends > now {
            self.ends = self.ends.max(lease_end(sent, ttl));
        }
    }
}

/// When a client counts a lease as over, as far as a store knows its options.
fn lease_end(sent: Time, ttl: Option<Duration>) -> Time {
    ttl.map_or(Time::MAX, |ttl| {
        sent.after(ttl).before(margin(ttl, Duration::ZERO))
    })
}

/// The reply to a request for the lock.
pub(super) enum LockReply {
    /// With what has to be remembered.
    Granted(Grant, HeldEntry),
    Taken(QueuePosition),
}

/// The reply to a request for several names.
pub(super) enum AllReply {
    /// In the order of the requests.
    Granted(Vec<(Grant, HeldEntry)>),
    /// The name at this position is not free. Nothing was taken.
    Busy(usize),
}

/// In µs, and whole ms: what a column that has ms keeps of the duration is not shorter.
fn whole_millis(duration: Duration) -> u64 {
    micros_up(duration).div_ceil(1_000).saturating_mul(1_000)
}

/// The number in that place of a row.
pub(super) fn number(row: &[Option<String>], at: usize) -> Result<i64, Error> {
    let text = row.get(at).and_then(Option::as_deref);
    text.and_then(|text| text.parse().ok())
        .ok_or_else(errors::unexpected_reply)
}

/// The text in that place of a row.
pub(super) fn text(row: &[Option<String>], at: usize) -> Result<&str, Error> {
    let text = row.get(at).and_then(Option::as_deref);
    text.ok_or_else(errors::unexpected_reply)
}

/// A time that is left, in µs; zero when the number is negative.
pub(super) fn time_left(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

fn token(row: &[Option<String>], at: usize) -> Result<u64, Error> {
    u64::try_from(number(row, at)?).map_err(|_| errors::unexpected_reply())
}

/// How many waiters are ahead: 0 for an owner that is in no queue.
fn count_or_zero(row: &[Option<String>], at: usize) -> u64 {
    token(row, at).unwrap_or(0)
}

impl Requests {
    pub(super) fn new(
        format: Format,
        dialect: Dialect,
        table: &str,
        pool: Arc<Pool>,
        clock: Clock,
    ) -> Self {
        Self {
            format,
            own: sql::Statements::new(dialect, table),
            shedlock: shedlock::Statements::new(dialect, table),
            pool,
            clock,
            host: OnceLock::new(),
        }
    }

    /// A name as it stands in the table.
    pub(super) fn encode(&self, name: &LockName) -> String {
        encoded(self.format, name.as_str())
    }

    /// The lease that is granted: in whole µs here, and in whole ms where ShedLock's columns have those.
    pub(super) fn lease(&self, ttl: Duration) -> Duration {
        match self.format {
            Format::Tenure => {
                Duration::from_micros(u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX))
            }
            Format::ShedLock => {
                Duration::from_millis(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
            }
        }
    }

    /// The lease as it is written: a clock that knows ms may be behind by one.
    pub(super) fn written_lease(&self, ttl: Duration) -> u64 {
        let is_coarse = match self.own.dialect {
            Dialect::Sqlite => true,
            _ => self.format == Format::ShedLock,
        };
        micros_up(self.lease(ttl)) + if is_coarse { 1_000 } else { 0 }
    }

    fn lock_request(&self, request: &Request) -> sql::LockRequest {
        sql::LockRequest {
            name: self.encode(&request.name),
            owner: request.owner.to_hex(),
            ttl: self.written_lease(request.ttl),
            delay: micros_up(request.lock_delay),
            min_hold: micros_up(request.min_hold),
            waiter_ttl: micros_up(waiter_ttl(request.ttl)),
            holder: HolderRecord::from(&*request.holder).to_json(),
            stamp: match self.own.dialect {
                Dialect::Sqlite => Some(tenure_core::rt::wall_micros()),
                _ => None,
            },
        }
    }

    /// `locked_by` in ShedLock's table: the host, as other programs write it, and which of its acquisitions. Other
    /// programs write the host alone, and so can end no hold but their own.
    fn locked_by(&self, request: &Request) -> String {
        let host = self.host.get_or_init(|| {
            let host = request.holder.host.chars();
            let host = host.filter(|c| *c != '\0');
            host.take(shedlock::Statements::MAX_HOST).collect()
        });
        locked_by(host, request.owner)
    }

    /// Takes a name that is free and that nobody waits for, and no place in the queue.
    /// May be repeated for the same owner at any time.
    pub(super) async fn acquire(&self, request: &Request) -> Result<LockReply, Error> {
        if request.mode != Mode::Exclusive {
            return self.acquire_shared(request, false).await;
        }
        let (statement, own) = match self.format {
            Format::Tenure => {
                let lock_request = self.lock_request(request);
                (self.own.acquire(&lock_request), lock_request.owner)
            }
            Format::ShedLock => {
                let lock_request = shedlock::LockRequest {
                    name: self.encode(&request.name),
                    locked_by: self.locked_by(request),
                    live: self
                        .written_lease(request.ttl)
                        .max(whole_millis(request.min_hold)),
                };
                (self.shedlock.acquire(&lock_request), lock_request.locked_by)
            }
        };
        let reply = self.pool.ask_unless(statement, &request.stop).await?;
        let token = match reply.rows.last().map(Vec::as_slice) {
            None => None,
            Some([_]) => Some(token(&reply.rows[0], 0)?),
            Some(row) => match text(row, 0)? == own {
                true => Some(token(row, 1)?),
                false => None,
            },
        };
        Ok(match token {
            Some(token) => self.granted(request, &reply, token),
            None => LockReply::Taken(QueuePosition {
                sent: reply.sent,
                ask_by: match self.format {
                    Format::Tenure => reply.sent,
                    // There is no queue to enter, and reading shows when the name is free.
                    Format::ShedLock => Time::MAX,
                },
                ..QueuePosition::default()
            }),
        })
    }

    /// Takes all these names if each is free and has no waiters. Two round trips and one commit.
    pub(super) async fn acquire_all(&self, requests: &[Arc<Request>]) -> Result<AllReply, Error> {
        let mut order: Vec<_> = (0..requests.len()).collect();
        // All clients lock the rows in this order.
        order.sort_by_cached_key(|position| self.encode(&requests[*position].name));
        let written = order.iter().map(|at| self.lock_request(&requests[*at]));
        let written: Vec<_> = written.collect();
        let decide = |rows: &[Row]| {
            let is_kept = self.taken(rows, &written)?.iter().all(Option::is_some);
            Ok(self.own.end_together(is_kept))
        };
        let first = self.own.acquire_together(&written);
        let (stop, decide) = (&requests[0].stop, Some(&decide as &Decide<'_>));
        let reply = self.pool.ask_twice(first, stop, decide).await?;
        let mut granted = Vec::new();
        for (position, token) in order.iter().zip(self.taken(&reply.rows, &written)?) {
            let Some(token) = token else {
                return Ok(AllReply::Busy(*position));
            };
            let request = &requests[*position];
            if let LockReply::Granted(grant, entry) = self.granted(request, &reply, token) {
                granted.push((*position, grant, entry));
            }
        }
        granted.sort_by_key(|(position, ..)| *position);
        let granted = granted.into_iter().map(|(_, grant, entry)| (grant, entry));
        Ok(AllReply::Granted(granted.collect()))
    }

    /// The token of each name that was taken, in the order of the requests.
    fn taken(&self, rows: &[Row], written: &[sql::LockRequest]) -> Result<Vec<Option<u64>>, Error> {
        let mut tokens = vec![None; written.len()];
        for (number, row) in rows.iter().enumerate() {
            let (position, token) = match self.own.dialect {
                Dialect::MySql { .. } => {
                    let own = written.get(number).map(|it| it.owner.as_str());
                    match own == Some(text(row, 0)?) {
                        true => (number, token(row, 1)?),
                        false => continue,
                    }
                }
                _ => {
                    let position = usize::try_from(token(row, 1)?);
                    (position.unwrap_or(usize::MAX), token(row, 0)?)
                }
            };
            let slot = tokens.get_mut(position);
            *slot.ok_or_else(errors::unexpected_reply)? = Some(token);
        }
        Ok(tokens)
    }

    pub(super) fn granted(&self, request: &Request, reply: &Reply, token: u64) -> LockReply {
        let lease = Some(self.lease(request.ttl));
        let entry = HeldEntry {
            name: request.name.clone(),
            min_hold: match self.format {
                Format::Tenure => micros_up(request.min_hold),
                Format::ShedLock => whole_millis(request.min_hold),
            },
            is_shared_hold: request.mode != Mode::Exclusive,
            locked_by: match self.format {
                Format::Tenure => String::new(),
                Format::ShedLock => self.locked_by(request),
            },
            file: reply.file,
            ends: lease_end(reply.sent, lease),
        };
        let round_trip = self.clock.now().since(reply.sent);
        let grant = Grant::new(token, reply.sent, round_trip, lease);
        LockReply::Granted(grant, entry)
    }

    /// Takes a place in the queue or keeps it; takes the name instead if it is free for the first in the queue.
    pub(super) async fn enqueue(&self, request: &Request) -> Result<LockReply, Error> {
        if request.mode != Mode::Exclusive {
            return self.acquire_shared(request, true).await;
        }
        let lock_request = self.lock_request(request);
        let statement = self.own.enqueue(&lock_request);
        let reply = self.pool.ask_unless(statement, &request.stop).await?;
        let row = reply.rows.last().ok_or_else(errors::unexpected_reply)?;
        let token = token(row, 1)?;
        if text(row, 0)? == lock_request.owner {
            return Ok(self.granted(request, &reply, token));
        }
        Ok(LockReply::Taken(QueuePosition {
            ahead: count_or_zero(row, 3),
            expires_in: Some(time_left(number(row, 2)?)),
            last_token: token,
            sent: reply.sent,
            ask_by: reply.sent.after(waiter_ttl(request.ttl) / 3),
            ..QueuePosition::default()
        }))
    }

    /// Reads the queue and changes nothing. `None`: the table has no row of that name.
    pub(super) async fn read_queue(
        &self,
        request: &Request,
    ) -> Result<Option<QueuePosition>, Error> {
        if request.mode != Mode::Exclusive {
            return self.look(request, request.mode).await;
        }
        let name = self.encode(&request.name);
        let reply = self.pool.ask(match self.format {
            Format::Tenure => self.own.read_queue(&name, &request.owner.to_hex()),
            Format::ShedLock => self.shedlock.read_queue(&name),
        });
        let reply = reply.await?;
        let Some(row) = reply.rows.first() else {
            return Ok(None);
        };
        let is_shedlock = row.len() == 1;
        Ok(Some(QueuePosition {
            ahead: count_or_zero(row, 2),
            expires_in: Some(time_left(number(row, usize::from(!is_shedlock))?)),
            last_token: if is_shedlock { 0 } else { token(row, 0)? },
            sent: reply.sent,
            // Reading keeps no place.
            ask_by: Time::MAX,
            ..QueuePosition::default()
        }))
    }

    /// Renews these holds with one request. The entry is `None` where nothing is remembered of a hold. Holds that may be
    /// beside others are renewed by [`renew_shared`](Self::renew_shared).
    pub(super) async fn renew(
        &self,
        holds: &[(Hold, Option<HeldEntry>)],
    ) -> Result<Vec<Renewal>, Error> {
        // A request would make the file again.
        if self.pool.is_file_gone(None)? {
            let lost = |_| Renewal::Lost(LostReason::TakenOver);
            return Ok(holds.iter().map(lost).collect());
        }
        let written = holds.iter().map(|(hold, entry)| {
            let owner = match self.format {
                Format::Tenure => hold.owner.to_hex(),
                Format::ShedLock => entry
                    .as_ref()
                    .map(|entry| entry.locked_by.clone())
                    .unwrap_or_default(),
            };
            (self.encode(&hold.name), owner, self.written_lease(hold.ttl))
        });
        let written: Vec<_> = written.collect();
        let written: Vec<_> = written
            .iter()
            .map(|(name, owner, ttl)| (name.as_str(), owner.as_str(), *ttl))
            .collect();
        let reply = self.pool.ask(match self.format {
            Format::Tenure => self.own.renew(&written),
            Format::ShedLock => self.shedlock.renew(&written),
        });
        let reply = reply.await?;
        let mut found = HashMap::new();
        // Other rows are those of the statement that locks.
        for row in reply.rows.iter().filter(|row| row.len() == 3) {
            found.insert(text(row, 0)?, (text(row, 1)?, number(row, 2)? == 1));
        }
        let renewals = holds.iter().zip(&written);
        let renewals = renewals.map(|((hold, entry), (name, owner, _))| {
            let is_in_other_file = entry.as_ref().is_some_and(|it| it.file != reply.file);
            match found.get(name) {
                _ if is_in_other_file => Renewal::Lost(LostReason::TakenOver),
                Some((holder, true)) if holder == owner => Renewal::Renewed {
                    sent: reply.sent,
                    ttl: Some(self.lease(hold.ttl)),
                },
                Some((holder, true)) if !holder.is_empty() => Renewal::Lost(LostReason::TakenOver),
                _ => Renewal::Lost(LostReason::StoreSaysNo),
            }
        });
        Ok(renewals.collect())
    }

    /// Releases a hold, or an acquisition of unknown outcome, which may have a place in the queue instead (then
    /// nothing is remembered of it).
    pub(super) async fn release(
        &self,
        hold: &Hold,
        entry: Option<&HeldEntry>,
    ) -> Result<Release, Error> {
        if self.pool.is_file_gone(entry.map(|entry| entry.file))? {
            return Ok(Release::NotHeld);
        }
        if hold.mode != Mode::Exclusive || entry.is_some_and(|entry| entry.is_shared_hold) {
            return self.release_shared(hold).await;
        }
        let (name, owner) = (self.encode(&hold.name), hold.owner.to_hex());
        let statement = match (self.format, entry) {
            (Format::Tenure, None) => return self.dequeue(hold).await,
            (Format::Tenure, Some(_)) => self.own.release(&name, &owner, end_of(hold)),
            (Format::ShedLock, Some(entry)) => {
                let min_hold = match hold.unused {
                    true => 0,
                    false => entry.min_hold,
                };
                self.shedlock.release(&name, &entry.locked_by, min_hold)
            }
            (Format::ShedLock, None) => {
                let host = self.host.get().map_or("", String::as_str);
                self.shedlock
                    .release(&name, &locked_by(host, hold.owner), 0)
            }
        };
        let reply_kind = statement.reply_kind;
        let reply = self.pool.ask(statement).await?;
        released(has_changed(reply_kind, &reply)?, reply.is_repeated)
    }

    async fn dequeue(&self, hold: &Hold) -> Result<Release, Error> {
        let (name, owner) = (self.encode(&hold.name), hold.owner.to_hex());
        let statement = self.own.dequeue(&name, &owner, end_of(hold));
        let reply = self.pool.ask(statement).await?;
        let (mut was_held, mut are_shared) = (false, false);
        if let Some(row) = reply.rows.first() {
            let (holder, is_live) = (text(row, 0)?, number(row, 1)? > 0);
            was_held = holder == owner && is_live;
            are_shared = holder == SEVERAL && is_live;
        }
        if are_shared {
            // Waiters behind this one may go with the holders. Without an answer they find that out themselves.
            let _ = self.step(&hold.name, "release", &Operation::Serve).await;
        }
        released(was_held, reply.is_repeated)
    }

    /// Ends the hold with that token. `false`: there is none.
    pub(super) async fn break_hold(&self, lock_name: &LockName, token: u64) -> Result<bool, Error> {
        let name = self.encode(lock_name);
        let statement = match self.format {
            Format::Tenure => self.own.break_lock(&name, token),
            Format::ShedLock => self.shedlock.break_lock(&name, token),
        };
        let reply_kind = statement.reply_kind;
        let reply = self.pool.ask(statement).await?;
        let (mut is_broken, mut is_repeated) =
            (has_changed(reply_kind, &reply)?, reply.is_repeated);
        if !is_broken && self.format == Format::Tenure {
            // The hold may be one beside others.
            let operation = Operation::Break { token };
            let (outcome, reply) = self.step(lock_name, "break", &operation).await?;
            is_broken = outcome == Outcome::Done;
            is_repeated |= reply.is_repeated;
        }
        match (is_broken, is_repeated) {
            (false, true) => Err(Error::new(
                ErrorKind::Indeterminate,
                "the connection broke; it was ended just then, or had ended before",
            )),
            (is_broken, _) => Ok(is_broken),
        }
    }

    /// The rows of one name.
    pub(super) async fn inspect(&self, name: &LockName) -> Result<Vec<Row>, Error> {
        let name = self.encode(name);
        let reply = self.pool.ask(match self.format {
            Format::Tenure => self.own.inspect(&name),
            Format::ShedLock => self.shedlock.inspect(&name, false),
        });
        Ok(reply.await?.rows)
    }

    /// The rows of all names that begin with `prefix`.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<Row>, Error> {
        let mut page = match self.format {
            Format::Tenure => self.own.list(prefix),
            Format::ShedLock => {
                let reply = self.pool.ask(self.shedlock.inspect(prefix, true));
                return Ok(reply.await?.rows);
            }
        };
        let mut all = Vec::new();
        loop {
            let rows = self.pool.ask(page).await?.rows;
            let is_hold = |row: &&Row| row.len() == HOLD_COLUMNS;
            let count = rows.iter().filter(is_hold).count();
            let last = rows.iter().rfind(is_hold);
            let last = last
                .map(|row| text(row, 0).map(str::to_owned))
                .transpose()?;
            all.extend(rows);
            match last {
                Some(last) if count >= sql::LIST_PAGE => page = self.own.list_more(prefix, &last),
                _ => return Ok(all),
            }
        }
    }

    /// Fails where the tables are not there, or the server would not let this user lock. Changes nothing.
    pub(super) async fn probe(&self) -> Result<(), Error> {
        let statement = match self.format {
            Format::Tenure => self.own.probe(),
            Format::ShedLock => self.shedlock.probe(),
        };
        self.pool.ask(statement).await.map(drop)
    }

    /// The same for modes other than the exclusive one.
    pub(super) async fn probe_modes(&self) -> Result<(), Error> {
        match self.format {
            Format::Tenure => self.pool.ask(self.own.probe_modes()).await.map(drop),
            Format::ShedLock => Ok(()),
        }
    }

    /// The rows of a statement that changes nothing.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(super) async fn read(&self, sql: String) -> Result<Vec<Row>, Error> {
        Ok(self.pool.ask(Statement::rows(sql)).await?.rows)
    }
}

/// Whether a statement that changes one row has changed it.
fn has_changed(reply_kind: ReplyKind, reply: &Reply) -> Result<bool, Error> {
    match reply_kind {
        ReplyKind::Rows => Ok(!reply.rows.is_empty()),
        ReplyKind::ChangedCount => {
            let row = reply.rows.first().ok_or_else(errors::unexpected_reply)?;
            Ok(number(row, 0)? > 0)
        }
    }
}

/// How this hold ends when it is released.
pub(super) fn end_of(hold: &Hold) -> HoldEnd {
    match (hold.unused, hold.unclean) {
        (true, _) => HoldEnd::Unused,
        (false, true) => HoldEnd::Unclean,
        (false, false) => HoldEnd::Clean,
    }
}

fn locked_by(host: &str, owner: OwnerId) -> String {
    format!("{host}:{}", owner.to_hex())
}

pub(super) fn released(was_held: bool, is_repeated: bool) -> Result<Release, Error> {
    match (was_held, is_repeated) {
        (true, _) => Ok(Release::Released),
        (false, false) => Ok(Release::NotHeld),
        (false, true) => Err(Error::new(
            ErrorKind::Indeterminate,
            "the connection broke; it was released just then, or had ended before",
        )),
    }
}
