//! One name of the table as a value, for a store that keeps the value and lets the table decide.
//!
//! Such a store reads the value of a name, lets the table take one step, and writes the value back, in one transaction.

use std::cmp::Reverse;
use std::hash::BuildHasher;

use super::Table;
use super::slot::NameState;
use crate::name::LockName;
use crate::time::Time;

impl Table {
    /// A table that knows this name and no other. The first operation, or [`tick`](Table::tick), settles what is due and
    /// serves the queue, because time has passed since the state was written, and perhaps a holder has left.
    pub fn of_name(name: &LockName, state: NameState) -> Self {
        let mut table = Self::new();
        let index = table.index(name);
        let slot = &mut table.slots[index];
        slot.last_token = state.last_token;
        slot.holds = state.holds;
        slot.reservations = state.reservations;
        slot.waiters = state.waiters;
        (slot.due, slot.planned) = (Time::ZERO, Time::ZERO);
        table.agenda.push(Reverse((Time::ZERO, index)));
        table
    }
}

impl<S: BuildHasher> Table<S> {
    /// The greatest token that was granted for the name so far, as far as the table remembers it.
    pub fn last_token(&self, name: &LockName) -> u64 {
        let index = self.names.get(name);
        index.map_or(self.floor, |index| self.slots[*index].last_token)
    }

    /// All that the table knows of the name, as of the last operation.
    pub fn state(&self, name: &LockName) -> NameState {
        let Some(index) = self.names.get(name) else {
            return NameState::default();
        };
        let slot = &self.slots[*index];
        NameState {
            last_token: slot.last_token,
            holds: slot.holds.clone(),
            reservations: slot.reservations.clone(),
            waiters: slot.waiters.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{LockRequest, Verdict};
    use super::*;
    use crate::fence::OwnerId;
    use crate::options::Mode;

    const TTL: Duration = Duration::from_millis(10);

    fn at(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    fn request(name: &LockName, owner: u8, mode: Mode) -> LockRequest {
        LockRequest {
            name: name.clone(),
            owner: OwnerId::from_bytes([owner; 16]),
            mode,
            ttl: Some(TTL),
            wait: true,
            barge: false,
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            waiter_ttl: Some(2 * TTL),
            propose: None,
        }
    }

    /// What was due since the state was written is settled, in the order in which a table does it.
    #[test]
    fn a_state_that_was_written_is_settled_when_it_is_read() {
        let name = LockName::new("n").expect("a valid name");
        let mut table = Table::new();
        for (owner, mode) in [
            (1, Mode::Exclusive),
            (2, Mode::Shared),
            (3, Mode::Shared),
            (4, Mode::Exclusive),
        ] {
            table.acquire(&request(&name, owner, mode), at(5));
        }
        for now in [at(14), at(15), at(24), at(25), at(60)] {
            let mut read = Table::of_name(&name, table.state(&name));
            let mut whole = table.clone();
            read.tick(now);
            whole.tick(now);
            assert_eq!(read.state(&name), whole.state(&name), "{now:?}");
            assert_eq!(read.next(), whole.next(), "{now:?}");
            let (mut a, mut b) = (Vec::new(), Vec::new());
            read.granted(&mut a);
            whole.granted(&mut b);
            assert_eq!(a, b, "{now:?}");
        }
    }

    /// A store may have ended a hold without serving the queue, and a first grant follows the last token.
    #[test]
    fn the_queue_of_a_state_is_served() {
        let name = LockName::new("n").expect("a valid name");
        let mut table = Table::new();
        for owner in [1, 2] {
            table.acquire(&request(&name, owner, Mode::Exclusive), at(1));
        }
        let mut state = table.state(&name);
        state.holds.clear();
        state.last_token = 40;
        let mut read = Table::of_name(&name, state);
        assert!(read.renew(&name, OwnerId::from_bytes([2; 16]), None, at(2)));
        let verdict = read.acquire(&request(&name, 2, Mode::Exclusive), at(2));
        assert_eq!(verdict, Verdict::Granted { token: 41 });
        assert_eq!(Table::new().state(&name), NameState::default());
    }
}
