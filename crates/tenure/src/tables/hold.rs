//! One lock: asked for, kept, given back.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tenure_core::backend::{Grant, Hold, Release, Renewal, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::{OwnerId, RandomAlready};
use tenure_core::guarantees::Guarantees;
use tenure_core::lost::LostReason;
use tenure_core::name::LockName;
use tenure_core::rt::{Clock, Flag, lock};
use tenure_core::support::HolderRecord;
use tenure_core::time::Time;

#[cfg(feature = "sqlite")]
use super::database_file::FileId;
use super::errors;
use super::names::{Format, encoded};
use super::pool::{Pool, Reply};
use super::settings::{self, Settings};
use super::sql::shedlock;
use super::sql::{self as statements, ReplyKind, name_of};

/// How long a place in the queue is good for without a sign of its waiter, at most. A waiter that died costs
/// those behind it this long.
pub(super) const WAITER_TTL: Duration = Duration::from_secs(5);

/// How many holds are renewed by one request.
const BATCH: usize = 200;

/// What one client knows of its store.
pub(super) struct Store {
    pub(super) settings: Settings,
    pub(super) guarantees: Guarantees,
    pub(super) ours: statements::Statements,
    pub(super) theirs: shedlock::Statements,
    pub(super) pool: Arc<Pool>,
    #[cfg(feature = "postgres")]
    pub(super) subscribe: Arc<super::subscribe::Subscriptions>,
    pub(super) clock: Clock,
    pub(super) holds: Mutex<HashMap<OwnerId, Kept, RandomAlready>>,
    /// The name of this host, as the driver has it: known with the first request.
    pub(super) host: OnceLock<String>,
    /// Acquisitions under way.
    pub(super) busy: AtomicUsize,
    pub(super) closing: Flag,
}

/// What has to be remembered of a hold to give it back.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) name: LockName,
    /// In µs; ShedLock's table has no column for it.
    min_hold: u64,
    /// As it is written, where that is not the owner alone.
    by: String,
    /// Where it lies.
    #[cfg(feature = "sqlite")]
    file: Option<FileId>,
}

/// The answer of the queue.
pub(super) enum Line {
    Held(Grant),
    Place(Place),
}

/// Where we are in the queue, and how it looks from there.
pub(super) struct Place {
    /// How many are before us.
    pub(super) ahead: u64,
    /// Time until the name runs out.
    pub(super) left: Duration,
    /// The token of whoever has it.
    pub(super) token: u64,
    /// When we asked.
    pub(super) sent: Time,
}

/// How long the place of a waiter is good for.
pub(super) fn waiter_ttl(ttl: Duration) -> Duration {
    ttl.min(WAITER_TTL)
}

/// In µs, so that nothing ends before it was asked to.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
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

