//! What the clients of one behaviour held, and when; and a check that no two holds conflict.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::failure::{Failure, Verdict};
use crate::guard::Guard;
use crate::options::Mode;
use crate::rt::lock;

/// A hold in one mode, as its client saw it. The times are numbers that no two events share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    mode: Mode,
    token: u64,
    /// Before the request was sent.
    asked: u64,
    /// After the grant.
    start: u64,
    /// Before the release or the change of the mode; `u64::MAX` while the client holds.
    end: u64,
    /// The hold had this token before, in another mode: a downgrade keeps it.
    keeps_token: bool,
}

/// A claim of [`History`], to end it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimId(usize);

/// The claims of all clients on one name.
#[derive(Debug, Default)]
pub(super) struct History {
    clock: AtomicU64,
    claims: Mutex<Vec<Claim>>,
}

impl History {
    /// A time that is later than all times before.
    pub(super) fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Adds the grant of a request that was sent after `asked`.
    pub(super) fn granted(&self, guard: &Guard, asked: u64) -> ClaimId {
        self.add(guard, asked, false)
    }

    /// Adds the hold of a guard that has just been downgraded.
    pub(super) fn downgraded(&self, guard: &Guard, asked: u64) -> ClaimId {
        self.add(guard, asked, true)
    }

    fn add(&self, guard: &Guard, asked: u64, keeps_token: bool) -> ClaimId {
        let mut claims = lock(&self.claims);
        claims.push(Claim {
            mode: guard.mode(),
            token: guard.token().get(),
            asked,
            start: self.now(),
            end: u64::MAX,
            keeps_token,
        });
        ClaimId(claims.len() - 1)
    }

    /// Ends a claim, before the client releases the hold or changes its mode.
    pub(super) fn ends(&self, claim: ClaimId) {
        let now = self.now();
        if let Some(claim) = lock(&self.claims).get_mut(claim.0) {
            claim.end = now;
        }
    }

    /// The number of claims in modes for which `is_counted` holds.
    pub(super) fn count(&self, is_counted: impl Fn(Mode) -> bool) -> usize {
        let claims = lock(&self.claims);
        claims.iter().filter(|it| is_counted(it.mode)).count()
    }

    /// Checks that no two claims conflict, that permits were within their limit, and that tokens grew.
    ///
    /// # Errors
    /// The first two claims that should not exist at the same time.
    #[track_caller]
    pub(super) fn check(&self) -> Verdict {
        match first_fault(&lock(&self.claims)) {
            Some(fault) => Err(Failure::new(fault)),
            None => Ok(()),
        }
    }
}

/// Whether two clients may hold the name in these modes at the same time. Stated here once more, and not taken from the
/// lock table: a mistake in the table must not hide itself.
pub(super) fn may_be_together(first: Mode, second: Mode) -> bool {
    match (first, second) {
        (Mode::Exclusive, _) | (_, Mode::Exclusive) => false,
        (Mode::Upgradable, Mode::Upgradable) => false,
        (Mode::Permits { limit }, Mode::Permits { limit: other }) => limit.min(other).get() > 1,
        _ => true,
    }
}

fn first_fault(claims: &[Claim]) -> Option<String> {
    for (index, later) in claims.iter().enumerate() {
        for earlier in &claims[..index] {
            let overlap = earlier.start < later.end && later.start < earlier.end;
            if overlap && !may_be_together(earlier.mode, later.mode) {
                return Some(format!(
                    "two hold at the same time: {earlier:?} and {later:?}"
                ));
            }
            if let Some(fault) = wrong_tokens(earlier, later) {
                return Some(fault);
            }
        }
        if let Mode::Permits { limit } = later.mode {
            let is_permit = |claim: &&Claim| matches!(claim.mode, Mode::Permits { .. });
            let at_its_start =
                |claim: &&Claim| claim.start <= later.start && later.start < claim.end;
            let held = claims.iter().filter(is_permit).filter(at_its_start).count();
            if held > limit.get() as usize {
                return Some(format!("{held} clients hold a permit: {later:?}"));
            }
        }
    }
    None
}

