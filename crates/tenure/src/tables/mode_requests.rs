//! The requests for shared holds: shared and upgradable holds and permits. Each is one step of the lock table, except
//! renewals, which are batches.

use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::table::{LockRequest, Table, Verdict};
use tenure_core::options::Mode;
use tenure_core::rt::Flag;
use tenure_core::store::{Hold, Release, Request};
use tenure_core::support::HolderRecord;
use tenure_core::time::Time;

use crate::database::Row;
use crate::waiting::{self, AcquireReply, QueuePosition};

use super::pool::StatementReply;
use super::requests::{HeldRow, Requests, released};
use super::sql::ending::HoldEnd;
use super::sql::modes::Access;
use super::step::{NameRows, StepSubject, micros_at};

/// A step that was taken.
pub(super) struct Stepped<T> {
    /// What the lock table answered. `None`: the database has no row of the name.
    pub(super) answer: Option<T>,
    /// Where the owner stands, if it has not got what it asked for.
    position: QueuePosition,
    pub(super) reply: StatementReply,
}

impl Requests {
    /// Takes the name if the modes of its holders allow that and no waiter is ahead; else takes a place in the queue for the
    /// time `place`, if there is one. May be repeated for the same owner at any time.
    pub(super) async fn acquire_shared(
        &self,
        request: &Request,
        place: Option<Duration>,
    ) -> Result<AcquireReply, Error> {
        let (stamp, ttl) = (self.stamp(), self.written_lease(request.ttl));
        let acquire = |table: &mut Table, now| {
            let lock_request = LockRequest {
                name: request.name.clone(),
                owner: request.owner,
                mode: request.mode,
                ttl: Some(Duration::from_micros(ttl)),
                wait: place.is_some(),
                barge: false,
                min_hold: request.min_hold,
                lock_delay: request.lock_delay,
                waiter_ttl: place,
                propose: stamp.or(Some(micros_at(now))),
            };
            table.acquire(&lock_request, now)
        };
        let subject = StepSubject::Acquire(request, place);
        let stepped = self.step(subject, acquire).await?;
        Ok(match stepped.answer {
            Some(Verdict::Granted { token }) => {
                AcquireReply::Granted(self.granted(request, &stepped.reply, token))
            }
            _ => stepped.taken(place),
        })
    }

    /// Makes the upgradable hold of the owner exclusive, or notes that it is to become that.
    pub(super) async fn upgrade(
        &self,
        request: &Request,
        place: Duration,
    ) -> Result<AcquireReply, Error> {
        let (name, owner, ttl) = (
            &request.name,
            request.owner,
            self.written_lease(request.ttl),
        );
        let upgrade = |table: &mut Table, now| {
            let verdict = table.upgrade(name, owner, request.wait, now);
            let is_held = table.renew(name, owner, Some(Duration::from_micros(ttl)), now);
            is_held.then_some(verdict)
        };
        let stepped = self.step(StepSubject::Upgrade(request), upgrade).await?;
        match stepped.answer.flatten() {
            Some(Verdict::Granted { token }) => {
                let grant = self.grant(request, &stepped.reply, token);
                let extend =
                    |entry: &mut HeldRow| entry.extend(grant.sent, grant.ttl, self.clock.now());
                self.holds.update(owner, extend);
                Ok(AcquireReply::Granted(grant))
            }
            Some(Verdict::Queued | Verdict::Busy) => Ok(stepped.taken(Some(place))),
            None => {
                let message = "the database has no such hold; the lock was lost";
                Err(Error::new(ErrorKind::Lost, message))
            }
        }
    }

    /// Makes the hold shared, or upgradable again. `false`: the owner has no such hold.
    pub(super) async fn downgrade(&self, hold: &Hold, mode: Mode) -> Result<bool, Error> {
        let downgrade = |table: &mut Table, now| table.downgrade(&hold.name, hold.owner, mode, now);
        let subject = StepSubject::Hold(hold, "downgrade");
        let stepped = self.step(subject, downgrade).await?;
        Ok(stepped.answer == Some(true))
    }

