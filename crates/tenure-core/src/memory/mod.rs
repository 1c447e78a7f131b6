//! `memory:`: the reference lock table of `logic` as a store.
//!
//! This store is complete, and the shortest one. With [`Store::with_virtual_clock`] it is also one for your tests: time
//! stands still until the test moves it, leases expire when the test says so, and replies are lost, late or missing on
//! request.
//!
//! ```
//! # async fn example() -> Result<(), tenure::Error> {
//! use std::time::Duration;
//! use tenure::memory;
//! use tenure::{Client, LostReason};
//!
//! let store = memory::Store::with_virtual_clock();
//! let client = Client::from_store(store.clone())?;
//! let guard = client.lock("orders/42").ttl(Duration::from_secs(10)).acquire().await?;
//! store.pause(); // the store answers no request: renewals hang
//! store.advance(Duration::from_secs(10));
//! assert_eq!(guard.lost().await, Some(LostReason::Expired));
//! # Ok(()) }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
//! ```

mod acquire;
mod detach;
mod disturbance;
mod elections;
mod guarantees;
mod holders;
mod inspect;
mod interface;
mod name_table;
mod release;
mod request;
mod script;
mod store;
mod upgrade;
mod wait;
mod watcher;

pub use self::disturbance::Disturbance;
pub use self::guarantees::guarantees;
pub use self::store::Store;
