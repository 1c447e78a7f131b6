//! How a worker holds a name, and which modes a run mixes.

use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};
use tenure::guarantees::{Capability, Guarantees};

use crate::random::Random;

/// The number of permits of each name.
pub const PERMITS: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);

/// How a name is held.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum HoldMode {
    /// One holder at a time.
    #[default]
    Exclusive,
    /// Together with all other holders except an exclusive one.
    Shared,
    /// As shared, one at a time, and may become exclusive.
    Upgradable,
    /// One of [`PERMITS`] permits.
    Permit,
    /// As the leader of an election, which is an exclusive holder. Elections have names of their own.
    Election,
}

impl HoldMode {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Exclusive,
        Self::Shared,
        Self::Upgradable,
        Self::Permit,
        Self::Election,
    ];

    /// The name on the command line and in a report.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Upgradable => "upgradable",
            Self::Permit => "permits",
            Self::Election => "elections",
        }
    }

    /// The lock in this mode. A leader holds the lock of its name.
    pub(crate) fn applied_to(self, lock: tenure::Lock) -> tenure::Lock {
        match self {
            Self::Exclusive | Self::Election => lock,
            Self::Shared => lock.shared(),
            Self::Upgradable => lock.upgradable(),
            Self::Permit => lock.permits(PERMITS.get()),
        }
    }

    /// Whether a holder in this mode is alone.
    pub fn is_exclusive(self) -> bool {
        matches!(self, Self::Exclusive | Self::Election)
    }

    /// Whether two workers may hold a name in these modes at the same time. Permits are not counted here.
    pub fn may_be_together(self, other: Self) -> bool {
        let are_upgradable = self == Self::Upgradable && other == self;
        !self.is_exclusive() && !other.is_exclusive() && !are_upgradable
    }
}

impl fmt::Display for HoldMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for HoldMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        all.find(|mode| mode.as_str() == text).ok_or_else(|| {
            let known = Self::ALL.map(Self::as_str).join(", ");
            format!("there is no such mode; known are {known}")
        })
    }
}

/// The modes that a run mixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Modes([bool; HoldMode::ALL.len()]);

impl Modes {
    /// Every mode.
    pub const ALL: Self = Self([true; HoldMode::ALL.len()]);

    /// Exclusive holds only.
    pub const EXCLUSIVE: Self = Self([true, false, false, false, false]);

    /// The modes of this list.
    pub fn of(modes: &[HoldMode]) -> Self {
        Self(HoldMode::ALL.map(|mode| modes.contains(&mode)))
    }

    /// These modes except one.
    #[must_use]
    pub fn without(mut self, mode: HoldMode) -> Self {
        self.0[mode as usize] = false;
        self
    }

    /// The modes among these that the store has.
    #[must_use]
    pub fn had_by(self, store: &Guarantees) -> Self {
        let had = [
            store.exclusive,
            store.shared,
            store.upgradable,
            store.permits,
            Capability::Elections.is_in(store),
        ];
        let mut both = self;
        for (wanted, has) in both.0.iter_mut().zip(had) {
            *wanted &= has;
        }
        both
    }

    /// Whether the mode is one of these.
    pub fn contains(self, mode: HoldMode) -> bool {
        self.0[mode as usize]
    }

    /// Each of the modes.
    pub fn iter(self) -> impl Iterator<Item = HoldMode> {
        let modes = HoldMode::ALL.into_iter();
        modes.filter(move |mode| self.contains(*mode))
    }

    /// One of the modes. Half of the holds are exclusive where that mode is one of several: it conflicts with all others.
    pub fn choose(self, random: &mut Random) -> HoldMode {
        let modes: Vec<HoldMode> = self.iter().collect();
        let chosen = match modes.len() {
            0 | 1 => 0,
            count => random.between(0, 2 * (count as u64 - 1)) as usize,
        };
        modes
            .get(chosen)
            .or(modes.first())
            .copied()
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use tenure::guarantees::Order;

    use super::*;

    #[test]
    fn modes_that_the_store_lacks_are_left_out() {
        let mut store = Guarantees::new("some", Order::Fair, Vec::new());
        let modes = |modes: Modes| modes.iter().collect::<Vec<_>>();
        assert_eq!(modes(Modes::ALL.had_by(&store)), [HoldMode::Exclusive]);
        store.shared = true;
        store.permits = true;
        store.observers = "push: at once";
        let had = Modes::ALL.had_by(&store);
        let expected = [
            HoldMode::Exclusive,
            HoldMode::Shared,
            HoldMode::Permit,
            HoldMode::Election,
        ];
        assert_eq!(modes(had), expected);
        assert_eq!(
            modes(Modes::EXCLUSIVE.had_by(&store)),
            [HoldMode::Exclusive]
        );
    }

    #[test]
    fn each_mode_is_chosen() {
        let mut random = Random::new(1);
        let mut counts = [0; HoldMode::ALL.len()];
        for _ in 0..1_000 {
            counts[Modes::ALL.choose(&mut random) as usize] += 1;
        }
        assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
        assert!(counts[0] > 400, "{counts:?}");
        let without = Modes::of(&[HoldMode::Shared, HoldMode::Election]);
        let shared = without.without(HoldMode::Election);
        assert_ne!(without, shared);
        assert_eq!(shared, Modes::of(&[HoldMode::Shared]));
        assert_eq!(shared.choose(&mut random), HoldMode::Shared);
    }
}
