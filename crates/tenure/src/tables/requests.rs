//! One function per request to the database: what is asked, and what the answer means.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::logic::lease::margin;
use tenure_core::logic::table::Table;
use tenure_core::lost::LostReason;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::rt::{Clock, lock, wall_micros};
use tenure_core::store::{AllAnswer, Grant, Hold, Release, Renewal, Request};
use tenure_core::support::{HoldRegistry, HolderRecord, micros_up, millis_down};
use tenure_core::time::Time;

use crate::database::Row;
use crate::waiting::{self, AcquireReply, QueuePosition};

use super::cells::{natural, number, text, time_left};
use super::errors;
use super::file_id::FileId;
use super::names::{Format, encoded};
use super::pool::{Decide, Pool, StatementReply};
use super::sql::ending::HoldEnd;
use super::sql::modes::Access;
use super::sql::{self, Dialect, SEVERAL, shedlock};
use super::step::{NameRows, StepSubject};

/// The columns of a row of the table of locks in the reply to [`list`](Requests::list).
pub(super) const HOLD_COLUMNS: usize = 9;

/// The requests of one client, in the format of its table.
pub(super) struct Requests {
    pub(super) format: Format,
    /// Statements on our own tables.
    pub(super) own: sql::Statements,
    /// Statements on ShedLock's table.
    shedlock: shedlock::Statements,
    pub(super) pool: Arc<Pool>,
    /// What was granted to this client.
    pub(super) holds: HoldRegistry<HeldRow>,
    /// Candidates whose request for the lock got no answer: observers may have been told of a grant. The release, which the
    /// driver sends after that, tells them too.
    pub(super) unanswered: Mutex<HashSet<OwnerId>>,
    pub(super) clock: Clock,
    /// The name of this host, as the driver has it: known with the first request.
    host: OnceLock<String>,
}

/// What has to be remembered of a hold to renew and to release it.
#[derive(Clone, Debug)]
pub(super) struct HeldRow {
    pub(super) name: LockName,
    /// In µs; ShedLock's table has no column for it.
    pub(super) min_hold: u64,
    /// Whether it may be a shared hold: it was acquired as one, or has become shared.
    pub(super) is_shared_hold: bool,
    /// Whether the holder is the leader of an election, so that observers are told of its end.
    pub(super) is_leader: bool,
    /// Whether renewals find out that the holder is asked to let go.
    pub(super) finds_requests: bool,
    /// Whether the driver renews the hold.
    pub(super) is_renewed: bool,
    /// What `locked_by` says, in ShedLock's table.
    pub(super) locked_by: String,
    /// Whether the hold goes on when this client is closed: the client is attached to the hold, or is detaching it.
    pub(super) outlives_client: bool,
    /// The file that granted the hold.
    pub(super) file: Option<FileId>,
    /// When this client counts the lease as over, unless the lease is renewed.
    pub(super) ends: Time,
}

/// Which holds are renewed by one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RenewalKind {
    /// Holds that may be shared.
    pub(super) are_shared: bool,
    /// Holds whose renewal finds out that the holder is asked to let go.
    pub(super) find_requests: bool,
}

impl HeldRow {
    /// The lease counts from `sent` on. A lease that was over before the reply came stays over.
    pub(super) fn extend(&mut self, sent: Time, ttl: Option<Duration>, now: Time) {
        if self.ends > now {
            self.ends = self.ends.max(lease_end(sent, ttl));
        }
    }
}

/// When a client counts a lease as over, as far as a store knows its options.
pub(super) fn lease_end(sent: Time, ttl: Option<Duration>) -> Time {
    ttl.map_or(Time::MAX, |ttl| {
        sent.after(ttl).before(margin(ttl, Duration::ZERO))
    })
}

/// In µs, and whole ms: what a column that has ms keeps of the duration is not shorter.
fn whole_millis(duration: Duration) -> u64 {
    micros_up(duration).div_ceil(1_000).saturating_mul(1_000)
}

fn token(row: &[Option<String>], at: usize) -> Result<u64, Error> {
    u64::try_from(number(row, at)?).map_err(|_| errors::unexpected_reply())
}

/// How many waiters are ahead: 0 for an owner that is in no queue.
fn count_or_zero(row: &[Option<String>], at: usize) -> u64 {
    natural(row, at).unwrap_or(0)
}

