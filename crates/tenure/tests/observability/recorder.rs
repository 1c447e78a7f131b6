//! A recorder that keeps all values, for comparison with the expected ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

/// One series. For a gauge this is the sum of its changes.
#[derive(Default)]
struct Series {
    sum: Mutex<f64>,
    values: Mutex<Vec<f64>>,
}

impl Series {
    fn add(&self, value: f64) {
        *self.sum.lock().unwrap() += value;
    }
}

impl CounterFn for Series {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }

    fn absolute(&self, value: u64) {
        *self.sum.lock().unwrap() = value as f64;
    }
}

impl GaugeFn for Series {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, value: f64) {
        *self.sum.lock().unwrap() = value;
    }
}

impl HistogramFn for Series {
    fn record(&self, value: f64) {
        self.values.lock().unwrap().push(value);
    }
}

#[derive(Default)]
pub(crate) struct Memory {
    series: Mutex<BTreeMap<String, Arc<Series>>>,
    described: Mutex<BTreeMap<String, Option<Unit>>>,
}

impl Memory {
    fn series(&self, key: &Key) -> Arc<Series> {
        let mut labels: Vec<_> = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        labels.sort();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        self.series.lock().unwrap().entry(name).or_default().clone()
    }

    fn known(&self, series: &str) -> Arc<Series> {
        let all = self.series.lock().unwrap();
        let known = all.get(series).cloned();
        known.unwrap_or_else(|| panic!("no series {series} among {:?}", all.keys()))
    }

    /// The value of a counter or gauge, for example `tenure_held{store=memory}`.
    pub(crate) fn value(&self, series: &str) -> f64 {
        *self.known(series).sum.lock().unwrap()
    }

    /// The values of a histogram, in order.
    pub(crate) fn values(&self, series: &str) -> Vec<f64> {
        self.known(series).values.lock().unwrap().clone()
    }

    /// All counters and gauges that are not zero.
    pub(crate) fn nonzero(&self) -> BTreeMap<String, f64> {
        let all = self.series.lock().unwrap();
        let values = all
            .iter()
            .map(|(name, series)| (name.clone(), *series.sum.lock().unwrap()));
        values.filter(|(_, value)| *value != 0.0).collect()
    }

    /// Every metric that has series or a description, by name; whether it has both.
    pub(crate) fn names(&self) -> BTreeMap<String, bool> {
        let described = self.described.lock().unwrap();
        let mut names: BTreeMap<_, _> =
            described.keys().map(|name| (name.clone(), false)).collect();
        for series in self.series.lock().unwrap().keys() {
            let name = series.split('{').next().unwrap().to_owned();
            let is_described = described.contains_key(&name);
            names.insert(name, is_described);
        }
        names
    }
}

impl Recorder for Memory {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        let mut described = self.described.lock().unwrap();
        described.insert(key.as_str().to_owned(), unit);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe_counter(key, unit, text);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe_counter(key, unit, text);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.series(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.series(key))
    }
}
