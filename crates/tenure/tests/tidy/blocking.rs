//! Compares the methods of `tenure::blocking` with those of the async API.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Tree;

const TYPES: [&str; 6] = ["Client", "Lock", "Guard", "Election", "Term", "Observer"];
/// Methods of the async API that `blocking` does not have: (type, method, reason).
const ASYNC_ONLY: &[(&str, &str, &str)] = &[
    ("Client", "builder", "`from_builder` takes the same builder"),
    (
        "Lock",
        "transaction",
        "the sqlx driver is async; `Guard::after` serves every blocking driver",
    ),
    (
        "Lock",
        "run_boxed",
        "the body of `run` is an ordinary closure there",
    ),
    ("Election", "run_boxed", "as `Lock::run_boxed`"),
    ("Term", "lost", "as `Guard::lost`"),
    ("Observer", "next", "the observer is an iterator there"),
    (
        "Guard",
        "lost",
        "a thread cannot wait for two events; `on_lost` calls a function",
    ),
    (
        "Guard",
        "at_risk",
        "as `lost`; `state` and `remaining` tell it at any time",
    ),
    (
        "Guard",
        "cancellation_token",
        "it stops async code; a thread asks `is_held`",
    ),
];

type Methods = BTreeMap<&'static str, BTreeSet<String>>;

/// The public methods in the `impl` blocks of [`TYPES`] in one file, and those that its `same_options!` makes.
fn methods(text: &str, found: &mut Methods) {
    let mut current = None;
    for line in text.lines() {
        let of = |name: &&&str| line == format!("impl {name} {{");
        if let Some(name) = TYPES.iter().find(of) {
            current = Some((*name, "    pub "));
        } else if line == "same_options! {" {
            current = Some(("Lock", "    "));
        } else if line == "}" {
            current = None;
        }
        let Some((name, start)) = current else {
            continue;
        };
        let Some(rest) = line.strip_prefix(start) else {
            continue;
        };
        let signature = match start {
            "    pub " => rest
                .trim_start_matches("const ")
                .trim_start_matches("async ")
                .strip_prefix("fn "),
            _ => Some(rest),
        };
        let end = signature.and_then(|signature| signature.find(['(', '<']));
        if let (Some(signature), Some(end)) = (signature, end) {
            let methods = found.entry(name).or_default();
            methods.insert(signature[..end].to_owned());
        }
    }
}

/// The methods of this type.
fn of<'a>(methods: &'a Methods, name: &str) -> &'a BTreeSet<String> {
    static NONE: BTreeSet<String> = BTreeSet::new();
    methods.get(name).unwrap_or(&NONE)
}

/// What `blocking` lacks without a reason, and reasons that are out of date.
fn differences(async_api: &Methods, blocking: &Methods) -> Vec<String> {
    let mut found = Vec::new();
    for name in TYPES {
        for method in of(async_api, name) {
            let reason = ASYNC_ONLY.iter().find(|it| (it.0, it.1) == (name, method));
            match (of(blocking, name).contains(method), reason) {
                (false, None) => found.push(format!("`blocking::{name}::{method}` is missing")),
                (true, Some(_)) => found.push(format!("`blocking::{name}::{method}` is there")),
                _ => {}
            }
        }
    }
    for (name, method, _) in ASYNC_ONLY {
        if !of(async_api, name).contains(*method) {
            found.push(format!("there is no `{name}::{method}`"));
        }
    }
    found
}

#[test]
fn each_async_method_has_a_blocking_one() {
    let tree = Tree::read();
    let (mut async_api, mut blocking) = (Methods::new(), Methods::new());
    for source in tree.sources.iter().filter(|source| !source.is_test()) {
        match source.in_library() {
            Some(("tenure_core", _)) => methods(&source.text, &mut async_api),
            Some(("tenure", file)) if file.starts_with("blocking") => {
                methods(&source.text, &mut blocking);
            }
            _ => {}
        }
    }
    for (name, at_least) in [
        ("Client", 15),
        ("Lock", 20),
        ("Guard", 15),
        ("Election", 9),
        ("Term", 9),
    ] {
        let seen = async_api[name].len();
        assert!(seen >= at_least, "only {seen} methods of {name} are seen");
    }
    let found = differences(&async_api, &blocking);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_method_that_is_missing_is_seen() {
    let text = "impl Client {\n    pub const fn a() {}\n    pub(crate) fn b() {}\n}\nimpl Lock {\n    \
                pub async fn run<T>(&self) {\n    fn private() {}\n}\nimpl Guard {\n    pub fn lost(\n";
    let mut async_api = Methods::new();
    methods(text, &mut async_api);
    let options =
        "same_options! {\n    run(wait: Duration);\n}\nimpl Client {\n}\n    pub fn a() {}\n";
    let mut blocking = Methods::new();
    methods(options, &mut blocking);
    let found = differences(&async_api, &blocking);
    assert_eq!(found[0], "`blocking::Client::a` is missing");
    let is_stale = |it: &&(_, _, _)| (it.0, it.1) != ("Guard", "lost");
    let stale: Vec<_> = ASYNC_ONLY.iter().filter(is_stale).collect();
    assert_eq!(found.len(), 1 + stale.len(), "{found:?}");
}