    /// Releases a hold that may be a shared one, or leaves the queue.
    pub(super) async fn release_shared(&self, hold: &Hold) -> Result<Release, Error> {
        let release = |table: &mut Table, now| match HoldEnd::of(hold) {
            HoldEnd::Clean => table.release(&hold.name, hold.owner, false, now),
            HoldEnd::Unclean => table.release(&hold.name, hold.owner, true, now),
            HoldEnd::Unused => table.give_back(&hold.name, hold.owner, now),
        };
        let subject = StepSubject::Hold(hold, "release");
        let stepped = self.step(subject, release).await?;
        released(stepped.answer == Some(true), stepped.reply.is_repeated)
    }

    /// Reads all about the name and changes nothing. `None`: the lock has to be asked for. `wants`: the mode of the hold
    /// that the owner waits for.
    pub(super) async fn look(
        &self,
        request: &Request,
        wants: Mode,
    ) -> Result<Option<QueuePosition>, Error> {
        let (Some(rows), sent) = self.name_rows(&request.name, "peek").await? else {
            return Ok(None);
        };
        let step = rows.step(Some(request.owner), None, |_, _| ())?;
        let mut holds = step.after.holds.iter();
        let hold = holds.find(|hold| hold.owner == request.owner);
        let mut waiters = step.after.waiters.iter();
        let must_ask = match hold {
            Some(hold) => hold.mode == wants,
            None => !waiters.any(|waiter| waiter.claim.owner == request.owner),
        };
        Ok((!must_ask).then_some(QueuePosition {
            sent,
            // Reading keeps no place.
            ask_by: Time::MAX,
            ..step.position
        }))
    }

    /// Lets the lock table take one step: a transaction of two round trips.
    pub(super) async fn step<T>(
        &self,
        subject: StepSubject<'_>,
        operate: impl Fn(&mut Table, Time) -> T + Sync,
    ) -> Result<Stepped<T>, Error> {
        let never = Flag::new();
        // A request for a lock is not sent again when it is stopped.
        let (name, purpose, owner, stop) = match subject {
            StepSubject::Acquire(it, _) => (&it.name, "acquire", Some(it.owner), &it.stop),
            StepSubject::Upgrade(it) => (&it.name, "upgrade", Some(it.owner), &it.stop),
            StepSubject::Hold(it, purpose) => (&it.name, purpose, Some(it.owner), &never),
            StepSubject::Name(name, purpose) => (name, purpose, None, &never),
        };
        let (access, newcomer) = match subject {
            StepSubject::Acquire(it, place) => {
                let holder = HolderRecord::from(&*it.holder).to_json();
                (Access::Make, Some((holder, place)))
            }
            _ => (Access::Lock, None),
        };
        let (encoded, stamp) = (self.encode(name), self.stamp());
        // Depends on nothing but the rows.
        let take = |rows: &[Row]| {
            let rows = NameRows::read(name, rows, stamp)?;
            let step = rows.map(|it| it.step(owner, newcomer.as_ref(), &operate));
            step.transpose()
        };
        let decide = |rows: &[Row]| {
            let changes = take(rows)?.map(|step| step.changes).unwrap_or_default();
            Ok(self.own.write_name(purpose, &encoded, &changes))
        };
        let mut first = self.own.read_name(&encoded, access);
        // A lease or another waiter depends on all steps but those of requests for a lock.
        first.is_urgent = access == Access::Lock;
        let reply = self.pool.ask_twice(first, stop, Some(&decide)).await?;
        let (answer, position) = match take(&reply.rows)? {
            Some(step) => (Some(step.answer), step.position),
            None => (None, QueuePosition::default()),
        };
        Ok(Stepped {
            answer,
            position,
            reply,
        })
    }
}

impl<T> Stepped<T> {
    /// The reply to a request that has to wait, and for how long it was noted, if it was.
    fn taken(&self, place: Option<Duration>) -> AcquireReply {
        let sent = self.reply.sent;
        AcquireReply::Taken(QueuePosition {
            sent,
            ask_by: place.map_or(sent, |place| waiting::keep_by(sent, place)),
            ..self.position.clone()
        })
    }
}
