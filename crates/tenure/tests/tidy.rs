//! The architecture as a test: which layer may import which layer, and which files may read a clock.
//! The layers are those of two crates, of which `tenure` imports `tenure-core`; cargo refuses the other direction.
//! (`tidy/circles.rs`: circles of imports. `tidy/house.rs`: rules for every file. `tidy/mutants.rs`: the list of mutants.
//! `tidy/source.rs`: reading source.)
//!
//! A violation is printed as `file:line: [rule] what; why the rule is there`.
//! The test reads source text and knows no types, so it finds mistakes and not every deliberate violation.
//! A file that does not exist breaks no rule; imports, clocks and `unwrap` are free in test code.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "tidy/blocking.rs"]
mod blocking;
#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/house.rs"]
mod house;
#[path = "tidy/mutants.rs"]
mod mutants;
#[path = "tidy/source.rs"]
mod source;

use std::collections::BTreeMap;

use source::Tree;

/// Plain data that every layer shares.
const VOCABULARY: &[&str] = &[
    "error",
    "fence",
    "guarantees",
    "holder",
    "leader",
    "lost",
    "name",
    "options",
    "receipt",
    "time",
    "url",
    "validate",
];
/// The files that know every store of their crate: they name the stores to users, or feed all of them with bytes.
const CONNECT: &[&str] = &["client", "connect", "fuzzing"];
/// The stores, a folder each.
const STORES: &[&str] = &[
    "etcd",
    "file",
    "majority",
    "memory",
    "redis",
    "sessions",
    "tables",
    "zookeeper",
];
/// Modules that are no store and that every store may use.
const SHARED_BY_STORES: &[&str] = &[
    "capabilities",
    "database",
    "redacted",
    "scheme",
    "store_url",
    "tls",
    "waiting",
];
/// The folder of a store that knows servers and no locks: it could be a crate of its own.
const CONNECTION_ROOM: [&str; 2] = ["redis", "connection"];
/// Vocabulary that is about locks.
const LOCK_WORDS: &[&str] = &[
    "LockName",
    "fence",
    "guarantees",
    "holder",
    "leader",
    "lost",
    "options",
    "validate",
];
/// Exceptions: dependencies that vocabulary and logic may name: (file under `crates/`, crate).
const CRATES_ALLOWED: &[(&str, &str)] = &[
    ("tenure-core/src/fence.rs", "rand"), // owner ids are random numbers
];

/// Paths that name the runtime or read a clock.
const CLOCKS: &[&str] = &[
    "tokio::time",
    "tokio::runtime",
    "tokio::spawn",
    "tokio::task",
    "time::Instant",
    "SystemTime::now",
    "thread::sleep",
    "clock_gettime",
];
/// Exceptions: files that may use one of [`CLOCKS`]: (start of the path under `crates/`, the path, with "" for all).
const CLOCKS_ALLOWED: &[(&str, &str)] = &[
    ("tenure-core/src/rt/", ""), // all other modules use the clock and the runtime of this one
    ("tenure-core/src/conformance/", ""), // acts as a user, who has a runtime and a clock
    ("tenure/src/blocking/runtime.rs", "tokio::runtime"), // builds the runtime that its callers lack
    ("tenure/src/file/", "SystemTime::now"), // "held since", shown to people in other processes
    ("tenure-core/src/memory/", "SystemTime::now"), // the same
];

#[derive(PartialEq)]
enum Layer {
    CratePage,
    Vocabulary,
    Logic,
    Interface,
    Engine,
    Store(String),
    ConnectionRoom,
    Driver,
    Rt,
    Support,
    Connect,
    UserFacing,
    Conformance,
}

