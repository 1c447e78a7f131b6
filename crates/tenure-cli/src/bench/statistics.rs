//! A few numbers that describe many times.

use std::time::Duration;

use serde_json::{Value, json};

/// The numbers that are printed for one side of a measurement.
pub(super) struct Statistics {
    pub(super) rounds: usize,
    pub(super) median: Duration,
    pub(super) p99: Duration,
    /// Rounds in a second, where several tasks ran at the same time.
    pub(super) per_second: Option<f64>,
}

impl Statistics {
    /// The numbers of these times. Without any time, all numbers are zero.
    pub(super) fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        // Nearest rank: the smallest time that is not exceeded by so many per cent of the times.
        let rank = |percent: usize| (times.len() * percent).div_ceil(100).saturating_sub(1);
        let at = |percent| times.get(rank(percent)).copied().unwrap_or_default();
        Self {
            rounds: times.len(),
            median: at(50),
            p99: at(99),
            per_second: None,
        }
    }

    /// The numbers of rounds that ran at the same time, all of them within `total`.
    pub(super) fn of_parallel(times: Vec<Duration>, total: Duration) -> Self {
        let statistics = Self::new(times);
        let rate = statistics.rounds as f64 / total.as_secs_f64();
        Self {
            per_second: Some(rate).filter(|rate| rate.is_finite()),
            ..statistics
        }
    }

    /// How many times longer this side takes than the other side. `None` when a side has no rounds.
    pub(super) fn ratio(&self, other: &Self) -> Option<f64> {
        if self.rounds == 0 || other.rounds == 0 {
            return None;
        }
        let ratio = match (self.per_second, other.per_second) {
            (Some(ours), Some(theirs)) => theirs / ours,
            _ => self.median.as_secs_f64() / other.median.as_secs_f64(),
        };
        Some(ratio).filter(|ratio| ratio.is_finite())
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "rounds": self.rounds,
            "median_us": self.median.as_secs_f64() * 1e6,
            "p99_us": self.p99.as_secs_f64() * 1e6,
            "per_second": self.per_second,
        })
    }
}

/// `12.3 µs`
pub(super) fn micros(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        ..10.0 => format!("{micros:.2} µs"),
        ..1000.0 => format!("{micros:.1} µs"),
        _ => format!("{:.2} ms", micros / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_nearest_ranks() {
        let statistics = Statistics::new((1..=200).rev().map(Duration::from_micros).collect());
        assert_eq!(statistics.median, Duration::from_micros(100));
        assert_eq!(statistics.p99, Duration::from_micros(198));
        assert_eq!(Statistics::new(vec![]).rounds, 0);
        assert_eq!(
            Statistics::new(vec![Duration::from_micros(7)]).p99,
            Duration::from_micros(7)
        );
    }

    #[test]
    fn a_ratio_is_one_of_times_also_where_speed_is_measured() {
        let times = |micros| vec![Duration::from_micros(micros); 4];
        let (slow, fast) = (Statistics::new(times(30)), Statistics::new(times(10)));
        assert_eq!(slow.ratio(&fast), Some(3.0));
        let rate = |millis| Statistics::of_parallel(times(10), Duration::from_millis(millis));
        assert_eq!(rate(8).per_second, Some(500.0));
        assert_eq!(rate(8).ratio(&rate(4)), Some(2.0));
        assert_eq!(slow.ratio(&Statistics::new(vec![])), None);
        assert_eq!(Statistics::new(vec![]).ratio(&fast), None);
    }
}
