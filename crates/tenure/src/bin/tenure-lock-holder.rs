//! Takes a lock and does what it is told on stdin; see `tenure::conformance::lock_holder`.

use std::process::ExitCode;

#[cfg(not(unix))]
fn main() -> ExitCode {
    eprintln!("tenure-lock-holder needs the signals of Unix");
    ExitCode::FAILURE
}

#[cfg(unix)]
fn main() -> ExitCode {
    tenure::conformance::lock_holder::main(async |url: String| tenure::connect(&url).await)
}
