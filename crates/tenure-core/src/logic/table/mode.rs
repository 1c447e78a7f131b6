//! Changing the mode of a hold.

use std::hash::BuildHasher;

use super::Table;
use super::data::Verdict;
use crate::fence::OwnerId;
use crate::name::LockName;
use crate::options::Mode;
use crate::time::Time;

impl<S: BuildHasher> Table<S> {
    /// Makes the upgradable hold of the owner exclusive, under a new token: at once, or as soon as all other holds have
    /// ended if `wait` is set. Asked again, the answer is the same: an exclusive hold has its token already.
    ///
    /// [`Verdict::Busy`]: there are other holds, or the owner has no upgradable hold; the hold is as it was before, and
    /// an earlier request to upgrade is given up.
    pub fn upgrade(&mut self, name: &LockName, owner: OwnerId, wait: bool, now: Time) -> Verdict {
        let Some(index) = self.settled(name, now) else {
            return Verdict::Busy;
        };
        let slot = &mut self.slots[index];
        let Some(at) = slot.holds.iter().position(|hold| hold.owner == owner) else {
            return Verdict::Busy;
        };
        let verdict = match slot.holds[at].mode {
            Mode::Exclusive => Verdict::Granted {
                token: slot.holds[at].token,
            },
            Mode::Upgradable if slot.is_alone(at) => Verdict::Granted {
                token: slot.upgrade(at),
            },
            Mode::Upgradable => {
                slot.holds[at].is_upgrading = wait;
                slot.serve(now, &mut self.granted);
                match wait {
                    true => Verdict::Queued,
                    false => Verdict::Busy,
                }
            }
            Mode::Shared | Mode::Permits { .. } => Verdict::Busy,
        };
        self.changed(index);
        verdict
    }

    /// Makes the exclusive or upgradable hold of the owner shared, or upgradable again; the latter also gives up a request
    /// to upgrade. The token stays. `false`: the owner has no hold that is at least as strong as `mode`.
    pub fn downgrade(&mut self, name: &LockName, owner: OwnerId, mode: Mode, now: Time) -> bool {
        let Some(index) = self.settled(name, now) else {
            return false;
        };
        let slot = &mut self.slots[index];
        let Some(hold) = slot.hold_of(owner) else {
            return false;
        };
        let is_allowed = match mode {
            Mode::Shared => !matches!(hold.mode, Mode::Permits { .. }),
            Mode::Upgradable => matches!(hold.mode, Mode::Exclusive | Mode::Upgradable),
            Mode::Exclusive | Mode::Permits { .. } => false,
        };
        if is_allowed {
            hold.mode = mode;
            hold.is_upgrading = false;
            slot.serve(now, &mut self.granted);
            self.changed(index);
        }
        is_allowed
    }
}
