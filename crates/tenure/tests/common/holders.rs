//! Holders in processes of their own, on each server.

use std::process::Command;
use std::time::Duration;

use tenure::conformance::lock_holder::LockHolder;

/// A process that takes `name`.
pub(crate) fn start(url: &str, name: &str, ttl: Duration) -> LockHolder {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-lock-holder"));
    command.arg(url).arg(name);
    command.arg("--ttl").arg(format!("{}ms", ttl.as_millis()));
    LockHolder::spawn(command).unwrap()
}
