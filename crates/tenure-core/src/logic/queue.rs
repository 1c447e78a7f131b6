//! Who holds and whom to watch, for stores that keep their waiters in order (etcd, ZooKeeper, Redis).
//!
//! All contenders for the name are in one list, holders included, in the store's order of arrival.
//! Each contender looks at the list and decides for itself; all of them decide alike, because nothing
//! behind a contender matters to it. So watches only ever point forward: there is no cycle.
//!
//! The rules are those of [`table`](super::table), strictly first come, first served:
//! a contender holds when all contenders ahead of it hold and it is compatible with all of them.

//!
//! An upgradable holder that is to become exclusive says so in its entry. From then on nothing is granted behind that
//! entry; so the entry also has to say which contenders held at that moment, because the modes alone do not tell later.

use std::ops::Range;

use crate::options::Mode;

/// One entry of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Contender {
    /// What it wants.
    pub mode: Mode,
}

/// An upgradable holder that waits to become exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Upgrading {
    /// The index of the contender that upgrades, whose mode is upgradable still.
    pub at: usize,
    /// The index of the last contender that held when the request to upgrade arrived: all contenders up to that one
    /// hold until they leave. `None`: the upgradable holder has not said it yet.
    pub last_holder: Option<usize>,
}

/// What a contender has to do. Indices are positions in the list that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Turn {
    /// It holds the name.
    Held,
    /// Wait until this one is gone or its entry has changed, then read the list again.
    WatchOne(usize),
    /// Wait until any of these is gone or its entry has changed, then read the list again.
    WatchAll(Range<usize>),
}

/// The turn of the contender at index `me` while `upgrading` waits to become exclusive.
///
/// Behind that one nothing is granted. An exclusive contender watches the one just ahead, as always; each other one
/// watches the upgradable holder.
///
/// # Panics
/// When `me` is not an index of `contenders`.
pub fn decide_while_upgrading(contenders: &[Contender], upgrading: Upgrading, me: usize) -> Turn {
    let is_behind = me > upgrading.at && contenders[me].mode != Mode::Exclusive;
    match upgrading.last_holder {
        _ if !is_behind => decide(contenders, me),
        Some(last) if me <= last => Turn::Held,
        _ => Turn::WatchOne(upgrading.at),
    }
}

/// How many contenders hold. They are the first of the list, because each one waits for all ahead that do not hold.
pub fn count_holders(contenders: &[Contender]) -> usize {
    let holds = |me: &usize| decide(contenders, *me) == Turn::Held;
    (0..contenders.len()).take_while(holds).count()
}

/// The turn of the contender at index `me`.
///
/// While everything that it says to watch is still there and has not changed, the contender cannot hold, so no wake-up is
/// missed if the watch reports what happened since the list was read. And few waiters are woken: the end of
/// an exclusive hold or of a permit wakes the ones that may follow it, at most `limit` of them.
///
/// - Exclusive: the one just ahead.
/// - Shared: the nearest exclusive ahead, because shared holders do not exclude each other.
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
