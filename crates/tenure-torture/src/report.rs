//! A run and what was found in it, in three lines, and as JSON.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::checker::{Anomaly, Findings, Verdict};
use crate::history::History;
use crate::observer_checker::Misobservation;
use crate::plan::FaultKind;

/// The report about one run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The store, without its secrets.
    pub store: String,
    /// The history of the run.
    pub history: History,
    /// What the checker found in the history.
    pub findings: Findings,
    /// Names that were still held, or waited for, long after the end.
    pub left_over: Vec<String>,
    /// Why some faults were left out.
    pub left_out: Option<String>,
    /// Whether there were elections; `None`: the run was asked for none.
    pub has_elections: Option<bool>,
    /// The file of events.
    pub events: PathBuf,
    /// The page, with the timeline and the findings.
    pub page: PathBuf,
    /// The timeline as an SVG file.
    pub picture: PathBuf,
}

impl Report {
    /// The verdict. What is left over in a store is a violation, too.
    pub fn verdict(&self) -> Verdict {
        match self.left_over.is_empty() {
            true => self.findings.verdict(),
            false => Verdict::Violation,
        }
    }

    /// The verdict in a few words.
    pub fn verdict_text(&self) -> String {
        match (self.verdict(), &self.findings.not_enough) {
            (Verdict::Violation, _) => "VIOLATION".to_owned(),
            (Verdict::NotEnough, Some(why)) => format!("not enough: {why}"),
            _ => "ok, nothing worse than documented".to_owned(),
        }
    }

