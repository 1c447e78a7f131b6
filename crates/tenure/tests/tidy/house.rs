//! Rules for every file of the workspace.

use crate::Violation;
use crate::source::{Source, Tree};

const MAX_LINES: usize = 650;
/// Files that may be longer, each with its reason.
const LONGER: &[(&str, &str)] = &[];

pub(crate) fn rules(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in &tree.sources {
        lines(source, |line, what| {
            found.push((source.path.clone(), line, what))
        });
    }
    for (path, text) in &tree.manifests {
        if !text.contains("[lints]\nworkspace = true") {
            let what =
                "[lints] no `[lints] workspace = true`; the shared table forbids unsafe code";
            found.push((path.clone(), 1, what.into()));
        }
    }
    features(tree, &mut found);
    found
}

fn lines(source: &Source, mut report: impl FnMut(usize, String)) {
    let length = source.text.lines().count();
    if length > MAX_LINES && !LONGER.iter().any(|(path, _)| *path == source.path) {
        let why = "a file is one idea, so split it by concept";
        report(
            MAX_LINES + 1,
            format!("[length] {length} lines, {MAX_LINES} are allowed; {why}"),
        );
    }
    for words in ["todo !", "unimplemented !", "# [ ignore"] {
        for line in source.lines_with(words) {
            let what = words.replace(' ', "");
            report(
                line,
                format!("[unfinished] `{what}`; code that does not run proves nothing"),
            );
        }
    }
    for (i, line) in source.text.lines().enumerate() {
        let line = line.trim_start();
        let doc = line
            .strip_prefix("///")
            .or_else(|| line.strip_prefix("//!"));
        let info = doc
            .and_then(|doc| doc.trim_start().strip_prefix("```"))
            .unwrap_or_default();
        if info
            .split([',', ' '])
            .any(|word| word.starts_with("ignore"))
        {
            let why = "an example that is not compiled goes stale";
            report(i + 1, format!("[doctest] `ignore`; {why}"));
        }
    }
    let is_suite = source
        .in_library()
        .is_some_and(|(_, file)| file.starts_with("conformance/"));
    if !is_suite && !source.is_test() {
        for line in source.lines_with(". unwrap ( )") {
            let why = "an `expect` states the invariant, an error tells the user";
            report(line, format!("[unwrap] `.unwrap()`; {why}"));
        }
    }
}

/// The table under `# Features` on the crate page and the manifest name the same features.
/// A page of a few lines is taken for a page that is not written yet.
fn features(tree: &Tree, found: &mut Vec<Violation>) {
    let Some(page) = tree
        .sources
        .iter()
        .find(|source| source.path == "crates/tenure/src/lib.rs")
    else {
        return;
    };
    let docs = page.text.lines().enumerate();
    let docs: Vec<_> = docs
        .filter_map(|(i, line)| Some((i + 1, line.strip_prefix("//!")?.trim())))
        .collect();
    let section = docs
        .iter()
        .skip_while(|(_, line)| *line != "# Features")
        .skip(1);
    let section = section.take_while(|(_, line)| !line.starts_with("# "));
    let row = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_string());
    let listed: Vec<_> = section
        .filter_map(|(i, line)| Some((*i, row(line)?)))
        .collect();
    let mut declared = tree.manifest_keys("tenure", "[features]");
    declared.retain(|(_, name)| name != "default" && !name.starts_with('_'));

    let lacks = |list: &[(usize, String)], name: &String| !list.iter().any(|(_, x)| x == name);
    for (_, name) in declared
        .iter()
        .filter(|(_, name)| docs.len() > 10 && lacks(&listed, name))
    {
        let why = "the crate page is where a user looks for it";
        let what = format!("[features] no row for `{name}` in the table under `# Features`; {why}");
        found.push((page.path.clone(), 1, what));
    }
    for (line, name) in listed.iter().filter(|(_, name)| lacks(&declared, name)) {
        let what = format!("[features] `{name}` is not in the manifest; no user can turn it on");
        found.push((page.path.clone(), *line, what));
    }
}
