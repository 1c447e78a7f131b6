//! Random numbers from a seed. They are the same in every version, so that a printed seed gives the same run later.

/// SplitMix64: its state is one number, and its quality is sufficient to select faults.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` on and below `high`; `low` if there is none.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.number() % high.saturating_sub(low).max(1)
    }
}
