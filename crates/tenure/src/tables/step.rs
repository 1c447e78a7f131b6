//! One step of the lock table on one name: from the rows of the name to what the step changes. Sends nothing.
//!
//! The reference table of `tenure-core` decides, by the clock of the database. Requests for exclusive locks do not come
//! here: they are statements that see a name with shared holders as a name that is taken.
//! An exclusive waiter is therefore not granted a name that becomes free: it takes the name itself, as after the release
//! of an exclusive hold.

use std::collections::HashMap;
use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::fence::OwnerId;
use tenure_core::logic::table::{Claim, Hold, NameState, Reservation, Table, Waiter};
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::store;
use tenure_core::support::{micros_up, mode_text, parse_mode};
use tenure_core::time::Time;

use crate::database::Row;
use crate::waiting::QueuePosition;

use super::cells::{natural, text};
use super::errors;
use super::sql::SEVERAL;
use super::sql::modes::{Changes, LockRow, ModeRow, WaiterRow};

/// What a step is about. The text is for people who watch the server.
#[derive(Clone, Copy)]
pub(super) enum StepSubject<'a> {
    /// A request whose owner may be new, and for how long its place in the queue is valid, if it waits.
    Acquire(&'a store::Request, Option<Duration>),
    Upgrade(&'a store::Request),
    Hold(&'a store::Hold, &'static str),
    Name(&'a LockName, &'static str),
}

/// A name before a step.
pub(super) struct NameRows<'a> {
    name: &'a LockName,
    pub(super) now: u64,
    pub(super) lock: LockRow,
    modes: Vec<ModeRow>,
    pub(super) waiters: Vec<WaiterRow>,
    /// The least token to grant.
    stamp: u64,
}

/// What a step has led to.
pub(super) struct NameStep<T> {
    /// What the lock table answered.
    pub(super) answer: T,
    /// Where the owner stands: the time of the request is not known here.
    pub(super) position: QueuePosition,
    pub(super) after: NameState,
    pub(super) changes: Changes,
}

fn time(micros: u64) -> Time {
    Time::ZERO.after(Duration::from_micros(micros))
}

pub(super) fn micros_at(time: Time) -> u64 {
    micros_up(time.since(Time::ZERO))
}

fn owner_id(text: &str) -> Result<OwnerId, Error> {
    OwnerId::from_hex(text).ok_or_else(errors::unexpected_reply)
}

impl LockRow {
    /// The columns from `owner` on.
    pub(super) fn read(row: &Row, at: usize) -> Result<Self, Error> {
        Ok(Self {
            owner: text(row, at)?.to_owned(),
            token: natural(row, at + 1)?,
            until: natural(row, at + 2)?,
            since: natural(row, at + 3)?,
            min_hold: natural(row, at + 4)?,
            delay: natural(row, at + 5)?,
            holder: text(row, at + 6)?.to_owned(),
        })
    }

    /// The hold that these columns describe.
    fn hold(&self, mode: Mode, is_upgrading: bool) -> Result<Hold, Error> {
        Ok(Hold {
            owner: owner_id(&self.owner)?,
            mode,
            token: self.token,
            since: time(self.since),
            expires: time(self.until.saturating_sub(self.delay)),
            min_hold: Duration::from_micros(self.min_hold),
            lock_delay: Duration::from_micros(self.delay),
            is_upgrading,
        })
    }

    fn of(hold: &Hold, holder: String) -> Self {
        let delay = micros_up(hold.lock_delay);
        Self {
            owner: hold.owner.to_hex(),
            token: hold.token,
            until: micros_at(hold.expires).saturating_add(delay),
            since: micros_at(hold.since),
            min_hold: micros_up(hold.min_hold),
            delay,
            holder,
        }
    }

    /// Until when the place of this hold is taken, if the hold is not released.
    fn taken_until(&self) -> u64 {
        self.until.max(self.since.saturating_add(self.min_hold))
    }
}

impl ModeRow {
    fn is_reserved(&self) -> bool {
        self.row.owner.starts_with('-')
    }

    fn is_waiting(&self) -> bool {
        self.row.token == 0 && !self.is_reserved()
    }
}

/// The mode, and whether the hold is to become exclusive.
pub(super) fn mode_of(text: &str) -> Result<(Mode, bool), Error> {
    parse_mode(text).ok_or_else(errors::unexpected_reply)
}

