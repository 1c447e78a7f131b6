//! What all measurements have in common.

use std::time::Duration;

use tenure::{Error, ErrorKind};

/// Both sides take turns this many times.
pub(super) const TURNS: u32 = 10;
/// Time for one side of one measurement when no number of rounds was given.
pub(super) const BUDGET: Duration = Duration::from_millis(500);
/// Rounds that are thrown away: files are created, caches filled, connections opened.
pub(super) const WARM_UP: u32 = 20;
/// Hand-offs per side when no number of rounds was given.
pub(super) const HANDOFFS: u32 = 300;

/// Tasks that work side by side.
pub(super) const WORKERS: usize = 64;

/// An error that is none of the lock.
pub(super) fn system(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Backend, "the measurement failed").with_source(error)
}