    /// The number of faults of each kind that was injected.
    pub fn fault_counts(&self) -> Vec<(FaultKind, usize)> {
        let count = |kind| {
            let faults = self.history.faults.iter();
            (kind, faults.filter(|it| it.kind == kind).count())
        };
        let counts = FaultKind::ALL.into_iter().map(count);
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// How often the store was unreachable without a fault of the plan, and for how many seconds in all.
    pub fn outages(&self) -> (usize, f64) {
        let faults = self.history.faults.iter();
        let outages: Vec<_> = faults.filter(|it| it.kind == FaultKind::Outage).collect();
        let nanos: u64 = outages.iter().map(|it| it.to - it.from).sum();
        (outages.len(), nanos as f64 / 1e9)
    }

    /// Length of the run in seconds.
    pub fn seconds(&self) -> f64 {
        (self.history.over - self.history.began) as f64 / 1e9
    }

    /// The faults, the findings, and the paths of the files.
    pub fn lines(&self) -> [String; 3] {
        let files = format!(
            "events: {}  page: {}  picture: {}",
            self.events.display(),
            self.page.display(),
            self.picture.display()
        );
        [self.line_of_faults(), self.line_of_findings(), files]
    }

    fn line_of_faults(&self) -> String {
        let counts = self.fault_counts();
        let injected: usize = counts.iter().map(|(_, count)| count).sum();
        let counts = counts.iter().map(|(kind, count)| format!("{count} {kind}"));
        let counts: Vec<_> = counts.collect();
        let faults = match counts.is_empty() {
            true => String::new(),
            false => format!(" ({})", counts.join(", ")),
        };
        let (times, seconds) = self.outages();
        let outages = match times {
            0 => String::new(),
            1 => format!(
                "; the store was unreachable once, for {seconds:.1} s, without a fault of this run"
            ),
            _ => format!(
                "; the store was unreachable {times} times, {seconds:.1} s in all, without a fault of this run"
            ),
        };
        let modes = self.history.mode_counts();
        let modes: Vec<_> = match modes.len() {
            0 | 1 => Vec::new(),
            _ => modes
                .iter()
                .map(|(mode, count)| format!("{count} {mode}"))
                .collect(),
        };
        let modes = match modes.is_empty() {
            true => String::new(),
            false => format!(" ({})", modes.join(", ")),
        };
        let attached = self.history.attached();
        let attached = match attached {
            0 => String::new(),
            _ => format!("; {attached} attached to a hold of another process"),
        };
        let tasks = match self.history.tasks() {
            1 => String::new(),
            tasks => format!(
                "; {tasks} tasks in each process, which passed the lock on {} times",
                self.history.passed_on()
            ),
        };
        let elections = match self.has_elections {
            Some(false) => "; no elections, which this store does not have",
            Some(true) | None => "",
        };
        format!(
            "{} acquisitions{modes}, {injected} faults{faults} in {:.1} s; seed {}; store {}{elections}{tasks}{attached}{outages}",
            self.history.claims.len(),
            self.seconds(),
            self.seed,
            self.store,
        )
    }

    /// What observers saw; empty if there were none.
    fn text_of_observers(&self) -> String {
        if self.history.elections.observers.is_empty() {
            return String::new();
        }
        let found = &self.findings.observers;
        let worse = found.iter().filter(|it| it.documented.is_none()).count();
        let kinds = Misobservation::ALL
            .map(|what| (what, found.iter().filter(|it| it.what == what).count()));
        let kinds = kinds.iter().filter(|it| it.1 > 0);
        let kinds = kinds.map(|(what, count)| format!("{count} {}", what.as_str()));
        let kinds: Vec<_> = kinds.collect();
        let kinds = match kinds.is_empty() {
            true => String::new(),
            false => format!(" ({})", kinds.join(", ")),
        };
        format!(
            "; observers: {} sights, wrong {}{kinds}",
            self.history.elections.sights(),
            counts(found.len(), worse),
        )
    }

    fn line_of_findings(&self) -> String {
        let found = &self.findings;
        let of_anomalies =
            |anomalies: &[Anomaly]| counts(anomalies.len(), not_documented(anomalies));
        let overlaps = found.overlaps.iter();
        let overlaps = overlaps.filter(|it| it.documented.is_none()).count();
        let mut line = format!(
            "{}: overlaps {}; late writes without a fence {}, with it {}; token regressions {}; \
             out of turn {}{}; longest gap {:.1} s{}{}",
            self.verdict_text(),
            counts(found.overlaps.len(), overlaps),
            of_anomalies(&found.writes.late),
            of_anomalies(&found.writes.late_accepted),
            of_anomalies(&found.tokens),
            found.overtakings.len(),
            if found.is_unfair { " (NOT FAIR)" } else { "" },
            found.longest_gap as f64 / 1e9,
            if found.gaps.is_empty() {
                ""
            } else {
                " (TOO LONG)"
            },
            self.text_of_observers(),
        );
        if !self.left_over.is_empty() {
            line += &format!("; left over: {}", self.left_over.join(", "));
        }
        line
    }

    /// The report as JSON, for programs.
    pub fn json(&self) -> Value {
        let found = &self.findings;
        let overlaps = found.overlaps.iter();
        let observers = found.observers.iter();
        let faults = self.fault_counts();
        let faults: serde_json::Map<String, Value> = faults
            .iter()
            .map(|(kind, count)| (kind.to_string(), (*count).into()))
            .collect();
        let modes = self.history.mode_counts();
        let modes: serde_json::Map<String, Value> = modes
            .iter()
            .map(|(mode, count)| (mode.to_string(), (*count).into()))
            .collect();
        json!({
            "verdict": match self.verdict() {
                Verdict::Ok => "ok",
                Verdict::Violation => "violation",
                Verdict::NotEnough => "not-enough",
            },
            "not_enough": found.not_enough,
            "seed": self.seed,
            "store": self.store,
            "seconds": self.seconds(),
            "acquisitions": self.history.claims.len(),
            "modes": modes,
            "tasks": self.history.tasks(),
            "passed_on": self.history.passed_on(),
            "detached": self.history.detached.holds.len(),
            "attached": self.history.attached(),
            "writes": self.history.writes.len(),
            "faults": faults,
            "faults_left_out": self.left_out,
            "outages": self.outages().0,
            "noticed": self.history.store.notices.iter().map(|(_, what)| what).collect::<Vec<_>>(),
            "overlaps": found.overlaps.len(),
            "overlaps_not_documented": overlaps.filter(|it| it.documented.is_none()).count(),
            "late_writes": found.writes.late.len(),
            "late_writes_not_documented": not_documented(&found.writes.late),
            "late_writes_refused_by_fence": found.writes.late_refused,
            "late_writes_past_fence": found.writes.late_accepted.len(),
            "late_writes_past_fence_not_documented": not_documented(&found.writes.late_accepted),
            "token_regressions": found.tokens.len(),
            "token_regressions_not_documented": not_documented(&found.tokens),
            "out_of_turn": found.overtakings.len(),
            "unfair": found.is_unfair,
            "longest_gap_ms": found.longest_gap / 1_000_000,
            "gaps_too_long": found.gaps.len(),
            "elections": self.has_elections.unwrap_or(false),
            "observers": self.history.elections.observers.len(),
            "observer_sights": self.history.elections.sights(),
            "observers_wrong": found.observers.len(),
            "observers_wrong_not_documented": observers.filter(|it| it.documented.is_none()).count(),
            "left_over": self.left_over,
            "events": self.events,
            "page": self.page,
            "picture": self.picture,
        })
    }
}

/// How many findings there were, and how many of them the store's table does not allow.
fn counts(all: usize, worse: usize) -> String {
    match (all, worse) {
        (0, _) => "0".to_owned(),
        (all, 0) => format!("{all} as documented"),
        (all, worse) if all == worse => format!("{all} NOT documented"),
        (all, worse) => format!("{all}, {worse} NOT documented"),
    }
}

/// The number of anomalies that the store's table does not allow.
fn not_documented(anomalies: &[Anomaly]) -> usize {
    let anomalies = anomalies.iter();
    anomalies.filter(|it| it.documented.is_none()).count()
}