impl<'a> NameRows<'a> {
    /// From the rows of a name as `read_name` returns them. `None`: the table has no row of that name. `stamp` is the least
    /// token to grant; `None`: the clock of the database.
    pub(super) fn read(
        name: &'a LockName,
        rows: &[Row],
        stamp: Option<u64>,
    ) -> Result<Option<Self>, Error> {
        let (mut lock, mut modes, mut waiters) = (None, Vec::new(), Vec::new());
        for row in rows {
            match row.first().and_then(Option::as_deref) {
                Some("L") => lock = Some((natural(row, 1)?, LockRow::read(row, 2)?)),
                Some("M") => modes.push(ModeRow {
                    mode: text(row, 1)?.to_owned(),
                    row: LockRow::read(row, 2)?,
                }),
                Some("W") => waiters.push(WaiterRow {
                    owner: text(row, 1)?.to_owned(),
                    until: natural(row, 2)?,
                    holder: text(row, 3)?.to_owned(),
                }),
                // The reply to the statement that locks the row.
                _ => {}
            }
        }
        let Some((now, lock)) = lock else {
            return Ok(None);
        };
        Ok(Some(Self {
            name,
            now,
            lock,
            modes,
            waiters,
            stamp: stamp.unwrap_or(now),
        }))
    }

    /// The rows of shared holders and of their reserved places.
    pub(super) fn shared(&self) -> impl Iterator<Item = &ModeRow> {
        // Without the mark these rows are about holds that have expired, and another owner has had the name since.
        let several = self.lock.owner == SEVERAL;
        self.modes
            .iter()
            .filter(move |it| several && !it.is_waiting())
    }

    /// The rows as the lock table has them.
    fn state(&self) -> Result<NameState, Error> {
        let mut state = NameState {
            last_token: self.lock.token,
            ..NameState::default()
        };
        for mode_row in self.shared() {
            let ((mode, is_upgrading), row) = (mode_of(&mode_row.mode)?, &mode_row.row);
            match mode_row.is_reserved() {
                true => state.reservations.push(Reservation {
                    mode,
                    until: time(row.until),
                }),
                false => state.holds.push(row.hold(mode, is_upgrading)?),
            }
        }
        if self.lock.owner.is_empty() {
            let (mode, until) = (Mode::Exclusive, time(self.lock.until));
            state.reservations.push(Reservation { mode, until });
        } else if self.lock.owner != SEVERAL {
            state.holds.push(self.lock.hold(Mode::Exclusive, false)?);
        }
        for waiter in &self.waiters {
            state.waiters.push_back(self.waiter(waiter)?);
        }
        Ok(state)
    }

    /// A waiter that is granted the name holds it for as long as its place is valid: it may have died meanwhile. When it asks
    /// again, its whole lease begins.
    fn waiter(&self, waiter: &WaiterRow) -> Result<Waiter, Error> {
        let of_waiter = |it: &&ModeRow| it.is_waiting() && it.row.owner == waiter.owner;
        let shared = self.modes.iter().find(of_waiter);
        let (mode, min_hold, delay) = match shared {
            Some(it) => (mode_of(&it.mode)?.0, it.row.min_hold, it.row.delay),
            None => (Mode::Exclusive, 0, 0),
        };
        let left = Duration::from_micros(waiter.until.saturating_sub(self.now));
        Ok(Waiter {
            claim: Claim {
                owner: owner_id(&waiter.owner)?,
                mode,
                ttl: Some(left),
                min_hold: Duration::from_micros(min_hold),
                lock_delay: Duration::from_micros(delay),
                propose: Some(self.stamp),
            },
            waiter_ttl: Some(left),
            alive_until: time(waiter.until),
        })
    }

    /// Applies `operate` to the lock table, for this owner if the operation is about one owner. `newcomer`: what others shall
    /// see of an owner that is new, and how long its place in the queue is valid.
    pub(super) fn step<T>(
        &self,
        owner: Option<OwnerId>,
        newcomer: Option<&(String, Option<Duration>)>,
        operate: impl FnOnce(&mut Table, Time) -> T,
    ) -> Result<NameStep<T>, Error> {
        let (now, mut before) = (time(self.now), self.state()?);
        let mut holders = self.holders();
        if let (Some(owner), Some((holder, place))) = (owner, newcomer) {
            let holder = || holder.clone();
            holders.entry(owner.to_hex()).or_insert_with(holder);
            let mut waiters = before.waiters.iter_mut();
            if let Some(waiter) = waiters.find(|it| it.claim.owner == owner)
                && place.is_some()
            {
                waiter.waiter_ttl = *place;
            }
        }
        let mut table = Table::of_name(self.name, before.clone());
        table.tick(now);
        let answer = operate(&mut table, now);
        let (mut after, mut granted) = (table.state(self.name), Vec::new());
        table.granted(&mut granted);
        keep_waiting(&before, &mut after);
        granted.retain(|(it, _)| {
            Some(*it) != owner && after.holds.iter().any(|hold| hold.owner == *it)
        });
        let granted = granted.into_iter().map(|(owner, _)| owner.to_hex());
        Ok(NameStep {
            answer,
            position: position(&after, owner, now),
            changes: self.changes(&after, &holders, granted.collect()),
            after,
        })
    }

