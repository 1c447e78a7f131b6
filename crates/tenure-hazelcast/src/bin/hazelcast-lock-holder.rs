//! Takes a lock and does what it is told on stdin; see `tenure_core::conformance::lock_holder`.

use std::process::ExitCode;

#[cfg(not(unix))]
fn main() -> ExitCode {
    eprintln!("hazelcast-lock-holder needs the signals of Unix");
    ExitCode::FAILURE
}

#[cfg(unix)]
fn main() -> ExitCode {
    tenure_core::conformance::lock_holder::main(async |url: String| {
        tenure_hazelcast::connect(&url).await
    })
}
