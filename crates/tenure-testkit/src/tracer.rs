//! The clock and the disk of a test for programs that make system calls without libc: a tracer changes the calls.

use std::path::Path;

use super::compiler::compile;

/// Compiles `tracer.c` in `dir`; returns the program, which stands before the command to trace.
pub(crate) fn build(dir: &Path) -> String {
    let program = dir.join("tracer");
    std::fs::write(dir.join("clock.c"), include_str!("clock.c")).unwrap();
    std::fs::write(dir.join("disk.c"), include_str!("disk.c")).unwrap();
    compile(&program, include_str!("tracer.c"), &[]);
    program.display().to_string()
}
