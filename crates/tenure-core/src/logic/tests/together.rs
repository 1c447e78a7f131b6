//! Several names in one step: granted exactly if each would be granted alone, and otherwise nothing changes.

use std::time::Duration;

use proptest::prelude::*;

use super::{name, owner};
use crate::logic::table::{LockRequest, Table, Verdict};
use crate::options::Mode;
use crate::time::Time;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const LEASE: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        name: usize,
        mode: Mode,
        wait: bool,
    },
    Release {
        name: usize,
        of: prop::sample::Index,
    },
    Pass(u64),
    All {
        names: usize,
        mode: Mode,
    },
}

fn mode() -> impl Strategy<Value = Mode> {
    let limit = std::num::NonZeroU32::new(2).unwrap();
    prop_oneof![
        3 => Just(Mode::Exclusive),
        2 => Just(Mode::Shared),
        1 => Just(Mode::Upgradable),
        1 => Just(Mode::Permits { limit }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let names = 0..NAMES.len();
    prop_oneof![
        4 => (names.clone(), mode(), any::<bool>())
            .prop_map(|(name, mode, wait)| Step::Acquire { name, mode, wait }),
        3 => (names, any::<prop::sample::Index>())
            .prop_map(|(name, of)| Step::Release { name, of }),
        1 => (0..80_u64).prop_map(Step::Pass),
        3 => (1..1_usize << NAMES.len(), mode()).prop_map(|(names, mode)| Step::All { names, mode }),
    ]
}

fn request(at: usize, number: u8, mode: Mode, wait: bool) -> LockRequest {
    LockRequest {
        name: name(NAMES[at]),
        owner: owner(number),
        mode,
        ttl: Some(LEASE),
        wait,
        barge: false,
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        waiter_ttl: None,
        propose: None,
    }
}

/// What can be seen of all names.
fn views(table: &Table) -> Vec<String> {
    let view = |text: &&str| format!("{:?}", table.view(&name(text)));
    NAMES.iter().map(view).collect()
}

fn check_all(table: &mut Table, requests: &[LockRequest], now: Time) {
    table.tick(now);
    let mut alone = table.clone();
    let verdicts: Vec<_> = requests.iter().map(|it| alone.acquire(it, now)).collect();
    let busy = verdicts.iter().position(|it| *it == Verdict::Busy);
    let before = views(table);
    match table.acquire_all(requests, now) {
        Ok(tokens) => {
            let granted = tokens.into_iter().map(|token| Verdict::Granted { token });
            assert_eq!(granted.collect::<Vec<_>>(), verdicts);
            assert_eq!(views(table), views(&alone));
            // The reply was lost: asked again, the owners have what they have.
            assert!(table.acquire_all(requests, now).is_ok());
        }
        Err(at) => {
            assert_eq!(Some(at), busy);
            assert_eq!(views(table), before);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_are_granted_if_each_is_or_nothing_changes(steps in prop::collection::vec(step(), 1..40)) {
        let (mut table, mut now, mut next) = (Table::new(), Time::ZERO, 0_u8);
        for step in steps {
            match step {
                Step::Pass(millis) => now = now.after(Duration::from_millis(millis)),
                Step::Acquire { name, mode, wait } => {
                    next += 1;
                    table.acquire(&request(name, next, mode, wait), now);
                }
                Step::Release { name: at, of } => {
                    let view = table.view(&name(NAMES[at]));
                    let holds = view.map(|view| view.holds).unwrap_or_default();
                    if !holds.is_empty() {
                        table.release(&name(NAMES[at]), of.get(&holds).owner, false, now);
                    }
                }
                Step::All { names, mode } => {
                    let chosen = (0..NAMES.len()).filter(|at| names & 1 << at != 0);
                    let requests: Vec<_> = chosen
                        .map(|at| {
                            next += 1;
                            request(at, next, mode, false)
                        })
                        .collect();
                    check_all(&mut table, &requests, now);
                }
            }
        }
    }
}
