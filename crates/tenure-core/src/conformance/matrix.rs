//! Runs every behaviour against a store. A behaviour that is not shown needs a reason that the caller expects.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::rt::lock;
use crate::store::BoxFuture;

use super::behaviour::Behaviour;
use super::behaviours::BEHAVIOURS;
use super::case::{Case, SOON};
use super::failure::{Failure, Verdict};
use super::harness::Harness;
use super::idle::wait_for_idle_machine;

/// The time limit of one behaviour. Every wait inside a behaviour has a shorter limit.
const LIMIT: Duration = Duration::from_secs(300);

/// How to open a harness.
pub type Open = fn() -> BoxFuture<Result<Arc<dyn Harness>, Failure>>;

/// A store and how to open it.
pub struct Setup {
    /// The name in the table.
    pub name: &'static str,
    /// Opens a harness. The suite calls it once for each behaviour, in the runtime of that behaviour.
    /// Start a server only once, in a static that all harnesses share.
    pub open: Open,
    /// Whether each behaviour gets a runtime of one thread. Virtual time needs that.
    pub single_thread: bool,
    /// How many behaviours may run at a time.
    pub together: usize,
    /// The expected skips, by their reason. Any other skip is a failure, and so is a behaviour that is listed here
    /// and was not skipped. A reason without a list stands for every behaviour that is skipped for it.
    pub skips: &'static [(&'static str, &'static [&'static str])],
}

/// The result of one behaviour on one store.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The behaviour was shown, and nothing was left behind.
    Passed,
    /// The behaviour does not apply; the reason.
    Skipped(&'static str),
    /// The behaviour was not shown; what happened instead.
    Failed(String),
}

/// One column of the matrix.
pub struct Report {
    setup: &'static str,
    cells: Vec<(&'static Behaviour, Outcome, Duration)>,
    problems: Vec<String>,
}

/// Runs all behaviours. Call this function outside of async code, because it makes its own runtimes.
pub fn run(setup: &Setup) -> Report {
    run_only(setup, |_| true)
}

/// Runs only the behaviours whose name `pick` accepts. The report counts each of the others as a problem.
pub fn run_only(setup: &Setup, pick: impl Fn(&str) -> bool) -> Report {
    let picked = BEHAVIOURS.iter().filter(|behaviour| pick(behaviour.name));
    let (alone, together): (VecDeque<_>, VecDeque<_>) = picked.partition(|b| b.is_alone());
    let results = Mutex::new(BTreeMap::new());
    for (queue, workers) in [(together, setup.together.max(1)), (alone, 1)] {
        let queue = Mutex::new(queue);
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    while let Some(behaviour) = { lock(&queue).pop_front() } {
                        wait_for_idle_machine();
                        let start = Instant::now();
                        let outcome = run_cell(setup, behaviour);
                        lock(&results).insert(behaviour.name, (outcome, start.elapsed()));
                    }
                });
            }
        });
    }
    let mut results = results.into_inner().unwrap_or_default();
    let cells = BEHAVIOURS
        .iter()
        .filter_map(|behaviour| {
            let (outcome, took) = results.remove(behaviour.name)?;
            Some((behaviour, outcome, took))
        })
        .collect();
    Report::new(setup, cells)
}

/// Runs a behaviour in its own thread, so that a behaviour that blocks its thread is a failure too.
fn run_cell(setup: &Setup, behaviour: &'static Behaviour) -> Outcome {
    let (sender, receiver) = mpsc::channel();
    let (open, single_thread) = (setup.open, setup.single_thread);
    let spawned = std::thread::Builder::new()
        .name(behaviour.name.into())
        .spawn(move || {
            let mut builder = if single_thread {
                tokio::runtime::Builder::new_current_thread()
            } else {
                tokio::runtime::Builder::new_multi_thread()
            };
            let runtime = builder.worker_threads(2).enable_all().build();
            let outcome = match runtime {
                Ok(runtime) => {
                    let outcome = runtime.block_on(async {
                        let cell = tokio::time::timeout(LIMIT, cell(open, behaviour));
                        cell.await
                            .unwrap_or_else(|_| Outcome::Failed("hangs".into()))
                    });
                    runtime.shutdown_background();
                    outcome
                }
                Err(err) => Outcome::Failed(format!("no runtime: {err}")),
            };
            // The receiver is gone if the time limit is over.
            let _ = sender.send(outcome);
        });
    if let Err(err) = spawned {
        return Outcome::Failed(format!("no thread: {err}"));
    }
    receiver
        .recv_timeout(LIMIT + SOON)
        .unwrap_or_else(|_| Outcome::Failed("hangs and blocks its thread, or panicked".into()))
}

async fn cell(open: Open, behaviour: &Behaviour) -> Outcome {
    let harness = match open().await {
        Ok(harness) => harness,
        Err(err) => return Outcome::Failed(format!("the harness could not be opened: {err}")),
    };
    let needs = match harness.cannot_show(behaviour.name) {
        Some(reason) => Err(reason),
        None => (behaviour.needs)(&harness.guarantees(), &*harness),
    };
    let outcome = match needs {
        Err(reason) => Outcome::Skipped(reason),
        Ok(()) => match shown(harness.clone(), behaviour).await {
            Ok(()) => Outcome::Passed,
            Err(failure) => Outcome::Failed(failure.to_string()),
        },
    };
    match (harness.tear_down().await, outcome) {
        (Err(err), Outcome::Passed) => Outcome::Failed(format!("tear-down: {err}")),
        (_, outcome) => outcome,
    }
}

