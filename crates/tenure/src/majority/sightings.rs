//! What several nodes say of one election, as one sighting.

use std::cmp::Reverse;
use std::time::Duration;

use tenure_core::fence::FencingToken;
use tenure_core::leader::{Leader, Sighting};

use super::merge::{identity, latest_value};

/// What the nodes say together.
#[derive(Clone, Debug)]
pub(super) enum Merged {
    /// A majority says so.
    Sure(Sighting),
    /// A majority has this leader, and no token in common, or another node has it under a greater one. Such a state may last,
    /// or the leader raises the token of a node just now: it leads if a look some time later says the same.
    Likely(Sighting),
    /// The answer depends on nodes that are still silent: ask again.
    Open,
}

/// Merges what the nodes say; `known` has what each node said, `None` for a node that has not answered. At least a majority
/// has answered.
///
/// - That leader leads whom a majority has, under the greatest token that a majority knows: this one or a greater one, as a
///   node has that was given back and granted again. Of its values the latest counts: it is on a majority, or the leader does
///   not know whether it is, and will publish again.
/// - If no hold can have a majority, also with the nodes that have not answered, nobody leads.
pub(super) fn merge(known: &[Option<Sighting>], majority: usize) -> Merged {
    let missing = known.iter().filter(|answer| answer.is_none()).count();
    let leaders = || known.iter().flatten().filter(|it| it.leader.is_some());
    let parts_of = |one| leaders().filter(move |it| is_same(it, one));
    let best = leaders().max_by_key(|one| parts_of(one).count());
    let parts: Vec<_> = best.map_or_else(Vec::new, |best| parts_of(best).collect());
    match parts.len() {
        count if count >= majority => merge_leader(parts, majority),
        count if count + missing >= majority && count > 0 => Merged::Open,
        _ => Merged::Sure(Sighting::of_nobody(last_token(known, majority, missing))),
    }
}

/// A number that is not less than the token of each term that is over, and less than the token of each later one; 0 if it is
/// not known.
///
/// Each term that was led is known to a majority, so that number is the one that a majority knows at least. The greater ones
/// are those of contenders without a majority. It is known if the nodes that have not answered cannot change it. A hold that a
/// node has now may yet get its majority, so its token does not count.
fn last_token(known: &[Option<Sighting>], majority: usize, missing: usize) -> u64 {
    let of_node = |answer: &Sighting| match answer.leader {
        Some(_) => answer.last_token.saturating_sub(1),
        None => answer.last_token,
    };
    let mut tokens: Vec<_> = known.iter().flatten().map(of_node).collect();
    tokens.sort_unstable_by_key(|token| Reverse(*token));
    let with_greater = |greater: usize| tokens.get((majority - 1).saturating_sub(greater));
    let (least, most) = (with_greater(0), with_greater(missing));
    let token = least.filter(|least| most == Some(least));
    token.copied().unwrap_or(0)
}

/// One leader, from what the nodes say that have it.
fn merge_leader(mut parts: Vec<&Sighting>, majority: usize) -> Merged {
    parts.sort_by_key(|part| Reverse(term_of(part)));
    let best = parts[majority - 1];
    let token = term_of(best);
    // A node with another token may have what is left of an earlier hold of this process.
    let with_token = parts.iter().copied().filter(|it| term_of(it) == token);
    let with_token: Vec<_> = with_token.collect();
    let is_greatest = parts.first().is_some_and(|it| term_of(it) == token);
    if with_token.len() >= majority && is_greatest {
        return Merged::Sure(merge_parts(&with_token, best, majority));
    }
    parts.retain(|it| term_of(it) >= token);
    Merged::Likely(merge_parts(&parts, best, majority))
}