/// The layer of `path`, which begins with the name of the crate.
fn layer(tree: &Tree, path: &[String]) -> Layer {
    let part = |i: usize| path.get(i).map_or("", String::as_str);
    match part(1) {
        "logic" => Layer::Logic,
        "store" => Layer::Interface,
        "queue" => Layer::Engine,
        "driver" => Layer::Driver,
        "rt" => Layer::Rt,
        "support" => Layer::Support,
        "conformance" => Layer::Conformance,
        x if [x, part(2)] == CONNECTION_ROOM => Layer::ConnectionRoom,
        x if VOCABULARY.contains(&x) => Layer::Vocabulary,
        x if STORES.contains(&x) || SHARED_BY_STORES.contains(&x) => Layer::Store(x.into()),
        x if CONNECT.contains(&x) => Layer::Connect,
        x if !x.is_empty() && tree.is_module(&path[..2]) => Layer::UserFacing,
        _ => Layer::CratePage,
    }
}

/// Whether the layer `from` may import `path` of the layer `to`, and the reason of the rule.
fn may_import(from: &Layer, to: &Layer, path: &[String]) -> (bool, &'static str) {
    use Layer::*;
    let in_base = matches!(to, Vocabulary | Logic | Rt | Support | Interface);
    match from {
        CratePage => (true, ""),
        Vocabulary => (
            false,
            "vocabulary is plain data, to be understood without the other layers",
        ),
        Logic => (
            *to == Vocabulary,
            "a decision takes all it needs as arguments",
        ),
        Rt => (
            path[1] == "time",
            "every layer imports the runtime, so the runtime imports none",
        ),
        Support => (
            matches!(to, Vocabulary | Logic | Rt),
            "a block has one job and knows no store",
        ),
        Interface => (
            in_base && !matches!(to, Logic | Support),
            "the interface knows neither drivers nor stores",
        ),
        Engine => (
            in_base,
            "an engine serves several stores through its traits alone",
        ),
        Store(name) => {
            let is_shared = |x: &String| SHARED_BY_STORES.contains(&x.as_str());
            let shared = matches!(to, Store(x) if is_shared(x));
            let own_room = *to == ConnectionRoom && path[1] == *name;
            (
                in_base || shared || *to == Engine || own_room || path[1] == "guard_traits", // what users call on a guard of this store
                "a store knows no other store, and could be its own crate",
            )
        }
        ConnectionRoom => {
            let is_about_locks = path.iter().any(|part| LOCK_WORDS.contains(&part.as_str()));
            let is_block = matches!(to, Vocabulary | Rt | Support) && !is_about_locks;
            (
                is_block
                    || path[1] == "tls"
                    || path[1..].starts_with(&["logic", "pace"].map(Into::into)),
                "connections know servers and no locks",
            )
        }
        Driver => (
            in_base || *to == Driver,
            "the driver serves every store through the interface alone",
        ),
        Connect => (*to != Conformance, "the suite is a user of the API"),
        UserFacing => (
            !matches!(to, Store(_) | Conformance)
                || path[1] == "store_url" // settings of any store, which are a URL in parts
                || path[1..].join("::") == "database::keys::bigint", // one key for locks of sessions and transactions
            "the URL chooses the store; only connect knows the stores",
        ),
        Conformance => (
            !matches!(to, Logic | Driver | Store(_))
                || path[1..].join("::") == "logic::lease::HoldState", // `tenure::HoldState`, what guards say
            "authors of other stores run the suite and have only the public API",
        ),
    }
}

