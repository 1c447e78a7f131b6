//! Durations as people write them: the notation of the command line, read at compile time.

/// Nanoseconds.
const UNITS: [(&str, u64); 5] = [
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Nanoseconds in `text`; `None` when it is not one or more of number and unit.
pub(crate) fn nanos(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let mut total = 0_u64;
    let mut rest = text;
    while !rest.is_empty() || total == 0 && rest.len() == text.len() {
        let (number, tail) = split(rest, |c| c.is_ascii_digit() || c == '.');
        let (unit, tail) = split(tail, |c| c.is_ascii_alphabetic());
        let (_, unit) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
        total = total.checked_add(scaled(number, unit)?)?;
        rest = tail;
    }
    Some(total)
}

/// The longest start of `text` whose characters all are `of_this_kind`, and the rest.
fn split(text: &str, of_this_kind: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !of_this_kind(c)).unwrap_or(text.len());
    text.split_at(end)
}

/// `number` times `unit`; whatever is below a nanosecond is cut off.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let power = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let digits = |text: &str| {
        let all = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        all.then(|| text.parse::<u64>().ok()).flatten()
    };
    let part = u128::from(digits(fraction)?) * u128::from(unit) / power;
    digits(whole)?
        .checked_mul(unit)?
        .checked_add(u64::try_from(part).ok()?)
}

#[cfg(test)]
mod tests {
    use super::nanos;

    #[test]
    fn what_is_written_is_meant() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("500ms", 500),
            ("5s", 5_000),
            ("1.5s", 1_500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1h30m", 5_400_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(nanos(text), Some(millis * 1_000_000), "{text}");
        }
    }

    #[test]
    fn anything_else_is_not_a_duration() {
        for text in [
            "",
            "5",
            "1h30",
            "-1s",
            "s",
            "5 s",
            "5x",
            "5M",
            "5min",
            ".5s",
            "1.s",
            "1..5s",
            "５s",
            "99999999999h",
            "1.99999999999999999999999999999999999999999s",
        ] {
            assert_eq!(nanos(text), None, "{text}");
        }
    }
}
