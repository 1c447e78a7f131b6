//! From many times to a few numbers.

use std::time::Duration;

use serde_json::{Value, json};

/// What is said of a measurement.
pub(super) struct Figures {
    pub(super) rounds: usize,
    pub(super) median: Duration,
    pub(super) p99: Duration,
    /// How many were done in a second, where several were under way at a time.
    pub(super) per_second: Option<f64>,
}

impl Figures {
    /// Of these times; zeros of none.
    pub(super) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        // Nearest rank: the smallest time that so many per cent do not exceed.
        let rank = |percent: usize| (times.len() * percent).div_ceil(100).saturating_sub(1);
        let at = |percent| times.get(rank(percent)).copied().unwrap_or_default();
        Self {
            rounds: times.len(),
            median: at(50),
            p99: at(99),
            per_second: None,
        }
    }

    /// The same of times that were measured side by side, all of them in `total`.
    pub(super) fn side_by_side(times: Vec<Duration>, total: Duration) -> Self {
        let figures = Self::of(times);
        let rate = figures.rounds as f64 / total.as_secs_f64();
        Self {
            per_second: Some(rate).filter(|rate| rate.is_finite()),
            ..figures
        }
    }

    /// How many times the time of the other side this side takes for one. `None` when one has done nothing.
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
        let figures = Figures::of((1..=200).rev().map(Duration::from_micros).collect());
        assert_eq!(figures.median, Duration::from_micros(100));
        assert_eq!(figures.p99, Duration::from_micros(198));
        assert_eq!(Figures::of(vec![]).rounds, 0);
        assert_eq!(
            Figures::of(vec![Duration::from_micros(7)]).p99,
            Duration::from_micros(7)
        );
    }

    #[test]
    fn a_ratio_is_one_of_times_also_where_speed_is_measured() {
        let times = |micros| vec![Duration::from_micros(micros); 4];
        let (slow, fast) = (Figures::of(times(30)), Figures::of(times(10)));
        assert_eq!(slow.ratio(&fast), Some(3.0));
        let rate = |millis| Figures::side_by_side(times(10), Duration::from_millis(millis));
        assert_eq!(rate(8).per_second, Some(500.0));
        assert_eq!(rate(8).ratio(&rate(4)), Some(2.0));
        assert_eq!(slow.ratio(&Figures::of(vec![])), None);
        assert_eq!(Figures::of(vec![]).ratio(&fast), None);
    }
}
