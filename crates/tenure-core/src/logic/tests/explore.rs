//! Exhaustive search: every world that can be reached, breadth first, each once.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, Hasher};

/// A small closed world: what it looks like, and what can happen next.
pub(super) trait World: Clone {
    type Step: Copy + Debug;

    /// All that matters for what can still happen; equal images are the same world.
    fn image(&self, image: &mut Vec<u64>);

    /// Everything that can happen now.
    fn steps(&self) -> Vec<Self::Step>;

    /// Lets it happen.
    fn take(&mut self, step: Self::Step);

    /// What is wrong, if anything is.
    fn complaint(&self) -> Option<String>;
}

pub(super) struct Outcome {
    pub(super) states: usize,
    /// A shortest way to something wrong.
    pub(super) complaint: Option<String>,
}

/// Visits all worlds. Panics beyond `limit`, so that "complete" is never mistaken for "cut".
pub(super) fn explore<W: World>(start: W, limit: usize) -> Outcome {
    let mut image = Vec::new();
    let mut key = |world: &W| {
        image.clear();
        world.image(&mut image);
        digest(&image)
    };
    let mut seen: HashSet<u128, BuildHasherDefault<AsIs>> = HashSet::default();
    let mut way: Vec<(usize, Option<W::Step>)> = Vec::new();
    let mut generation = Vec::new();
    seen.insert(key(&start));
    way.push((0, None));
    generation.push((0, start));
    while !generation.is_empty() {
        let mut following = Vec::new();
        for (id, world) in generation {
            if let Some(complaint) = world.complaint() {
                let complaint = format!("{complaint}{}", tell(&way, id));
                return Outcome {
                    states: seen.len(),
                    complaint: Some(complaint),
                };
            }
            for step in world.steps() {
                let mut next = world.clone();
                next.take(step);
                if seen.insert(key(&next)) {
                    assert!(seen.len() <= limit, "more than {limit} states");
                    way.push((id, Some(step)));
                    following.push((way.len() - 1, next));
                }
            }
        }
        generation = following;
    }
    Outcome {
        states: seen.len(),
        complaint: None,
    }
}

fn tell<S: Copy + Debug>(way: &[(usize, Option<S>)], mut id: usize) -> String {
    let mut steps = Vec::new();
    while let (before, Some(step)) = way[id] {
        steps.push(format!("\n  {step:?}"));
        id = before;
    }
    steps.reverse();
    format!(" after {} steps:{}", steps.len(), steps.concat())
}

/// 128 bits stand for an image: among 10^6 worlds two collide with a chance of 10^-27.
fn digest(image: &[u64]) -> u128 {
    let mut digest = 0x9E37_79B9_7F4A_7C15_C2B2_AE3D_27D4_EB4F_u128;
    for word in image {
        digest =
            (digest ^ u128::from(*word)).wrapping_mul(0x94D0_49BB_1331_11EB_BF58_476D_1CE4_E5B9);
        digest ^= digest >> 61;
    }
    digest
}

/// What is hashed is a digest already; the standard hasher takes most of a debug build's time.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only digests are hashed");
    }

    fn write_u128(&mut self, digest: u128) {
        self.0 = (digest >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
