//! What several nodes say of one election, as one sighting.

use std::cmp::Reverse;
use std::time::Duration;

use tenure_core::fence::FencingToken;
use tenure_core::leader::{Leader, Sighting};

use super::merge::{identity, latest_value};

/// What the nodes say together; `known` has what each node said, `None` for a node that has not answered. At least a
/// majority has answered.
///
/// - That leader leads whom a majority has under one token. Of its values the latest counts: it is on a majority, or the
///   leader does not know whether it is, and will publish again.
/// - If no hold can have a majority, also with the nodes that have not answered, nobody leads.
/// - Otherwise the answer is `None`: ask again.
pub(super) fn merge(known: &[Option<Sighting>], majority: usize) -> Option<Sighting> {
    let missing = known.iter().filter(|answer| answer.is_none()).count();
    let leaders = || known.iter().flatten().filter(|it| it.leader.is_some());
    let with = |one: &Sighting| leaders().filter(|it| is_same_term(it, one)).count();
    let best = leaders().max_by_key(|one| with(one));
    match best.map_or(0, with) {
        count if count >= majority => best.map(|best| {
            let parts = leaders().filter(|it| is_same_term(it, best));
            merge_parts(parts.collect(), best, majority)
        }),
        count if count + missing >= majority && count > 0 => None,
        _ => Some(Sighting::of_nobody(last_token(known, majority, missing))),
    }
}

/// A number that is not less than the token of each term that is over, and less than the token of each later one.
///
/// Each term that was led is known to a majority, of which at most `missing` nodes have not answered: so the greatest
/// numbers may be those of contenders without a majority, and one of the others is that of the last term. A hold that a node
/// has now may yet get its majority, so its token does not count.
fn last_token(known: &[Option<Sighting>], majority: usize, missing: usize) -> u64 {
    let of_node = |answer: &Sighting| match answer.leader {
        Some(_) => answer.last_token.saturating_sub(1),
        None => answer.last_token,
    };
    let mut tokens: Vec<_> = known.iter().flatten().map(of_node).collect();
    tokens.sort_unstable_by_key(|token| Reverse(*token));
    let rank = majority.saturating_sub(missing).saturating_sub(1);
    tokens.get(rank).copied().unwrap_or(0)
}

/// One leader, from what the nodes say that have it. Its lease ends when the best majority of its leases ends.
fn merge_parts(parts: Vec<&Sighting>, best: &Sighting, majority: usize) -> Sighting {
    let left = parts.iter().map(|it| it.ttl_left.unwrap_or(Duration::MAX));
    let mut left: Vec<_> = left.collect();
    left.sort_unstable_by_key(|left| Reverse(*left));
    let mut merged = best.clone();
    let ttl_left = left.get(majority - 1).copied();
    merged.ttl_left = ttl_left.filter(|left| *left < Duration::MAX);
    let holders = || {
        parts
            .iter()
            .filter_map(|it| it.leader.as_ref())
            .map(|it| &it.holder)
    };
    if let Some(leader) = &mut merged.leader {
        leader.holder.since = holders().filter_map(|it| it.since).min();
        leader.holder.value = latest_value(holders());
    }
    merged
}

fn is_same_term(one: &Sighting, other: &Sighting) -> bool {
    match (&one.leader, &other.leader) {
        (Some(one), Some(other)) => one.token == other.token && is_same_leader(one, other),
        _ => false,
    }
}

/// Whether two nodes speak of one process. The token of its hold may differ for a moment.
pub(super) fn is_same_leader(one: &Leader, other: &Leader) -> bool {
    identity(&one.holder) == identity(&other.holder)
}

/// Under which token each node has the hold that others know under `token`.
pub(super) fn tokens_on_nodes(known: &[Option<Sighting>], token: u64) -> Vec<Option<u64>> {
    let leader = |answer: &Option<Sighting>| answer.as_ref().and_then(|it| it.leader.clone());
    let token_of = |leader: &Leader| leader.token.map(FencingToken::get);
    let wanted = known
        .iter()
        .filter_map(leader)
        .find(|it| token_of(it) == Some(token));
    let on_node = |answer: &Option<Sighting>| {
        let (leader, wanted) = (leader(answer)?, wanted.as_ref()?);
        is_same_leader(&leader, wanted)
            .then(|| token_of(&leader))
            .flatten()
    };
    known.iter().map(on_node).collect()
}

#[cfg(test)]
mod tests {
    use tenure_core::holder::{HoldInfo, Holder, PublishedValue};
    use tenure_core::options::Mode;

