//! Reads Rust source as text: tokens, paths, and the module of each path. This file has no rule.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The crates of the library: folder, and the name in paths.
const LIBRARY: [(&str, &str); 2] = [("tenure", "tenure"), ("tenure-core", "tenure_core")];

/// One Rust file; `tokens` has neither comments nor literals nor code under `#[cfg(test)]`.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
    tokens: Vec<(usize, String)>,
}

impl Source {
    fn new(path: String, text: String) -> Self {
        let mut source = Self {
            path,
            tokens: lex(&text),
            text,
        };
        for attribute in ["# [ cfg ( test", "# [ cfg ( all ( test"] {
            while let Some(start) = source.find(attribute).first().copied() {
                let mut depth = 0;
                let end = source.tokens[start..].iter().position(|(_, token)| {
                    depth += i32::from(token == "{") - i32::from(token == "}");
                    depth == 0 && (token == "}" || token == ";")
                });
                let end = end.map_or(source.tokens.len(), |i| start + i + 1);
                source.tokens.drain(start..end);
            }
        }
        source
    }

    /// The crate of the library, as a path names it, and the path under its `src/`.
    pub(crate) fn in_library(&self) -> Option<(&'static str, &str)> {
        let (folder, file) = self.path.strip_prefix("crates/")?.split_once("/src/")?;
        let (_, name) = LIBRARY.iter().find(|(known, _)| *known == folder)?;
        Some((name, file))
    }

    /// Whether the whole file is test code.
    pub(crate) fn is_test(&self) -> bool {
        let is_test = |part| {
            matches!(
                part,
                "tests" | "tests.rs" | "examples" | "benches" | "tenure-testkit"
            )
        };
        self.path.split('/').any(is_test)
    }

    /// The path of its module, from the name of the crate on.
    pub(crate) fn module(&self) -> Vec<String> {
        let (name, file) = self.in_library().unwrap_or_default();
        let parts = file.trim_end_matches(".rs").split('/');
        let parts = parts.filter(|part| !matches!(*part, "mod" | "lib"));
        [name].into_iter().chain(parts).map(String::from).collect()
    }

    /// The lines on which these tokens, written with spaces between them, stand in a row.
    pub(crate) fn lines_with(&self, words: &str) -> Vec<usize> {
        self.find(words)
            .into_iter()
            .map(|i| self.tokens[i].0)
            .collect()
    }

    /// Whether a function or a module of that name is declared anywhere in the file, tests included.
    pub(crate) fn declares(&self, name: &str) -> bool {
        ["fn", "mod"].iter().any(|keyword| {
            let start = format!("{keyword} {name}");
            let mut places = self.text.split(&start).skip(1);
            places.any(|rest| !is_word(rest))
        })
    }

    fn find(&self, words: &str) -> Vec<usize> {
        let words: Vec<_> = words.split(' ').collect();
        let is_there = move |i: &usize| {
            let here = self.tokens[*i..].iter().map(|(_, token)| token);
            here.take(words.len()).eq(&words)
        };
        (0..self.tokens.len()).filter(is_there).collect()
    }

