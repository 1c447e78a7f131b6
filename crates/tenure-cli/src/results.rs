//! The results or the error of an action are printed, and become the exit code.

use std::io;

use tenure::Error;

use crate::console::{self, Console};
use crate::exit::Exit;

/// Prints the lines of results, or the error.
pub(crate) async fn print_results(
    console: &Console,
    action: impl Future<Output = Result<(Vec<String>, Exit), Error>>,
) -> Exit {
    let (lines, exit) = match action.await {
        Ok(answer) => answer,
        Err(error) => return report_error(console, &error, Exit::BUSY),
    };
    match lines.iter().try_for_each(console::print_result) {
        // A reader such as `head` may stop early.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            console.error(format!("cannot write to standard output: {error}"));
            Exit::Failed
        }
        _ => exit,
    }
}

/// Prints an error of the library, and returns how `tenure` ends; `busy` is the exit code for a lock that another client
/// holds.
pub(crate) fn report_error(console: &Console, error: &Error, busy: u8) -> Exit {
    console.error(error);
    Exit::of(error.kind(), busy)
}
