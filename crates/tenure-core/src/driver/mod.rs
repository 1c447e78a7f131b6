//! Performs what the logic decides: acquires, renews, reports a loss, releases.
//!
//! The driver knows no backend by name. Every background task of the driver ends with the client, or with the hold or the
//! request that the task is for.

mod acquire;
mod detach;
mod held;
mod labels;
mod local_queue;
mod losses;
#[cfg_attr(not(feature = "metrics"), path = "no_metrics.rs")]
mod metrics;
mod observe;
mod release;
mod renewal;
mod repetition;
mod shared;
mod signals;
mod tasks;
mod together;
mod under_way;
mod upgrade;

pub(crate) use self::acquire::Until;
pub(crate) use self::held::Held;
pub(crate) use self::observe::Acquisition;
pub(crate) use self::shared::Driver;
pub(crate) use self::together::Together;
