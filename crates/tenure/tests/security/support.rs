//! What the tests about security share.

use tenure::{Error, ErrorKind};

use crate::servers::PATIENCE;

/// Awaits what happens at once on an idle machine.
#[track_caller]
pub(crate) fn soon<T>(future: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(PATIENCE, future).await {
            Ok(value) => value,
            Err(_) => panic!("did not happen: {caller}"),
        }
    }
}

/// An error is of that kind, one line, and has these words.
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
    let text = err.to_string();
    assert_eq!(err.kind(), kind, "{what}: {text}");
    for word in words {
        assert!(text.contains(word), "{what}: no \"{word}\" in \"{text}\"");
    }
    assert!(
        !text.contains('\n') && text.len() < 300,
        "{what}: not one clear line: {text:?}"
    );
}
