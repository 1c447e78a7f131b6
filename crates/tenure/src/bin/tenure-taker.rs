//! Takes a lock and does what it is told on stdin; see `tenure::conformance::taker`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tenure::conformance::taker::main(async |url: String| tenure::connect(&url).await)
}
