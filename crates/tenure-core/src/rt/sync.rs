//! What small concurrent parts of the core are made of: those that tasks on several threads share, and whose order of steps
//! decides if a wake-up or an answer is lost.
//!
//! With `--cfg tenure_loom`, which `scripts/model-check` sets, the types are those of the model checker `loom`. A model (a
//! test in a module `models`) then runs once for each order in which its threads can take their steps.

#[cfg(not(tenure_loom))]
pub(crate) use std::sync::Mutex;
#[cfg(not(tenure_loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};

#[cfg(not(tenure_loom))]
pub(crate) use tokio::sync::{Notify, oneshot};

#[cfg(not(tenure_loom))]
pub(crate) use super::mutex::lock;

#[cfg(tenure_loom)]
#[path = "loom_primitives.rs"]
mod primitives;
#[cfg(tenure_loom)]
pub(crate) use self::primitives::*;
