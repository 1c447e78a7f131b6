//! `tenure torture`: tries to break the locks of this store. The crate `tenure-torture` does the work.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use tenure::{Error, ErrorKind, OwnerId};
use tenure_torture::checker::Verdict;
use tenure_torture::mode::Modes;
use tenure_torture::plan::FaultKind;
use tenure_torture::processes::Program;
use tenure_torture::runner::{self, Setup};
use tenure_torture::worker::Workload;

use crate::args::{self, Common};
use crate::console::Console;
use crate::exit::Exit;
use crate::results::print_results;
use crate::signals::Signals;
use crate::store;

/// First argument of a worker's process. Users do not type it.
pub(crate) const ARGUMENT: &str = "__torture";

/// With a shorter lease, a run tests how busy this machine is, and not the lock.
const MIN_TTL: Duration = Duration::from_millis(200);
/// Far less than what a clock in nanoseconds can represent.
const MAX_DURATION: Duration = Duration::from_secs(30 * 24 * 3600);

/// Runs as a worker's process. It prints only its own errors, which are redirected to a file.
pub(crate) fn worker() -> ExitCode {
    match tenure_torture::worker::main(store::connect_to) {
        Ok(()) => Exit::Done.into(),
        Err(why) => {
            eprintln!("tenure: a worker stopped working: {why}");
            Exit::Failed.into()
        }
    }
}

/// Runs the torture and prints its verdict.
pub(crate) async fn torture(common: &Common, args: &args::Torture, console: &Console) -> Exit {
    print_results(console, async {
        let setup = setup(common, args)?;
        let shown = tenure::redacted_url(store::url(common));
        console.notice(format!("seed {}, store {shown}", setup.seed));
        console.event(
            "torture",
            json!({
                "seed": setup.seed, "store": shown, "tasks": setup.workload.tasks,
            }),
        );
        if setup.workload.tasks > 1 {
            let Workload { workers, tasks, .. } = setup.workload;
            console.notice(format!("{workers} processes, each with {tasks} tasks"));
        }
        let (_, left_out) = runner::possible(&setup.url, None);
        if let Some(what) = left_out.filter(|_| args.faults.is_empty()) {
            console.notice(format!("left out: {what}"));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (faults, mut injected) = tokio::sync::mpsc::unbounded_channel();
        let tell = move |fault: &str| {
            // The receiver is gone after the end of the run.
            let _ = faults.send(fault.to_owned());
        };
        let run = tenure_torture::torture(setup, shown, stop.clone(), tell, store::connect_to);
        let mut run = std::pin::pin!(run);
        let mut signals = Signals::listen()
            .map_err(|error| Error::new(ErrorKind::Store, format!("no signals: {error}")))?;
        let report = loop {
            tokio::select! {
                report = &mut run => break report?,
                Some(fault) = injected.recv() => {
                    console.detail(&fault);
                    console.event("fault", json!({ "fault": fault }));
                }
                _ = signals.next() => {
                    console.notice("interrupted: ending the run early");
                    stop.store(true, Ordering::SeqCst);
                }
            }
        };
        let exit = match report.verdict() {
            Verdict::Ok => Exit::Done,
            Verdict::Violation => Exit::No,
            Verdict::NotEnough => Exit::Failed,
        };
        Ok(match console.json {
            true => (vec![report.json().to_string()], exit),
            false => (report.lines().to_vec(), exit),
        })
    })
    .await
}

/// Checks the arguments before the store is changed.
fn setup(common: &Common, args: &args::Torture) -> Result<Setup, Error> {
    let usage = |what: String| Err(Error::new(ErrorKind::Invalid, what));
    let url = store::url(common).to_owned();
    tenure_torture::check(&url)?;
    if args.ttl < MIN_TTL {
        return usage(format!(
            "--ttl {:?} is too short: the run would test how busy this machine is; the shortest is {MIN_TTL:?}",
            args.ttl
        ));
    }
    if args.lasts < args.ttl * 3 || args.lasts > MAX_DURATION {
        return usage(format!(
            "--for {:?} is out of range: it must be at least three times --ttl and at most 30 days",
            args.lasts
        ));
    }
    let faults = faults(&url, args)?;
    let seed = args.seed.unwrap_or_else(random_seed);
    let out = args.out.clone().unwrap_or_else(|| {
        // A seed may be run twice, so the name has a random part.
        let suffix = &OwnerId::random().to_hex()[..8];
        std::env::temp_dir().join(format!("tenure-torture-{seed}-{suffix}"))
    });
    Ok(Setup {
        url,
        lasts: args.lasts,
        workload: Workload {
            workers: args.workers.into(),
            tasks: args.tasks.into(),
            names: args.names.into(),
            ttl: args.ttl,
            hold: args.ttl.mul_f64(0.8),
            only_tries: false,
            modes: match args.modes.is_empty() {
                true => Modes::ALL,
                false => Modes::of(&args.modes),
            },
        },
        seed,
        faults,
        settles_when_stopped: false,
        out,
        program: Program {
            path: crate::platform::current_program().unwrap_or_else(|_| "tenure".into()),
            arguments: vec![ARGUMENT.into()],
            environment: Vec::new(),
        },
        environment: None,
    })
}

/// The faults that were asked for, or all that are possible.
fn faults(url: &str, args: &args::Torture) -> Result<Vec<FaultKind>, Error> {
    let (possible, left_out) = runner::possible(url, None);
    let mut faults = args.faults.clone();
    faults.sort_unstable();
    faults.dedup();
    if let Some(kind) = faults.iter().find(|kind| !possible.contains(kind)) {
        let why = match kind.hits_all_workers() {
            true => {
                "`tenure torture` damages no servers and no clocks; only the tests of tenure do that, on servers that they start"
            }
            false => left_out.as_deref().unwrap_or("this store has no network"),
        };
        let what = format!("--faults {kind} is not possible here: {why}");
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    if faults.is_empty() {
        faults = possible;
    }
    Ok(faults)
}

/// A seed that is short enough to be typed again.
fn random_seed() -> u64 {
    u64::from_str_radix(&OwnerId::random().to_hex()[..8], 16).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use tenure_torture::mode::HoldMode;

    use super::*;

    #[test]
    fn the_help_names_every_fault_and_mode_that_can_be_asked_for() {
        use clap::CommandFactory as _;
        let mut command = args::Cli::command();
        let torture = command.find_subcommand_mut("torture");
        let help = torture.map(|it| it.render_long_help().to_string());
        let help = help.unwrap_or_default();
        for kind in FaultKind::ALL
            .iter()
            .filter(|kind| !kind.hits_all_workers())
        {
            assert!(help.contains(kind.as_str()), "{kind}");
        }
        for mode in HoldMode::ALL {
            assert!(help.contains(mode.as_str()), "{mode}");
        }
    }
}
