//! What all measurements have in common.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tenure::store::ErrorParts as _;
use tenure::{Error, ErrorKind};

/// How many turns each side has.
pub(super) const TURNS: u32 = 10;
/// Tasks that run at the same time in the parallel measurement.
pub(super) const TASKS: usize = 64;
/// How long a server may take for an answer.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for one side of one measurement when no number of rounds was given.
const BUDGET: Duration = Duration::from_millis(500);
/// More rounds in a turn make no figure more exact, and their times would fill the memory.
const MAX_ROUNDS_PER_TURN: u32 = 20_000;

/// One side's turn: a number of rounds or a span of time, for all its tasks together.
pub(super) struct Turn {
    rounds: Option<u32>,
    until: Instant,
    begun: AtomicU32,
}

impl Turn {
    /// A turn of so many rounds, or, for `None`, of a tenth of [`BUDGET`].
    pub(super) fn new(rounds: Option<u32>) -> Self {
        Self {
            rounds,
            until: Instant::now() + BUDGET / TURNS,
            begun: AtomicU32::new(0),
        }
    }

    /// Begins the next round and returns `true`, or returns `false` when the turn is over. There is at least one round.
    pub(super) fn begin_round(&self) -> bool {
        let begun = self.begun.fetch_add(1, Ordering::Relaxed);
        match self.rounds {
            Some(rounds) => begun < rounds,
            None => begun == 0 || begun < MAX_ROUNDS_PER_TURN && Instant::now() < self.until,
        }
    }
}

/// An error in the process of a contender, which only prints it.
pub(super) type AnyError = Box<dyn std::error::Error>;

/// The error of a measurement that failed for a reason that is not the lock.
pub(super) fn measurement_error(
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::new(ErrorKind::Store, "the measurement failed").with_source(error)
}
