//! The twin of `metrics.rs` without the feature `metrics`: it counts nothing, and its types have no size.

use crate::lost::LostReason;
use crate::options::Options;
use crate::rt::Clock;

use super::labels::{AcquireOutcome, RenewalOutcome};

pub(super) struct ClientMetrics;

impl ClientMetrics {
    pub(super) fn new(_store: &'static str) -> Self {
        Self
    }
}

pub(super) struct AcquisitionMetrics;

impl AcquisitionMetrics {
    pub(super) fn begin(_client: &ClientMetrics, _clock: &Clock, _options: &Options) -> Self {
        Self
    }

    pub(super) fn wait(&mut self) {}

    pub(super) fn end(&mut self, _outcome: AcquireOutcome) {}
}

pub(super) struct HoldMetrics;

impl HoldMetrics {
    pub(super) fn begin(_client: &ClientMetrics, _clock: &Clock, _options: &Options) -> Self {
        Self
    }

    pub(super) fn renewal(&self, _outcome: RenewalOutcome) {}

    pub(super) fn lost(&self, _reason: LostReason) {}
}
