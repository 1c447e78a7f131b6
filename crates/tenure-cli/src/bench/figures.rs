//! From many times to a few numbers.

use std::time::Duration;

use serde_json::{Value, json};

/// What is said of a measurement.
pub(super) struct Figures {
    pub(super) rounds: usize,
    pub(super) median: Duration,
    pub(super) p99: Duration,
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
        }
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "rounds": self.rounds,
            "median_us": self.median.as_secs_f64() * 1e6,
            "p99_us": self.p99.as_secs_f64() * 1e6,
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
}