/// A token belongs to one hold. It is greater than all tokens that were granted before its request was sent, and than those of
/// the holds that had to end before it was granted.
fn wrong_tokens(one: &Claim, other: &Claim) -> Option<String> {
    let (first, second) = match one.start < other.start {
        true => (one, other),
        false => (other, one),
    };
    if second.keeps_token {
        return None;
    }
    let is_excluded = !may_be_together(first.mode, second.mode) && first.end < second.start;
    let is_later = first.start < second.asked || is_excluded;
    let is_wrong = second.token == first.token || is_later && second.token < first.token;
    is_wrong.then(|| format!("the token does not grow: {first:?}, then {second:?}"))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn claim(mode: Mode, token: u64, [asked, start, end]: [u64; 3]) -> Claim {
        Claim {
            mode,
            token,
            asked,
            start,
            end,
            keeps_token: false,
        }
    }

    fn permits(limit: u32) -> Mode {
        Mode::Permits {
            limit: NonZeroU32::new(limit).unwrap(),
        }
    }

    /// Two claims at the same time, in these modes.
    fn together(first: Mode, second: Mode) -> Option<String> {
        first_fault(&[claim(first, 1, [0, 1, 10]), claim(second, 2, [2, 3, 8])])
    }

    #[test]
    fn modes_that_may_be_together_are_no_fault() {
        for [first, second] in [
            [Mode::Shared, Mode::Shared],
            [Mode::Shared, Mode::Upgradable],
            [Mode::Shared, permits(1)],
            [Mode::Upgradable, permits(1)],
            [permits(2), permits(2)],
        ] {
            assert_eq!(together(first, second), None);
            assert_eq!(together(second, first), None);
        }
    }

    #[test]
    fn each_conflict_is_found() {
        for [first, second] in [
            [Mode::Exclusive, Mode::Exclusive],
            [Mode::Exclusive, Mode::Shared],
            [Mode::Exclusive, Mode::Upgradable],
            [Mode::Exclusive, permits(9)],
            [Mode::Upgradable, Mode::Upgradable],
            [permits(1), permits(1)],
        ] {
            let found = |fault: Option<String>| fault.is_some_and(|it| it.starts_with("two hold"));
            assert!(found(together(first, second)), "{first} and {second}");
            assert!(found(together(second, first)), "{second} and {first}");
        }
    }

    #[test]
    fn a_permit_too_many_is_found() {
        let held = |token| claim(permits(2), token, [0, token, 10]);
        assert_eq!(first_fault(&[held(1), held(2)]), None);
        let fault = first_fault(&[held(1), held(2), held(3)]).unwrap();
        assert!(fault.starts_with("3 clients hold a permit"), "{fault}");
        let one_left = Claim { end: 2, ..held(1) };
        assert_eq!(first_fault(&[one_left, held(2), held(3)]), None);
    }

    #[test]
    fn claims_that_follow_each_other_are_no_fault() {
        let first = claim(Mode::Exclusive, 1, [0, 1, 2]);
        let second = claim(Mode::Exclusive, 2, [0, 3, 4]);
        assert_eq!(first_fault(&[first, second]), None);
    }

    #[test]
    fn a_token_that_does_not_grow_is_found() {
        let reader = |token, times| claim(Mode::Shared, token, times);
        let fault = |first, second| first_fault(&[first, second]).is_some();
        assert!(
            fault(reader(5, [0, 1, 9]), reader(5, [0, 2, 9])),
            "the same"
        );
        assert!(fault(reader(5, [0, 1, 9]), reader(4, [2, 3, 9])), "smaller");
        // Of two requests at the same time the store may have decided either one first.
        assert!(!fault(reader(5, [0, 2, 9]), reader(4, [1, 3, 9])));
        let writer = |token, times| claim(Mode::Exclusive, token, times);
        assert!(
            fault(writer(5, [0, 2, 4]), writer(4, [1, 5, 9])),
            "smaller, of a writer that waited for the end of the first one"
        );
        let kept = Claim {
            keeps_token: true,
            ..reader(5, [2, 3, 9])
        };
        assert!(!fault(claim(Mode::Exclusive, 5, [0, 1, 2]), kept));
    }
}
