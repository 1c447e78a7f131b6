//! What the tests of holds without a process share.

use super::{Store, json, text};

/// The store of a test, with the receipts in its directory.
pub(crate) struct Receipts(pub(crate) Store);

impl Receipts {
    pub(crate) fn new() -> Self {
        Self(Store::new())
    }

    pub(crate) fn in_sqlite() -> Self {
        Self(Store::in_sqlite())
    }

    pub(crate) fn path(&self, file: &str) -> String {
        self.0.path(file).to_str().unwrap().into()
    }

    /// Runs `tenure`, which ends with this code. Returns what it printed on both streams.
    pub(crate) fn ends(&self, code: i32, arguments: &[&str]) -> [String; 2] {
        let output = self.0.output(arguments);
        let streams = [text(&output.stdout), text(&output.stderr)];
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {streams:?}"
        );
        streams
    }

    /// Takes the names for a time that no test outlasts. Returns the path of the receipt.
    pub(crate) fn take(&self, file: &str, names: &[&str]) -> String {
        let path = self.path(file);
        self.ends(
            0,
            &[&["take", "-n", "--for", "1h", "--receipt", &path], names].concat(),
        );
        path
    }

    /// The token of the only hold of this name.
    pub(crate) fn token(&self, name: &str) -> String {
        let status = json(&self.0.output(&["status", "--json", name]).stdout);
        status[0]["holds"][0]["token"].to_string()
    }
}

/// What a command printed is one line on standard error, with these words.
pub(crate) fn says(output: &[String; 2], words: &[&str]) {
    for word in words {
        assert!(output[1].contains(word), "{word}: {output:?}");
    }
    assert_eq!(output[1].lines().count(), 1, "{output:?}");
    assert_eq!(output[0], "");
}
