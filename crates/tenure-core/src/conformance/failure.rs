//! A behaviour that was not shown.

use std::fmt;
use std::panic::Location;

use crate::Error;

/// A behaviour that was not shown: what was expected, what was seen, and the place in the suite.
#[derive(Clone, Debug)]
pub struct Failure(String);

/// The result of a behaviour.
pub type Verdict = Result<(), Failure>;

impl Failure {
    /// A failure that says what was expected and what was seen.
    #[track_caller]
    pub fn new(text: impl fmt::Display) -> Self {
        let at = Location::caller();
        Self(format!("{text} [{}:{}]", at.file(), at.line()))
    }

    /// The same failure, which also says what was seen last.
    pub(super) fn with(self, text: impl fmt::Display) -> Self {
        Self(format!("{self}, {text}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Error> for Failure {
    #[track_caller]
    fn from(err: Error) -> Self {
        Self::new(format_args!("unexpected error: {err:?}"))
    }
}

impl From<std::io::Error> for Failure {
    #[track_caller]
    fn from(err: std::io::Error) -> Self {
        Self::new(format_args!("unexpected error: {err}"))
    }
}

impl From<tokio::task::JoinError> for Failure {
    #[track_caller]
    fn from(err: tokio::task::JoinError) -> Self {
        Self::new(format_args!("a task of the behaviour ended badly: {err}"))
    }
}

/// Ends the behaviour unless the condition holds.
macro_rules! check {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::conformance::failure::Failure::new(format_args!($($text)+)));
        }
    };
}
pub(super) use check;
