//! Blocks: duties that several stores have. Each block has one job and its own test, and knows no store.
//!
//! A store has blocks as fields and decides for itself when it calls them.

mod durations;
mod errors;
mod hold_registry;
#[cfg(feature = "holder-record")]
mod holder_record;
mod maintenance;
mod mode_text;
mod retry;
mod runtime;
mod server_start;
mod single_flight;
mod waiters;

pub use self::durations::{micros_up, millis_down, millis_up, wall_time};
pub use self::errors::{closed, not_left};
pub use self::hold_registry::HoldRegistry;
#[cfg(feature = "holder-record")]
pub use self::holder_record::HolderRecord;
pub use self::maintenance::Maintenance;
pub use self::mode_text::{mode_text, parse_mode};
pub use self::retry::RetryBudget;
pub use self::runtime::{RuntimeWatch, spawner};
pub use self::server_start::{ServerStart, not_trusted_yet, warn_of_restart};
pub use self::single_flight::SingleFlight;
pub use self::waiters::{Merge, Subscription, WaiterRegistry};
