//! Names that look like paths, options or our own files.

use crate::support::{Scratch, inspect, is_free, list, release, take};

fn hostile() -> Vec<String> {
    let mut names: Vec<String> = [
        "../x",
        "..",
        ".",
        "/",
        "//",
        "/etc/passwd",
        "a\0b",
        "a\0c",
        "a/b",
        "a%2fb",
        "a%2Fb",
        "A",
        "a",
        "B",
        "b",
        ".mutex",
        ".floor",
        ".probe",
        ".break-1",
        "a%s0",
        "a%p0",
        "%~",
        "🦀",
        "é",
        "e\u{301}",
        " ",
        "  ",
        "\n",
        "\r\n",
        "-rf",
        "~",
        "a\\b",
        "\u{202e}txt",
        "\u{1b}[31m",
        "con",
        "nul.",
        "*",
        "?",
        "\"",
        "'",
        "$(id)",
        "ß",
        "SS",
        "ſ",
    ]
    .map(str::to_owned)
    .to_vec();
    names.extend([
        "x".repeat(1_000),
        "X".repeat(1_000),
        "\0".repeat(1_000),
        "🦀".repeat(250),
        "/".repeat(1_000),
    ]);
    names.extend([
        format!("{}y", "x".repeat(999)),
        format!("{}z", "x".repeat(999)),
    ]);
    names
}

#[test]
fn hostile_names_are_locks_like_any_other_and_stay_in_the_directory() {
    let scratch = Scratch::new();
    let (store, other) = (scratch.open(), scratch.open());
    let names = hostile();
    let holds: Vec<_> = names.iter().map(|name| take(&store, name)).collect();
    for (name, hold) in names.iter().zip(&holds) {
        assert!(!is_free(&other, name), "{name:?}");
        let status = inspect(&other, name);
        assert_eq!(status.holds[0].token.unwrap().get(), hold.token, "{name:?}");
    }
    let mut listed: Vec<_> = list(&other, "");
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(
        listed
            .iter()
            .map(|status| status.name.as_str())
            .collect::<Vec<_>>(),
        sorted
    );
    holds.into_iter().for_each(|hold| release(&store, hold));
    // No file was made outside the directory.
    let made: Vec<_> = std::fs::read_dir(scratch.path()).unwrap().collect();
    assert_eq!(made.len(), 1, "{made:?}");
    let files: Vec<_> = std::fs::read_dir(scratch.locks())
        .unwrap()
        .map(|entry| {
            entry
                .unwrap()
                .file_name()
                .into_string()
                .unwrap()
                .to_lowercase()
        })
        .filter(|file| !file.starts_with('.'))
        .collect();
    let unique: std::collections::BTreeSet<_> = files.iter().collect();
    assert_eq!(unique.len(), names.len());
}

#[test]
fn a_plain_name_is_its_file() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let _hold = take(&store, "nightly-report_v1.2");
    assert!(scratch.locks().join("nightly-report_v1.2").is_file());
}
