//! `tenure`: hold a distributed lock while a command runs.

mod args;
mod clock;
mod duration;
mod exit;
mod guardian;
mod link;
mod signals;
mod tree;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    // Before anything else: the guardian's start is on the way to every command's start.
    if arguments
        .get(1)
        .is_some_and(|first| first == guardian::ARGUMENT)
    {
        return guardian::main(&arguments[2..]);
    }
    ExitCode::SUCCESS
}
