//! Monitors the store while workers use it, and records outages and changes that are not of the plan.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tenure::Client;
use tenure::store::Severity;

use crate::clock::now;
use crate::event::{Event, Log};

/// The time between two inspections, which show whether the store answers.
const INSPECT_INTERVAL: Duration = Duration::from_millis(100);
/// The time between two checks of the store's state.
const CHECK_INTERVAL: Duration = Duration::from_millis(700);

/// The monitor of one store.
#[derive(Debug)]
pub struct StoreMonitor {
    client: Client,
    name: String,
    /// A store that does not answer within this time is unreachable.
    timeout: Duration,
    events: PathBuf,
    /// The start of the current outage, and its first error.
    outage: Option<(u64, String)>,
    /// The findings of the last check that are not good. The key is the text of a finding without its times, which change.
    /// `None` before the first check.
    known: Option<BTreeMap<String, String>>,
}

impl StoreMonitor {
    /// Inspects `name` at intervals, and appends to the log at `events`.
    pub fn new(client: Client, name: String, timeout: Duration, events: PathBuf) -> Self {
        Self {
            client,
            name,
            timeout: timeout.max(Duration::from_secs(1)),
            events,
            outage: None,
            known: None,
        }
    }

    /// Remembers the findings of before the run, which are not reported.
    pub async fn remember_state(&mut self) {
        self.known = self.state().await;
    }

    /// Monitors the store until the future is dropped.
    pub async fn run(&mut self) -> std::convert::Infallible {
        let mut checked = now();
        loop {
            tokio::time::sleep(INSPECT_INTERVAL).await;
            let began = now();
            let inspected =
                tokio::time::timeout(self.timeout, self.client.inspect(&self.name)).await;
            match inspected {
                Ok(Ok(_)) => self.end_outage(),
                Ok(Err(error)) => self.begin_outage(began, &format!("{error:#}")),
                Err(_) => self.begin_outage(began, "no answer"),
            }
            if now() > checked + crate::clock::nanos(CHECK_INTERVAL) && self.outage.is_none() {
                checked = now();
                self.compare_state().await;
            }
        }
    }

    /// Ends the current outage, because the run is over.
    pub fn finish(&mut self) {
        self.end_outage();
    }

    fn begin_outage(&mut self, since: u64, why: &str) {
        self.outage.get_or_insert_with(|| (since, why.to_owned()));
    }

    fn end_outage(&mut self) {
        if let Some((at, why)) = self.outage.take() {
            let until = now();
            self.log(&Event::Away { at, until, why });
        }
    }

    async fn compare_state(&mut self) {
        let Some(state) = self.state().await else {
            return;
        };
        // The findings of the first check are from before the run.
        let Some(known) = self.known.replace(state.clone()) else {
            return;
        };
        let come = state.iter().filter(|it| !known.contains_key(it.0));
        let gone = known.iter().filter(|it| !state.contains_key(it.0));
        let come = come.map(|(_, text)| text.clone());
        let gone = gone.map(|(_, text)| format!("no longer: {text}"));
        for what in come.chain(gone) {
            self.log(&Event::Noticed { at: now(), what });
        }
    }

    /// All findings of `check` that are not good; none if the check failed.
    async fn state(&self) -> Option<BTreeMap<String, String>> {
        let findings = tokio::time::timeout(self.timeout * 2, self.client.check()).await;
        let findings = findings.ok()?.ok()?;
        let bad = findings
            .into_iter()
            .filter(|it| it.severity != Severity::Good);
        // Addresses have numbers as well, and tell one server from another.
        let is_time =
            |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && !word.contains(':');
        let key = |text: &str| {
            let words = text.split_whitespace().filter(|word| !is_time(word));
            words.collect::<Vec<_>>().join(" ")
        };
        Some(bad.map(|it| (key(&it.text), it.text)).collect())
    }

    fn log(&self, event: &Event) {
        // The runner writes to the same log and reports an error.
        if let Ok(mut log) = Log::open(&self.events) {
            let _ = log.append(event);
        }
    }
}
