//! Durations and times as whole numbers, in the units of servers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// In µs, rounded up: nothing ends before it was asked to.
pub fn micros_up(duration: Duration) -> u64 {
    up(duration, 1_000)
}

/// In ms, rounded up: nothing ends before it was asked to.
pub fn millis_up(duration: Duration) -> u64 {
    up(duration, 1_000_000)
}

/// In ms, rounded down: the holder does not count on more than it was granted.
pub fn millis_down(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The time that is so many µs after the beginning of 1970; `None`: after the year 9999, for which RFC 3339 has no text.
pub fn wall_time(micros: u64) -> Option<SystemTime> {
    const YEAR_10000: u64 = 253_402_300_800 * 1_000_000;
    (micros < YEAR_10000).then(|| UNIX_EPOCH + Duration::from_micros(micros))
}

fn up(duration: Duration, unit_nanos: u128) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(unit_nanos)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_from_1970() {
        let since_1970 = |time: SystemTime| time.duration_since(UNIX_EPOCH).ok();
        let time = wall_time(1_500_000).and_then(since_1970);
        assert_eq!(time, Some(Duration::from_millis(1_500)));
        assert!(wall_time(253_402_300_799_999_999).is_some());
        assert_eq!(wall_time(253_402_300_800_000_000), None);
        assert_eq!(wall_time(u64::MAX), None);
    }

    #[test]
    fn a_part_of_a_unit_counts_as_a_whole_one_or_not_at_all() {
        let duration = Duration::from_nanos(1_000_001);
        assert_eq!((micros_up(duration), millis_up(duration)), (1_001, 2));
        assert_eq!(millis_down(Duration::from_micros(1_999)), 1);
        assert_eq!(millis_up(Duration::from_millis(2)), 2);
        assert_eq!(micros_up(Duration::MAX), u64::MAX);
        assert_eq!(millis_down(Duration::MAX), u64::MAX);
    }
}
