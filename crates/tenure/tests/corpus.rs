//! The seeds of `fuzz/`, and ten thousand random changes of the seeds of each target, the same in every run.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::path::Path;

/// The number of changed seeds for each target.
const ROUNDS: u64 = 10_000;
/// The largest length of an input. Longer inputs find no other faults.
const MAX_LENGTH: usize = 4_096;

/// Numbers that look random and are the same in every run (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, or 0.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % (end.max(1) as u64)).unwrap()
    }
}

/// The seeds in the order of their file names, so that a run does not depend on the order of a directory.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let dir = dir.join(target);
    let mut paths: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(paths.len() > 2, "{}: hardly a seed", dir.display());
    paths.iter().map(|it| std::fs::read(it).unwrap()).collect()
}

fn change(bytes: &mut Vec<u8>, others: &[Vec<u8>], numbers: &mut Numbers) {
    let at = numbers.below(bytes.len() + 1);
    match numbers.below(7) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, u8::try_from(numbers.below(256)).unwrap()),
        2 if at < bytes.len() => bytes[at] ^= 1 << numbers.below(8),
        3 if at < bytes.len() => drop(bytes.remove(at)),
        4 => {
            let nasty = b"%@:/?#&=,[]{}\\\0\n ~.-0";
            bytes.insert(at, nasty[numbers.below(nasty.len())]);
        }
        5 => {
            let other = &others[numbers.below(others.len())];
            let from = numbers.below(other.len() + 1);
            bytes.splice(at.., other[from..].iter().copied());
        }
        _ => {
            let part = bytes[at..].to_vec();
            bytes.extend(part);
        }
    }
    bytes.truncate(MAX_LENGTH);
}

fn replay(target: &str, run: fn(&[u8])) {
    let mut all = seeds(target);
    let check = |bytes: &[u8]| {
        if std::panic::catch_unwind(|| run(bytes)).is_err() {
            panic!(
                "{target} breaks on {bytes:?}, {:?}",
                bytes.escape_ascii().to_string()
            );
        }
    };
    all.iter().for_each(|seed| check(seed));
    let mut numbers = Numbers(42);
    for round in 0..ROUNDS {
        let mut bytes = all[numbers.below(all.len())].clone();
        for _ in 0..=numbers.below(4) {
            change(&mut bytes, &all, &mut numbers);
        }
        check(&bytes);
        // A later round may change some of these inputs again.
        if round % 16 == 0 {
            all.push(bytes);
        }
    }
}

#[test]
fn url() {
    replay("url", tenure::fuzzing::url);
}

#[test]
fn names() {
    replay("names", tenure::fuzzing::names);
}

#[test]
fn receipt() {
    replay("receipt", tenure::fuzzing::receipt);
}

#[test]
fn record() {
    replay("record", tenure::fuzzing::record);
}

#[test]
fn logic() {
    replay("logic", tenure::fuzzing::logic);
}