    /// Every path of two parts or more with its line; groups in `use` are taken apart.
    pub(crate) fn paths(&self) -> Vec<(usize, Vec<String>)> {
        let is_part = |word: &str| is_word(word) || word == "*";
        let (mut found, mut path) = (Vec::new(), Vec::new());
        let mut group: Vec<String> = Vec::new(); // the path before the innermost open `{`
        let mut groups = Vec::new(); // the length of that path before each open `{`
        for (i, (line, token)) in self.tokens.iter().enumerate() {
            let next = self.tokens.get(i + 1).map_or("", |(_, next)| next);
            match token.as_str() {
                "{" => {
                    groups.push(group.len());
                    group.append(&mut path);
                }
                "}" => group.truncate(groups.pop().unwrap_or(0)),
                "::" if is_part(next) || next == "{" => continue,
                word if is_part(word) => path.push(word.to_string()),
                _ => {}
            }
            if next != "::" && !path.is_empty() {
                found.push((*line, [&group[..], &path].concat()));
                path.clear();
            }
        }
        found.retain(|(_, path)| path.len() > 1);
        found
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Words, `::` and other single characters with their lines; comments and literals are left out.
fn lex(text: &str) -> Vec<(usize, String)> {
    let (mut tokens, mut line, mut rest) = (Vec::new(), 1, text);
    while let Some(first) = rest.chars().next() {
        let length = match ignored(rest) {
            0 if rest.starts_with("::") => 2,
            0 => rest
                .find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(rest.len()),
            ignored => ignored,
        };
        let length = length.max(first.len_utf8());
        if ignored(rest) == 0 {
            tokens.push((line, rest[..length].to_string()));
        }
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    tokens
}

/// The number of bytes of space, comment or literal at the beginning of `rest`.
fn ignored(rest: &str) -> usize {
    let until = |from: usize, mark: &str| {
        rest[from..]
            .find(mark)
            .map_or(rest.len(), |i| from + i + mark.len())
    };
    let body = rest.trim_start_matches(['b', 'c']);
    let hashes = body.len() - 1 - body[1.min(body.len())..].trim_start_matches('#').len();
    let is_raw = body.starts_with('r') && body[1 + hashes..].starts_with('"');
    let third = rest.chars().nth(2);
    let mut escaped = false;
    let mut ends = |c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    };
    match rest.as_bytes() {
        _ if is_raw => until(
            rest.len() - body.len() + hashes + 2,
            &format!("\"{}", "#".repeat(hashes)),
        ),
        [b'/', b'/', ..] => until(0, "\n"),
        [b'/', b'*', ..] => until(2, "*/"),
        [b'"', ..] => rest[1..].find(&mut ends).map_or(rest.len(), |i| i + 2),
        [b'\'', b'\\', ..] => until(3, "'"),
        [b'\'', ..] if third == Some('\'') => until(1, "'"),
        [b'\'', ..] => 1, // a lifetime
        _ => rest.len() - rest.trim_start().len(),
    }
}

/// The crates of the workspace.
pub(crate) struct Tree {
    pub(crate) sources: Vec<Source>,
    /// `Cargo.toml` of each crate: path and text.
    pub(crate) manifests: Vec<(String, String)>,
    /// The library's modules that are files.
    modules: BTreeSet<Vec<String>>,
    /// The re-exports of the crate pages, with their origin.
    exports: BTreeMap<Vec<String>, Vec<String>>,
}

impl Tree {
    pub(crate) fn new(files: impl IntoIterator<Item = (String, String)>) -> Self {
        let (sources, manifests): (Vec<_>, _) = files
            .into_iter()
            .partition(|(path, _)| path.ends_with(".rs"));
        let sources: Vec<_> = sources
            .into_iter()
            .map(|(p, text)| Source::new(p, text))
            .collect();
        let library = || {
            sources
                .iter()
                .filter(|source| source.in_library().is_some())
        };
        let modules: BTreeSet<_> = library().map(Source::module).collect();
        let mut exports = BTreeMap::new();
        for page in library().filter(|source| source.module().len() == 1) {
            for (_, path) in page.paths() {
                let inside = [&page.module()[..], &path].concat();
                let exported = [&page.module()[..], &path[path.len() - 1..]].concat();
                let is_inside = modules.contains(&inside[..2]);
                exports.insert(exported, if is_inside { inside } else { path });
            }
        }
        Self {
            sources,
            manifests,
            modules,
            exports,
        }
    }

    /// Reads `crates/`.
    pub(crate) fn read() -> Self {
        fn walk(root: &Path, folder: &Path, files: &mut BTreeMap<String, String>) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(root).unwrap().to_str().unwrap();
                if path.is_dir() && !path.ends_with("target") {
                    walk(root, &path, files);
                } else if name.ends_with(".rs") || name.ends_with("/Cargo.toml") {
                    files.insert(name.into(), std::fs::read_to_string(&path).unwrap());
                }
            }
        }
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut files = BTreeMap::new();
        walk(crates.parent().unwrap(), crates, &mut files);
        Self::new(files)
    }

    /// The keys of one table of a manifest in that folder of `crates/`, with their lines.
    pub(crate) fn manifest_keys(&self, folder: &str, table: &str) -> Vec<(usize, String)> {
        let is_there =
            |(path, _): &&(String, String)| *path == format!("crates/{folder}/Cargo.toml");
        let text = self
            .manifests
            .iter()
            .find(is_there)
            .map_or("", |(_, text)| text);
        let lines = text
            .lines()
            .enumerate()
            .skip_while(|(_, line)| *line != table)
            .skip(1);
        let lines = lines.take_while(|(_, line)| !line.starts_with('['));
        let key = |line: &str| Some(line.split_once(['=', '.', ' '])?.0.to_string());
        let keys = lines.filter_map(|(i, line)| Some((i + 1, key(line)?)));
        keys.filter(|(_, key)| is_word(key)).collect()
    }

    /// Whether `path`, from the name of the crate on, is a module with a file of its own.
    pub(crate) fn is_module(&self, path: &[String]) -> bool {
        self.modules.contains(path)
    }

    /// The modules of the paths of `source`, from the name of the crate on, with their lines.
    /// Paths out of the library are left out; re-exports of the crate pages are followed.
    pub(crate) fn imports(&self, source: &Source) -> Vec<(usize, Vec<String>)> {
        let mut aliases = BTreeMap::new(); // modules that a `use` gave a short name in this file
        let mut found = Vec::new();
        for (line, path) in source.paths() {
            let mut base = source.module();
            let child = [&base[..], &path[..1]].concat();
            let mut rest = &path[1..];
            match path[0].as_str() {
                "crate" => base.truncate(1),
                "self" => {}
                "super" => rest = &path[..],
                alias if aliases.contains_key(alias) => base.clone_from(&aliases[alias]),
                _ if self.is_module(&child) => base = child,
                name if self.is_module(&path[..1]) => base = vec![name.to_string()],
                _ => continue,
            }
            while let Some(("super", above)) = rest.split_first().map(|(a, b)| (a.as_str(), b)) {
                base.pop();
                rest = above;
            }
            base.extend(rest.iter().filter(|part| *part != "self").cloned());
            if base.len() < 2 {
                continue; // the root of a crate, as in `pub(in super::super)`
            }
            while !self.is_module(&base[..2]) {
                let Some(from) = self.exports.get(&base[..2]) else {
                    break;
                };
                base.splice(..2, from.iter().cloned());
            }
            if self.is_module(&base) {
                aliases.insert(base[base.len() - 1].clone(), base.clone());
            }
            found.push((line, base));
        }
        found
    }
}
