//! A point in time that the logic can compute with, and durations as people write them.

use std::fmt;
use std::time::Duration;

/// A point on a clock that neither jumps nor stops while the machine is suspended:
/// nanoseconds since an epoch that only the clock knows (for the real clock, the boot of the machine).
///
/// Two values can be compared only when they come from the same clock.
/// Arithmetic saturates: 2^64 ns are 584 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The clock's epoch.
    pub const ZERO: Self = Self(0);
    /// Later than every other point: "never".
    pub const MAX: Self = Self(u64::MAX);

    /// The point `nanos` nanoseconds after the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The point `millis` milliseconds after the epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The point `later` after this one; [`Time::MAX`] stays what it is.
    #[must_use]
    pub fn after(self, later: Duration) -> Self {
        Self(self.0.saturating_add(nanos(later)))
    }

    /// The point `earlier` before this one, at most back to the epoch; [`Time::MAX`] stays what it is.
    #[must_use]
    pub fn before(self, earlier: Duration) -> Self {
        if self == Self::MAX {
            self
        } else {
            Self(self.0.saturating_sub(nanos(earlier)))
        }
    }

    /// Time passed since `earlier`; zero when that point is still to come.
    /// [`Duration::MAX`] when `self` is [`Time::MAX`].
    pub fn since(self, earlier: Self) -> Duration {
        if self == Self::MAX {
            return Duration::MAX;
        }
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads a duration as it is written in URLs, on the command line and in `#[tenure::locked]`: `500ms`, `5s`, `1.5s`,
/// `2m`, `1h30m`, `1d`, `0`.
///
/// That is one or more numbers, each with a unit right behind it: `us`, `ms`, `s`, `m`, `h`, `d`, `w` (7 days), `y`
/// (365 days). A number may have up to nine digits after a point; what is below a nanosecond is cut off. Only zero
/// needs no unit.
///
/// # Errors
/// Which of these rules is broken, and for a duration of more than 584 years, that it is
/// [too long](DurationError::TooLong).
pub const fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let mut rest = text.as_bytes();
    match rest {
        [b'0'] => return Ok(Duration::ZERO),
        [b'-', b'0'..=b'9' | b'.', ..] => return Err(DurationError::Negative),
        _ => {}
    }
    let mut total: u128 = 0;
    loop {
        let (number, scale, after) = match read_number(rest) {
            Ok(read) => read,
            Err(err) => return Err(err),
        };
        let (unit, after) = match read_unit(after) {
            Ok(read) => read,
            Err(err) => return Err(err),
        };
        let Some(nanos) = number.checked_mul(unit) else {
            return Err(DurationError::TooLong);
        };
        // Both are far below the end of the numbers: each part before was at most 2^64.
        total = total.saturating_add(nanos / scale);
        if total > u64::MAX as u128 {
            return Err(DurationError::TooLong);
        }
        if after.is_empty() {
            return Ok(Duration::from_nanos(total as u64));
        }
        rest = after;
    }
}

/// The digits of the number that `text` begins with, what to divide them by, and the rest of the text.
const fn read_number(text: &[u8]) -> Result<(u128, u128, &[u8]), DurationError> {
    let (mut digits, mut scale): (u128, u128) = (0, 1);
    let (mut whole, mut fraction, mut has_point) = (0, 0, false);
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        match *byte {
            b'.' if !has_point => has_point = true,
            b'0'..=b'9' => {
                let digit = (*byte - b'0') as u128;
                digits = match digits.checked_mul(10) {
                    Some(digits) => digits.saturating_add(digit),
                    None => return Err(DurationError::TooLong),
                };
                match has_point {
                    true => (fraction, scale) = (fraction + 1, scale * 10),
                    false => whole += 1,
                }
                if fraction > 9 {
                    return Err(DurationError::Malformed);
                }
            }
            _ => break,
        }
        rest = after;
    }
    if whole == 0 || has_point && fraction == 0 {
        return Err(DurationError::Malformed);
    }
    Ok((digits, scale, rest))
}

