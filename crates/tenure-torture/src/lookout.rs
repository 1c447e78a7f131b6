//! Watches the store from outside while workers are at it, and writes down what somebody else does to it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tenure::Client;
use tenure::backend::Severity;

use crate::clock::now;
use crate::event::{Event, Log};

/// Time between two looks whether it is there.
const LOOK: Duration = Duration::from_millis(100);
/// Time between two questions how it is.
const ASK: Duration = Duration::from_millis(700);

/// What was seen so far.
#[derive(Debug)]
pub struct Lookout {
    client: Client,
    name: String,
    /// A store that is silent for longer is away.
    patience: Duration,
    events: PathBuf,
    /// Since when it has been away, and what was said about that.
    away: Option<(u64, String)>,
    /// What is not as it should be, by its text without times, which change; none before it could be asked.
    known: Option<BTreeMap<String, String>>,
}

impl Lookout {
    /// Looks at `name` from time to time, and writes to the log at `events`.
    pub fn new(client: Client, name: String, patience: Duration, events: PathBuf) -> Self {
        Self {
            client,
            name,
            patience: patience.max(Duration::from_secs(1)),
            events,
            away: None,
            known: None,
        }
    }

    /// What it finds before the run is how the store is, and no news.
    pub async fn begin(&mut self) {
        self.known = self.state().await;
    }

    /// Looks until it is dropped.
    pub async fn watch(&mut self) -> std::convert::Infallible {
        let mut asked = now();
        loop {
            tokio::time::sleep(LOOK).await;
            let began = now();
            let look = tokio::time::timeout(self.patience, self.client.inspect(&self.name)).await;
            match look {
                Ok(Ok(_)) => self.is_there(),
                Ok(Err(error)) => self.is_away(began, &error.to_string()),
                Err(_) => self.is_away(began, "no answer"),
            }
            if now() > asked + crate::clock::nanos(ASK) && self.away.is_none() {
                asked = now();
                self.ask().await;
            }
        }
    }

    /// The run is over.
    pub fn finish(&mut self) {
        self.is_there();
    }

    fn is_away(&mut self, since: u64, why: &str) {
        self.away.get_or_insert_with(|| (since, why.to_owned()));
    }

    fn is_there(&mut self) {
        if let Some((at, why)) = self.away.take() {
            let until = now();
            self.say(&Event::Away { at, until, why });
        }
    }

    async fn ask(&mut self) {
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
            self.say(&Event::Noticed { at: now(), what });
        }
    }

    /// All that `check` says which is not good; none when it could not be asked.
    async fn state(&self) -> Option<BTreeMap<String, String>> {
        let findings = tokio::time::timeout(self.patience * 2, self.client.check()).await;
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

    fn say(&self, event: &Event) {
        // A log that cannot be written ends the run elsewhere.
        if let Ok(mut log) = Log::open(&self.events) {
            let _ = log.say(event);
        }
    }
}
