//! Runs on real stores, each in a configuration of the guarantee table: what is promised must hold, and what is not
//! promised must be seen to fail.
//!
//! A run ends when each kind of fault has happened and enough locks were granted, not after a time.
//! `TENURE_TORTURE_FOR=30m` makes each run last that long instead, and prints its verdict.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod consensus;
mod databases;
mod environment;
mod files;
mod hazelcast;
mod redis;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use environment::{Store, TestEnvironment};
use tenure::guarantees::Guarantees;
use tenure::{Client, Error, Mode};
use tenure_torture::checker::{Findings, Verdict, check};
use tenure_torture::event;
use tenure_torture::history::History;
use tenure_torture::mode::{HoldMode, Modes};
use tenure_torture::plan::FaultKind;
use tenure_torture::processes::Program;
use tenure_torture::report::Report;
use tenure_torture::runner::{self, Setup};
use tenure_torture::worker::{VARIABLE, Workload};

/// The worker process, and not a test: the harness starts this program again with the name of this function.
#[test]
fn worker_process() {
    if std::env::var_os(VARIABLE).is_some() {
        tenure_torture::worker::main(connect).unwrap();
    }
}

/// With so many holds that passed from task to task, a run has tested that.
const ENOUGH_HAND_OVERS: usize = 20;

/// A client of the library, or of the store that is a crate of its own.
async fn connect(url: &str) -> Result<Client, Error> {
    match url.starts_with("hazelcast:") {
        true => tenure_hazelcast::connect(url).await,
        false => tenure::connect(url).await,
    }
}

/// A run that has not begun.
pub(crate) struct Run {
    setup: Setup,
    dir: tempfile::TempDir,
    /// The name of the run in the output.
    name: &'static str,
}

