//! The values in a row of a reply.

use std::time::Duration;

use tenure_core::error::Error;

use super::errors;

/// The number in that place of a row.
pub(super) fn number(row: &[Option<String>], at: usize) -> Result<i64, Error> {
    let text = row.get(at).and_then(Option::as_deref);
    text.and_then(|text| text.parse().ok())
        .ok_or_else(errors::unexpected_reply)
}

/// The text in that place of a row.
pub(super) fn text(row: &[Option<String>], at: usize) -> Result<&str, Error> {
    let text = row.get(at).and_then(Option::as_deref);
    text.ok_or_else(errors::unexpected_reply)
}

/// A number that is not negative: a time before 1970 is a time in the past, and no time is left of a lease that
/// has ended.
pub(super) fn natural(row: &[Option<String>], at: usize) -> Result<u64, Error> {
    Ok(u64::try_from(number(row, at)?).unwrap_or(0))
}

/// A time that is left, in µs.
pub(super) fn time_left(row: &[Option<String>], at: usize) -> Result<Duration, Error> {
    natural(row, at).map(Duration::from_micros)
}
