//! The results, as a table or as JSON.

use std::time::Duration;

use serde_json::json;

use super::statistics::{Statistics, micros};
use crate::text;

/// One measurement.
pub(super) struct Row {
    pub(super) what: &'static str,
    pub(super) raw_what: &'static str,
    pub(super) ours: Statistics,
    pub(super) raw: Option<Statistics>,
}

impl Row {
    fn ratio(&self) -> Option<f64> {
        self.ours.ratio(self.raw.as_ref()?)
    }

    pub(super) fn to_json(&self, scheme: &str) -> serde_json::Value {
        json!({
            "scheme": scheme,
            "what": self.what,
            "ours": self.ours.to_json(),
            "raw": self.raw.as_ref().map(Statistics::to_json),
            "raw_what": self.raw.as_ref().map(|_| self.raw_what),
            "ratio": self.ratio(),
        })
    }
}

pub(super) fn as_table(scheme: &str, rows: &[Row]) -> String {
    let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".into());
    let rate = |statistics: &Statistics| statistics.per_second.map(|rate| format!("{rate:.0}"));
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let raw = row.raw.as_ref();
            let of_raw =
                |time: fn(&Statistics) -> Duration| or_dash(raw.map(|raw| micros(time(raw))));
            vec![
                row.what.to_string(),
                row.ours.rounds.to_string(),
                micros(row.ours.median),
                micros(row.ours.p99),
                or_dash(rate(&row.ours)),
                of_raw(|raw| raw.median),
                of_raw(|raw| raw.p99),
                or_dash(raw.and_then(rate)),
                or_dash(row.ratio().map(|ratio| format!("{ratio:.2}"))),
                or_dash(raw.map(|_| row.raw_what.to_string())),
            ]
        })
        .collect();
    let head = [
        scheme,
        "ROUNDS",
        "MEDIAN",
        "P99",
        "PER SECOND",
        "RAW MEDIAN",
        "RAW P99",
        "RAW PER SECOND",
        "RATIO",
        "RAW IS",
    ];
    // A column without a value is left out.
    let shown: Vec<_> = (0..head.len())
        .filter(|column| cells.iter().any(|row| row[*column] != "-"))
        .collect();
    let pick = |row: &Vec<String>| shown.iter().map(|column| row[*column].clone()).collect();
    let rows: Vec<Vec<String>> = cells.iter().map(pick).collect();
    let head: Vec<_> = shown.iter().map(|column| head[*column]).collect();
    text::table(&head, &rows)
}
