//! What a client counts, for the recorder that the program installed with the facade `metrics`.
//! `docs/observability.md` lists it for users. The twin for builds without the feature is `no_metrics.rs`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ::metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Unit, with_recorder};

use crate::lost::LostReason;
use crate::options::Options;
use crate::rt::{Clock, lock};
use crate::time::Time;

use super::labels::{AcquireOutcome, RenewalOutcome, reason_label};

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// One metric, as the recorder and the documents describe it.
struct Metric {
    name: &'static str,
    kind: Kind,
    /// `None`: a plain count.
    unit: Option<Unit>,
    /// The label that the metric has in addition to `store` and `name`.
    label: Option<&'static str>,
    meaning: &'static str,
}

/// All outcomes in the order of their declaration, so that `outcome as usize` is an index of this array.
const OUTCOMES: [AcquireOutcome; 5] = [
    AcquireOutcome::Granted,
    AcquireOutcome::Busy,
    AcquireOutcome::Cancelled,
    AcquireOutcome::Failed,
    AcquireOutcome::Reentered,
];
/// So many outcomes, from the first on, have a wait. In the last one no request was sent.
const OUTCOMES_WITH_WAIT: usize = 4;
/// Likewise.
const REASONS: [LostReason; 5] = [
    LostReason::Expired,
    LostReason::MaxHold,
    LostReason::SessionGone,
    LostReason::TakenOver,
    LostReason::StoreSaysNo,
];
/// Likewise.
const RENEWALS: [RenewalOutcome; 3] = [
    RenewalOutcome::Renewed,
    RenewalOutcome::Lost,
    RenewalOutcome::Unanswered,
];

const ACQUISITIONS_TOTAL: Metric = Metric {
    name: "tenure_acquisitions_total",
    kind: Kind::Counter,
    unit: None,
    label: Some("outcome"),
    meaning: "calls that acquire, by how they ended",
};

const WAIT_SECONDS: Metric = Metric {
    name: "tenure_wait_seconds",
    kind: Kind::Histogram,
    unit: Some(Unit::Seconds),
    label: Some("outcome"),
    meaning: "time from the call to its end, whether the lock was granted or not",
};

const HOLD_SECONDS: Metric = Metric {
    name: "tenure_hold_seconds",
    kind: Kind::Histogram,
    unit: Some(Unit::Seconds),
    label: None,
    meaning: "time from the grant to the end of the release, or to the loss",
};

const LOST_TOTAL: Metric = Metric {
    name: "tenure_lost_total",
    kind: Kind::Counter,
    unit: None,
    label: Some("reason"),
    meaning: "holds that ended before they were released",
};

const RENEWALS_TOTAL: Metric = Metric {
    name: "tenure_renewals_total",
    kind: Kind::Counter,
    unit: None,
    label: Some("outcome"),
    meaning: "renewals of single holds, by the answer of the store",
};

const HELD: Metric = Metric {
    name: "tenure_held",
    kind: Kind::Gauge,
    unit: None,
    label: None,
    meaning: "locks that are held now",
};

const WAITING: Metric = Metric {
    name: "tenure_waiting",
    kind: Kind::Gauge,
    unit: None,
    label: None,
    meaning: "tasks that wait for a lock now",
};

/// All metrics of this crate.
const METRICS: [&Metric; 7] = [
    &ACQUISITIONS_TOTAL,
    &WAIT_SECONDS,
    &HOLD_SECONDS,
    &LOST_TOTAL,
    &RENEWALS_TOTAL,
    &HELD,
    &WAITING,
];

/// Registers names, units and meanings with the recorder.
fn describe() {
    with_recorder(|recorder| {
        for metric in METRICS {
            let (name, unit, meaning) = (metric.name.into(), metric.unit, metric.meaning.into());
            match metric.kind {
                Kind::Counter => recorder.describe_counter(name, unit, meaning),
                Kind::Gauge => recorder.describe_gauge(name, unit, meaning),
                Kind::Histogram => recorder.describe_histogram(name, unit, meaning),
            }
        }
    });
}

/// The numbers of one store and one `name` label. They are made once, so that counting needs no look-up, and so that
/// a gauge goes down in the same recorder in which it went up.
struct Series {
    acquisitions: [Counter; OUTCOMES.len()],
    wait: [Histogram; OUTCOMES_WITH_WAIT],
    hold: Histogram,
    lost: [Counter; REASONS.len()],
    renewals: [Counter; RENEWALS.len()],
    held: Gauge,
    waiting: Gauge,
}

impl Series {
    fn new(store: &'static str, name: Cow<'static, str>) -> Arc<Self> {
        let metadata = Metadata::new("tenure", Level::INFO, None);
        let key = |metric: &Metric, value: Option<&'static str>| {
            let mut labels = vec![Label::from_static_parts("store", store)];
            if !name.is_empty() {
                labels.push(Label::new("name", name.clone()));
            }
            let own = metric.label.zip(value);
            labels.extend(own.map(|(label, value)| Label::from_static_parts(label, value)));
            Key::from_parts(metric.name, labels)
        };
        with_recorder(|recorder| {
            let counter = |metric: &Metric, value| {
                recorder.register_counter(&key(metric, Some(value)), &metadata)
            };
            let gauge = |metric| recorder.register_gauge(&key(metric, None), &metadata);
            let histogram =
                |metric, value| recorder.register_histogram(&key(metric, value), &metadata);
            Arc::new(Self {
                acquisitions: OUTCOMES.map(|it| counter(&ACQUISITIONS_TOTAL, it.label())),
                wait: std::array::from_fn(|i| histogram(&WAIT_SECONDS, Some(OUTCOMES[i].label()))),
                hold: histogram(&HOLD_SECONDS, None),
                lost: REASONS.map(|it| counter(&LOST_TOTAL, reason_label(it))),
                renewals: RENEWALS.map(|it| counter(&RENEWALS_TOTAL, it.label())),
                held: gauge(&HELD),
                waiting: gauge(&WAITING),
            })
        })
    }
}