/// Imports between layers, purity and clocks.
fn architecture(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let dependencies = tree.manifest_keys("tenure-core", "[dependencies]");
    for source in tree.sources.iter().filter(|source| !source.is_test()) {
        let Some((_, file)) = source.in_library() else {
            continue;
        };
        let from_crates = source.path.trim_start_matches("crates/");
        let mut report = |line, what| found.push((source.path.clone(), line, what));
        let from = layer(tree, &source.module());
        for (line, path) in tree.imports(source) {
            let to = layer(tree, &path);
            let (allowed, why) = may_import(&from, &to, &path);
            if !allowed && from != to {
                let path = path.join("::");
                report(
                    line,
                    format!("[arrows] {file} may not import `{path}`; {why}"),
                );
            }
        }
        let is_pure = matches!(from, Layer::Vocabulary | Layer::Logic);
        for (line, path) in source.paths() {
            let name = path.join("::");
            let is_named = |what: &str| format!("::{name}::").contains(&format!("::{what}::"));
            let is_allowed = |clock: &str| {
                let allows = |what: &str| what == clock || what.is_empty();
                CLOCKS_ALLOWED
                    .iter()
                    .any(|(at, what)| from_crates.starts_with(at) && allows(what))
            };
            if CLOCKS
                .iter()
                .any(|clock| is_named(clock) && !is_allowed(clock))
            {
                let why = "a test replaces clock and runtime in one place";
                report(line, format!("[clock] `{name}`: ask `rt`; {why}"));
            }
            let is_dependency = dependencies
                .iter()
                .any(|(_, key)| key.replace('-', "_") == path[0]);
            if is_pure && is_dependency && !CRATES_ALLOWED.contains(&(from_crates, &path[0])) {
                let why = "vocabulary and logic can be read and tested with std alone";
                report(line, format!("[pure] `{name}`; {why}"));
            }
        }
        for word in ["async", "await"] {
            for line in source
                .lines_with(word)
                .into_iter()
                .filter(|_| from == Layer::Logic)
            {
                report(
                    line,
                    format!("[pure] `{word}` in the logic; a decision never waits"),
                );
            }
        }
    }
    found
}

/// File, line and message.
type Violation = (String, usize, String);

fn violations(tree: &Tree) -> Vec<String> {
    let found = [
        architecture(tree),
        circles::circles(tree),
        house::rules(tree),
    ]
    .concat();
    found
        .iter()
        .map(|(path, line, what)| format!("{path}:{line}: {what}"))
        .collect()
}

