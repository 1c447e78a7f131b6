//! Who holds and whom to watch, for stores that keep their waiters in order (etcd, ZooKeeper, Redis).
//!
//! All contenders for the name are in one list, holders included, in the store's order of arrival.
//! Each contender looks at the list and decides for itself; all of them decide alike, because nothing
//! behind a contender matters to it. So watches only ever point forward: there is no cycle.
//!
//! The rules are those of [`table`](super::table), strictly first come, first served:
//! a contender holds when all contenders ahead of it hold and it is compatible with all of them.

use std::ops::Range;

use crate::options::Mode;

/// One entry of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Contender {
    /// What it wants.
    pub mode: Mode,
}

/// What a contender has to do. Indices are positions in the list that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Turn {
    /// It holds the name.
    Held,
    /// Wait until this one is gone, then read the list again.
    WatchOne(usize),
    /// Wait until any of these is gone, then read the list again.
    WatchAll(Range<usize>),
}

/// The turn of the contender at index `me`.
///
/// While everything that it says to watch is still there, the contender cannot hold, so no wake-up is
/// missed if the watch reports what happened since the list was read. And no herd is woken: the end of
/// an exclusive hold or of a permit wakes the ones that may follow it, at most `limit` of them.
///
/// - Exclusive: the one just ahead.
/// - Shared: the nearest exclusive ahead, because shared holders go together.
/// - Upgradable: the nearest exclusive or upgradable ahead.
/// - Permit, with `limit` permits or more between it and the nearest exclusive ahead: the nearest
///   `limit` of them. While all of those are there it cannot hold, whichever other contenders are ahead. (Watching
///   only the one just ahead would miss the end of another one's hold; watching all permits ahead
///   would wake every waiter at every release.)
/// - Permit, with fewer: the nearest exclusive ahead.
/// - What waits behind a waiting permit or a waiting upgradable without being blocked by anything else (a shared hold,
///   or a permit with another limit): everything ahead. Rare, for it takes a mixture of uses.
///
/// # Panics
/// When `me` is not an index of `contenders`.
pub fn decide(contenders: &[Contender], me: usize) -> Turn {
    let ahead = &contenders[..me];
    let mode = contenders[me].mode;
    if let Mode::Exclusive = mode {
        return me.checked_sub(1).map_or(Turn::Held, Turn::WatchOne);
    }
    let exclusive = ahead.iter().rposition(|other| match other.mode {
        Mode::Exclusive => true,
        Mode::Upgradable => mode == Mode::Upgradable,
        Mode::Shared | Mode::Permits { .. } => false,
    });
    if let Mode::Permits { limit } = mode {
        let limit = usize::try_from(limit.get()).unwrap_or(usize::MAX);
        let nearer = exclusive.map_or(0, |exclusive| exclusive + 1)..me;
        let mut permits = nearer.rev().filter(|index| is_permit(ahead[*index].mode));
        if let Some(farthest) = permits.nth(limit - 1) {
            // Shared holders in between are watched too: needless, harmless, and one range.
            return if me - farthest == 1 {
                Turn::WatchOne(farthest)
            } else {
                Turn::WatchAll(farthest..me)
            };
        }
    }
    if let Some(exclusive) = exclusive {
        return Turn::WatchOne(exclusive);
    }
    if all_hold(ahead) {
        Turn::Held
    } else {
        Turn::WatchAll(0..me)
    }
}

/// Whether all of these contenders hold, if no other contender is ahead of them and none is exclusive.
fn all_hold(ahead: &[Contender]) -> bool {
    let (mut permits, mut upgradable) = (0, 0);
    ahead.iter().all(|other| match other.mode {
        Mode::Permits { limit } => {
            permits += 1;
            permits <= limit.get()
        }
        Mode::Upgradable => {
            upgradable += 1;
            upgradable <= 1
        }
        Mode::Exclusive | Mode::Shared => true,
    })
}

fn is_permit(mode: Mode) -> bool {
    matches!(mode, Mode::Permits { .. })
}
