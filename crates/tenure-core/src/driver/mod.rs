//! Performs what the logic decides: acquires, renews, reports a loss, releases.
//!
//! The driver knows no store by name. Every background task of the driver ends with the client, or with the hold or the
//! request that the task is for.

mod acquire;
mod attach;
mod attached_owners;
mod callbacks;
mod detach;
mod detaching;
mod diagnosis;
mod elections;
mod hand_over;
mod held;
mod hold_state;
#[cfg(feature = "tokio-util")]
mod joint_token;
mod kept_turn;
mod labels;
mod local_queue;
#[cfg_attr(not(feature = "metrics"), path = "no_metrics.rs")]
mod metrics;
mod observation;
mod observe;
mod release;
mod renewal;
mod repeat;
mod running;
mod shared;
mod tasks;
#[cfg(test)]
mod tests;
mod together;
#[cfg(feature = "tokio-util")]
mod tokens;
mod until;
mod upgrade;
mod wait_report;

pub(crate) use self::acquire::Acquired;
pub(crate) use self::diagnosis::{Asker, BusyName};
pub(crate) use self::held::Held;
pub(crate) use self::hold_state::EntryEnd;
#[cfg(feature = "tokio-util")]
pub(crate) use self::joint_token::JointToken;
pub(crate) use self::observation::Observation;
pub(crate) use self::observe::AcquireObservation;
pub(crate) use self::shared::Driver;
pub(crate) use self::together::AcquiredAll;
pub(crate) use self::until::Until;
