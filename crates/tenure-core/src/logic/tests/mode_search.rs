//! Every state that four owners can bring one name into, in every mode, with upgrades and downgrades: an exhaustive
//! search of the table, without a bound on the number of steps. Times do not matter here; `table_model.rs` has those.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::time::Duration;

use super::{name, owner};
use crate::fence::OwnerId;
use crate::logic::table::{LockRequest, Table, Verdict};
use crate::options::Mode;
use crate::time::Time;

const OWNERS: u8 = 4;
const TWO: Mode = Mode::Permits {
    limit: NonZeroU32::MIN.saturating_add(1),
};
const MODES: [Mode; 4] = [Mode::Exclusive, Mode::Shared, Mode::Upgradable, TWO];

/// What is done to the table.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Acquire(Mode),
    /// Releases a hold or leaves the queue.
    Release,
    Upgrade,
    TryUpgrade,
    Downgrade(Mode),
}

/// One hold: its owner, its mode, and whether it waits to become exclusive.
type Hold = (OwnerId, Mode, bool);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Image {
    holds: Vec<Hold>,
    waiters: Vec<(OwnerId, Mode)>,
}

impl Image {
    fn of(table: &Table) -> Self {
        let (mut holds, mut waiters) = (Vec::new(), Vec::new());
        if let Some(slot) = table.slots.first() {
            let hold = slot.holds.iter();
            holds.extend(hold.map(|hold| (hold.owner, hold.mode, hold.is_upgrading)));
            let waiter = slot.waiters.iter();
            waiters.extend(waiter.map(|waiter| (waiter.claim.owner, waiter.claim.mode)));
        }
        // The order of the holds changes nothing.
        holds.sort_by_key(|(owner, ..)| *owner.as_bytes());
        Self { holds, waiters }
    }

    fn upgrading(&self) -> Option<OwnerId> {
        let hold = self.holds.iter().find(|(_, _, is_upgrading)| *is_upgrading);
        hold.map(|(owner, ..)| *owner)
    }

    /// Whether a hold of that mode may begin while these holds exist.
    fn has_room(&self, mode: Mode) -> bool {
        let count = |wanted: fn(Mode) -> bool| {
            let modes = self.holds.iter().map(|(_, mode, _)| *mode);
            modes.filter(|mode| wanted(*mode)).count()
        };
        let exclusive = count(|mode| mode == Mode::Exclusive);
        match mode {
            Mode::Exclusive => self.holds.is_empty(),
            Mode::Shared => exclusive == 0,
            Mode::Upgradable => exclusive == 0 && count(|mode| mode == Mode::Upgradable) == 0,
            Mode::Permits { limit } => {
                let permits = count(|mode| matches!(mode, Mode::Permits { .. }));
                exclusive == 0 && permits < limit.get() as usize
            }
        }
    }

    /// What an owner can do.
    fn steps(&self, of: OwnerId) -> Vec<Step> {
        if self.waiters.iter().any(|(owner, _)| *owner == of) {
            return vec![Step::Release];
        }
        let Some((_, mode, _)) = self.holds.iter().find(|(owner, ..)| *owner == of) else {
            return MODES.map(Step::Acquire).to_vec();
        };
        let mut steps = vec![Step::Release, Step::Upgrade, Step::TryUpgrade];
        steps.extend([Mode::Shared, Mode::Upgradable].map(Step::Downgrade));
        if *mode == Mode::Exclusive {
            // The hold is exclusive already, so that an upgrade changes nothing.
            steps.retain(|step| !matches!(step, Step::Upgrade | Step::TryUpgrade));
        }
        steps
    }

