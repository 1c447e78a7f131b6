//! The list of `scripts/mutants`: each text that is to be replaced is in its file exactly once, and each test is there.

use std::collections::BTreeMap;

use crate::Violation;
use crate::source::Tree;

pub(crate) const LIST: &str = "scripts/mutants.txt";

/// One entry of the list, whose format is described there.
#[derive(Default)]
struct Entry {
    line: usize,
    name: String,
    file: String,
    test: String,
    old: Vec<String>,
    new: Vec<String>,
}

impl Entry {
    fn read_all(list: &str) -> Vec<Self> {
        let mut entries: Vec<Self> = Vec::new();
        for (line, text) in (1..).zip(list.lines()) {
            if let Some(name) = text.strip_prefix("mutant: ") {
                let name = name.to_owned();
                entries.push(Self {
                    line,
                    name,
                    ..Self::default()
                });
                continue;
            }
            let Some(entry) = entries.last_mut() else {
                continue;
            };
            if let Some(file) = text.strip_prefix("file: ") {
                entry.file = file.to_owned();
            } else if let Some(test) = text.strip_prefix("test: ") {
                entry.test = test.to_owned();
            } else if let Some(old) = text.strip_prefix('-') {
                entry.old.push(old.to_owned());
            } else if let Some(new) = text.strip_prefix('+') {
                entry.new.push(new.to_owned());
            }
        }
        entries
    }

    fn problems(&self, tree: &Tree, texts: &BTreeMap<String, String>) -> Vec<String> {
        let mut problems = Vec::new();
        let text = texts.get(&self.file).map_or("", String::as_str);
        let (old, new) = (self.old.join("\n"), self.new.join("\n"));
        let count = match old.is_empty() {
            true => 0,
            false => text.matches(&old).count(),
        };
        if count != 1 {
            let file = &self.file;
            problems.push(format!("its text is {count} times in `{file}`, not once"));
        }
        if old == new {
            problems.push("its text is replaced by itself".into());
        }
        problems.extend(self.missing_test(tree));
        problems
    }

    /// What of the path of the test is nowhere in the source of its test program.
    fn missing_test(&self, tree: &Tree) -> Option<String> {
        let words: Vec<_> = self.test.split(' ').collect();
        let [package, program, test, behaviour @ ..] = &words[..] else {
            return Some("it names no package, test program and test".into());
        };
        let starts = match *program {
            "lib" => vec![format!("crates/{package}/src/")],
            _ => ["/", ".rs"]
                .map(|end| format!("crates/{package}/tests/{program}{end}"))
                .into(),
        };
        let is_there = |word: &str| {
            let mut sources = tree.sources.iter();
            sources.any(|source| {
                let is_own = starts.iter().any(|start| source.path.starts_with(start));
                is_own && source.declares(word)
            })
        };
        let missing = test.split("::").find(|part| !is_there(part));
        let missing = missing.map(|part| format!("there is no `{part}` for its test {test}"));
        let of_suite = "crates/tenure-core/src/conformance/behaviours.rs";
        let mut sources = tree.sources.iter();
        let suite = sources.find(|source| source.path == of_suite);
        let is_behaviour =
            |name: &&&str| suite.is_some_and(|it| it.text.contains(&format!(" {name}, ")));
        let unknown = behaviour.iter().find(|name| !is_behaviour(name));
        missing.or(unknown.map(|name| format!("there is no behaviour `{name}`")))
    }
}

/// `texts`: the list, and the files that it names.
pub(crate) fn mutants(tree: &Tree, texts: &BTreeMap<String, String>) -> Vec<Violation> {
    let list = texts.get(LIST).map_or("", String::as_str);
    let mut found = Vec::new();
    for entry in Entry::read_all(list) {
        for problem in entry.problems(tree, texts) {
            let why = "scripts/mutants could not plant this mistake";
            let what = format!("[mutants] \"{}\": {problem}; {why}", entry.name);
            found.push((LIST.to_owned(), entry.line, what));
        }
    }
    found
}

/// The list and the files that it names.
pub(crate) fn read() -> BTreeMap<String, String> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text_of = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let list = text_of(LIST);
    let files = Entry::read_all(&list).into_iter().map(|entry| entry.file);
    let texts = files.map(|file| (file.clone(), text_of(&file)));
    let mut texts: BTreeMap<_, _> = texts.collect();
    texts.insert(LIST.into(), list);
    texts
}
