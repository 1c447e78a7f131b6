//! The behaviours that every store must show, and the means to test a store of your own for them.
//!
//! Each rule of the specification is a named behaviour: one async function in the file of its theme, listed
//! in [`BEHAVIOURS`]. A store supplies a [`Harness`] and a [`Setup`]; [`run`] runs every behaviour and returns
//! a [`Report`]. A behaviour that does not apply is skipped, and the report shows the reason; a skip that
//! was not expected is a failure. After each behaviour the suite inspects the store: no hold, no waiter and no
//! task may be left.
//!
//! ```
//! use tenure_core::conformance::{Open, Setup};
//!
//! # fn example(open: Open) {
//! let setup = Setup {
//!     name: "mystore",
//!     open,
//!     single_thread: false,
//!     together: 4,
//!     skips: &[("no permits", &["modes::permits_never_exceed_their_limit"])],
//! };
//! tenure_core::conformance::run(&setup).assert();
//! # }
//! ```
//!
//! The suite grows: a new minor version may bring new behaviours that your store does not show yet.
//!
//! # Bounds
//! No behaviour asserts that an operation is fast. An event that must happen at once may take [`SOON`]. An event that
//! must happen within a time of the store may take that time and [`SOON`]. After that the behaviour fails.

mod behaviour;
mod behaviours;
mod case;
mod election_case;
mod election_history;
mod failure;
mod harness;
mod history;
mod idle;
pub mod lock_holder;
mod matrix;
mod needs;

mod detached;
mod detached_faults;
mod election;
mod election_faults;
mod election_observers;
mod election_refusals;
mod election_requests;
mod election_run;
mod ending;
mod faults;
mod holding;
pub mod hostile;
mod identity;
mod many;
mod mode_matrix;
mod modes;
mod names;
mod reentrance;
mod upgrade;
mod waiting;

pub use behaviour::Behaviour;
pub use behaviours::BEHAVIOURS;
pub use case::{Case, SOON};
pub use failure::{Failure, Verdict};
pub use harness::{ContenderCounts, Harness, RequestFault};
pub use matrix::{Open, Outcome, Report, Setup, run, run_only};