/// µs that are left; none when they are negative.
pub(super) fn left(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

fn token(row: &[Option<String>], at: usize) -> Result<u64, Error> {
    u64::try_from(number(row, at)?).map_err(|_| errors::unexpected_reply())
}

impl Store {
    /// The lease that is granted: in whole µs here, and in whole ms where ShedLock's columns have those.
    fn ttl(&self, ttl: Duration) -> Duration {
        match self.settings.format {
            Format::Tenure => {
                Duration::from_micros(u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX))
            }
            Format::ShedLock => {
                Duration::from_millis(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
            }
        }
    }

    /// The same, as it is written: a clock that knows ms may be behind by one.
    fn live(&self, ttl: Duration) -> u64 {
        let is_coarse = match self.ours.dialect {
            #[cfg(feature = "sqlite")]
            statements::Dialect::Sqlite => true,
            #[cfg(any(feature = "mysql", feature = "postgres"))]
            _ => self.settings.format == Format::ShedLock,
        };
        micros(self.ttl(ttl)) + if is_coarse { 1_000 } else { 0 }
    }

    pub(super) fn ask_of(&self, request: &Request) -> statements::LockRequest {
        statements::LockRequest {
            name: name_of(request.name.as_str()),
            owner: request.owner.to_hex(),
            ttl: self.live(request.ttl),
            delay: micros(request.lock_delay),
            min_hold: micros(request.min_hold),
            place: micros(waiter_ttl(request.ttl)),
            holder: HolderRecord::from(&*request.holder).to_json(),
            stamp: match self.ours.dialect {
                #[cfg(feature = "sqlite")]
                statements::Dialect::Sqlite => Some(tenure_core::rt::wall_micros()),
                #[cfg(any(feature = "mysql", feature = "postgres"))]
                _ => None,
            },
        }
    }

    /// Who we are in ShedLock's table: the host, as others write it, and which of its acquisitions. Others
    /// write the host alone, and so can end no hold but their own.
    fn by(&self, request: &Request) -> String {
        let host = self.host.get_or_init(|| {
            let host = request.holder.host.chars();
            let host = host.filter(|c| *c != '\0');
            host.take(shedlock::Statements::MAX_HOST).collect()
        });
        written_by(host, request.owner)
    }

    /// Asks for a name that is free and that nobody waits for. `None`: it is not.
    /// May be repeated for the same owner at any time.
    pub(super) async fn ask(&self, request: &Request) -> Result<Option<Grant>, Error> {
        let (statement, me) = match self.settings.format {
            Format::Tenure => {
                let ask = self.ask_of(request);
                (self.ours.acquire(&ask), ask.owner)
            }
            Format::ShedLock => {
                let ask = shedlock::LockRequest {
                    name: encoded(Format::ShedLock, request.name.as_str()),
                    by: self.by(request),
                    ttl: self.live(request.ttl),
                };
                (self.theirs.acquire(&ask), ask.by)
            }
        };
        let reply = self.pool.ask_unless(statement, &request.stop).await?;
        let token = match reply.rows.last().map(Vec::as_slice) {
            None => None,
            Some([_]) => Some(token(&reply.rows[0], 0)?),
            Some(row) => match text(row, 0)? == me {
                true => Some(token(row, 1)?),
                false => None,
            },
        };
        Ok(token.map(|token| self.record_grant(request, &reply, token)))
    }

    /// Remembers a hold that is about to be passed to the driver.
    fn record_grant(&self, request: &Request, reply: &Reply, token: u64) -> Grant {
        let kept = Kept {
            name: request.name.clone(),
            min_hold: micros(request.min_hold),
            by: match self.settings.format {
                Format::Tenure => String::new(),
                Format::ShedLock => self.by(request),
            },
            #[cfg(feature = "sqlite")]
            file: reply.file,
        };
        lock(&self.holds).insert(request.owner, kept);
        let round_trip = self.clock.now().since(reply.sent);
        Grant::new(token, reply.sent, round_trip, Some(self.ttl(request.ttl)))
    }

    /// Asks for a place in the queue, or for the name if it is our turn.
    pub(super) async fn line(&self, request: &Request) -> Result<Line, Error> {
        let ask = self.ask_of(request);
        let reply = self
            .pool
            .ask_unless(self.ours.line(&ask), &request.stop)
            .await?;
        let row = reply.rows.last().ok_or_else(errors::unexpected_reply)?;
        if text(row, 0)? == ask.owner {
            let token = token(row, 1)?;
            return Ok(Line::Held(self.record_grant(request, &reply, token)));
        }
        Ok(Line::Place(Place {
            ahead: token_or_zero(row, 3),
            left: left(number(row, 2)?),
            token: token(row, 1)?,
            sent: reply.sent,
        }))
    }

    /// Looks whether it may be our turn, without keeping our place. `None`: nothing is known of the name.
    pub(super) async fn peek(&self, request: &Request) -> Result<Option<Place>, Error> {
        let statement = match self.settings.format {
            Format::Tenure => {
                let name = name_of(request.name.as_str());
                self.ours.peek(&name, &request.owner.to_hex())
            }
            Format::ShedLock => {
                let name = encoded(Format::ShedLock, request.name.as_str());
                self.theirs.peek(&name)
            }
        };
        let reply = self.pool.ask(statement).await?;
        let Some(row) = reply.rows.first() else {
            return Ok(None);
        };
        Ok(Some(match row.len() {
            1 => Place {
                ahead: 0,
                left: left(number(row, 0)?),
                token: 0,
                sent: reply.sent,
            },
            _ => Place {
                ahead: token_or_zero(row, 2),
                left: left(number(row, 1)?),
                token: token(row, 0)?,
                sent: reply.sent,
            },
        }))
    }

    /// Whether the file is gone in which that hold lies (`None`: one that was perhaps granted): others lock the file
    /// that is at its path now, if any.
    fn is_file_gone(&self, kept: Option<&Kept>) -> Result<bool, Error> {
        // A server has no file.
        let _ = kept;
        match &self.settings.place {
            #[cfg(feature = "sqlite")]
            settings::Place::File(path) => {
                let now = FileId::at(path)?;
                Ok(now.is_none() || kept.is_some_and(|kept| kept.file != now))
            }
            #[cfg(any(feature = "mysql", feature = "postgres"))]
            settings::Place::Server(_) => Ok(false),
        }
    }

    /// Renews in batches, one after the other.
    pub(super) async fn renew(&self, holds: Vec<Hold>) -> Vec<Renewal> {
        let mut renewals = Vec::with_capacity(holds.len());
        for batch in holds.chunks(BATCH) {
            match self.renew_batch(batch).await {
                Ok(some) => renewals.extend(some),
                Err(err) => renewals.extend(
                    batch
                        .iter()
                        .map(|_| Renewal::Unknown(Error::new(err.kind(), err.to_string()))),
                ),
            }
        }
        renewals
    }

    async fn renew_batch(&self, holds: &[Hold]) -> Result<Vec<Renewal>, Error> {
        // A request would make the file again.
        if self.is_file_gone(None)? {
            let lost = |_| Renewal::Lost(LostReason::TakenOver);
            return Ok(holds.iter().map(lost).collect());
        }
        let dialect = self.settings.format;
        let written: Vec<_> = holds
            .iter()
            .map(|hold| {
                let name = encoded(dialect, hold.name.as_str());
                let owner = match dialect {
                    Format::Tenure => hold.owner.to_hex(),
                    Format::ShedLock => lock(&self.holds)
                        .get(&hold.owner)
                        .map(|kept| kept.by.clone())
                        .unwrap_or_default(),
                };
                (name, owner, self.live(hold.ttl))
            })
            .collect();
        let written: Vec<_> = written
            .iter()
            .map(|(name, owner, ttl)| (name.as_str(), owner.as_str(), *ttl))
            .collect();
        let reply = self.pool.ask(match dialect {
            Format::Tenure => self.ours.renew(&written),
            Format::ShedLock => self.theirs.renew(&written),
        });
        let reply = reply.await?;
        let mut known = HashMap::new();
        for row in &reply.rows {
            known.insert(text(row, 0)?, (text(row, 1)?, number(row, 2)? == 1));
        }
        let outcome = |(hold, (name, owner, _)): (&Hold, &(&str, &str, u64))| match known.get(name)
        {
            _ if self.is_elsewhere(hold, &reply) => Renewal::Lost(LostReason::TakenOver),
            Some((holder, true)) if holder == owner => Renewal::Renewed {
                sent: reply.sent,
                ttl: Some(self.ttl(hold.ttl)),
            },
            Some((holder, true)) if !holder.is_empty() => Renewal::Lost(LostReason::TakenOver),
            _ => Renewal::Lost(LostReason::StoreSaysNo),
        };
        Ok(holds.iter().zip(&written).map(outcome).collect())
    }

    /// Whether it was granted in another file than the one that answered.
    fn is_elsewhere(&self, hold: &Hold, reply: &Reply) -> bool {
        #[cfg(feature = "sqlite")]
        let is_elsewhere = lock(&self.holds)
            .get(&hold.owner)
            .is_some_and(|kept| kept.file != reply.file);
        #[cfg(not(feature = "sqlite"))]
        let is_elsewhere = {
            let _ = (hold, reply);
            false
        };
        is_elsewhere
    }

    /// Gives back what the owner has: the lock, or its place in the queue.
    pub(super) async fn release(&self, hold: Hold) -> Result<Release, Error> {
        let kept = lock(&self.holds).remove(&hold.owner);
        let outcome = self.give_back(&hold, kept.as_ref()).await;
        if let (Err(_), Some(kept)) = (&outcome, kept) {
            // It will be asked for again.
            lock(&self.holds).insert(hold.owner, kept);
        }
        outcome
    }

    async fn give_back(&self, hold: &Hold, kept: Option<&Kept>) -> Result<Release, Error> {
        if self.is_file_gone(kept)? {
            return Ok(Release::NotHeld);
        }
        let owner = hold.owner.to_hex();
        let statement = match (self.settings.format, kept) {
            // Of unknown fate: there may be a place in the queue as well.
            (Format::Tenure, None) => {
                let name = name_of(hold.name.as_str());
                let reply = self.pool.ask(self.ours.leave(&name, &owner, hold.unclean));
                let reply = reply.await?;
                let was_ours = match reply.rows.first() {
                    Some(row) => text(row, 0)? == owner && number(row, 1)? > 0,
                    None => false,
                };
                return released(was_ours, reply.is_repeated);
            }
            (Format::Tenure, Some(_)) => {
                self.ours
                    .release(&name_of(hold.name.as_str()), &owner, hold.unclean)
            }
            (Format::ShedLock, kept) => {
                let name = encoded(Format::ShedLock, hold.name.as_str());
                let by = match kept {
                    Some(kept) => kept.by.clone(),
                    None => written_by(self.host.get().map_or("", String::as_str), hold.owner),
                };
                let min_hold = kept.map_or(0, |kept| kept.min_hold);
                self.theirs.release(&name, &by, min_hold)
            }
        };
        let reply_kind = statement.reply_kind;
        let reply = self.pool.ask(statement).await?;
        released(changed(reply_kind, &reply)?, reply.is_repeated)
    }
}

/// Whether a statement that changes one row did so.
pub(super) fn changed(reply_kind: ReplyKind, reply: &Reply) -> Result<bool, Error> {
    match reply_kind {
        ReplyKind::Rows => Ok(!reply.rows.is_empty()),
        ReplyKind::ChangedCount => {
            Ok(number(reply.rows.first().ok_or_else(errors::unexpected_reply)?, 0)? > 0)
        }
    }
}

fn written_by(host: &str, owner: OwnerId) -> String {
    format!("{host}:{}", owner.to_hex())
}

fn released(was_ours: bool, is_repeated: bool) -> Result<Release, Error> {
    match (was_ours, is_repeated) {
        (true, _) => Ok(Release::Released),
        (false, false) => Ok(Release::NotHeld),
        (false, true) => Err(Error::new(
            ErrorKind::Indeterminate,
            "the connection broke; it was released just then, or had ended before",
        )),
    }
}

/// The count of an empty set is NULL when we are in no queue.
fn token_or_zero(row: &[Option<String>], at: usize) -> u64 {
    token(row, at).unwrap_or(0)
}
