//! Distributed locks.

// Vocabulary: plain data.
pub mod error;
pub mod fence;
pub mod guarantees;
pub mod holder;
pub mod lost;
pub mod name;
pub mod options;
pub mod time;

// Decisions.
pub mod kernel;

// The door to the stores, and the stores.
pub mod backend;

// The shell.
pub mod driver;
pub mod rt;

// What users touch.
#[cfg(feature = "blocking")]
pub mod blocking;
pub mod client;
mod guard;
mod lock;
mod owner;

pub use client::{Client, connect};
pub use error::{Error, ErrorKind};
pub use fence::{FencingToken, OwnerId};
pub use guard::Guard;
pub use holder::{HoldInfo, Holder, Status};
pub use kernel::lease::State;
pub use lock::Lock;
pub use lost::LostReason;
pub use name::LockName;
pub use options::{Mode, Options, Renew};
pub use owner::Owner;
