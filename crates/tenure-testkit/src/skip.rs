//! Tests that need a program which is not installed on every machine.

use super::idle;

/// Returns `true`, which ends the test, if one of these programs is not installed. It prints that on a line of its own
/// past the capture of output: `scripts/test` counts such lines, and in CI they are failures. Otherwise it waits until
/// the machine is idle and returns `false`.
pub fn skip_unless_installed(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        |program: &str| std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    let missing = programs.iter().find(|program| !is_there(program));
    skip_unless(missing.is_none(), missing.unwrap_or(&""))
}

/// [`skip_unless_installed`] for something that is not on the path.
pub(crate) fn skip_unless(is_installed: bool, what: &str) -> bool {
    match is_installed {
        true => idle::wait_for_idle_machine(),
        false => print_missing(what),
    }
    !is_installed
}

/// [`skip_unless_installed`] for a foreign client, or a server, that `interop/build` builds.
pub(crate) fn skip_unless_built(program: &std::path::Path, language: &str) -> bool {
    match program.is_file() {
        true => idle::wait_for_idle_machine(),
        false => print_skip(&format!(
            "{language} is not built; scripts/test --only interop does it"
        )),
    }
    !program.is_file()
}

/// Prints that a test ends because this program is missing.
fn print_missing(missing: &str) {
    print_skip(&format!(
        "{missing} is not installed; scripts/test --only servers does it"
    ));
}

/// Prints that the test of this thread ends without a result, and why.
pub(crate) fn print_skip(why: &str) {
    use std::io::Write as _;
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let line = format!("\nSKIP {test}: {why}\n");
    // A closed standard output has no reader, so an error does not matter.
    let _ = std::io::stdout().write_all(line.as_bytes());
}
