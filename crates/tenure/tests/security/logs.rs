//! Reads along with everything that is logged in this program, at any level, by us and by every library below.

use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::canary::betrayal;

/// Lines with a secret in them.
static BETRAYED: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// How many lines there were from us, and from others: a search through nothing finds nothing.
static OURS: AtomicU64 = AtomicU64::new(0);
static OTHERS: AtomicU64 = AtomicU64::new(0);

/// From now on; once is enough.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(Reader(AtomicU64::new(1))).unwrap();
        log::set_logger(&LogReader).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
    });
}

/// # Panics
/// When a line has a secret in it, or nobody said anything.
#[track_caller]
pub(crate) fn assert_discreet() {
    let betrayed = BETRAYED.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(betrayed.is_empty(), "{}", betrayed.join("\n"));
    assert!(OURS.load(Ordering::Relaxed) > 0, "we logged nothing");
    assert!(OTHERS.load(Ordering::Relaxed) > 0, "nobody logged anything");
}

fn look(target: &str, line: &str) {
    let ours = target.starts_with("tenure");
    let count = if ours { &OURS } else { &OTHERS };
    count.fetch_add(1, Ordering::Relaxed);
    if let Some(why) = betrayal(line) {
        let mut betrayed = BETRAYED.lock().unwrap_or_else(PoisonError::into_inner);
        betrayed.push(format!("{target} logs {why}: {line}"));
    }
}

struct Reader(AtomicU64);

#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.0, " {field}={value}");
    }
}

impl Subscriber for Reader {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line::default();
        span.record(&mut line);
        look(span.metadata().target(), &line.0);
        Id::from_u64(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut line = Line::default();
        values.record(&mut line);
        look("a span", &line.0);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        look(event.metadata().target(), &line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct LogReader;

impl log::Log for LogReader {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        look(record.target(), &record.args().to_string());
    }

    fn flush(&self) {}
}
