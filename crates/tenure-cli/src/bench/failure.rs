//! The error of a measurement that failed.

use tenure::{Error, ErrorKind};

/// An error that is none of the lock.
pub(super) fn system(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Backend, "the measurement failed").with_source(error)
}
