//! What several nodes say of one name, as one status.

use std::cmp::Reverse;
use std::time::Duration;

use tenure_core::holder::{HoldInfo, Holder, LockStatus, PublishedValue};
use tenure_core::logic::quorum_mode::common_mode;
use tenure_core::name::LockName;
use tenure_core::options::Mode;

/// One hold: what each node that has the hold says of it.
pub(super) struct MergedHold<'a> {
    /// By node, each node at most once.
    pub(super) parts: Vec<(usize, &'a HoldInfo)>,
    /// The token that a majority knows, else the greatest.
    pub(super) token: Option<u64>,
}

/// The statuses of the nodes that answered, of which there are `nodes`.
pub(super) fn merge(
    name: &LockName,
    statuses: &[LockStatus],
    nodes: usize,
    majority: usize,
) -> LockStatus {
    let known: Vec<_> = statuses.iter().enumerate().collect();
    let holds = merge_holds(&known, majority);
    let mut status = LockStatus::free(name.clone());
    let infos = holds.iter().filter_map(|hold| hold.info(majority));
    status.holds.extend(infos);
    let is_held = status.is_held();
    status.queue = merge_queues(statuses, &holds, majority);
    let mut reserved: Vec<_> = statuses.iter().filter_map(|it| it.reserved).collect();
    reserved.sort_unstable_by_key(|left| Reverse(*left));
    status.reserved = reserved.get(majority - 1).copied().filter(|_| !is_held);
    // The lock can be granted when a majority of nodes is trusted again. A minority may stay distrusted for longer: the
    // nodes that started last do not count, and the next one does.
    let guards = statuses.iter().filter_map(|it| it.restart_guard.clone());
    let mut guards: Vec<_> = guards.collect();
    guards.sort_unstable_by_key(|guard| guard.uptime);
    status.restart_guard = guards
        .into_iter()
        .nth(statuses.len().saturating_sub(majority))
        .filter(|_| !is_held);
    let agreeing = match (is_held, status.reserved) {
        // Of several holds the one that the fewest nodes have.
        (true, _) => holds.iter().map(|hold| hold.parts.len()).min().unwrap_or(0),
        (false, Some(_)) => reserved.len(),
        (false, None) => statuses.iter().filter(|status| !status.is_held()).count(),
    };
    status.with_nodes(agreeing, nodes)
}

/// The holds that a majority knows, in the order of their tokens.
///
/// The owner id would tell the holds apart, but an owner id is a capability, so nodes do not show it. No two holds have
/// the same token, and mostly a majority knows the token of a hold; a node that does not know it has another token for a
/// hold of the same holder.
pub(super) fn merge_holds<'a>(
    statuses: &[(usize, &'a LockStatus)],
    majority: usize,
) -> Vec<MergedHold<'a>> {
    let all = statuses.iter();
    let all = all.flat_map(|(node, status)| status.holds.iter().map(|hold| (*node, hold)));
    let mut left: Vec<(usize, &HoldInfo)> = all.collect();
    let mut holds: Vec<Vec<(usize, &HoldInfo)>> = Vec::new();
    while let Some(first) = left.iter().copied().find(|one| {
        let is_equal = |other: &&(usize, &HoldInfo)| is_same_hold(one.1, other.1);
        left.iter().filter(is_equal).count() >= majority
    }) {
        let (hold, others) = left
            .into_iter()
            .partition(|other| is_same_hold(first.1, other.1));
        holds.push(hold);
        left = others;
    }
    for (node, info) in left {
        let may_have = |hold: &&mut Vec<(usize, &HoldInfo)>| {
            is_same_holder(hold[0].1, info) && hold.iter().all(|(other, _)| *other != node)
        };
        match holds.iter_mut().find(may_have) {
            Some(hold) => hold.push((node, info)),
            None => holds.push(vec![(node, info)]),
        }
    }
    holds.retain(|hold| hold.len() >= majority);
    let merged = holds.into_iter().map(|parts| MergedHold {
        token: token(&parts, majority),
        parts,
    });
    let mut merged: Vec<_> = merged.collect();
    merged.sort_by_key(|hold| hold.token);
    merged
}

impl MergedHold<'_> {
    /// The hold ends when the best majority of its leases ends.
    fn info(&self, majority: usize) -> Option<HoldInfo> {
        let parts = || self.parts.iter().map(|(_, info)| *info);
        let left = parts().map(|hold| hold.ttl_left.unwrap_or(Duration::MAX));
        let mut left: Vec<_> = left.collect();
        left.sort_unstable_by_key(|left| Reverse(*left));
        let ttl_left = Some(left[majority - 1]).filter(|left| *left < Duration::MAX);
        let holders = || parts().map(|hold| &hold.holder);
        let mut holder = holders().next()?.clone();
        holder.value = latest_value(holders());
        holder.since = parts().filter_map(|hold| hold.holder.since).min();
        let mode = common_mode(parts().map(|hold| hold.mode), majority)?;
        Some(HoldInfo::new(holder, mode, self.token, ttl_left))
    }
}

/// Whether two nodes certainly speak of one hold.
fn is_same_hold(one: &HoldInfo, other: &HoldInfo) -> bool {
    one.token == other.token && is_same_holder(one, other)
}

/// Whether two nodes may speak of one hold. The mode of a hold may change at each node at another moment.
fn is_same_holder(one: &HoldInfo, other: &HoldInfo) -> bool {
    let is_permit = |hold: &HoldInfo| matches!(hold.mode, Mode::Permits { .. });
    is_permit(one) == is_permit(other) && identity(&one.holder) == identity(&other.holder)
}

/// The holder without the time, which each node measures for itself, and without what changes while it holds.
pub(super) fn identity(holder: &Holder) -> Holder {
    let mut holder = holder.clone();
    holder.since = None;
    holder.value = None;
    holder
}

/// The value with the greatest number: a node may have missed it.
pub(super) fn latest_value<'a>(
    holders: impl Iterator<Item = &'a Holder>,
) -> Option<PublishedValue> {
    let values = holders.filter_map(|holder| holder.value.as_ref());
    values.max_by_key(|value| value.number).cloned()
}

fn token(parts: &[(usize, &HoldInfo)], majority: usize) -> Option<u64> {
    let tokens: Vec<_> = parts.iter().filter_map(|(_, hold)| hold.token).collect();
    let count = |token| tokens.iter().filter(|known| **known == token).count();
    let mut agreed = tokens.iter().filter(|token| count(**token) >= majority);
    let token = agreed.next().or(tokens.iter().max());
    token.copied().map(u64::from)
}

/// The waiters on any node. A waiter may have some nodes already and stand in the queues of the others, so a holder
/// may, too. `None`: too few nodes show a queue.
fn merge_queues(
    statuses: &[LockStatus],
    holds: &[MergedHold<'_>],
    majority: usize,
) -> Option<Vec<Holder>> {
    let queues = statuses.iter().filter(|status| status.queue.is_some());
    let has_queues = queues.count() >= majority;
    let mut merged: Vec<Holder> = Vec::new();
    for (node, status) in statuses.iter().enumerate() {
        for waiter in status.queue.iter().flatten().map(identity) {
            let of_waiter = |info: &HoldInfo| identity(&info.holder) == waiter;
            let holds_elsewhere = holds.iter().any(|hold| of_waiter(hold.parts[0].1))
                && !statuses[node].holds.iter().any(of_waiter);
            if !holds_elsewhere && !merged.contains(&waiter) {
                merged.push(waiter);
            }
        }
    }
    has_queues.then_some(merged)
}