    /// Two that exclude each other, or a request that could be granted and is not.
    fn check(&self) {
        for (index, (_, mode, _)) in self.holds.iter().enumerate() {
            let mut others = self.clone();
            others.holds.remove(index);
            assert!(
                others.has_room(*mode),
                "two that exclude each other: {self:?}"
            );
        }
        match (self.upgrading(), self.waiters.first()) {
            (Some(_), _) => assert!(self.holds.len() > 1, "not upgraded: {self:?}"),
            (None, Some((_, mode))) => assert!(!self.has_room(*mode), "not served: {self:?}"),
            (None, None) => {}
        }
    }
}

/// Does the step, without any check.
fn perform(table: &mut Table, of: OwnerId, step: Step) -> Option<Verdict> {
    let (lock, now) = (name("door"), Time::ZERO);
    match step {
        Step::Acquire(mode) => Some(table.acquire(&ask(of, mode), now)),
        Step::Upgrade => Some(table.upgrade(&lock, of, true, now)),
        Step::TryUpgrade => Some(table.upgrade(&lock, of, false, now)),
        Step::Release => {
            table.release(&lock, of, false, now);
            None
        }
        Step::Downgrade(mode) => {
            table.downgrade(&lock, of, mode, now);
            None
        }
    }
}

/// Does the step, and checks which grants it led to. A table that was read from a store does the same.
fn apply(table: &mut Table, of: OwnerId, step: Step) {
    let (lock, before) = (name("door"), Image::of(table));
    let last_token = table.slots.first().map_or(0, |slot| slot.last_token);
    let mut read = Table::of_name(&lock, table.state(&lock));
    let verdict = perform(table, of, step);
    assert_eq!(perform(&mut read, of, step), verdict);
    assert_eq!(read.state(&lock), table.state(&lock), "{before:?} {step:?}");
    let (after, mut granted) = (Image::of(table), Vec::new());
    table.granted(&mut granted);
    if let Some(Verdict::Granted { token }) = verdict {
        granted.insert(0, (of, token));
    }
    let mut newest = last_token;
    for (grantee, token) in &granted {
        assert!(*token > newest, "a token goes back: {before:?} {step:?}");
        newest = *token;
        if let Some(upgrading) = before.upgrading()
            && after.holds.iter().any(|(owner, ..)| *owner == upgrading)
            && (step, of) != (Step::Downgrade(Mode::Upgradable), upgrading)
            && (step, of) != (Step::Downgrade(Mode::Shared), upgrading)
            && (step, of) != (Step::TryUpgrade, upgrading)
        {
            assert_eq!(*grantee, upgrading, "between: {before:?} {step:?}");
        }
    }
    // First come, first served: who still waits came after all that were granted out of the queue.
    let place = |of: &OwnerId| before.waiters.iter().position(|(owner, _)| owner == of);
    for (grantee, _) in &granted {
        for (waiter, _) in &after.waiters {
            let is_upgrade = before.holds.iter().any(|(owner, ..)| owner == grantee);
            let is_later = match (place(grantee), place(waiter)) {
                (Some(grantee), Some(waiter)) => grantee < waiter,
                (None, Some(_)) => is_upgrade,
                (_, None) => true,
            };
            assert!(is_later, "overtaken: {before:?} {step:?} {after:?}");
        }
    }
}

fn ask(owner: OwnerId, mode: Mode) -> LockRequest {
    LockRequest {
        name: name("door"),
        owner,
        mode,
        ttl: None,
        wait: true,
        barge: false,
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        waiter_ttl: None,
        propose: None,
    }
}

#[test]
fn no_state_of_four_owners_breaks_a_rule() {
    let mut seen = HashSet::from([Image::of(&Table::new())]);
    let mut open = vec![Table::new()];
    let mut steps = 0;
    while let Some(table) = open.pop() {
        for who in 0..OWNERS {
            for step in Image::of(&table).steps(owner(who)) {
                let mut next = table.clone();
                apply(&mut next, owner(who), step);
                steps += 1;
                let image = Image::of(&next);
                image.check();
                if seen.insert(image) {
                    open.push(next);
                }
            }
        }
    }
    println!("{} states, {steps} steps", seen.len());
}