#[test]
fn the_tree_keeps_the_rules() {
    let found = violations(&Tree::read());
    assert!(
        found.is_empty(),
        "{} violations:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn each_mutant_can_be_planted() {
    let texts = mutants::read();
    let found = mutants::mutants(&Tree::read(), &texts);
    assert!(found.is_empty(), "{found:#?}");
    assert!(texts.len() > 20, "the list names too few files");
}

#[test]
fn a_mutant_that_cannot_be_planted_is_seen() {
    let files = [
        ("crates/x/src/lib.rs", "mod tests { fn one() {} }"),
        ("crates/x/tests/whole/main.rs", "mod part;"),
        ("crates/x/tests/whole/part.rs", "async fn two() {}"),
    ];
    let file = |(name, text): (&str, &str)| (name.to_owned(), text.to_owned());
    let tree = Tree::new(files.map(file));
    let problem_of = |test: &str, change: &str| {
        let list = format!("# -\nmutant: m\nfile: f\ntest: {test}\n{change}\n");
        let texts = [(mutants::LIST, list.as_str()), ("f", "a b\nb c\n")];
        let found = mutants::mutants(&tree, &texts.map(file).into());
        let found = found
            .into_iter()
            .map(|(_, line, what)| format!("{line}: {what}"));
        found.collect::<Vec<_>>().join("\n")
    };
    let lib = "x lib tests::one";
    assert_eq!(problem_of(lib, "-b\n-b c\n+b"), "");
    assert_eq!(problem_of("x whole part::two", "-a"), "");
    for (test, change, problem) in [
        (lib, "-b\n+d", "its text is 2 times"),
        (lib, "-d\n+b", "its text is 0 times"),
        (lib, "+b", "its text is 0 times"),
        (lib, "-a\n+a", "its text is replaced by itself"),
        ("x lib tests::on", "-a", "there is no `on`"),
        ("x whole tests::one", "-a", "there is no `tests`"),
        (
            "x whole two modes::none",
            "-a",
            "there is no behaviour `modes::none`",
        ),
        ("x whole", "-a", "it names no package"),
    ] {
        let found = problem_of(test, change);
        let start = format!("2: [mutants] \"m\": {problem}");
        assert!(found.starts_with(&start), "{test}, {change:?}: {found}");
        assert_eq!(found.lines().count(), 1, "{found}");
    }
}

/// The violations of a small tree that keeps the rules, with one more file.
fn violations_with(path: &str, text: &str) -> String {
    let modules = "tenure-core: store store/loss_notifier memory driver/mod lib error logic/mod logic/lease client lock \
                   guard rt time tenure: file redis connect blocking lib";
    let mut folder = "";
    let mut files = BTreeMap::new();
    for word in modules.split_whitespace() {
        match word.strip_suffix(':') {
            Some(name) => folder = name,
            None => drop(files.insert(format!("crates/{folder}/src/{word}.rs"), String::new())),
        }
    }
    let pages = [
        ("tenure-core", "pub use error::{Error, ErrorKind};"),
        (
            "tenure",
            "pub use tenure_core::{Error, ErrorKind, logic, lock};",
        ),
    ];
    for (folder, page) in pages {
        files.insert(format!("crates/{folder}/src/lib.rs"), page.into());
        let manifest =
            "[features]\nfile = []\n[dependencies]\ntokio = \"1\"\n[lints]\nworkspace = true\n";
        files.insert(format!("crates/{folder}/Cargo.toml"), manifest.into());
    }
    files.insert(format!("crates/{path}"), text.into());
    violations(&Tree::new(files)).join("\n")
}

#[test]
fn every_rule_sees_what_is_planted() {
    for case in include_str!("tidy/planted.txt").lines() {
        if case.is_empty() || case.starts_with('#') {
            continue;
        }
        let (path, rest) = case.split_once(' ').unwrap();
        let (text, expected) = rest.split_once("=>").unwrap();
        let found = violations_with(path, &text.replace("\\n", "\n"));
        match expected.trim() {
            "" => assert_eq!(found, "", "{case}"),
            start => {
                assert!(
                    found.starts_with(&format!("crates/{path}:{start}")),
                    "{case}\n{found}"
                );
                assert_eq!(found.lines().count(), 1, "{case}\n{found}");
            }
        }
    }
    let lines = |n| violations_with("tenure/src/sql.rs", &"\n".repeat(n));
    assert_eq!(lines(650), "");
    assert!(lines(651).starts_with("crates/tenure/src/sql.rs:651: [length]"));
    let page = |feature: &str| {
        let text = format!(
            "{}//! # Features\n//! | `{feature}` | x |\n",
            "//! x\n".repeat(10)
        );
        violations_with("tenure/src/lib.rs", &text)
    };
    assert_eq!(page("file"), "");
    assert!(page("fly").contains("rs:1: [features] no row for `file`"));
    assert!(page("fly").contains("rs:12: [features] `fly` is not in the manifest"));
}

#[test]
fn a_circle_of_imports_is_seen_and_a_chain_is_none() {
    let circle_with = |last: &str| {
        let files = [
            ("store/mod.rs", "mod a; use self::a::A;"),
            ("store/a.rs", "use super::b::B;"),
            ("store/b.rs", last),
        ];
        let file = |(name, text): (&str, &str)| (format!("crates/x/src/{name}"), text.to_owned());
        let found = circles::circles(&Tree::new(files.map(file)));
        let found = found
            .iter()
            .filter(|(path, ..)| path.starts_with("crates/x/"));
        found.map(|(_, _, what)| what.clone()).collect::<Vec<_>>()
    };
    assert!(circle_with("use crate::other::A;").is_empty());
    let found = circle_with("fn f() -> super::a::A {}");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("[circle] crates/x/src/store/a.rs, crates/x/src/store/b.rs;"));
    let found = circle_with("use super::X;");
    assert!(found[0].contains("store/mod.rs"), "{found:?}");
}
