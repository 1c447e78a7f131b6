//! Takes a lock and does what it is told on stdin; see `tenure::conformance::taker`.

use std::process::ExitCode;

#[cfg(not(unix))]
fn main() -> ExitCode {
    eprintln!("tenure-taker needs the signals of Unix");
    ExitCode::FAILURE
}

#[cfg(unix)]
fn main() -> ExitCode {
    tenure::conformance::taker::main(async |url: String| tenure::connect(&url).await)
}
