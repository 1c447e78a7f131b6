//! The plan: the same seed gives the same faults, and every requested kind of fault comes.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::time::Duration;

use tenure_torture::plan::{FaultKind, PlannedFault, plan};

const TTL: Duration = Duration::from_secs(1);
const LASTS: Duration = Duration::from_secs(60);

fn of(seed: u64, kinds: &[FaultKind]) -> Vec<PlannedFault> {
    plan(seed, kinds, TTL, LASTS, 3)
}

#[test]
fn the_same_seed_is_the_same_plan_and_another_is_another() {
    assert_eq!(of(7, &FaultKind::ALL), of(7, &FaultKind::ALL));
    assert_ne!(of(7, &FaultKind::ALL), of(8, &FaultKind::ALL));
}

#[test]
fn a_printed_seed_means_the_same_in_every_version() {
    let first: Vec<_> = of(7, &[FaultKind::Pause, FaultKind::Kill])
        .drain(..4)
        .collect();
    let shown: Vec<_> = first
        .iter()
        .map(|it| (it.at / 1_000_000, it.kind.as_str(), it.lasts / 1_000_000))
        .collect();
    assert_eq!(shown, SEED_7);
}

#[test]
fn each_kind_comes_in_each_turn_and_none_that_was_not_asked_for() {
    for count in 1..=FaultKind::ALL.len() {
        let kinds = &FaultKind::ALL[..count];
        for turn in of(3, kinds).chunks_exact(count) {
            let mut turn: Vec<_> = turn.iter().map(|it| it.kind).collect();
            turn.sort_unstable();
            assert_eq!(turn, kinds);
        }
    }
    assert!(of(3, &[]).is_empty());
}

#[test]
fn faults_have_the_length_that_they_need_and_keep_their_distance() {
    let ttl = TTL.as_nanos() as u64;
    for seed in 0..50 {
        let plan = of(seed, &FaultKind::ALL);
        assert!(plan.len() >= 20);
        for it in &plan {
            if matches!(
                it.kind,
                FaultKind::Pause | FaultKind::Stall | FaultKind::ServerPause
            ) {
                assert!(it.lasts > ttl, "{it:?}");
            }
            assert!(it.name < 3);
            assert!(it.at < LASTS.as_nanos() as u64 - ttl);
        }
        for pair in plan.windows(2) {
            assert!(pair[1].at - pair[0].at >= ttl / 2, "{pair:?}");
        }
    }
}

#[test]
fn names_of_faults_are_parsed() {
    for kind in FaultKind::ALL {
        assert_eq!(kind.as_str().parse(), Ok(kind));
    }
    assert!(
        "earthquake"
            .parse::<FaultKind>()
            .unwrap_err()
            .contains("pause")
    );
}

/// The first faults of seed 7: start in ms, kind, length in ms.
const SEED_7: [(u64, &str, u64); 4] = [
    (892, "pause", 1615),
    (1957, "kill", 183),
    (2918, "pause", 1443),
    (3773, "kill", 324),
];
