//! The clock and the disk of a test for programs that ask the kernel without libc.

use std::path::Path;
use std::process::Command;

use super::clock::{Clock, compile};
use super::{print_skip, skip_unless_installed};

/// Made by the compiler from `tracer.c` in `dir`: what stands before the program.
pub fn build(dir: &Path) -> String {
    let program = dir.join("tracer");
    std::fs::write(dir.join("clock.c"), include_str!("clock.c")).unwrap();
    std::fs::write(dir.join("disk.c"), include_str!("disk.c")).unwrap();
    compile(&program, include_str!("tracer.c"), &[]);
    program.display().to_string()
}

/// Not every machine lets a process look at another one.
pub fn skip_unless_possible() -> bool {
    if skip_unless_installed(&["cc"]) {
        return true;
    }
    let clock = Clock::make();
    clock.set(-1_000_000_000);
    let words = clock.traced_command();
    let mut date = Command::new(&words[0]);
    let date = date.args(&words[1..]).args(["date", "+%Y"]).output();
    let date = date.unwrap();
    if !date.status.success() {
        let why = String::from_utf8_lossy(&date.stderr);
        print_skip(&format!("no process may be traced here ({})", why.trim()));
        return true;
    }
    // Or all that is tried on that clock would prove nothing.
    let year: u64 = String::from_utf8_lossy(&date.stdout)
        .trim()
        .parse()
        .unwrap();
    assert!(year < 2020, "thirty years back it is {year}");
    false
}
