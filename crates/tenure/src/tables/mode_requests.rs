//! The requests for shared holds: shared and upgradable holds and permits. Each is one step of the lock table.

use std::collections::HashMap;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::table::LockRequest;
use tenure_core::lost::LostReason;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::rt::Flag;
use tenure_core::store::{Hold, Release, Renewal, Request};
use tenure_core::support::HolderRecord;
use tenure_core::time::Time;

use crate::database::Row;
use crate::waiting::{QueuePosition, waiter_ttl};

use super::pool::Reply;
use super::requests::{HeldEntry, LockReply, Requests, end_of, number, released, text};
use super::sql::Dialect;
use super::sql::Statement;
use super::sql::modes::{Access, Changes, SEVERAL};
use super::step::{Operation, Outcome, Step};

impl Requests {
    /// Takes a place beside the holders if the name has room for it and no waiter is ahead; else, with `wait`, a place in
    /// the queue. May be repeated for the same owner at any time.
    pub(super) async fn acquire_shared(
        &self,
        request: &Request,
        wait: bool,
    ) -> Result<LockReply, Error> {
        let lock_request = LockRequest {
            name: request.name.clone(),
            owner: request.owner,
            mode: request.mode,
            ttl: Some(Duration::from_micros(self.written_lease(request.ttl))),
            wait,
            barge: false,
            min_hold: request.min_hold,
            lock_delay: request.lock_delay,
            waiter_ttl: Some(waiter_ttl(request.ttl)),
            propose: None,
        };
        let holder = HolderRecord::from(&*request.holder).to_json();
        let operation = Operation::Acquire(Box::new(lock_request), holder);
        let stop = &request.stop;
        let (outcome, reply) = self
            .step_unless(&request.name, "acquire", &operation, stop)
            .await?;
        Ok(match outcome {
            Outcome::Granted { token } => self.granted(request, &reply, token),
            outcome => {
                let ask_by = match wait {
                    true => reply.sent.after(waiter_ttl(request.ttl) / 3),
                    // The request has no place in the queue yet.
                    false => reply.sent,
                };
                LockReply::Taken(position(&outcome, reply.sent, ask_by))
            }
        })
    }

    /// Makes the upgradable hold of the owner exclusive, or notes that it is to become that.
    pub(super) async fn upgrade(&self, request: &Request) -> Result<LockReply, Error> {
        let operation = Operation::Upgrade {
            owner: request.owner,
            ttl: Duration::from_micros(self.written_lease(request.ttl)),
            wait: request.wait,
        };
        let stop = &request.stop;
        let (outcome, reply) = self
            .step_unless(&request.name, "upgrade", &operation, stop)
            .await?;
        Ok(match outcome {
            Outcome::Granted { token } => self.granted(request, &reply, token),
            Outcome::NotHeld => {
                let message = "the database has no such hold; the lock was lost";
                return Err(Error::new(ErrorKind::Lost, message));
            }
            outcome => {
                let ask_by = reply.sent.after(waiter_ttl(request.ttl) / 3);
                LockReply::Taken(position(&outcome, reply.sent, ask_by))
            }
        })
    }

    /// Makes the hold shared, or upgradable again. `false`: the owner has no such hold.
    pub(super) async fn downgrade(&self, hold: &Hold, mode: Mode) -> Result<bool, Error> {
        let owner = hold.owner;
        let operation = Operation::Downgrade { owner, mode };
        let (outcome, _) = self.step(&hold.name, "downgrade", &operation).await?;
        Ok(outcome == Outcome::Done)
    }

    /// Releases a hold that may be one beside others, or leaves the queue.
    pub(super) async fn release_shared(&self, hold: &Hold) -> Result<Release, Error> {
        let operation = Operation::Release {
            owner: hold.owner,
            end: end_of(hold),
        };
        let (outcome, reply) = self.step(&hold.name, "release", &operation).await?;
        released(outcome == Outcome::Done, reply.is_repeated)
    }

    /// Reads all about the name and changes nothing. `None`: the lock has to be asked for. `wants`: the mode of the hold
    /// that the owner waits for.
    pub(super) async fn look(
        &self,
        request: &Request,
        wants: Mode,
    ) -> Result<Option<QueuePosition>, Error> {
        let name = self.encode(&request.name);
        let reply = self
            .pool
            .ask(self.own.read_name(&name, Access::Look))
            .await?;
        let Some(step) = Step::read(&request.name, &reply.rows, None)? else {
            return Ok(None);
        };
        Ok(match step.look(request.owner, wants)? {
            // Reading keeps no place.
            outcome @ Outcome::Taken { .. } => Some(position(&outcome, reply.sent, Time::MAX)),
            _ => None,
        })
    }