/// A run that is over.
pub(crate) struct Done {
    report: Report,
    /// The directory with the events and the page.
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
        let around = TestEnvironment::new(store, clock);
        let ttl = Duration::from_secs(1);
        let lasts = duration_of_long_runs();
        let (faults, _) = runner::possible(&url, Some(&around));
        let setup = Setup {
            url,
            // More than any of these runs needs; the test ends the run before.
            lasts: lasts.unwrap_or(Duration::from_secs(600)),
            workload: Workload {
                workers: if lasts.is_some() { 6 } else { 4 },
                tasks: 1,
                names: 1,
                ttl,
                hold: ttl.mul_f64(0.8),
                only_tries: false,
                modes: Modes::ALL,
            },
            seed: 5,
            faults,
            settles_when_stopped: true,
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

    /// Sets the lease, and the longest hold in proportion to it.
    pub(crate) fn ttl(mut self, ttl: Duration) -> Self {
        let workload = &mut self.setup.workload;
        (workload.ttl, workload.hold) = (ttl, ttl.mul_f64(0.8));
        self
    }

    /// Has several tasks in each process, which pass exclusive holds on.
    pub(crate) fn passing_on(mut self) -> Self {
        self.setup.workload.tasks = 8;
        self.modes(Modes::EXCLUSIVE)
    }

    /// Mixes only these modes.
    pub(crate) fn modes(mut self, modes: Modes) -> Self {
        self.setup.workload.modes = modes;
        self
    }

    /// Allows only these faults.
    pub(crate) fn only(mut self, faults: &[FaultKind]) -> Self {
        for kind in faults {
            assert!(self.setup.faults.contains(kind), "{kind} is not possible");
        }
        self.setup.faults = faults.to_vec();
        self
    }

    /// Leaves out these faults.
    pub(crate) fn without(mut self, faults: &[FaultKind]) -> Self {
        self.setup.faults.retain(|kind| !faults.contains(kind));
        self
    }

    /// Runs until each kind of fault has happened, the name was held in each mode of the store, holds were detached and
    /// attached where the store can, and holds passed on where there are several tasks. All that the table promises must hold,
    /// and tokens never go back.
    #[track_caller]
    pub(crate) fn keeps_its_promise(self) -> Done {
        let kinds = self.setup.faults.len();
        let has_passed_on = match self.setup.workload.tasks {
            1 => |_: &History| true,
            _ => |run: &History| run.passed_on() > ENOUGH_HAND_OVERS,
        };
        let report = self.go(move |run| {
            let each_mode = run.modes.iter().all(|mode| run.counts(mode) >= 2);
            let attached = !run.detaches || run.history.attached() >= 2;
            let is_enough = run.found.not_enough.is_none() && has_passed_on(run.history);
            run.faults > kinds && is_enough && each_mode && attached
        });
        assert_eq!(report.verdict(), Verdict::Ok, "{}", text(&report));
        assert_eq!(report.findings.writes.late_accepted, []);
        assert_eq!(report.findings.tokens, []);
        assert!(has_passed_on(&report.history), "{}", text(&report));
        report
    }

    /// Runs until two workers hold at once under this fault. If that never happens, the table is wrong, or the harness
    /// does not see violations.
    #[track_caller]
    pub(crate) fn lets_two_hold(mut self, kind: FaultKind) -> Done {
        self.setup.faults = vec![kind];
        // Holds are long, so that the fault falls into a hold and not between two holds. And some worker asks before the
        // holder can learn of the fault by its next renewal: those that wait in a queue may ask later.
        self.setup.workload.hold = self.setup.workload.ttl;
        self.setup.workload.only_tries = true;
        self.setup.workload.modes = Modes::EXCLUSIVE;
        let report = self.go(|run| {
            let seen = !run.found.overlaps.is_empty() && run.found.not_enough.is_none();
            seen || run.faults > 100
        });
        assert_eq!(report.verdict(), Verdict::Ok, "{}", text(&report));
        assert!(!report.findings.overlaps.is_empty(), "{}", text(&report));
        for overlap in &report.findings.overlaps {
            assert_eq!(overlap.documented, Some(kind));
        }
        report
    }

    /// Runs until `is_enough` is true of the run so far.
    fn go(self, is_enough: impl Fn(&SoFar<'_>) -> bool + Send + 'static) -> Done {
        let Self {
            setup,
            mut dir,
            name,
        } = self;
        let had = block_on(until_it_grants(&setup.url));
        let modes = setup.workload.modes.had_by(&had);
        let detaches = modes.contains(HoldMode::Exclusive) && had.detaches(Mode::Exclusive);
        let stop = Arc::new(AtomicBool::new(false));
        let raised = stop.clone();
        let (events, kinds, ttl) = (
            runner::events_of(&setup.out),
            setup.faults.clone(),
            setup.workload.ttl,
        );
        let nothing = tenure::guarantees::Guarantees::new(
            "any",
            tenure::guarantees::Order::Unordered(""),
            Vec::new(),
        );
        let mut made = 0;
        let on_fault = move |_: &str| {
            made += 1;
            if duration_of_long_runs().is_some() {
                return;
            }
            let history = History::of(&event::read(&events).unwrap());
            let run = SoFar {
                faults: made,
                modes,
                detaches,
                found: &check(&history, &nothing, ttl, &kinds),
                history: &history,
            };
            if is_enough(&run) {
                raised.store(true, Ordering::SeqCst);
            }
        };
        let run = tenure_torture::torture(setup, name.to_owned(), stop, on_fault, connect);
        let report = block_on(run).unwrap();
        if duration_of_long_runs().is_some() {
            println!("{}", text(&report));
        }
        if report.verdict() != Verdict::Ok {
            // The directory of a failed run is kept for inspection.
            dir.disable_cleanup(true);
        }
        Done { report, _dir: dir }
    }
}

/// A run that goes on.
struct SoFar<'a> {
    /// The number of faults.
    faults: usize,
    /// The modes of the store.
    modes: Modes,
    /// Whether exclusive holds are detached, and other processes are attached to them.
    detaches: bool,
    found: &'a Findings,
    history: &'a History,
}

impl SoFar<'_> {
    /// How often the name was held in that mode.
    fn counts(&self, mode: HoldMode) -> usize {
        let counts = self.history.mode_counts();
        let count = counts.iter().find(|it| it.0 == mode);
        count.map_or(0, |it| it.1)
    }
}

/// Creates missing tables, and waits until the server grants locks after its start. Returns what the store promises.
async fn until_it_grants(url: &str) -> Guarantees {
    // Longer than any restart guard here, by more than one second: servers report their uptime in whole seconds.
    let ttl = Duration::from_secs(5);
    let attempt = async || {
        let client = connect(url).await?;
        client.init().await.unwrap();
        let name = "tenure-torture";
        let granted = client.lock(name).ttl(ttl).try_acquire().await;
        client.close().await;
        granted.map(|_| client.guarantees().clone())
    };
    let start = Instant::now();
    loop {
        match attempt().await {
            Ok(guarantees) => return guarantees,
            Err(error) => assert!(start.elapsed() < tenure_testkit::TEST_TIMEOUT, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(work)
}

fn text(report: &Report) -> String {
    report.lines().join("\n")
}

/// The duration of each run, if the environment sets it.
fn duration_of_long_runs() -> Option<Duration> {
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
    let tell = |_: &str| {};
    let run = tenure_torture::torture(run.setup, "memory:".into(), Arc::default(), tell, connect);
    let error = block_on(run).unwrap_err();
    assert!(format!("{error:#}").contains("file:"), "{error}");
}