/// The nanoseconds of the unit that `text` begins with, and the rest of the text.
const fn read_unit(text: &[u8]) -> Result<(u128, &[u8]), DurationError> {
    const SECOND: u128 = 1_000_000_000;
    const DAY: u128 = 24 * 3600 * SECOND;
    let (unit, rest) = match text {
        [b'u', b's', rest @ ..] => (1_000, rest),
        [b'm', b's', rest @ ..] => (1_000_000, rest),
        [b's', rest @ ..] => (SECOND, rest),
        [b'm', rest @ ..] => (60 * SECOND, rest),
        [b'h', rest @ ..] => (3600 * SECOND, rest),
        [b'd', rest @ ..] => (DAY, rest),
        [b'w', rest @ ..] => (7 * DAY, rest),
        [b'y', rest @ ..] => (365 * DAY, rest),
        [] => return Err(DurationError::NoUnit),
        _ => return Err(DurationError::Malformed),
    };
    match rest {
        // A longer word, which is no unit.
        [b'a'..=b'z' | b'A'..=b'Z', ..] => Err(DurationError::Malformed),
        _ => Ok((unit, rest)),
    }
}

/// Why a text is no duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DurationError {
    /// A number has no unit.
    NoUnit,
    /// The text begins with a minus sign.
    Negative,
    /// The duration is more than 584 years, which is 2^64 ns.
    TooLong,
    /// Any other text.
    Malformed,
}

impl DurationError {
    /// What is wrong and how to write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoUnit => "the duration has no unit; write it like 500ms, 5s, 2m, 1h30m or 1d",
            Self::Negative => {
                "a duration cannot be negative; write it like 500ms, 5s, 2m, 1h30m or 1d"
            }
            Self::TooLong => "the duration is too long; no duration is longer than 584 years",
            Self::Malformed => "this is no duration; write one like 500ms, 5s, 2m, 1h30m or 1d",
        }
    }
}

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::error::Error for DurationError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_meant() {
        for (text, micros) in [
            ("0", 0),
            ("0s", 0),
            ("200us", 200),
            ("500ms", 500_000),
            ("5s", 5_000_000),
            ("05s", 5_000_000),
            ("1.5s", 1_500_000),
            ("0.000001s", 1),
            ("2m", 120_000_000),
            ("1h", 3_600_000_000),
            ("1h30m", 5_400_000_000),
            ("1m1ms", 60_001_000),
            ("1.5h1s", 5_401_000_000),
            ("1d", 86_400_000_000),
            ("2w", 1_209_600_000_000),
            ("1y", 31_536_000_000_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_micros(micros)),
                "{text}"
            );
        }
        let longest = parse_duration("18446744073.709551615s").unwrap();
        assert_eq!(longest, Duration::from_nanos(u64::MAX));
        assert_eq!(
            parse_duration("1.999999999us"),
            Ok(Duration::from_nanos(1_999))
        );
    }

    #[test]
    fn what_is_no_duration_says_why() {
        for text in ["5", "00", "1.5", "1h30", "5s7"] {
            assert_eq!(parse_duration(text), Err(DurationError::NoUnit), "{text}");
        }
        for text in ["-1", "-1s", "-.5s"] {
            assert_eq!(parse_duration(text), Err(DurationError::Negative), "{text}");
        }
        for text in [
            "100000000d",
            "585y",
            "18446744073.709551616s",
            "99999999999h",
            "99999999999999999999999999999999999999999999s",
            "500y500y",
        ] {
            assert_eq!(parse_duration(text), Err(DurationError::TooLong), "{text}");
        }
        for text in [
            "",
            "s",
            "ms",
            "5 s",
            "5s ",
            "5s 3m",
            "5x",
            "5M",
            "5S",
            "5min",
            "5sm",
            ".5s",
            "1.s",
            "1..5s",
            "1.5.5s",
            "1.9999999999s",
            "--json",
            "+5s",
            "５s",
            "5µs",
        ] {
            assert_eq!(
                parse_duration(text),
                Err(DurationError::Malformed),
                "{text}"
            );
        }
    }
}
