//! Watches the store from outside while workers are at it, and writes down what somebody else does to it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tenure::Client;
use tenure::backend::Severity;

use crate::clock::now;
use crate::event::{Event, Log};

/// Time between two looks whether it is there.
const INSPECT_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two questions how it is.
const CHECK_INTERVAL: Duration = Duration::from_millis(700);

/// What was seen so far.
#[derive(Debug)]
pub struct StoreMonitor {
    client: Client,
    name: String,
    /// A store that is silent for longer is away.
    timeout: Duration,
    events: PathBuf,
    /// Since when it has been away, and what was said about that.
    outage: Option<(u64, String)>,
    /// What is not as it should be, by its text without times, which change; none before it could be checked.
    known: Option<BTreeMap<String, String>>,
}

impl StoreMonitor {
    /// Looks at `name` from time to time, and writes to the log at `events`.
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

    /// What it finds before the run is how the store is, and no news.
    pub async fn remember_state(&mut self) {
        self.known = self.state().await;
    }

    /// Looks until it is dropped.
    pub async fn run(&mut self) -> std::convert::Infallible {
        let mut checked = now();
        loop {
            tokio::time::sleep(INSPECT_INTERVAL).await;
            let began = now();
            let inspected =
                tokio::time::timeout(self.timeout, self.client.inspect(&self.name)).await;
            match inspected {
                Ok(Ok(_)) => self.end_outage(),
                Ok(Err(error)) => self.begin_outage(began, &error.to_string()),
                Err(_) => self.begin_outage(began, "no answer"),
            }
            if now() > checked + crate::clock::nanos(CHECK_INTERVAL) && self.outage.is_none() {
                checked = now();
                self.compare_state().await;
            }
        }
    }

    /// The run is over.
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
        // The first answer is how the store is, and no news.
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

    /// All that `check` says which is not good; none when it could not be checked.
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
        // A log that cannot be written ends the run elsewhere.
        if let Ok(mut log) = Log::open(&self.events) {
            let _ = log.append(event);
        }
    }
}
