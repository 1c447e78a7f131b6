//! One behaviour of the suite.

use std::fmt;
use std::sync::Arc;

use super::case::Case;
use super::failure::Verdict;
use super::harness::Harness;
use crate::guarantees::Guarantees;
use crate::store::BoxFuture;

/// One behaviour that every store must show, or must have a reason not to show.
#[derive(Clone, Copy)]
pub struct Behaviour {
    /// `theme::name`.
    pub name: &'static str,
    /// The number of the rule in the specification.
    pub rule: &'static str,
    /// The names of what the behaviour needs of the store and of the harness.
    pub needed: &'static [&'static str],
    /// `Err(reason)`: the behaviour does not apply to this store, or cannot be shown with this harness.
    pub needs: fn(&Guarantees, &dyn Harness) -> Result<(), &'static str>,
    /// The behaviour itself.
    pub run: fn(Arc<Case>) -> BoxFuture<Verdict>,
}

/// What the harness does to the whole store for a behaviour that needs it.
const DONE_TO_THE_STORE: [&str; 4] = ["pausing", "connections", "wiping", "restarting"];

impl Behaviour {
    /// Whether the behaviour affects all clients of the store, so that no other behaviour may run at the same time.
    pub(super) fn is_alone(&self) -> bool {
        let mut needed = self.needed.iter();
        needed.any(|need| DONE_TO_THE_STORE.contains(need))
    }
}

impl fmt::Debug for Behaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
