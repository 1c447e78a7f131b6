//! Exhaustive search: visits every state that can be reached, breadth first, each state once.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, Hasher};

/// A state of a small closed model: what distinguishes it, and what can happen next.
pub(super) trait ModelState: Clone {
    type Step: Copy + Debug;

    /// Everything that later steps depend on; states with equal images are the same state.
    fn image(&self, image: &mut Vec<u64>);

    /// Everything that can happen now.
    fn steps(&self) -> Vec<Self::Step>;

    /// Lets it happen.
    fn take(&mut self, step: Self::Step);

    /// The rule that this state breaks, if it breaks one.
    fn violation(&self) -> Option<String>;
}

pub(super) struct Outcome {
    pub(super) states: usize,
    /// A shortest path to a violation.
    pub(super) violation: Option<String>,
}

/// Visits all states. Panics beyond `limit` states, so that an incomplete search never looks complete.
pub(super) fn explore<S: ModelState>(start: S, limit: usize) -> Outcome {
    let mut image = Vec::new();
    let mut key = |state: &S| {
        image.clear();
        state.image(&mut image);
        digest(&image)
    };
    let mut seen: HashSet<u128, BuildHasherDefault<AsIs>> = HashSet::default();
    let mut way: Vec<(usize, Option<S::Step>)> = Vec::new();
    let mut generation = Vec::new();
    seen.insert(key(&start));
    way.push((0, None));
    generation.push((0, start));
    while !generation.is_empty() {
        let mut following = Vec::new();
        for (id, state) in generation {
            if let Some(violation) = state.violation() {
                let violation = format!("{violation}{}", tell(&way, id));
                return Outcome {
                    states: seen.len(),
                    violation: Some(violation),
                };
            }
            for step in state.steps() {
                let mut next = state.clone();
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
        violation: None,
    }
}

fn tell<T: Copy + Debug>(way: &[(usize, Option<T>)], mut id: usize) -> String {
    let mut steps = Vec::new();
    while let (before, Some(step)) = way[id] {
        steps.push(format!("\n  {step:?}"));
        id = before;
    }
    steps.reverse();
    format!(" after {} steps:{}", steps.len(), steps.concat())
}

/// 128 bits stand for an image: among 10^6 states two collide with a chance of 10^-27.
fn digest(image: &[u64]) -> u128 {
    let mut digest = 0x9E37_79B9_7F4A_7C15_C2B2_AE3D_27D4_EB4F_u128;
    for word in image {
        digest =
            (digest ^ u128::from(*word)).wrapping_mul(0x94D0_49BB_1331_11EB_BF58_476D_1CE4_E5B9);
        digest ^= digest >> 61;
    }
    digest
}

/// The keys are digests already; the standard hasher would take most of the time of a debug build.
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