async fn shown(harness: Arc<dyn Harness>, behaviour: &Behaviour) -> Verdict {
    let case = Case::new(harness);
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    // Its own task catches a panic, and drops everything that the behaviour had.
    tokio::spawn((behaviour.run)(case.clone())).await??;
    for name in case.names() {
        case.until_idle(&name).await?;
    }
    let start = Instant::now();
    while metrics.num_alive_tasks() > before {
        if start.elapsed() > SOON {
            let left = metrics.num_alive_tasks() - before;
            return Err(Failure::new(format_args!("{left} tasks are left behind")));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

impl Report {
    fn new(setup: &Setup, cells: Vec<(&'static Behaviour, Outcome, Duration)>) -> Self {
        let mut problems = Vec::new();
        let explained = |name: &str| {
            let mut skips = setup.skips.iter();
            skips
                .find(|(_, names)| names.contains(&name))
                .map(|(reason, _)| *reason)
        };
        let is_expected = |reason: &str| setup.skips.contains(&(reason, &[]));
        for behaviour in BEHAVIOURS {
            let cell = cells.iter().find(|(run, ..)| run.name == behaviour.name);
            let name = behaviour.name;
            match (cell.map(|(_, outcome, _)| outcome), explained(name)) {
                (Some(Outcome::Skipped(reason)), None) if is_expected(reason) => {}
                (None, _) => problems.push(format!("{name}: neither run nor skipped")),
                (Some(Outcome::Failed(text)), _) => problems.push(format!("{name}: {text}")),
                (Some(Outcome::Skipped(reason)), None) => {
                    problems.push(format!("{name}: unexpected skip: {reason}"));
                }
                (Some(Outcome::Skipped(reason)), Some(expected)) if *reason != expected => {
                    problems.push(format!(
                        "{name}: skipped because \"{reason}\", expected was \"{expected}\""
                    ));
                }
                (Some(Outcome::Passed), Some(_)) => {
                    problems.push(format!("{name}: listed as skipped, but it runs"));
                }
                (Some(Outcome::Skipped(_)), Some(_)) | (Some(Outcome::Passed), None) => {}
            }
        }
        for name in setup.skips.iter().flat_map(|(_, names)| *names) {
            if !BEHAVIOURS.iter().any(|behaviour| behaviour.name == *name) {
                problems.push(format!("{name}: listed as skipped, but there is none"));
            }
        }
        Self {
            setup: setup.name,
            cells,
            problems,
        }
    }

    /// What is wrong, one line each, beginning with the name of the behaviour.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Every cell.
    pub fn cells(&self) -> impl Iterator<Item = (&'static Behaviour, &Outcome)> {
        self.cells
            .iter()
            .map(|(behaviour, outcome, _)| (*behaviour, outcome))
    }

    /// How many behaviours were shown, which ones were skipped for which reason, and what is wrong.
    pub fn summary(&self) -> String {
        let mut skipped: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (behaviour, outcome) in self.cells() {
            if let Outcome::Skipped(reason) = outcome {
                skipped.entry(reason).or_default().push(behaviour.name);
            }
        }
        let passed = |outcome: &Outcome| matches!(outcome, Outcome::Passed);
        let passed = self.cells().filter(|(_, outcome)| passed(outcome)).count();
        let mut text = format!(
            "conformance of {}: {passed} of {} behaviours shown\n",
            self.setup,
            BEHAVIOURS.len()
        );
        for (reason, names) in skipped {
            text += &format!("  skipped, {reason}: {}\n", names.join(", "));
        }
        for problem in &self.problems {
            text += &format!("  FAILED, {problem}\n");
        }
        text
    }

    /// Prints the summary past the capture of a test's output, so that skips are always visible, and problems are
    /// not hidden behind a table of two hundred lines.
    /// The whole table is printed in the ordinary way.
    ///
    /// # Panics
    /// When there are [problems](Report::problems); the message names the cells.
    pub fn assert(&self) {
        use std::io::Write as _;
        // An error is ignored: the process may have no standard output.
        let _ = std::io::stdout().write_all(self.summary().as_bytes());
        println!("{self}");
        assert!(
            self.problems.is_empty(),
            "{}: {} cells of the matrix are not as they should be:\n  {}\n",
            self.setup,
            self.problems.len(),
            self.problems.join("\n  ")
        );
    }
}

/// The table: behaviour, rule, outcome.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut passed, mut skipped, mut failed) = (0, 0, 0);
        for (behaviour, outcome, took) in &self.cells {
            let millis = took.as_millis();
            let (name, rule) = (behaviour.name, behaviour.rule);
            write!(f, "{:<16} {name:<64} rule {rule:<6}", self.setup)?;
            match outcome {
                Outcome::Passed => {
                    passed += 1;
                    writeln!(f, "ok {millis:>6} ms")?;
                }
                Outcome::Skipped(reason) => {
                    skipped += 1;
                    writeln!(f, "skipped: {reason}")?;
                }
                Outcome::Failed(text) => {
                    failed += 1;
                    writeln!(f, "FAILED after {millis} ms: {text}")?;
                }
            }
        }
        write!(
            f,
            "{}: {passed} passed, {skipped} skipped, {failed} failed, of {}",
            self.setup,
            BEHAVIOURS.len()
        )
    }
}