    /// The rows after the step, as far as they differ.
    fn changes(
        &self,
        after: &NameState,
        holders: &HashMap<String, String>,
        granted: Vec<String>,
    ) -> Changes {
        let holder = |owner: OwnerId| holders.get(&owner.to_hex()).cloned().unwrap_or_default();
        let modes = mode_rows(after, &holder);
        let lock = self.lock_row(after, &modes, &holder);
        let removed = self.modes.iter().filter(|it| !modes.contains(it));
        let written = modes.iter().filter(|it| !self.modes.contains(it));
        let waiters = after.waiters.iter().map(|waiter| WaiterRow {
            owner: waiter.claim.owner.to_hex(),
            until: micros_at(waiter.alive_until),
            holder: holder(waiter.claim.owner),
        });
        let waiters: Vec<_> = waiters.collect();
        let stays = |it: &&WaiterRow| waiters.iter().any(|other| other.owner == it.owner);
        // A waiter whose place was gone, and that asks again, gets a new place.
        let is_gone = |it: &&WaiterRow| !stays(it) || it.until <= self.now;
        let left = self.waiters.iter().filter(is_gone);
        let kept = waiters.iter().filter(|it| !self.waiters.contains(it));
        let first = |waiters: &[WaiterRow]| waiters.first().map(|waiter| waiter.owner.clone());
        let mut changes = Changes {
            lock: None,
            removed: removed.map(|it| it.row.owner.clone()).collect(),
            written: written.cloned().collect(),
            left: left.map(|it| it.owner.clone()).collect(),
            kept: kept.cloned().collect(),
            granted,
            has_new_first: first(&waiters) != first(&self.waiters),
        };
        if changes != Changes::default() || lock != self.lock {
            // The row of a name with several holders changes whenever one of their rows does, so that servers that
            // replicate to each other notice two changes of one name.
            let since = match lock.owner == SEVERAL {
                true => self.now,
                false => lock.since,
            };
            changes.lock = Some(LockRow { since, ..lock });
        }
        changes
    }

    /// What others shall see of each owner.
    fn holders(&self) -> HashMap<String, String> {
        let rows = self.modes.iter().map(|it| &it.row).chain([&self.lock]);
        let rows = rows.map(|row| (row.owner.clone(), row.holder.clone()));
        let waiters = self.waiters.iter();
        let waiters = waiters.map(|it| (it.owner.clone(), it.holder.clone()));
        waiters.chain(rows).collect()
    }

    /// The row of the name after the step.
    fn lock_row(
        &self,
        after: &NameState,
        modes: &[ModeRow],
        holder: &impl Fn(OwnerId) -> String,
    ) -> LockRow {
        let token = after.last_token;
        if let [hold] = &after.holds[..]
            && hold.mode == Mode::Exclusive
        {
            let row = LockRow::of(hold, holder(hold.owner));
            let until = row.taken_until();
            return LockRow {
                token,
                until,
                ..row
            };
        }
        let shared = modes.iter().filter(|it| !it.is_waiting());
        if let Some(until) = shared.map(|it| it.row.taken_until()).max() {
            return LockRow {
                owner: SEVERAL.into(),
                token,
                until,
                // Compared before it is written: only `since` of this row says when the row was changed.
                since: self.lock.since,
                ..LockRow::default()
            };
        }
        let reserved = after.reservations.iter().map(|it| micros_at(it.until));
        LockRow {
            owner: String::new(),
            token,
            until: reserved.max().unwrap_or(0),
            holder: String::new(),
            // As a release leaves it.
            ..self.lock.clone()
        }
    }
}

