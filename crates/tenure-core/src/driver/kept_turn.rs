//! The turn that a hold keeps while it may pass on to the next task of its client; see `hand_over.rs`.

use std::sync::Arc;

use crate::logic::hand_over::SharedTurn;
use crate::options::Options;
use crate::rt::sync::Mutex;

use super::local_queue::Turn;

/// The turn of a hold that may pass on.
pub(super) struct KeptTurn {
    /// `None`: its time is over, and another task has the turn.
    pub(super) turn: Arc<Mutex<Option<Turn>>>,
    pub(super) shared: SharedTurn,
    /// As the hold was acquired. All tasks that have it want it like this.
    pub(super) options: Box<Options>,
}
