//! Real servers for tests, each on a free loopback port and in a directory of its own.
//!
//! Nothing here goes through the library: what a test does to a server, and what it sees in there, is by
//! the server's own means. [`process`] starts and kills, [`resp`] talks to a Redis, [`redis`] has the shapes
//! in which one is run, [`proxy`] stands between a client and its server and makes trouble, [`clock`] moves
//! the clocks of a process, [`disk`] takes its power, [`tracer`] does both to Go's, [`network`] cuts servers off from each other, [`sql_client`] is
//! somebody at a database's console.

#![allow(missing_docs, reason = "for tests, whose authors read the code")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

pub mod clock;
pub mod database;
pub mod disk;
pub mod etcd;
pub mod grpc;
#[path = "../../tenure-core/src/conformance/idle.rs"]
mod idle;
pub mod jute;
pub mod mariadb;
mod needs;
pub mod network;
pub mod pgbouncer;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod recorder;
pub mod redis;
pub mod relay;
pub mod resp;
pub mod sql_client;
pub mod sqlite;
pub mod statements;
pub mod tracer;
pub mod wire;
pub mod zookeeper;

use std::time::{Duration, Instant};

/// How long anything may take that happens soon on an idle machine. When it is over, it did not happen.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// What every server wants to hear from us, and nobody else may see.
pub const PASSWORD: &str = "not-for-your-eyes";

/// Asks again and again, for what nobody announces; blocks this thread.
///
/// # Panics
/// When it never comes true.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TEST_TIMEOUT, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns `true`, which ends the test, if one of these programs is not installed. It prints that on a line of its own
/// past the capture of output: `scripts/test` counts such lines, and in CI they are failures. Otherwise it waits until
/// the machine is idle and returns `false`.
pub fn skip_unless_installed(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        |program: &str| std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    let Some(missing) = programs.iter().find(|program| !is_there(program)) else {
        idle::wait_for_idle_machine();
        return false;
    };
    print_missing(missing);
    true
}

pub fn print_missing(missing: &str) {
    print_skip(&format!(
        "{missing} is not installed; scripts/test --only servers does it"
    ));
}

/// The test that runs on this thread does nothing, and why.
pub fn print_skip(why: &str) {
    use std::io::Write as _;
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let line = format!("\nSKIP {test}: {why}\n");
    // Without an output there is nobody to see it.
    let _ = std::io::stdout().write_all(line.as_bytes());
}
