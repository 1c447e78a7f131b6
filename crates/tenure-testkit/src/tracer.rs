//! The clock and the disk of a test for programs that ask the kernel without libc.

use std::path::Path;

use super::compiler::compile;

/// Made by the compiler from `tracer.c` in `dir`: what stands before the program.
pub(crate) fn build(dir: &Path) -> String {
    let program = dir.join("tracer");
    std::fs::write(dir.join("clock.c"), include_str!("clock.c")).unwrap();
    std::fs::write(dir.join("disk.c"), include_str!("disk.c")).unwrap();
    compile(&program, include_str!("tracer.c"), &[]);
    program.display().to_string()
}
