//! Durations as they are written on the command line: `500ms`, `5s`, `2m`, `1h`, `1h30m`, `1.5s`, `0`.

use std::time::Duration;

const UNITS: [(&str, u64); 5] = [
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Reads a duration. The error does not repeat `text`: clap names it.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.starts_with('-') && text[1..].starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err("a duration cannot be negative; write it like 500ms, 5s, 2m or 1h".into());
    }
    let mut total: u64 = 0;
    let mut rest = text;
    loop {
        let unit_at = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(unit_at);
        let end = tail
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        if unit.is_empty() && !number.is_empty() {
            return Err(format!(
                "it has no unit; write it like {number}s, 500ms, 2m or 1h"
            ));
        }
        let nanos = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .map(|(_, nanos)| *nanos);
        let part = nanos.and_then(|nanos| scale(number, nanos));
        let Some(part) = part else {
            return Err("write it like 500ms, 5s, 2m or 1h".into());
        };
        total = total
            .checked_add(part)
            .ok_or("it is longer than 584 years")?;
        if tail.is_empty() {
            return Ok(Duration::from_nanos(total));
        }
        rest = tail;
    }
}

/// `number` (digits with at most one point) times `unit`, without rounding errors.
fn scale(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if fraction.len() > 9 || fraction.contains('.') {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let tenths: u64 = fraction.parse().ok()?;
    let fraction_len = u32::try_from(fraction.len()).ok()?;
    let part = u128::from(tenths) * u128::from(unit) / 10_u128.pow(fraction_len);
    whole
        .checked_mul(unit)?
        .checked_add(u64::try_from(part).ok()?)
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
    fn what_is_written_is_meant() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("500ms", 500),
            ("5s", 5_000),
            ("1.5s", 1_500),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_duration_says_how_to_write_one() {
        for text in [
            "5",
            "1.5",
            "1h30",
            "",
            "-1",
            "-1s",
            "s",
            "5 s",
            "5x",
            "5M",
            "ms",
            "1..5s",
            "1.s",
            "--json",
            "５s",
            "99999999999h",
        ] {
            let error = parse(text).expect_err(text);
            assert!(
                error.contains("5") && !error.contains('\n'),
                "{text}: {error}"
            );
        }
        assert!(parse("5").unwrap_err().contains("5s"));
        assert!(parse("-1").unwrap_err().contains("negative"));
    }
}
