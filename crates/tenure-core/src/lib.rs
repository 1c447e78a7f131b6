//! The part of the crate `tenure` that knows no store.
//!
//! Programs that use locks depend on the crate `tenure`, which re-exports what they need from here.
//! This crate is for the authors of stores. From bottom to top:
//!
//! 1. The vocabulary is plain data: [`error`], [`fence`], [`guarantees`], [`holder`], [`leader`], [`lost`], [`name`],
//!    [`options`], [`time`] and [`url`].
//! 2. [`logic`] decides. It has no I/O, no clock and no randomness.
//! 3. [`rt`] is the only module that touches the runtime and the clock.
//! 4. [`support`] has blocks: duties that several stores have, each a small type that knows no store.
//! 5. [`store`] is the interface of all stores: the trait [`Store`](store::Store) and its contract.
//! 6. [`queue`] is the engine of stores that keep their waiters as entries in order.
//! 7. The driver performs what the logic decides. It is private.
//! 8. [`Client`], [`Lock`], [`Guard`], [`Owner`] and [`Election`] are what users touch; [`guard_traits`] is what guards
//!    have in some stores only.
//! 9. [`memory`] is the reference store, and the shortest one.
//! 10. `conformance` (feature `conformance`) has the behaviours that every store must show.
//!
//! A store of your own needs no registration: pass it to [`Client::from_store`].

// Docs.rs says at each item which feature brings it. Only a nightly compiler can.
#![cfg_attr(docsrs, feature(doc_cfg))]

// Vocabulary: plain data.
pub mod error;
pub mod fence;
pub mod guarantees;
pub mod holder;
pub mod leader;
pub mod lost;
pub mod name;
pub mod options;
pub mod time;
pub mod url;
mod validate;

// Decisions.
pub mod logic;

// The runtime and the clock.
pub mod rt;

// Blocks: duties that several stores have.
pub mod support;

// The interface of all stores.
pub mod store;

// The engine of stores that keep their waiters in order.
pub mod queue;

// What performs the decisions.
mod driver;

// What users touch.
mod acquire;
mod after;
mod both;
mod buckets;
mod client;
mod client_builder;
mod defaults;
mod election;
mod entry;
mod guard;
pub mod guard_traits;
mod lock;
mod observer;
mod owner;
mod receipt;
#[cfg(feature = "serde")]
mod serialize;
mod several;
mod store_lock;
mod target;
mod term;
#[cfg(feature = "sqlx")]
pub mod transaction;

// The reference store.
pub mod memory;

// For authors of stores.
#[cfg(all(feature = "conformance", unix))]
pub mod conformance;

pub use after::GuardUntilOutcome;
pub use buckets::{Buckets, bucket_of};
pub use client::{CallbackHandle, Client};
pub use client_builder::ClientBuilder;
pub use election::{Campaigns, Election};
pub use error::{Error, ErrorKind};
pub use fence::{FencingToken, OwnerId};
pub use guard::Guard;
pub use holder::{HoldInfo, Holder, LockStatus, RestartGuard, WaitReport};
pub use leader::Leader;
pub use lock::Lock;
pub use logic::lease::HoldState;
pub use lost::{Loss, LostReason};
pub use name::LockName;
pub use observer::Observer;
pub use options::{Fairness, Mode, Options, Renew};
pub use owner::Owner;
pub use receipt::Receipt;
pub use term::Term;