    /// Renews these holds with one request: holds that may be beside others.
    pub(super) async fn renew_shared(
        &self,
        holds: &[(Hold, Option<HeldEntry>)],
    ) -> Result<Vec<Renewal>, Error> {
        // A request would make the file again.
        if self.pool.is_file_gone(None)? {
            let lost = |_| Renewal::Lost(LostReason::TakenOver);
            return Ok(holds.iter().map(lost).collect());
        }
        let written = holds.iter().map(|(hold, _)| {
            let ttl = self.written_lease(hold.ttl);
            (self.encode(&hold.name), hold.owner.to_hex(), ttl)
        });
        let written: Vec<_> = written.collect();
        let texts = written.iter();
        let texts = texts.map(|(name, owner, ttl)| (name.as_str(), owner.as_str(), *ttl));
        let texts: Vec<_> = texts.collect();
        let reply = self.pool.ask(self.own.renew_modes(&texts)).await?;
        let (mut live, mut holders) = (HashMap::new(), HashMap::new());
        // Other rows are those of the statement that locks.
        for row in reply.rows.iter().filter(|row| row.len() == 3) {
            let (name, owner, is_live) = (text(row, 0)?, text(row, 1)?, number(row, 2)? == 1);
            live.insert((name, owner), is_live);
            if is_live && !owner.is_empty() && owner != SEVERAL {
                holders.insert(name, owner);
            }
        }
        let renewals = holds.iter().zip(&texts);
        let renewals = renewals.map(|((hold, entry), (name, owner, _))| {
            let is_in_other_file = entry.as_ref().is_some_and(|it| it.file != reply.file);
            match live.get(&(*name, *owner)) {
                _ if is_in_other_file => Renewal::Lost(LostReason::TakenOver),
                Some(true) => Renewal::Renewed {
                    sent: reply.sent,
                    ttl: Some(self.lease(hold.ttl)),
                },
                _ if holders.contains_key(name) => Renewal::Lost(LostReason::TakenOver),
                _ => Renewal::Lost(LostReason::StoreSaysNo),
            }
        });
        Ok(renewals.collect())
    }

    /// Lets the lock table take one step that a lease or another waiter depends on.
    pub(super) async fn step(
        &self,
        name: &LockName,
        what: &str,
        operation: &Operation,
    ) -> Result<(Outcome, Reply), Error> {
        self.step_unless(name, what, operation, &Flag::new()).await
    }

    /// The same for a request for a lock, which is not sent again when `stop` is raised.
    async fn step_unless(
        &self,
        name: &LockName,
        what: &str,
        operation: &Operation,
        stop: &Flag,
    ) -> Result<(Outcome, Reply), Error> {
        let encoded = self.encode(name);
        let stamp = match self.own.dialect {
            Dialect::Sqlite => Some(tenure_core::rt::wall_micros()),
            _ => None,
        };
        let is_request = matches!(operation, Operation::Acquire(..));
        let access = match is_request {
            true => Access::Make,
            false => Access::Lock,
        };
        // Depends on nothing but the rows.
        let take = |rows: &[Row]| match Step::read(name, rows, stamp)? {
            Some(step) => step.take(operation),
            None => Ok((Outcome::NotHeld, Changes::default())),
        };
        let decide = |rows: &[Row]| -> Result<Statement, Error> {
            let (_, changes) = take(rows)?;
            Ok(self.own.write_name(what, &encoded, &changes))
        };
        let mut first = self.own.read_name(&encoded, access);
        first.is_urgent = !is_request;
        let reply = self.pool.ask_twice(first, stop, Some(&decide)).await?;
        let (outcome, _) = take(&reply.rows)?;
        Ok((outcome, reply))
    }
}

/// What a waiter knows of the queue; nothing, unless the name is taken.
fn position(outcome: &Outcome, sent: Time, ask_by: Time) -> QueuePosition {
    let mut position = QueuePosition {
        sent,
        ask_by,
        ..QueuePosition::default()
    };
    if let Outcome::Taken {
        ahead,
        expires_in,
        last_token,
    } = outcome
    {
        position.ahead = *ahead;
        position.expires_in = Some(*expires_in);
        position.last_token = *last_token;
    }
    position
}
