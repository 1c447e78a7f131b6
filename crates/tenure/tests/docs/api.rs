//! The public items of the library, in a file that is committed: a change of the API is a change of that file, which a
//! review sees. `TENURE_BLESS=1` rewrites it.
//!
//! The list is read from the sources. The lint `unreachable_pub` refuses `pub` on an item that no program can reach, so what
//! is `pub` there is public. Setters that a macro writes are not in the list.

use std::fs;
use std::path::Path;

use super::repository;

const LIST: &str = "docs/api.txt";

/// The sources of the library.
const SOURCES: [&str; 3] = ["tenure-core", "tenure", "tenure-macros"];

/// What the lines at this place belong to.
#[derive(Clone, PartialEq)]
enum Block {
    /// No block that has public items.
    None,
    /// `impl Type`: its public functions.
    Impl(String),
    /// A public trait: all of its functions.
    Trait(String),
    /// A public struct: its public fields.
    Struct(String),
    /// A public enum: its variants.
    Enum(String),
}

impl Block {
    /// The block that a line without indentation opens.
    fn opened_by(line: &str) -> Self {
        let name = |rest: &str| {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
            rest[..end.unwrap_or(rest.len())].to_owned()
        };
        let line = line.trim_end_matches('{').trim();
        if let Some(rest) = line.strip_prefix("pub trait ") {
            Self::Trait(name(rest))
        } else if let Some(rest) = line.strip_prefix("pub struct ") {
            Self::Struct(name(rest))
        } else if let Some(rest) = line.strip_prefix("pub enum ") {
            Self::Enum(name(rest))
        } else if line.starts_with("impl") && !line.contains(" for ") {
            Self::Impl(line.rsplit(' ').next().unwrap_or_default().to_owned())
        } else {
            Self::None
        }
    }

    /// The item of an indented line. `None`: it is no public item.
    fn item(&self, line: &str) -> Option<String> {
        let is_public = line.starts_with("pub ");
        let is_function = line.starts_with("fn ") || line.starts_with("async fn ");
        match self {
            Self::Impl(name) if is_public => Some(format!("{name}: {line}")),
            Self::Trait(name) if is_function => Some(format!("{name}: {line}")),
            Self::Struct(name) if is_public => Some(format!("{name}: {line}")),
            Self::Enum(name) if line.starts_with(|c: char| c.is_ascii_uppercase()) => {
                Some(format!("{name}: {line}"))
            }
            _ => None,
        }
    }
}

/// The public items of a file. An item ends before its body.
fn items(text: &str) -> Vec<String> {
    let mut items = Vec::new();
    let mut block = Block::None;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]" {
            break;
        }
        if line.starts_with('}') {
            block = Block::None;
            continue;
        }
        let depth = line.len() - line.trim_start().len();
        let item = match depth {
            0 if line.starts_with("pub ") => Some(line.to_owned()),
            4 => block.item(line.trim()),
            _ => None,
        };
        if depth == 0 && line.ends_with('{') {
            block = Block::opened_by(line);
        }
        let Some(mut item) = item else { continue };
        while !is_whole(&item) {
            let Some(more) = lines.next() else { break };
            item = format!("{item} {}", more.trim());
        }
        let item = item.trim_end_matches(['{', ',', ' ']);
        items.push(item.replace("( ", "(").replace(", )", ")"));
        if depth == 0 && block == Block::None {
            block = Block::opened_by(&format!("{item} {{"));
        }
    }
    items
}

/// Whether the text of an item reaches to its body or its end.
fn is_whole(item: &str) -> bool {
    let ends = match item.contains("fn ") {
        // Arguments stand in lines of their own, which end with a comma.
        true => item.ends_with(['{', ';']) || (item.contains('{') && item.ends_with('}')),
        false => item.ends_with(['{', ';', '}', ',']),
    };
    ends && item.matches('(').count() == item.matches(')').count()
}

fn files(dir: &Path, found: &mut Vec<std::path::PathBuf>) {
    let entries = fs::read_dir(dir).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        match path.is_dir() {
            true => files(&path, found),
            false if path.extension().is_some_and(|it| it == "rs") => found.push(path),
            false => {}
        }
    }
}

#[test]
fn the_public_items_are_those_of_the_list() {
    let mut list = String::from(
        "The public items of the library, as the sources have them; made by crates/tenure/tests/docs/api.rs.\n",
    );
    for source in SOURCES {
        let root = repository().join("crates").join(source).join("src");
        let mut found = Vec::new();
        files(&root, &mut found);
        for path in found {
            let text = fs::read_to_string(&path).unwrap();
            let items = items(&text);
            if items.is_empty() {
                continue;
            }
            let name = path.strip_prefix(root.parent().unwrap()).unwrap();
            list += &format!("\n{source}/{}\n", name.display());
            for item in items {
                list += &format!("    {item}\n");
            }
        }
    }
    let path = repository().join(LIST);
    if std::env::var_os("TENURE_BLESS").is_some() {
        fs::write(&path, &list).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == list,
        "{LIST} is not what the sources have; rewrite it, and tell users in CHANGELOG.md: TENURE_BLESS=1 cargo test -p tenure --test docs"
    );
}

#[test]
fn public_items_are_found() {
    let text = "pub struct A {
    pub x: u8,
    y: u8,
}

impl A {
    pub fn one(
        &self,
        b: u8,
    ) -> u8
    where
        u8: Copy,
    {
        pub_inside();
    }

    fn two() {}
    pub(crate) fn three() {}
}

pub trait T {
    fn four(&self);
}

pub enum E {
    First,
    Second(u8),
}

pub fn five() {}

#[cfg(test)]
mod tests {
    pub fn six() {}
}
";
    let expected = [
        "pub struct A",
        "A: pub x: u8",
        "A: pub fn one(&self, b: u8) -> u8 where u8: Copy",
        "pub trait T",
        "T: fn four(&self);",
        "pub enum E",
        "E: First",
        "E: Second(u8)",
        "pub fn five() {}",
    ];
    assert_eq!(items(text), expected);
}
