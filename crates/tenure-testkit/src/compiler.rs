//! Compiles the C programs of the testkit.

use std::path::Path;
use std::process::Command;

/// Compiles a library that is loaded before libc, as `dir/NAME.so`.
pub(crate) fn preload(dir: &Path, name: &str, source: &str) {
    let library = dir.join(format!("{name}.so"));
    compile(&library, source, &["-shared", "-fPIC"]);
}

/// Leaves the source beside the program: a debugger finds it there.
pub(crate) fn compile(program: &Path, source: &str, flags: &[&str]) {
    let file = program.with_extension("c");
    std::fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(flags).args(["-O1", "-Wall", "-Werror", "-o"]);
    let output = cc.arg(program).arg(file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
