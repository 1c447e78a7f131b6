//! The owner ids that a hold has on one node, one after the other.
//!
//! After a release on a node the next request to the node has another owner id: a release that arrives late must not end what
//! was acquired since. A receipt has one owner id, so the others are made of that one, and are few: a client that is attached
//! to the hold asks a node for each of them.

use tenure_core::fence::OwnerId;

/// How many owner ids are made of one. A node that is given back more often takes one that no request can have any more.
const NUMBERS: u8 = 8;

/// The owner ids that are made of `first`, with that one.
pub(super) fn made_of(first: OwnerId) -> impl Iterator<Item = OwnerId> {
    (0..NUMBERS).map(move |number| numbered(first, number))
}

fn numbered(first: OwnerId, number: u8) -> OwnerId {
    let mut bytes = *first.as_bytes();
    bytes[15] ^= number;
    OwnerId::from_bytes(bytes)
}

/// The owner id of a hold on one node.
#[derive(Clone, Copy)]
pub(super) struct NodeOwner {
    first: OwnerId,
    current: OwnerId,
    /// A bit for each number: a request under this owner id may still be under way.
    under_way: u8,
}

impl NodeOwner {
    /// The owner id of the hold itself.
    pub(super) fn new(first: OwnerId) -> Self {
        Self {
            first,
            current: first,
            under_way: 0,
        }
    }

    pub(super) fn current(self) -> OwnerId {
        self.current
    }

    /// Whether a client that knows the owner id of the hold finds this one.
    pub(super) fn is_made_of_first(self) -> bool {
        self.number_of(self.current).is_some()
    }

    /// The node was found to have the hold under this owner id.
    pub(super) fn set(&mut self, owner: OwnerId) {
        self.current = owner;
    }

    /// Takes the next owner id that no request has; a random one, which no other client finds, if there is none.
    pub(super) fn replace(&mut self) {
        let number = self.number_of(self.current);
        self.under_way |= number.map_or(0, |number| 1 << number);
        let number = number.unwrap_or(0);
        let mut others = (1..NUMBERS).map(|by| (number + by) % NUMBERS);
        let next = others.find(|it| self.under_way & (1 << it) == 0);
        self.current = next.map_or_else(OwnerId::random, |next| numbered(self.first, next));
    }

    /// No request under `owner`, which was replaced, is under way any more.
    pub(super) fn give_back(&mut self, owner: OwnerId) {
        if let Some(number) = self.number_of(owner) {
            self.under_way &= !(1 << number);
        }
    }

    fn number_of(self, owner: OwnerId) -> Option<u8> {
        (0..NUMBERS).find(|number| numbered(self.first, *number) == owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_id_is_used_again_when_no_request_has_it() {
        let first = OwnerId::random();
        let mut owner = NodeOwner::new(first);
        let mut used = vec![owner.current()];
        for _ in 1..NUMBERS {
            owner.replace();
            assert!(owner.is_made_of_first() && !used.contains(&owner.current()));
            used.push(owner.current());
        }
        assert_eq!(used, made_of(first).collect::<Vec<_>>());
        owner.replace();
        assert!(!owner.is_made_of_first(), "all of them are under way");
        owner.give_back(used[3]);
        owner.replace();
        assert_eq!(owner.current(), used[3]);
    }

    /// The longer an owner id was not used, the less likely is a late request under it.
    #[test]
    fn all_owner_ids_are_used_in_turn() {
        let mut owner = NodeOwner::new(OwnerId::random());
        let all: Vec<_> = made_of(owner.current()).collect();
        let expected: Vec<_> = all.iter().copied().cycle().take(20).collect();
        let used = (0..20).map(|_| {
            let current = owner.current();
            owner.replace();
            owner.give_back(current);
            current
        });
        assert_eq!(used.collect::<Vec<_>>(), expected);
    }
}
