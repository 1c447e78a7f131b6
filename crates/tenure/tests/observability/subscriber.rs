//! A subscriber that keeps every span of `tenure`, with the spans around it, and what is recorded in it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_core::span::Current;

/// One span, with its fields and its relations.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpanRecord {
    pub(crate) name: &'static str,
    pub(crate) fields: BTreeMap<&'static str, String>,
    /// The index of the parent among all spans.
    pub(crate) parent: Option<usize>,
    pub(crate) follows_from: Option<usize>,
    metadata: Option<&'static Metadata<'static>>,
    handles: usize,
}

impl SpanRecord {
    pub(crate) fn is_closed(&self) -> bool {
        self.handles == 0
    }

    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

impl Visit for SpanRecord {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

#[derive(Default)]
struct Spans {
    all: Vec<SpanRecord>,
    entered: Vec<usize>,
    events: Vec<BTreeMap<&'static str, String>>,
}

/// A subscriber for one thread. A clone shares its spans, for the test and for `tracing`.
#[derive(Clone, Default)]
pub(crate) struct SpanRecorder(Arc<Mutex<Spans>>);

impl SpanRecorder {
    /// All spans of that name, in the order in which they began.
    pub(crate) fn named(&self, name: &str) -> Vec<SpanRecord> {
        let all = self.0.lock().unwrap().all.clone();
        all.into_iter().filter(|span| span.name == name).collect()
    }

    /// The fields of all events with this message, in their order.
    pub(crate) fn events(&self, message: &str) -> Vec<BTreeMap<&'static str, String>> {
        let events = self.0.lock().unwrap().events.clone();
        let is_asked_for = |fields: &BTreeMap<_, String>| fields["message"] == message;
        events.into_iter().filter(is_asked_for).collect()
    }

    /// The index of the first span of that name.
    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        let spans = self.0.lock().unwrap();
        spans.all.iter().position(|span| span.name == name)
    }

    /// The number of spans that are entered at this moment.
    pub(crate) fn entered(&self) -> usize {
        self.0.lock().unwrap().entered.len()
    }
}

/// All spans, and the events that most programs log.
fn is_recorded(metadata: &Metadata<'_>) -> bool {
    let is_logged = *metadata.level() <= Level::INFO && metadata.target().starts_with("tenure");
    metadata.is_span() || is_logged
}

/// A subscriber for all threads that enables all that is recorded and keeps nothing, installed before the first span.
///
/// Otherwise a span that one thread reaches first while no subscriber exists could stay off: `tracing` remembers for
/// each span whether a subscriber wants it, and a subscriber that another thread installs at that moment is missed.
struct EverySpan;

impl Subscriber for EverySpan {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_recorded(metadata)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Enables all spans. A test calls this before its first span.
pub(crate) fn enable_all_spans() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(EverySpan).unwrap());
}

/// Ids start at 1.
fn index(id: &Id) -> usize {
    id.into_u64() as usize - 1
}

impl Subscriber for SpanRecorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_recorded(metadata)
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut spans = self.0.lock().unwrap();
        let parent = match (span.parent(), span.is_contextual()) {
            (Some(parent), _) => Some(index(parent)),
            (None, true) => spans.entered.last().copied(),
            (None, false) => None,
        };
        let mut record = SpanRecord {
            name: span.metadata().name(),
            parent,
            metadata: Some(span.metadata()),
            handles: 1,
            ..SpanRecord::default()
        };
        span.record(&mut record);
        spans.all.push(record);
        Id::from_u64(spans.all.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        values.record(&mut self.0.lock().unwrap().all[index(id)]);
    }

    fn record_follows_from(&self, id: &Id, follows: &Id) {
        self.0.lock().unwrap().all[index(id)].follows_from = Some(index(follows));
    }

    fn event(&self, event: &Event<'_>) {
        let mut record = SpanRecord::default();
        event.record(&mut record);
        self.0.lock().unwrap().events.push(record.fields);
    }

    fn enter(&self, id: &Id) {
        self.0.lock().unwrap().entered.push(index(id));
    }

    fn exit(&self, id: &Id) {
        let left = self.0.lock().unwrap().entered.pop();
        assert_eq!(left, Some(index(id)), "spans are left in the wrong order");
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.0.lock().unwrap().all[index(id)].handles += 1;
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let span = &mut self.0.lock().unwrap().all[index(&id)];
        span.handles -= 1;
        span.handles == 0
    }

    fn current_span(&self) -> Current {
        let spans = self.0.lock().unwrap();
        let Some(index) = spans.entered.last().copied() else {
            return Current::none();
        };
        let metadata = spans.all[index].metadata;
        metadata.map_or(Current::none(), |metadata| {
            Current::new(Id::from_u64(index as u64 + 1), metadata)
        })
    }
}
