//! Comparison with recorded files: how many requests of which kind each operation sends (`traces`), and the data that
//! other processes, other versions and other libraries read in a store (`records`). A change of either must be
//! intended, and changes a file in `files`.
//!
//! `TENURE_BLESS=1 cargo test -p tenure --all-features --test golden` writes the files again.

#![cfg(all(
    feature = "etcd",
    feature = "file",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite",
    feature = "zookeeper"
))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../common/mod.rs"]
mod common;

mod mask;
mod records;
mod scenarios;
mod traces;

use std::path::PathBuf;

/// Compares with the file of that name, or writes it.
#[track_caller]
fn compare(name: &str, found: &str) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/files");
    let file = folder.join(format!("{name}.txt"));
    if std::env::var_os("TENURE_BLESS").is_some() {
        std::fs::write(file, found).unwrap();
        return;
    }
    let known = std::fs::read_to_string(&file).unwrap();
    assert_eq!(found, known, "not what {} says", file.display());
}
