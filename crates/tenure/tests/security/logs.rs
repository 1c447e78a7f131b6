//! Searches everything that this program logs for the password, at any level, of our crates and of all libraries.

use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::canary::find_password;

/// Lines that contain the password.
static LEAKS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// The numbers of lines of our crates and of other crates: without lines the search proves nothing.
static OURS: AtomicU64 = AtomicU64::new(0);
static OTHERS: AtomicU64 = AtomicU64::new(0);

/// Installs the recorders of this program; a second call does nothing.
pub(crate) fn record() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(TraceRecorder(AtomicU64::new(1))).unwrap();
        log::set_logger(&LogRecorder).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
    });
}

/// # Panics
/// When a line contains the password, or there is no line of our crates or of other crates.
#[track_caller]
pub(crate) fn assert_no_password() {
    let leaks = LEAKS.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(leaks.is_empty(), "{}", leaks.join("\n"));
    assert!(OURS.load(Ordering::Relaxed) > 0, "we logged nothing");
    assert!(
        OTHERS.load(Ordering::Relaxed) > 0,
        "no other crate logged anything"
    );
}

fn check_line(target: &str, line: &str) {
    let ours = target.starts_with("tenure");
    let count = if ours { &OURS } else { &OTHERS };
    count.fetch_add(1, Ordering::Relaxed);
    if let Some(why) = find_password(line) {
        let mut leaks = LEAKS.lock().unwrap_or_else(PoisonError::into_inner);
        leaks.push(format!("{target} logs {why}: {line}"));
    }
}

struct TraceRecorder(AtomicU64);

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

impl Subscriber for TraceRecorder {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line::default();
        span.record(&mut line);
        check_line(span.metadata().target(), &line.0);
        Id::from_u64(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut line = Line::default();
        values.record(&mut line);
        check_line("a span", &line.0);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        check_line(event.metadata().target(), &line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct LogRecorder;

impl log::Log for LogRecorder {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        check_line(record.target(), &record.args().to_string());
    }

    fn flush(&self) {}
}
