//! Helpers of several test programs.

#![allow(
    dead_code,
    reason = "several test programs share this, and each needs its own part"
)]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::time::{Duration, Instant};

use tenure_core::Guard;
use tenure_testkit::until;

/// The runtime of a test, which ends with the test.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// A name that no other test uses.
pub(crate) fn name(word: &str) -> String {
    format!("{word}-{:x}", rand::random::<u64>())
}

/// Returns when the hold has been renewed once more.
pub(crate) fn until_renewed(guard: &Guard, ttl: Duration) {
    let deadline = || Instant::now() + guard.remaining();
    // Half the time between two renewals.
    let renewed = deadline() + ttl / 6;
    until("it is renewed", || deadline() > renewed);
}