/// Takes the name back from an exclusive waiter: it takes the name itself.
fn keep_waiting(before: &NameState, after: &mut NameState) {
    let Some(hold) = after.holds.last() else {
        return;
    };
    let of_hold = |it: &&Waiter| it.claim.owner == hold.owner && it.claim.mode == Mode::Exclusive;
    if let Some(waiter) = before.waiters.iter().find(of_hold) {
        after.waiters.push_front(*waiter);
        after.holds.pop();
        // The hold was alone, so no other grant followed it or came just before it.
        after.last_token = before.last_token;
    }
}

/// How many waiters are ahead of an owner, and how long it takes until the first other hold or reservation ends.
fn position(state: &NameState, owner: Option<OwnerId>, now: Time) -> QueuePosition {
    let mut waiters = state.waiters.iter();
    let at = match owner {
        Some(owner) if state.holds.iter().any(|hold| hold.owner == owner) => Some(0),
        _ => waiters.position(|waiter| Some(waiter.claim.owner) == owner),
    };
    let ahead = at.unwrap_or(state.waiters.len());
    let others = state.holds.iter().filter(|hold| Some(hold.owner) != owner);
    let ends = others.map(|hold| hold.expires);
    let ends = ends.chain(state.reservations.iter().map(|it| it.until));
    QueuePosition {
        ahead: u64::try_from(ahead).unwrap_or(u64::MAX),
        expires_in: Some(ends.min().map_or(Duration::ZERO, |end| end.since(now))),
        last_token: state.last_token,
        ..QueuePosition::default()
    }
}

/// The rows of shared holders, of their reserved places, and of the waiters that want to be such holders.
fn mode_rows(state: &NameState, holder: &impl Fn(OwnerId) -> String) -> Vec<ModeRow> {
    let holds = state.holds.iter().filter_map(|hold| {
        let mode = mode_text(hold.mode, hold.is_upgrading)?;
        let row = LockRow::of(hold, holder(hold.owner));
        Some(ModeRow { mode, row })
    });
    let reserved = state.reservations.iter().zip(0..);
    let reserved = reserved.filter_map(|(reservation, at)| {
        let mode = mode_text(reservation.mode, false)?;
        let row = LockRow {
            owner: format!("-{at}"),
            until: micros_at(reservation.until),
            ..LockRow::default()
        };
        Some(ModeRow { mode, row })
    });
    let waiters = state.waiters.iter().filter_map(|waiter| {
        let claim = &waiter.claim;
        let mode = mode_text(claim.mode, false)?;
        let row = LockRow {
            owner: claim.owner.to_hex(),
            min_hold: micros_up(claim.min_hold),
            delay: micros_up(claim.lock_delay),
            holder: holder(claim.owner),
            ..LockRow::default()
        };
        Some(ModeRow { mode, row })
    });
    holds.chain(reserved).chain(waiters).collect()
}

#[cfg(test)]
mod tests {
    use tenure_core::logic::table::{LockRequest, Verdict};

    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn row(cells: &[&str]) -> Row {
        cells.iter().map(|cell| Some((*cell).to_owned())).collect()
    }

    /// The second statement removes a row before it writes one, and a new row has the last place.
    #[test]
    fn a_waiter_that_was_forgotten_gets_a_new_place() {
        let name = LockName::new("n").unwrap();
        let owners = [1, 2, 3].map(|byte| OwnerId::from_bytes([byte; 16]));
        let [holder, late, other] = owners.map(|owner| owner.to_hex());
        let rows = [
            row(&["L", "100", &holder, "7", "999999999", "50", "0", "0", ""]),
            row(&["W", &late, "99", ""]),
            row(&["W", &other, "999999999", ""]),
        ];
        let request = LockRequest {
            name: name.clone(),
            owner: owners[1],
            mode: Mode::Shared,
            ttl: Some(TTL),
            wait: true,
            barge: false,
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            waiter_ttl: Some(TTL),
            propose: None,
        };
        let rows = NameRows::read(&name, &rows, None).unwrap().unwrap();
        let acquire = |table: &mut Table, now| table.acquire(&request, now);
        let step = rows.step(Some(owners[1]), None, acquire).unwrap();
        let (answer, changes) = (step.answer, step.changes);
        assert_eq!((answer, step.position.ahead), (Verdict::Queued, 1));
        assert_eq!(changes.left, std::slice::from_ref(&late));
        let kept: Vec<_> = changes.kept.iter().map(|it| &it.owner).collect();
        assert_eq!(kept, [&late]);
    }
}
