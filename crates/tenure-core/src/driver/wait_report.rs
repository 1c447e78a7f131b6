//! Reports acquisitions that wait for long: to the log, and to the callbacks of `Client::on_wait`.

use std::sync::Arc;
use std::time::Duration;

use crate::holder::{LockStatus, WaitReport};
use crate::name::LockName;
use crate::time::Time;

use super::diagnosis::Asker;
use super::labels::LOG_TARGET;
use super::shared::Driver;
use super::until::Until;

/// A wait is reported for the first time after this long. Most waits in a healthy system are shorter.
const FIRST_REPORT: Duration = Duration::from_secs(5);
/// The time between two reports doubles up to this length, so that a long wait costs the store and the log little.
const LONGEST_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// How long the store is asked for the holder. A store that takes longer is reported as one that did not answer.
const INSPECT_LIMIT: Duration = Duration::from_secs(1);

/// The reports of one wait for a name.
pub(super) struct WaitReports<'a> {
    driver: &'a Arc<Driver>,
    name: &'a LockName,
    began: Time,
    /// When the next report is due; `None`: there is no callback, and no subscriber wants the event.
    next: Option<Time>,
}

impl<'a> WaitReports<'a> {
    /// To be called when the wait begins.
    pub(super) fn begin(driver: &'a Arc<Driver>, name: &'a LockName, until: Until) -> Self {
        let is_wanted = until.waits() && (!driver.callbacks.waits.is_empty() || is_logged());
        let began = match is_wanted {
            true => driver.clock.now(),
            false => Time::MAX,
        };
        Self {
            driver,
            name,
            began,
            next: is_wanted.then(|| began.after(FIRST_REPORT)),
        }
    }

    /// Reports for as long as `work` lasts, and returns what `work` returns. Cancel safe as far as `work` is.
    pub(super) async fn during<T>(&mut self, asker: Asker, work: impl Future<Output = T>) -> T {
        if self.next.is_none() {
            return work.await;
        }
        // In a box: few waits are so long.
        let mut reporting = Box::pin(self.report_at_intervals(asker));
        tokio::select! {
            biased;
            done = work => done,
            never = &mut reporting => never,
        }
    }

    /// Never resolves.
    async fn report_at_intervals<T>(&mut self, asker: Asker) -> T {
        let clock = &self.driver.clock;
        while let Some(next) = self.next {
            clock.wait_until(next).await;
            // One task of a client asks the store; a task behind it would learn nothing else.
            let status = match asker {
                Asker::ThisTask => self.driver.inspect_within(self.name, INSPECT_LIMIT).await,
                Asker::AnotherTask => None,
            };
            let waited = clock.now().since(self.began);
            self.next = Some(clock.now().after(waited.min(LONGEST_INTERVAL)));
            self.report(status.and_then(Result::ok), waited);
        }
        std::future::pending().await
    }

    fn report(&self, status: Option<LockStatus>, waited: Duration) {
        let driver = self.driver;
        let client = &driver.identity.holder.client;
        let queue = status.as_ref().and_then(|status| status.queue.as_ref());
        let before = queue.and_then(|queue| queue.iter().position(|it| it.client == *client));
        let waiting = WaitReport {
            name: self.name.clone(),
            waited,
            position: before.map(|before| before + 1),
            status,
            scheme: driver.scheme(),
        };
        let holder = waiting.holder().map(tracing::field::display);
        tracing::info!(target: LOG_TARGET, name = %self.name, store = waiting.scheme, ?waited, holder, position = waiting.position, "still waiting");
        driver.report_wait(waiting);
    }
}

/// Whether a subscriber wants the event.
fn is_logged() -> bool {
    tracing::event_enabled!(target: LOG_TARGET, tracing::Level::INFO)
}