    use super::*;

    fn leads(pid: u32, token: u64, number: u64) -> Option<Sighting> {
        let mut holder = Holder::new("h", pid);
        holder.value = Some(PublishedValue::new(format!("value {number}"), number));
        let left = Some(Duration::from_secs(token));
        Some(Sighting::of_hold(HoldInfo::new(
            holder,
            Mode::Exclusive,
            Some(token),
            left,
        )))
    }

    fn nobody(token: u64) -> Option<Sighting> {
        Some(Sighting::of_nobody(token))
    }

    /// Process and token of the leader and number of its value; the last token if nobody leads.
    fn merged(known: &[Option<Sighting>]) -> Result<Option<(u32, u64, u64)>, u64> {
        let majority = known.len() / 2 + 1;
        let Some(sighting) = merge(known, majority) else {
            return Ok(None);
        };
        let leader = sighting.leader.ok_or(sighting.last_token)?;
        let value = leader.holder.value.unwrap();
        Ok(Some((leader.holder.pid, sighting.last_token, value.number)))
    }

    #[test]
    fn a_majority_with_one_token_leads_with_its_latest_value() {
        let leader = Ok(Some((1, 7, 2)));
        assert_eq!(merged(&[leads(1, 7, 0), leads(1, 7, 2), nobody(3)]), leader);
        assert_eq!(merged(&[leads(1, 7, 2), leads(1, 7, 0), None]), leader);
        assert_eq!(
            merged(&[leads(2, 8, 0), leads(1, 7, 2), leads(1, 7, 1)]),
            leader
        );
        // Another process with the same token, or the same one with another.
        assert_eq!(merged(&[leads(1, 7, 0), leads(2, 7, 0), nobody(5)]), Err(6));
        assert_eq!(merged(&[leads(1, 7, 0), leads(1, 8, 0), nobody(5)]), Err(6));
    }

    #[test]
    fn a_silent_node_may_have_the_hold_too() {
        assert_eq!(merged(&[leads(1, 7, 0), nobody(6), None]), Ok(None));
        assert_eq!(merged(&[nobody(7), nobody(6), None]), Err(7));
        let five = [leads(1, 7, 0), nobody(6), nobody(6), nobody(6), None];
        assert_eq!(merged(&five), Err(6));
    }

    /// Terms up to 5 are over, and 5 is on two of three nodes. The next winner takes one of these to a greater token.
    #[test]
    fn nobody_leads_after_the_last_term_and_before_the_next_one() {
        assert_eq!(merged(&[nobody(5), nobody(5), nobody(2)]), Err(5));
        assert_eq!(merged(&[nobody(5), nobody(2), None]), Err(5));
        // A contender had one node under 9, and has given it back.
        assert_eq!(merged(&[nobody(5), nobody(9), nobody(5)]), Err(5));
        // The next one has 6 on one node, and will have it on two.
        assert_eq!(merged(&[leads(1, 6, 0), nobody(5), nobody(2)]), Err(5));
        assert_eq!(merged(&[leads(1, 6, 0), leads(2, 6, 0), nobody(5)]), Err(5));
        assert_eq!(merged(&[nobody(0), nobody(0), nobody(0)]), Err(0));
    }

    #[test]
    fn a_request_reaches_the_hold_on_each_node_under_the_token_of_the_node() {
        let known = [
            leads(1, 7, 0),
            leads(1, 6, 0),
            leads(2, 7, 0),
            nobody(3),
            None,
        ];
        let tokens = tokens_on_nodes(&known, 7);
        assert_eq!(tokens, [Some(7), Some(6), None, None, None]);
        assert_eq!(tokens_on_nodes(&known, 9), [None; 5]);
    }

    #[test]
    fn the_lease_is_that_of_a_majority() {
        let mut parts = [leads(1, 7, 0), leads(1, 7, 0), leads(1, 7, 0)];
        for (part, secs) in parts.iter_mut().zip([1, 9, 4]) {
            part.as_mut().unwrap().ttl_left = Some(Duration::from_secs(secs));
        }
        let left = |parts: &[Option<Sighting>]| merge(parts, 2).unwrap().ttl_left;
        assert_eq!(left(&parts), Some(Duration::from_secs(4)));
        parts[0].as_mut().unwrap().ttl_left = None;
        parts[2].as_mut().unwrap().ttl_left = None;
        assert_eq!(left(&parts), None);
    }
}