/// Its lease ends when the best majority of its leases ends.
fn merge_parts(parts: &[&Sighting], best: &Sighting, majority: usize) -> Sighting {
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

fn term_of(sighting: &Sighting) -> Option<FencingToken> {
    sighting.leader.as_ref()?.token
}

/// Whether two looks show one term.
pub(super) fn is_same_term(one: &Sighting, other: &Sighting) -> bool {
    term_of(one) == term_of(other) && is_same(one, other)
}

fn is_same(one: &Sighting, other: &Sighting) -> bool {
    match (&one.leader, &other.leader) {
        (Some(one), Some(other)) => is_same_leader(one, other),
        _ => false,
    }
}

/// Whether two nodes speak of one process. The token of its hold may differ for a moment.
pub(super) fn is_same_leader(one: &Leader, other: &Leader) -> bool {
    identity(&one.holder) == identity(&other.holder)
}

/// Under which token each node has the hold of that leader.
pub(super) fn tokens_on_nodes(known: &[Option<Sighting>], leader: &Leader) -> Vec<Option<u64>> {
    let on_node = |answer: &Option<Sighting>| {
        let on_node = answer.as_ref()?.leader.as_ref()?;
        let token = on_node.token.map(FencingToken::get);
        token.filter(|_| is_same_leader(on_node, leader))
    };
    known.iter().map(on_node).collect()
}

#[cfg(test)]
mod tests {
    use tenure_core::holder::{HoldInfo, Holder, PublishedValue};
    use tenure_core::options::Mode;

    use super::*;

    use Shown::{Leads, Likely, Nobody, Open};

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

    #[derive(Debug, PartialEq)]
    enum Shown {
        /// Process, token, and number of the value.
        Leads(u32, u64, u64),
        Likely(u32, u64, u64),
        /// The last token.
        Nobody(u64),
        Open,
    }

    fn merged(known: &[Option<Sighting>]) -> Shown {
        let shown = |sighting: Sighting| {
            let leader = sighting.leader?;
            let number = leader.holder.value.unwrap().number;
            Some((leader.holder.pid, sighting.last_token, number))
        };
        match merge(known, known.len() / 2 + 1) {
            Merged::Sure(sighting) => match (sighting.last_token, shown(sighting)) {
                (_, Some((pid, token, number))) => Leads(pid, token, number),
                (token, None) => Nobody(token),
            },
            Merged::Likely(sighting) => {
                let (pid, token, number) = shown(sighting).unwrap();
                Likely(pid, token, number)
            }
            Merged::Open => Open,
        }
    }

    #[test]
    fn a_majority_with_one_token_leads_with_its_latest_value() {
        let leader = Leads(1, 7, 2);
        assert_eq!(merged(&[leads(1, 7, 0), leads(1, 7, 2), nobody(3)]), leader);
        assert_eq!(merged(&[leads(1, 7, 2), leads(1, 7, 0), None]), leader);
        assert_eq!(
            merged(&[leads(2, 8, 0), leads(1, 7, 2), leads(1, 7, 1)]),
            leader
        );
        // Another process with the same token.
        assert_eq!(
            merged(&[leads(1, 7, 0), leads(2, 7, 0), nobody(5)]),
            Nobody(6)
        );
    }

    /// A node that was given back and granted again has a greater token, as long as the term lasts.
    #[test]
    fn a_majority_with_different_tokens_probably_leads() {
        let (first, again) = (leads(1, 7, 2), leads(1, 9, 1));
        let probably = Likely(1, 7, 2);
        let all = [first.clone(), first.clone(), again.clone()];
        assert_eq!(merged(&all), probably);
        let known = [first.clone(), again.clone(), None];
        assert_eq!(merged(&known), probably);
        assert_eq!(merged(&[first.clone(), again, nobody(5)]), probably);
        // The first node was to be raised to 7, and does not know.
        let behind = [leads(1, 5, 9), first, leads(1, 9, 0)];
        assert_eq!(merged(&behind), probably);
        // Two looks show one term only under one token.
        let Merged::Likely(sighting) = merge(&known, 2) else {
            panic!("{known:?}");
        };
        assert!(is_same_term(&sighting, &leads(1, 7, 0).unwrap()));
        assert!(!is_same_term(&sighting, &leads(1, 9, 2).unwrap()));
        assert!(!is_same_term(&sighting, &leads(2, 7, 2).unwrap()));
    }

    #[test]
    fn a_silent_node_may_have_the_hold_too() {
        assert_eq!(merged(&[leads(1, 7, 0), nobody(6), None]), Open);
        assert_eq!(merged(&[nobody(7), nobody(7), None]), Nobody(7));
        let five = [leads(1, 7, 0), nobody(6), nobody(6), nobody(6), None];
        assert_eq!(merged(&five), Nobody(6));
    }

    /// Terms up to 5 are over, and 5 is on two of three nodes. The next winner takes one of these to a greater token.
    #[test]
    fn nobody_leads_after_the_last_term_and_before_the_next_one() {
        assert_eq!(merged(&[nobody(5), nobody(5), nobody(2)]), Nobody(5));
        // A contender had one node under 9, and has given it back.
        assert_eq!(merged(&[nobody(5), nobody(9), nobody(5)]), Nobody(5));
        // The next one has 6 on one node, and will have it on two.
        let next = leads(1, 6, 0);
        assert_eq!(merged(&[next.clone(), nobody(5), nobody(2)]), Nobody(5));
        assert_eq!(merged(&[next, leads(2, 6, 0), nobody(5)]), Nobody(5));
        assert_eq!(merged(&[nobody(0), nobody(0), nobody(0)]), Nobody(0));
        // The silent node may have any number: the last term had 5, and the next one may have 6.
        assert_eq!(merged(&[nobody(5), nobody(2), None]), Nobody(0));
        assert_eq!(merged(&[nobody(5), nobody(9), None]), Nobody(0));
        assert_eq!(merged(&[nobody(5), nobody(5), None]), Nobody(5));
    }

    #[test]
    fn a_request_reaches_the_hold_on_each_node_under_the_token_of_the_node() {
        let first = leads(1, 7, 0).unwrap().leader.unwrap();
        let known = [
            leads(1, 7, 0),
            leads(1, 6, 0),
            leads(2, 7, 0),
            nobody(3),
            None,
        ];
        let tokens = tokens_on_nodes(&known, &first);
        assert_eq!(tokens, [Some(7), Some(6), None, None, None]);
        // Two of three lead; the third hands over to a waiter, whose number is the same.
        let known = [leads(2, 7, 0), leads(1, 7, 0), leads(1, 9, 0)];
        assert_eq!(tokens_on_nodes(&known, &first), [None, Some(7), Some(9)]);
        let second = leads(2, 8, 0).unwrap().leader.unwrap();
        assert_eq!(tokens_on_nodes(&known, &second), [Some(7), None, None]);
    }

    #[test]
    fn the_lease_is_that_of_a_majority() {
        let mut parts = [leads(1, 7, 0), leads(1, 7, 0), leads(1, 7, 0)];
        for (part, secs) in parts.iter_mut().zip([1, 9, 4]) {
            part.as_mut().unwrap().ttl_left = Some(Duration::from_secs(secs));
        }
        let left = |parts: &[Option<Sighting>]| match merge(parts, 2) {
            Merged::Sure(sighting) => sighting.ttl_left,
            other => panic!("{other:?}"),
        };
        assert_eq!(left(&parts), Some(Duration::from_secs(4)));
        parts[0].as_mut().unwrap().ttl_left = None;
        parts[2].as_mut().unwrap().ttl_left = None;
        assert_eq!(left(&parts), None);
    }
}
