//! Helpers of the tests about security.

use tenure::{Error, ErrorKind};

pub(crate) use crate::common::soon;

/// Asserts that the outcome is an error of that kind, in one line, with these words.
#[track_caller]
pub(crate) fn assert_says<T>(
    what: &str,
    outcome: Result<T, Error>,
    kind: ErrorKind,
    words: &[&str],
) {
    let Err(err) = outcome else {
        panic!("{what}: no error, {kind:?} was due");
    };
    let text = format!("{err:#}");
    assert_eq!(err.kind(), kind, "{what}: {text}");
    for word in words {
        assert!(text.contains(word), "{what}: no \"{word}\" in \"{text}\"");
    }
    assert!(
        !text.contains('\n') && text.len() < 300,
        "{what}: not one clear line: {text:?}"
    );
}