/// What the rows of a renewal say.
#[derive(Default)]
struct RenewedRows<'a> {
    /// The holds that are alive, by name and owner, each with whether its holder is asked to let go.
    live: HashMap<(&'a str, &'a str), bool>,
    /// The names that have a holder, so that a hold that is not alive was taken.
    taken: HashSet<&'a str>,
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
            holds: HoldRegistry::default(),
            unanswered: Mutex::default(),
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
            Format::ShedLock => Duration::from_millis(millis_down(ttl)),
        }
    }

    /// The lease as it is written: a clock that knows ms may be behind by one.
    pub(super) fn written_lease(&self, ttl: Duration) -> u64 {
        let is_coarse = self.own.dialect == Dialect::Sqlite || self.format == Format::ShedLock;
        micros_up(self.lease(ttl)) + if is_coarse { 1_000 } else { 0 }
    }

    /// The least token to grant, where the clock of the database is that of this machine and has ms. `None`: the clock of
    /// the database.
    pub(super) fn stamp(&self) -> Option<u64> {
        (self.own.dialect == Dialect::Sqlite).then(wall_micros)
    }

    fn acquire_item(&self, request: &Request) -> sql::AcquireItem {
        sql::AcquireItem {
            name: self.encode(&request.name),
            owner: request.owner.to_hex(),
            ttl: self.written_lease(request.ttl),
            delay: micros_up(request.lock_delay),
            min_hold: micros_up(request.min_hold),
            holder: HolderRecord::from(&*request.holder).to_json(),
            stamp: self.stamp(),
            is_candidate: request.holder.value.is_some(),
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

    /// Takes a name that is free and has no waiters. Enters no queue.
    /// May be repeated for the same owner at any time.
    pub(super) async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        if request.mode != Mode::Exclusive {
            return self.acquire_shared(request, None).await;
        }
        let (statement, own) = match self.format {
            Format::Tenure => {
                let acquire_item = self.acquire_item(request);
                (self.own.acquire(&acquire_item), acquire_item.owner)
            }
            Format::ShedLock => {
                let acquire_item = shedlock::AcquireItem {
                    name: self.encode(&request.name),
                    locked_by: self.locked_by(request),
                    live: self
                        .written_lease(request.ttl)
                        .max(whole_millis(request.min_hold)),
                };
                (self.shedlock.acquire(&acquire_item), acquire_item.locked_by)
            }
        };
        let reply = self.ask_for_lock(statement, request).await?;
        let token = match reply.rows.last().map(Vec::as_slice) {
            None => None,
            Some([_]) => Some(token(&reply.rows[0], 0)?),
            Some(row) => match text(row, 0)? == own {
                true => Some(token(row, 1)?),
                false => None,
            },
        };
        Ok(match token {
            Some(token) => AcquireReply::Granted(self.granted(request, &reply, token)),
            None => AcquireReply::Taken(QueuePosition {
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
    pub(super) async fn acquire_all(&self, requests: &[Arc<Request>]) -> Result<AllAnswer, Error> {
        let mut order: Vec<_> = (0..requests.len()).collect();
        // All clients lock the rows in this order.
        order.sort_by_cached_key(|position| self.encode(&requests[*position].name));
        let written = order.iter().map(|at| self.acquire_item(&requests[*at]));
        let written: Vec<_> = written.collect();
        let decide = |rows: &[Row]| {
            let is_kept = self.taken(rows, &written)?.iter().all(Option::is_some);
            Ok(self.own.end_together(is_kept))
        };
        let first = self.own.acquire_together(&written);
        let (stop, decide) = (&requests[0].stop, Some(&decide as &Decide<'_>));
        let reply = self.pool.ask_twice(first, stop, decide).await?;
        let tokens = self.taken(&reply.rows, &written)?;
        if let Some(at) = tokens.iter().position(Option::is_none) {
            return Ok(AllAnswer::Busy(order[at]));
        }
        let granted = order.iter().zip(tokens.into_iter().flatten());
        let granted = granted.map(|(at, token)| (*at, self.granted(&requests[*at], &reply, token)));
        let mut granted: Vec<_> = granted.collect();
        granted.sort_by_key(|(at, _)| *at);
        let grants = granted.into_iter().map(|(_, grant)| grant);
        Ok(AllAnswer::Granted(grants.collect()))
    }

    /// The token of each name that was taken, in the order of the requests.
    fn taken(&self, rows: &[Row], written: &[sql::AcquireItem]) -> Result<Vec<Option<u64>>, Error> {
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

    /// Remembers a hold that is about to be passed to the driver.
    pub(super) fn granted(&self, request: &Request, reply: &StatementReply, token: u64) -> Grant {
        let grant = self.grant(request, reply, token);
        let is_leader = request.holder.value.is_some();
        let entry = HeldRow {
            name: request.name.clone(),
            min_hold: whole_millis(request.min_hold),
            is_shared_hold: request.mode != Mode::Exclusive,
            is_leader,
            finds_requests: is_leader,
            is_renewed: request.is_renewed,
            locked_by: match self.format {
                Format::Tenure => String::new(),
                Format::ShedLock => self.locked_by(request),
            },
            outlives_client: false,
            file: reply.file,
            ends: lease_end(reply.sent, grant.ttl),
        };
        self.holds.insert(request.owner, entry);
        if is_leader {
            lock(&self.unanswered).remove(&request.owner);
        }
        grant
    }

    pub(super) fn grant(&self, request: &Request, reply: &StatementReply, token: u64) -> Grant {
        let round_trip = self.clock.now().since(reply.sent);
        Grant::new(token, reply.sent, round_trip, Some(self.lease(request.ttl)))
    }

    /// Takes a place in the queue or keeps it for the time `place`; takes the name instead if it is free for the first in
    /// the queue.
    pub(super) async fn enqueue(
        &self,
        request: &Request,
        place: Duration,
    ) -> Result<AcquireReply, Error> {
        if request.mode != Mode::Exclusive {
            return self.acquire_shared(request, Some(place)).await;
        }
        let acquire_item = self.acquire_item(request);
        let statement = self.own.enqueue(&acquire_item, micros_up(place));
        let reply = self.ask_for_lock(statement, request).await?;
        let row = reply.rows.last().ok_or_else(errors::unexpected_reply)?;
        let token = token(row, 1)?;
        if text(row, 0)? == acquire_item.owner {
            let grant = self.granted(request, &reply, token);
            return Ok(AcquireReply::Granted(grant));
        }
        Ok(AcquireReply::Taken(QueuePosition {
            ahead: count_or_zero(row, 3),
            expires_in: Some(time_left(row, 2)?),
            last_token: token,
            sent: reply.sent,
            ask_by: waiting::keep_by(reply.sent, place),
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
            expires_in: Some(time_left(row, usize::from(!is_shedlock))?),
            last_token: if is_shedlock { 0 } else { token(row, 0)? },
            sent: reply.sent,
            // Reading keeps no place.
            ask_by: Time::MAX,
            ..QueuePosition::default()
        }))
    }

    /// What tells the holds of one owner apart. An owner in ShedLock's table has one name, and the row may have another text for
    /// that name, which the column counts as equal: with a capital letter, or without the spaces at the end.
    fn name_of_hold<'a>(&self, name: &'a str) -> &'a str {
        match self.format {
            Format::Tenure => name,
            Format::ShedLock => "",
        }
    }

    fn read_renewed<'a>(
        &self,
        rows: &'a [Row],
        are_shared: bool,
    ) -> Result<RenewedRows<'a>, Error> {
        let mut renewed = RenewedRows::default();
        // Other rows are those of the statement that locks.
        for row in rows.iter().filter(|row| row.len() >= 3) {
            let (name, owner) = (text(row, 0)?, text(row, 1)?);
            if number(row, 2)? == 1 {
                let is_asked = row.len() > 3 && number(row, 3)? == 1;
                let key = (self.name_of_hold(name), owner);
                renewed.live.insert(key, is_asked);
                // Among several holders a shared hold may have ended by itself.
                let are_several = are_shared && owner == SEVERAL;
                if !owner.is_empty() && !are_several {
                    renewed.taken.insert(name);
                }
            }
        }
        Ok(renewed)
    }

    /// Renews these holds with one request. Also returns whether each holder is asked to let go.
    pub(super) async fn renew(
        &self,
        holds: &[&Hold],
        kind: RenewalKind,
    ) -> Result<Vec<(Renewal, bool)>, Error> {
        // A request would make the file again.
        if self.pool.is_file_gone(None)? {
            let lost = |_| (Renewal::Lost(LostReason::TakenOver), false);
            return Ok(holds.iter().map(lost).collect());
        }
        // Nothing may be remembered of a hold.
        let entries = holds.iter().map(|hold| self.holds.get(hold.owner));
        let holds: Vec<_> = holds.iter().zip(entries).collect();
        let written = holds.iter().map(|(hold, entry)| sql::RenewItem {
            name: self.encode(&hold.name),
            owner: match (self.format, entry) {
                (Format::Tenure, _) => hold.owner.to_hex(),
                (Format::ShedLock, Some(entry)) => entry.locked_by.clone(),
                (Format::ShedLock, None) => String::new(),
            },
            ttl: self.written_lease(hold.ttl),
        });
        let written: Vec<_> = written.collect();
        let reply = self.pool.ask(match self.format {
            Format::Tenure if kind.are_shared => self.own.renew_modes(&written, kind.find_requests),
            Format::Tenure => self.own.renew(&written, kind.find_requests),
            Format::ShedLock => self.shedlock.renew(&written),
        });
        let reply = reply.await?;
        let RenewedRows { live, taken } = self.read_renewed(&reply.rows, kind.are_shared)?;
        let renewals = holds.iter().zip(&written).map(|((hold, entry), item)| {
            let (name, owner) = (item.name.as_str(), item.owner.as_str());
            let is_asked = live.get(&(self.name_of_hold(name), owner));
            let renewal = match entry {
                Some(entry) if entry.file != reply.file => Renewal::Lost(LostReason::TakenOver),
                _ if is_asked.is_some() => Renewal::Renewed {
                    sent: reply.sent,
                    ttl: Some(self.lease(hold.ttl)),
                },
                _ if taken.contains(name) => Renewal::Lost(LostReason::TakenOver),
                _ => Renewal::Lost(LostReason::StoreSaysNo),
            };
            (renewal, is_asked == Some(&true))
        });
        Ok(renewals.collect())
    }

    /// Releases a hold, or an acquisition of unknown outcome, which may have a place in the queue instead (then
    /// nothing is remembered of it).
    pub(super) async fn release(
        &self,
        hold: &Hold,
        entry: Option<&HeldRow>,
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
            (Format::Tenure, Some(entry)) => {
                let end = HoldEnd::of(hold);
                self.own.release(&name, &owner, end, entry.is_leader)
            }
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
        let reply = self.pool.ask(statement).await?;
        released(!reply.rows.is_empty(), reply.is_repeated)
    }

    async fn dequeue(&self, hold: &Hold) -> Result<Release, Error> {
        let (name, owner) = (self.encode(&hold.name), hold.owner.to_hex());
        let may_lead = lock(&self.unanswered).contains(&hold.owner);
        let end = HoldEnd::of(hold);
        let statement = self.own.dequeue(&name, &owner, end, may_lead);
        let reply = self.pool.ask(statement).await?;
        let (mut was_held, mut are_shared) = (false, false);
        if let Some(row) = reply.rows.first() {
            let (holder, is_live) = (text(row, 0)?, number(row, 1)? > 0);
            was_held = holder == owner && is_live;
            are_shared = holder == SEVERAL && is_live;
        }
        if are_shared {
            // Waiters behind this one may be compatible with the holders. Without an answer they find that out themselves.
            let _ = self
                .step(StepSubject::Name(&hold.name, "release"), |_, _| ())
                .await;
        }
        let released = released(was_held, reply.is_repeated)?;
        if may_lead {
            lock(&self.unanswered).remove(&hold.owner);
        }
        Ok(released)
    }

    /// Ends the hold with that token. `false`: there is none.
    pub(super) async fn break_hold(&self, lock_name: &LockName, token: u64) -> Result<bool, Error> {
        let name = self.encode(lock_name);
        let statement = match self.format {
            Format::Tenure => self.own.break_lock(&name, token),
            Format::ShedLock => self.shedlock.break_lock(&name, token),
        };
        let reply = self.pool.ask(statement).await?;
        let (mut is_broken, mut is_repeated) = (!reply.rows.is_empty(), reply.is_repeated);
        if !is_broken && self.format == Format::Tenure {
            // The hold may be a shared one.
            let subject = StepSubject::Name(lock_name, "break");
            let end = |table: &mut Table, now| table.break_hold(lock_name, token, now);
            let stepped = self.step(subject, end).await?;
            is_broken = stepped.answer == Some(true);
            is_repeated |= stepped.reply.is_repeated;
        }
        if !is_broken
            && self.format == Format::Tenure
            && let Some(token) = self.token_of_turn(lock_name, token).await?
        {
            let reply = self.pool.ask(self.own.break_lock(&name, token)).await?;
            is_broken = !reply.rows.is_empty();
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

    /// The rows of one name, and when they were asked for. `None`: the table has no row of that name.
    pub(super) async fn name_rows<'a>(
        &self,
        name: &'a LockName,
        purpose: &'static str,
    ) -> Result<(Option<NameRows<'a>>, Time), Error> {
        let access = Access::Look(purpose);
        let statement = self.own.read_name(&self.encode(name), access);
        let reply = self.pool.ask(statement).await?;
        Ok((NameRows::read(name, &reply.rows, None)?, reply.sent))
    }

    /// The rows of one name in ShedLock's table.
    pub(super) async fn shedlock_rows(&self, name: &LockName) -> Result<Vec<Row>, Error> {
        let statement = self.shedlock.inspect(&self.encode(name), false);
        Ok(self.pool.ask(statement).await?.rows)
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
        Ok(self.pool.ask(sql::Statement::rows(sql)).await?.rows)
    }
}

fn locked_by(host: &str, owner: OwnerId) -> String {
    format!("{host}:{}", owner.to_hex())
}

pub(super) fn released(was_held: bool, is_repeated: bool) -> Result<Release, Error> {
    match (was_held, is_repeated) {
        (false, true) => Err(Error::new(
            ErrorKind::Indeterminate,
            "the connection broke; it was released just then, or had ended before",
        )),
        _ => Ok(Release::of(was_held)),
    }
}
