//! Circles of imports between files: no file of a circle can be understood alone.
//!
//! An import leads from a file to the file of the module that a path names, in the same crate. Declaring a child module
//! (`mod x;`) is no import.

use std::collections::{BTreeMap, BTreeSet};

use crate::Violation;
use crate::source::{Source, Tree};

/// A module of one crate: its folder under `crates/`, then the names from the root on.
type Module = Vec<String>;

pub(crate) fn circles(tree: &Tree) -> Vec<Violation> {
    let sources = tree.sources.iter().filter(|source| !source.is_test());
    let files: BTreeMap<Module, &Source> = sources
        .filter_map(|source| Some((module(&source.path)?, source)))
        .collect();
    let imports: BTreeMap<&Module, BTreeSet<&Module>> = files
        .iter()
        .map(|(from, source)| (from, imports(&files, from, source)))
        .collect();
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for (from, source) in &files {
        let circle: Vec<_> = reachable(&imports, from)
            .into_iter()
            .filter(|to| reachable(&imports, to).contains(from))
            .collect();
        if circle.len() > 1 && seen.insert(circle.clone()) {
            let names = circle.iter().map(|module| files[*module].path.as_str());
            let names: Vec<_> = names.collect();
            let why = "no file of a circle can be read alone";
            let what = format!("[circle] {}; {why}", names.join(", "));
            found.push((source.path.clone(), 1, what));
        }
    }
    found
}

fn module(path: &str) -> Option<Module> {
    let (folder, file) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let parts = file.trim_end_matches(".rs").split('/');
    let parts = parts.filter(|part| !matches!(*part, "mod" | "lib" | "main"));
    Some(
        [folder]
            .into_iter()
            .chain(parts)
            .map(String::from)
            .collect(),
    )
}

/// The modules that the paths of `source` lead to.
fn imports<'a>(
    files: &'a BTreeMap<Module, &Source>,
    from: &Module,
    source: &Source,
) -> BTreeSet<&'a Module> {
    let mut found = BTreeSet::new();
    for (_, path) in source.paths() {
        let mut to = from.clone();
        let mut rest = &path[..];
        match path[0].as_str() {
            "crate" => {
                to.truncate(1);
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {}
            name => {
                let child = [&from[..], &[name.to_owned()]].concat();
                if !files.contains_key(&child) {
                    continue;
                }
            }
        }
        while let Some(("super", above)) = rest.split_first().map(|(a, b)| (a.as_str(), b)) {
            to.pop();
            rest = above;
        }
        to.extend(rest.iter().cloned());
        while !to.is_empty() && !files.contains_key(&to) {
            to.pop();
        }
        // The root of a crate is a list of what its modules export.
        let is_root = to.len() == 1;
        if let Some((to, _)) = files.get_key_value(&to).filter(|_| !is_root)
            && to != from
        {
            found.insert(to);
        }
    }
    found
}

/// The modules that can be reached from `from` by one import or more, in their order.
fn reachable<'a>(
    imports: &BTreeMap<&'a Module, BTreeSet<&'a Module>>,
    from: &Module,
) -> BTreeSet<&'a Module> {
    let mut found = BTreeSet::new();
    let mut next: Vec<_> = imports[from].iter().copied().collect();
    while let Some(module) = next.pop() {
        if found.insert(module) {
            next.extend(imports[module].iter().copied());
        }
    }
    found
}
