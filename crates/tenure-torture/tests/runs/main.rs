//! Runs on real stores, each in a configuration of the guarantee table: what is promised must hold, and what is not
//! promised must be seen to break.
//!
//! A run ends when each fault was there and enough was granted, not after a time. `TENURE_TORTURE_FOR=30m` makes each
//! of them last that long instead, and prints its verdict.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod consensus;
mod databases;
mod files;
mod redis;
mod site;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use site::{Around, Store};
use tenure_torture::checker::{Findings, Verdict, check};
use tenure_torture::event;
use tenure_torture::history::History;
use tenure_torture::plan::FaultKind;
use tenure_torture::processes::Program;
use tenure_torture::report::Report;
use tenure_torture::runner::{self, Setup};
use tenure_torture::worker::VARIABLE;

/// Not a test but the worker: the harness starts this program again with this one name.
#[test]
fn worker_process() {
    if std::env::var_os(VARIABLE).is_some() {
        tenure_torture::worker::main().unwrap();
    }
}

/// A run to come.
pub(crate) struct Run {
    setup: Setup,
    dir: tempfile::TempDir,
    /// A name for what is printed.
    name: &'static str,
}

/// A run that is over.
pub(crate) struct Done {
    report: Report,
    /// With the events and the page.
    _dir: tempfile::TempDir,
}

impl std::ops::Deref for Done {
    type Target = Report;

    fn deref(&self) -> &Report {
        &self.report
    }
}

impl Run {
    /// On `url`, which is served by `store`, whose wall clock is `clock`.
    pub(crate) fn on(
        name: &'static str,
        url: String,
        store: Option<Box<dyn Store>>,
        clock: Option<tenure_testkit::clock::Clock>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let around = Around::new(store, clock);
        let ttl = Duration::from_secs(1);
        let lasts = long();
        let (faults, _) = runner::possible(&url, Some(&around));
        let setup = Setup {
            url,
            // More than any of these needs; it is ended before.
            lasts: lasts.unwrap_or(Duration::from_secs(600)),
            workers: if lasts.is_some() { 6 } else { 4 },
            names: 1,
            seed: 5,
            ttl,
            hold: ttl.mul_f64(0.8),
            faults,
            out: dir.path().join("out"),
            program: Program {
                path: std::env::current_exe().unwrap(),
                arguments: ["--exact", "worker_process", "--nocapture"]
                    .map(Into::into)
                    .to_vec(),
                environment: around.environment(),
            },
            environment: Some(Arc::new(around)),
        };
        Self { setup, dir, name }
    }

    /// Another lease, and holds up to it.
    pub(crate) fn ttl(mut self, ttl: Duration) -> Self {
        (self.setup.ttl, self.setup.hold) = (ttl, ttl.mul_f64(0.8));
        self
    }

    /// Only these faults.
    pub(crate) fn only(mut self, faults: &[FaultKind]) -> Self {
        for kind in faults {
            assert!(self.setup.faults.contains(kind), "{kind} is not possible");
        }
        self.setup.faults = faults.to_vec();
        self
    }

    /// All but these.
    pub(crate) fn without(mut self, faults: &[FaultKind]) -> Self {
        self.setup.faults.retain(|kind| !faults.contains(kind));
        self
    }

    /// Until each fault was there; all that the table promises must hold, and tokens never go back.
    #[track_caller]
    pub(crate) fn keeps_its_promise(self) -> Done {
        let kinds = self.setup.faults.len();
        let report = self.go(move |made, found| made > kinds && found.not_enough.is_none());
        assert_eq!(report.verdict(), Verdict::Ok, "{}", text(&report));
        assert_eq!(report.findings.stale_accepted, []);
        assert_eq!(report.findings.tokens, []);
        report
    }

    /// Until two held at once, under this fault. Were it never to happen, the table would be wrong, or the harness blind.
    #[track_caller]
    pub(crate) fn lets_two_hold(mut self, kind: FaultKind) -> Done {
        self.setup.faults = vec![kind];
        // Held for long, so that the fault falls into a hold and not between two.
        self.setup.hold = self.setup.ttl;
        let report = self.go(|made, found| {
            let seen = !found.overlaps.is_empty() && found.not_enough.is_none();
            seen || made > 100
        });
        assert_eq!(report.verdict(), Verdict::Ok, "{}", text(&report));
        assert!(!report.findings.overlaps.is_empty(), "{}", text(&report));
        for overlap in &report.findings.overlaps {
            assert_eq!(overlap.documented, Some(kind));
        }
        report
    }

    /// Until `is_enough` says so of how many faults there were, and of what was found by then.
    fn go(self, is_enough: impl Fn(usize, &Findings) -> bool + Send + 'static) -> Done {
        let Self {
            setup,
            mut dir,
            name,
        } = self;
        block_on(until_it_grants(&setup.url));
        let stop = Arc::new(AtomicBool::new(false));
        let raised = stop.clone();
        let (events, kinds, ttl) = (
            runner::events_of(&setup.out),
            setup.faults.clone(),
            setup.ttl,
        );
        let nothing = tenure::guarantees::Guarantees::new(
            "any",
            tenure::guarantees::Order::Unordered(""),
            Vec::new(),
        );
        let mut made = 0;
        let on_fault = move |_: &str| {
            made += 1;
            if long().is_some() {
                return;
            }
            let history = History::of(&event::read(&events).unwrap());
            if is_enough(made, &check(&history, &nothing, ttl, &kinds)) {
                raised.store(true, Ordering::SeqCst);
            }
        };
        let run = tenure_torture::torture(setup, name.to_owned(), stop, on_fault);
        let report = block_on(run).unwrap();
        if long().is_some() {
            println!("{}", text(&report));
        }
        if report.verdict() != Verdict::Ok {
            // Somebody will want to look at it.
            dir.disable_cleanup(true);
        }
        Done { report, _dir: dir }
    }
}

/// Makes tables that are missing, and waits for a server that does not trust itself yet.
async fn until_it_grants(url: &str) {
    // Longer than any guard here, by more than the second to which servers tell how long they have been up.
    let ttl = Duration::from_secs(5);
    let client = tenure::connect(url).await.unwrap();
    client.init().await.unwrap();
    let attempt = async || client.lock("tenure-torture-0").ttl(ttl).try_acquire().await;
    let start = Instant::now();
    while let Err(error) = attempt().await.map(drop) {
        assert!(start.elapsed() < tenure_testkit::TEST_TIMEOUT, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    client.close().await;
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(work)
}

fn text(report: &Report) -> String {
    report.lines().join("\n")
}

/// How long each run is to last, if that was said.
fn long() -> Option<Duration> {
    let text = std::env::var("TENURE_TORTURE_FOR").ok()?;
    let (number, unit) = text.split_at(text.len() - 1);
    let number: u64 = number.parse().unwrap();
    Some(match unit {
        "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(number * 60),
        "h" => Duration::from_secs(number * 3600),
        _ => panic!("TENURE_TORTURE_FOR is {text}; write 90s, 30m or 8h"),
    })
}

#[test]
fn a_store_in_memory_is_refused() {
    let run = Run::on("memory", "memory:".into(), None, None);
    let run = tenure_torture::torture(run.setup, "memory:".into(), Arc::default(), |_: &str| {});
    let error = block_on(run).unwrap_err();
    assert!(error.to_string().contains("file:"), "{error}");
}
