//! What observers see of an acquisition and of a hold: their spans (`tracing`) and their metrics.
//!
//! Without a subscriber and without the feature `metrics` nothing here allocates or reads the clock.

use std::fmt;
use std::time::Duration;

use tracing::field::Empty;
use tracing::{Span, info_span};

use crate::error::Error;
use crate::lost::LostReason;
use crate::name::LockName;
use crate::options::Options;

use super::labels::{AcquireOutcome, RenewalOutcome, reason_label};
use super::metrics::{AcquisitionMetrics, HoldMetrics};
use super::shared::Driver;

/// One call of `acquire`, `try_acquire` or `run`, until its answer. If it is dropped before, the call was cancelled.
pub(crate) struct AcquireObservation {
    span: Span,
    metrics: AcquisitionMetrics,
    is_over: bool,
}

impl AcquireObservation {
    pub(crate) fn begin(
        driver: &Driver,
        names: &[LockName],
        options: &Options,
        is_one_try: bool,
    ) -> Self {
        let wait = if is_one_try {
            Some(Duration::ZERO)
        } else {
            options.wait
        };
        let span = info_span!(
            target: "tenure",
            "tenure.acquire",
            store = driver.scheme(),
            name = %Names(names),
            mode = %options.mode,
            wait = %Wait(wait),
            token = Empty,
            outcome = Empty,
            error = Empty,
        );
        Self {
            span,
            metrics: AcquisitionMetrics::begin(&driver.metrics, &driver.clock, options),
            is_over: false,
        }
    }

    /// Does `work` inside the span of the acquisition.
    pub(crate) fn in_span<T>(&self, work: impl FnOnce() -> T) -> T {
        self.span.in_scope(work)
    }

    /// From here on the task waits for an answer.
    pub(crate) fn wait(&mut self) {
        self.metrics.wait();
    }

    /// The lock was granted under `token`.
    pub(crate) fn granted(self, token: u64, is_reentry: bool) {
        self.span.record("token", token);
        self.end(if is_reentry {
            AcquireOutcome::Reentered
        } else {
            AcquireOutcome::Granted
        });
    }

    /// The wait ended without a grant.
    pub(crate) fn busy(self) {
        self.end(AcquireOutcome::Busy);
    }

    pub(crate) fn failed(self, err: &Error) {
        self.span
            .record("error", tracing::field::display(format_args!("{err:#}")));
        self.end(AcquireOutcome::Failed);
    }

    fn end(mut self, outcome: AcquireOutcome) {
        self.close(outcome);
    }

    fn close(&mut self, outcome: AcquireOutcome) {
        self.is_over = true;
        self.span.record("outcome", outcome.label());
        self.metrics.end(outcome);
    }
}

impl Drop for AcquireObservation {
    fn drop(&mut self) {
        if !self.is_over {
            self.close(AcquireOutcome::Cancelled);
        }
    }
}

/// One hold, from its grant to its end.
///
/// The span has no parent: a parent ends after its children, and a lock may be held much longer than the request in
/// which it was acquired. It follows from the span of the acquisition instead.
pub(super) struct HoldObservation {
    span: Span,
    metrics: HoldMetrics,
}

impl HoldObservation {
    /// To be called inside the span of the acquisition.
    pub(super) fn begin(driver: &Driver, name: &LockName, token: u64, options: &Options) -> Self {
        let span = info_span!(
            target: "tenure",
            parent: None,
            "tenure.hold",
            store = driver.scheme(),
            name = %Names(std::slice::from_ref(name)),
            mode = %options.mode,
            token,
            outcome = Empty,
            reason = Empty,
        );
        if !span.is_disabled() {
            span.follows_from(Span::current());
        }
        Self {
            span,
            metrics: HoldMetrics::begin(&driver.metrics, &driver.clock, options),
        }
    }

    pub(super) fn renewal(&self, outcome: RenewalOutcome) {
        self.metrics.renewal(outcome);
    }

    pub(super) fn lost(self, reason: LostReason) {
        self.span.record("outcome", "lost");
        self.span.record("reason", reason_label(reason));
        self.metrics.lost(reason);
    }

    /// The hold was released: the store confirmed it, or the caller did not wait for the answer.
    pub(super) fn released(self) {
        self.span.record("outcome", "released");
    }

    /// The hold goes on without this client.
    pub(super) fn detached(self) {
        self.span.record("outcome", "detached");
    }

    /// The store did not answer the release, or none was sent: the hold ends with its lease at the latest.
    pub(super) fn unconfirmed(self) {
        self.span.record("outcome", "unconfirmed");
    }
}

/// Names as a field of a span: as they are when there is one, else with commas between them.
struct Names<'a>(&'a [LockName]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, name) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{}", crate::name::Escaped(name.as_str()))?;
        }
        Ok(())
    }
}

/// The option `wait` as a field of a span.
struct Wait(Option<Duration>);

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("forever"),
            Some(wait) => write!(f, "{wait:?}"),
        }
    }
}
