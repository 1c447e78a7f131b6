//! Durations on the command line.

use std::time::Duration;

use tenure::Options;
use tenure::time::{DurationError, parse_duration};

/// The shortest time for which a hold is kept without a process.
pub(crate) const MIN_HOLD: Duration = Duration::from_secs(1);

/// Reads a duration. The error does not repeat `text`, because clap prints it.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|why| match why {
        DurationError::NoUnit if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("the duration has no unit; write it like {text}s, 500ms, 2m, 1h30m or 1d")
        }
        why => why.to_string(),
    })
}

/// Reads the length of a lease, within the bounds of the library.
pub(crate) fn parse_ttl(text: &str) -> Result<Duration, String> {
    let days = Options::MAX_TTL.as_secs() / 86_400;
    match parse_duration(text) {
        Err(DurationError::TooLong) => Err(format!(
            "the duration is too long; a lease is at most {days}d"
        )),
        Ok(ttl) if ttl > Options::MAX_TTL => Err(format!(
            "the duration is too long; a lease is at most {days}d"
        )),
        Ok(ttl) if ttl < Options::MIN_TTL => Err(format!(
            "the duration is too short; a lease is at least {}",
            rounded(Options::MIN_TTL)
        )),
        _ => parse(text),
    }
}

/// Reads for how long a hold without a process lasts. A shorter one could end between two requests that are about it.
pub(crate) fn parse_hold(text: &str) -> Result<Duration, String> {
    match parse_ttl(text)? {
        short if short < MIN_HOLD => {
            Err("the duration is too short; a hold without a process lasts at least 1s".into())
        }
        lasts => Ok(lasts),
    }
}

/// A duration for people: the two largest units, no fractions above ten seconds.
pub(crate) fn rounded(duration: Duration) -> String {
    let (secs, millis) = (duration.as_secs(), duration.subsec_millis());
    match secs {
        0 => format!("{millis}ms"),
        1..10 => format!("{secs}.{}s", millis / 100),
        10..60 => format!("{secs}s"),
        60..3600 => format!("{}m {}s", secs / 60, secs % 60),
        3600..86_400 => format!("{}h {}m", secs / 3600, secs / 60 % 60),
        _ => format!("{}d {}h", secs / 86_400, secs / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_duration_says_how_to_write_one() {
        for text in [
            "5",
            "1.5",
            "1h30",
            "",
            "-1",
            "s",
            "5 s",
            "5x",
            "--json",
            "99999999999h",
        ] {
            let error = parse(text).expect_err(text);
            assert!(
                error.contains("5") && !error.contains('\n'),
                "{text}: {error}"
            );
        }
        assert!(parse("7").unwrap_err().contains("7s"));
        assert!(parse("-1").unwrap_err().contains("negative"));
    }

    #[test]
    fn a_lease_has_bounds() {
        for text in [
            "1y",
            "31d",
            "30.001d",
            "100000000d",
            "99999999999999999999999s",
        ] {
            let error = parse_ttl(text).expect_err(text);
            assert!(
                error.contains("too long") && error.contains("at most 30d"),
                "{text}: {error}"
            );
        }
        assert!(parse_ttl("19ms").unwrap_err().contains("at least 20ms"));
        assert!(parse_ttl("5").unwrap_err().contains("5s"));
        assert!(parse_hold("900ms").unwrap_err().contains("at least 1s"));
        assert!(parse_hold("31d").unwrap_err().contains("at most 30d"));
        assert_eq!(parse_hold("1s"), Ok(MIN_HOLD));
        for (text, ttl) in [("30d", Options::MAX_TTL), ("20ms", Options::MIN_TTL)] {
            assert_eq!(parse_ttl(text), Ok(ttl));
        }
    }
}