/// The series of one client: one without the label `name`, and one for each value of it that was asked for.
pub(super) struct ClientMetrics {
    store: &'static str,
    unnamed: Arc<Series>,
    named: Mutex<HashMap<Cow<'static, str>, Arc<Series>>>,
}

impl ClientMetrics {
    pub(super) fn new(store: &'static str) -> Self {
        describe();
        Self {
            store,
            unnamed: Series::new(store, Cow::Borrowed("")),
            named: Mutex::default(),
        }
    }

    fn series(&self, options: &Options) -> Arc<Series> {
        let name = &options.metrics_name;
        if name.is_empty() {
            return self.unnamed.clone();
        }
        let mut named = lock(&self.named);
        if let Some(series) = named.get(name) {
            return series.clone();
        }
        let series = Series::new(self.store, name.clone());
        named.insert(name.clone(), series.clone());
        series
    }
}

/// The numbers of one acquisition.
pub(super) struct AcquisitionMetrics {
    series: Arc<Series>,
    clock: Clock,
    since: Time,
    is_waiting: bool,
}

impl AcquisitionMetrics {
    pub(super) fn begin(client: &ClientMetrics, clock: &Clock, options: &Options) -> Self {
        Self {
            series: client.series(options),
            clock: clock.clone(),
            since: clock.now(),
            is_waiting: false,
        }
    }

    pub(super) fn wait(&mut self) {
        self.is_waiting = true;
        self.series.waiting.increment(1.0);
    }

    pub(super) fn end(&mut self, outcome: AcquireOutcome) {
        let series = &self.series;
        if std::mem::replace(&mut self.is_waiting, false) {
            series.waiting.decrement(1.0);
        }
        series.acquisitions[outcome as usize].increment(1);
        if let Some(wait) = series.wait.get(outcome as usize) {
            wait.record(self.clock.now().since(self.since).as_secs_f64());
        }
    }
}

/// The numbers of one hold, which ends when this is dropped.
pub(super) struct HoldMetrics {
    series: Arc<Series>,
    clock: Clock,
    since: Time,
}

impl HoldMetrics {
    pub(super) fn begin(client: &ClientMetrics, clock: &Clock, options: &Options) -> Self {
        let series = client.series(options);
        series.held.increment(1.0);
        Self {
            series,
            clock: clock.clone(),
            since: clock.now(),
        }
    }

    pub(super) fn renewal(&self, outcome: RenewalOutcome) {
        self.series.renewals[outcome as usize].increment(1);
    }

    pub(super) fn lost(&self, reason: LostReason) {
        self.series.lost[reason as usize].increment(1);
    }
}

impl Drop for HoldMetrics {
    fn drop(&mut self) {
        self.series.held.decrement(1.0);
        let held = self.clock.now().since(self.since);
        self.series.hold.record(held.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in `docs/observability.md`. Change the document with the code.
    #[test]
    fn the_document_has_the_same_metrics() {
        let mut table = String::from(
            "| Metric | Type | Unit | Labels | Meaning |\n| --- | --- | --- | --- | --- |\n",
        );
        for metric in METRICS {
            let unit = metric.unit.map_or("", |unit| unit.as_str());
            let own = metric.label.map_or(String::new(), |label| {
                let values: Vec<_> = values(metric).collect();
                format!(", `{label}`: `{}`", values.join("`, `"))
            });
            let kind = format!("{:?}", metric.kind).to_lowercase();
            table += &format!(
                "| `{}` | {kind} | {unit} | `store`, `name`{own} | {} |\n",
                metric.name, metric.meaning
            );
        }
        let document = include_str!("../../../../docs/observability.md");
        assert!(document.contains(&table), "the document lacks:\n{table}");
    }

    fn values(metric: &Metric) -> Box<dyn Iterator<Item = &'static str>> {
        match metric.name {
            name if name == ACQUISITIONS_TOTAL.name => {
                Box::new(OUTCOMES.into_iter().map(AcquireOutcome::label))
            }
            name if name == WAIT_SECONDS.name => {
                Box::new(OUTCOMES[..OUTCOMES_WITH_WAIT].iter().map(|it| it.label()))
            }
            name if name == LOST_TOTAL.name => Box::new(REASONS.into_iter().map(reason_label)),
            name if name == RENEWALS_TOTAL.name => {
                Box::new(RENEWALS.into_iter().map(RenewalOutcome::label))
            }
            _ => Box::new(std::iter::empty()),
        }
    }

    #[test]
    fn every_value_has_the_place_of_its_number() {
        assert!((0..OUTCOMES.len()).all(|i| OUTCOMES[i] as usize == i));
        assert!((0..REASONS.len()).all(|i| REASONS[i] as usize == i));
        assert!((0..RENEWALS.len()).all(|i| RENEWALS[i] as usize == i));
        assert!(!OUTCOMES[..OUTCOMES_WITH_WAIT].contains(&AcquireOutcome::Reentered));
    }
}
